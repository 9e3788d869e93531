// SPDX-License-Identifier: Apache-2.0
// The host as a device: its memory is the process's, and its work is finished when a call returns.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "portcall/device.h"

namespace portcall {
namespace {

constexpr size_t kLargeMemory = 4 << 20;

std::string CpuModel() {
  char text[4096];  // the first processor's lines
  int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
  ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text);
  if (fd >= 0) close(fd);
  std::string_view info(text, size < 0 ? 0 : static_cast<size_t>(size));
  size_t line = info.find("model name"), start = info.find(": ", line);
  if (line == info.npos || start == info.npos) return "cpu";
  return std::string(info.substr(start + 2, info.find('\n', start) - start - 2));
}

int64_t UsableCores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
}

int GetAttr(void*, DLDevice device, PortcallDeviceAttr attr, TVMFFIAny* out) {
  return Guard([&] {
    Any value;
    int64_t page = sysconf(_SC_PAGESIZE);
    switch (attr) {
      case kPortcallAttrExist:
        value = device.device_id == 0;
        break;
      case kPortcallAttrDeviceName:
        value = CpuModel();
        break;
      case kPortcallAttrMultiProcessorCount:
        value = UsableCores();
        break;
#ifdef _SC_LEVEL2_CACHE_SIZE  // glibc alone tells
      case kPortcallAttrL2CacheSizeBytes:
        value = static_cast<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE));
        break;
#endif
      case kPortcallAttrTotalGlobalMemory:
        value = sysconf(_SC_PHYS_PAGES) * page;
        break;
      case kPortcallAttrAvailableGlobalMemory:
        value = sysconf(_SC_AVPHYS_PAGES) * page;
        break;
      default:
        break;  // None: the attribute has no meaning here
    }
    *out = value.release();
  });
}

// Large memory in large pages, where the system has them: filling it for the first time then costs a fraction.
void UseLargePages(void* data, size_t nbytes) {
  if (nbytes < kLargeMemory) return;
  auto address = reinterpret_cast<uintptr_t>(data), page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uintptr_t skipped = -address & (page - 1);
  madvise(static_cast<char*>(data) + skipped, nbytes - skipped, MADV_HUGEPAGE);
}

int Alloc(void*, DLDevice device, size_t nbytes, size_t alignment, DLDataType, void** out) {
  return Guard([&] {
    PORTCALL_CHECK(device.device_id == 0, DeviceError) << "there is one host, cpu:0; got " << ToString(device);
    if (posix_memalign(out, std::max<size_t>(alignment, sizeof(void*)), nbytes) != 0) {
      PORTCALL_THROW(MemoryError) << "out of memory: " << nbytes << " bytes on " << ToString(device);
    }
    UseLargePages(*out, nbytes);
  });
}

int Free(void*, DLDevice, void* ptr) {
  std::free(ptr);
  return 0;
}

int Copy(void*, const void* from, size_t from_offset, DLDevice, void* to, size_t to_offset, DLDevice, size_t nbytes,
         void*) {
  std::memmove(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset, nbytes);
  return 0;
}

const DeviceRegistration registration(kDLCPU, [] {
  PortcallDeviceAPI api{};
  api.struct_size = sizeof(api);
  api.get_attr = GetAttr;
  api.alloc = Alloc;
  api.free = Free;
  api.copy = Copy;
  api.flags = kPortcallDevicePlainAddresses | kPortcallDeviceHostReadable;
  return api;
}());

}  // namespace
}  // namespace portcall
