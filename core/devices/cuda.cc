// SPDX-License-Identifier: Apache-2.0
// CUDA as a plug-in: devices of kind "cuda", and host memory of kind "cuda_host". Modules: cuda_module.cc.
//
//  * Only the driver is used, libcuda.so.1. It is opened, and a GPU's context is made, when a device is used: nothing of CUDA
//    survives a fork.
//  * `data` of a tensor is the device's address. A stream is a CUstream; null is the default stream.
//  * A copy from or to the host, or another GPU, has ended when it returns: memory of the host may go at once.
#include "portcall/device.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "devices/cuda_device.h"
#include "portcall/value.h"
#include "portcall/visible.h"

namespace portcall::cuda {
namespace {

using Gpus = std::vector<std::unique_ptr<Gpu>>;

const Gpus& AllGpus() {
  static const Gpus none;
  if (!Cu().missing.empty()) return none;
  static const auto* gpus = [] {
    int count = 0;
    PORTCALL_CU(cuDeviceGetCount, &count);
    auto found = std::make_unique<Gpus>();
    for (const size_t number : VisibleDevices("cuda", static_cast<size_t>(count))) {
      Ordinal ordinal = 0;
      PORTCALL_CU(cuDeviceGet, &ordinal, static_cast<int>(number));
      found->push_back(std::make_unique<Gpu>(ordinal));
    }
    return found.release();
  }();
  return *gpus;
}

thread_local int32_t current_gpu = 0;

Address AddressOf(const void* data) { return reinterpret_cast<Address>(data); }
cuda::Stream StreamOf(void* stream) { return static_cast<cuda::Stream>(stream); }

// ---- Attributes -----------------------------------------------------------------------------------------------------

std::string NameOf(const Gpu& gpu) {
  char name[256] = {};
  PORTCALL_CU(cuDeviceGetName, name, sizeof(name) - 1, gpu.ordinal());
  return name;
}

std::string DriverVersion() {
  int version = 0;  // 12040 is 12.4
  PORTCALL_CU(cuDriverGetVersion, &version);
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int64_t TotalMemory(const Gpu& gpu) {
  size_t total = 0;
  PORTCALL_CU(cuDeviceTotalMem_v2, &total, gpu.ordinal());
  return static_cast<int64_t>(total);
}

int64_t FreeMemory(int32_t index) {
  size_t free = 0, total = 0;
  Scope scope(index);
  PORTCALL_CU(cuMemGetInfo_v2, &free, &total);
  return static_cast<int64_t>(free);
}

Any Attribute(int32_t index, PortcallDeviceAttr attr) {
  const Gpu& gpu = GpuAt(index);
  static constexpr std::pair<PortcallDeviceAttr, int> kNumbers[] = {
      {kPortcallAttrMaxThreadsPerBlock, kMaxThreadsPerBlock},
      {kPortcallAttrWarpSize, kWarpSize},
      {kPortcallAttrMaxSharedMemoryPerBlock, kMaxSharedPerBlock},
      {kPortcallAttrMaxRegistersPerBlock, kMaxRegisters},
      {kPortcallAttrMaxClockRate, kClockRate},
      {kPortcallAttrMultiProcessorCount, kMultiprocessors},
      {kPortcallAttrL2CacheSizeBytes, kL2Bytes}};
  for (auto [ours, driver] : kNumbers) {
    if (attr == ours) return int64_t{gpu.Attribute(driver)};
  }
  switch (attr) {
    case kPortcallAttrComputeVersion:
      return gpu.Capability(".");
    case kPortcallAttrDeviceName:
      return NameOf(gpu);
    case kPortcallAttrMaxThreadDimensions:
      return "[" + std::to_string(gpu.Attribute(kMaxBlockX)) + ", " + std::to_string(gpu.Attribute(kMaxBlockX + 1)) +
             ", " + std::to_string(gpu.Attribute(kMaxBlockX + 2)) + "]";
    case kPortcallAttrApiVersion:
    case kPortcallAttrDriverVersion:
      return DriverVersion();
    case kPortcallAttrTotalGlobalMemory:
      return TotalMemory(gpu);
    case kPortcallAttrAvailableGlobalMemory:
      return FreeMemory(index);
    default:
      return nullptr;  // CUDA has no word for it
  }
}

int GetAttr(void*, DLDevice device, PortcallDeviceAttr attr, TVMFFIAny* out) {
  return Guard([&] {
    const int32_t index = device.device_id;
    const bool exist = index >= 0 && static_cast<size_t>(index) < GpuCount();
    Any value = attr == kPortcallAttrExist ? Any(exist) : Attribute(index, attr);
    *out = value.release();
  });
}

int SetDevice(void*, DLDevice device) {
  return Guard([&] {
    GpuAt(device.device_id);
    current_gpu = device.device_id;
  });
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

int Alloc(void*, DLDevice device, size_t nbytes, size_t, DLDataType, void** out) {
  return Guard([&] {
    Scope scope(device.device_id);
    Address address = 0;
    PORTCALL_CU(cuMemAlloc_v2, &address, std::max<size_t>(nbytes, 1));  // aligned to 256 bytes
    *out = reinterpret_cast<void*>(address);
  });
}

// At the end of a process the driver may be gone before the last tensor is.
void CheckFreed(Status status, const char* function) {
  if (status != kDeinitialized) CheckStatus(status, function);
}

int Free(void*, DLDevice device, void* data) {
  return Guard([&] {
    Scope scope(device.device_id, Scope::kFree);
    CheckFreed(Cu().cuMemFree_v2(AddressOf(data)), "cuMemFree_v2");
  });
}

int AllocHost(void*, DLDevice device, size_t nbytes, size_t, DLDataType, void** out) {
  return Guard([&] {
    Scope scope(device.device_id);
    PORTCALL_CU(cuMemAllocHost_v2, out, std::max<size_t>(nbytes, 1));  // whole pages
  });
}

int FreeHost(void*, DLDevice device, void* data) {
  return Guard([&] {
    Scope scope(device.device_id, Scope::kFree);
    CheckFreed(Cu().cuMemFreeHost(data), "cuMemFreeHost");
  });
}

// The other GPU of a copy has its own order.
void SyncCurrent(int32_t index) {
  Scope scope(index);
  PORTCALL_CU(cuStreamSynchronize, StreamOf(TVMFFIEnvGetStream(kDLCUDA, index)));
}

bool IsOurs(DLDevice device) { return device.device_type == kDLCUDA; }

int Copy(void*, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
         DLDevice to_device, size_t nbytes, void* opaque) {
  return Guard([&] {
    if (nbytes == 0) return;
    const char* source = static_cast<const char*>(from) + from_offset;
    char* target = static_cast<char*>(to) + to_offset;
    const bool from_ours = IsOurs(from_device), to_ours = IsOurs(to_device);
    cuda::Stream stream = StreamOf(opaque);
    Scope scope(from_ours ? from_device.device_id : to_device.device_id);
    const bool two_gpus = from_ours && to_ours && from_device.device_id != to_device.device_id;
    if (two_gpus) {
      SyncCurrent(to_device.device_id);
      PORTCALL_CU(cuMemcpyPeerAsync, AddressOf(target), GpuAt(to_device.device_id).context(), AddressOf(source),
                  GpuAt(from_device.device_id).context(), nbytes, stream);
    } else if (from_ours && to_ours) {
      PORTCALL_CU(cuMemcpyDtoDAsync_v2, AddressOf(target), AddressOf(source), nbytes, stream);
    } else if (to_ours) {
      PORTCALL_CU(cuMemcpyHtoDAsync_v2, AddressOf(target), source, nbytes, stream);
    } else {
      PORTCALL_CU(cuMemcpyDtoHAsync_v2, target, AddressOf(source), nbytes, stream);
    }
    if (!from_ours || !to_ours || two_gpus) PORTCALL_CU(cuStreamSynchronize, stream);
  });
}

int CopyHost(void*, const void* from, size_t from_offset, DLDevice, void* to, size_t to_offset, DLDevice, size_t nbytes,
             void*) {
  std::copy_n(static_cast<const char*>(from) + from_offset, nbytes, static_cast<char*>(to) + to_offset);
  return 0;
}

// ---- Streams and timing ---------------------------------------------------------------------------------------------

class OwnedEvent {
 public:
  explicit OwnedEvent(Number flags) { PORTCALL_CU(cuEventCreate, &event_, flags); }
  ~OwnedEvent() { Cu().cuEventDestroy_v2(event_); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  Event get() const { return event_; }

 private:
  Event event_ = nullptr;
};

int CreateStream(void*, DLDevice device, void** out) {
  return Guard([&] {
    Scope scope(device.device_id);
    cuda::Stream stream = nullptr;
    PORTCALL_CU(cuStreamCreate, &stream, kNonBlocking);  // work of the default stream does not wait for it
    *out = stream;
  });
}

int FreeStream(void*, DLDevice device, void* stream) {
  return Guard([&] {
    Scope scope(device.device_id, Scope::kFree);
    CheckFreed(Cu().cuStreamDestroy_v2(StreamOf(stream)), "cuStreamDestroy_v2");
  });
}

int SyncStream(void*, DLDevice device, void* stream) {
  return Guard([&] {
    Scope scope(device.device_id);
    PORTCALL_CU(cuStreamSynchronize, StreamOf(stream));
  });
}

int SyncStreams(void*, DLDevice device, void* from, void* to) {
  return Guard([&] {
    Scope scope(device.device_id);
    OwnedEvent done(kNoTiming);
    PORTCALL_CU(cuEventRecord, done.get(), StreamOf(from));
    PORTCALL_CU(cuStreamWaitEvent, StreamOf(to), done.get(), 0);
  });
}

int64_t NanosecondsBetween(Event from, Event to) {
  PORTCALL_CU(cuEventSynchronize, from);
  PORTCALL_CU(cuEventSynchronize, to);
  float milliseconds = 0;
  PORTCALL_CU(cuEventElapsedTime, &milliseconds, from, to);
  return static_cast<int64_t>(double{milliseconds} * 1e6);
}

struct Timer {
  OwnedEvent start{0}, stop{0};
};

int StartTimer(void*, DLDevice device, void* stream, void** out) {
  return Guard([&] {
    Scope scope(device.device_id);
    auto timer = std::make_unique<Timer>();
    PORTCALL_CU(cuEventRecord, timer->start.get(), StreamOf(stream));
    *out = timer.release();
  });
}

int StopTimer(void*, DLDevice device, void* stream, void* opaque, int64_t* nanoseconds) {
  return Guard([&] {
    Scope scope(device.device_id, Scope::kFree);
    std::unique_ptr<Timer> timer(static_cast<Timer*>(opaque));
    if (!nanoseconds) return;
    PORTCALL_CU(cuEventRecord, timer->stop.get(), StreamOf(stream));
    *nanoseconds = NanosecondsBetween(timer->start.get(), timer->stop.get());
  });
}

Event EventOf(void* event) { return static_cast<Event>(event); }

int CreateEvent(void*, DLDevice device, void** out) {
  return Guard([&] {
    Scope scope(device.device_id);
    Event event = nullptr;
    PORTCALL_CU(cuEventCreate, &event, 0);
    *out = event;
  });
}

int FreeEvent(void*, DLDevice device, void* event) {
  return Guard([&] {
    Scope scope(device.device_id, Scope::kFree);
    CheckFreed(Cu().cuEventDestroy_v2(EventOf(event)), "cuEventDestroy_v2");
  });
}

int RecordEvent(void*, DLDevice device, void* event, void* stream) {
  return Guard([&] {
    Scope scope(device.device_id);
    PORTCALL_CU(cuEventRecord, EventOf(event), StreamOf(stream));
  });
}

int WaitEvent(void*, DLDevice device, void* event, void* stream) {
  return Guard([&] {
    Scope scope(device.device_id);
    PORTCALL_CU(cuStreamWaitEvent, StreamOf(stream), EventOf(event), 0);
  });
}

int SyncEvent(void*, DLDevice device, void* event) {
  return Guard([&] {
    Scope scope(device.device_id);
    PORTCALL_CU(cuEventSynchronize, EventOf(event));
  });
}

int EventTime(void*, DLDevice device, void* from, void* to, int64_t* nanoseconds) {
  return Guard([&] {
    Scope scope(device.device_id);
    *nanoseconds = NanosecondsBetween(EventOf(from), EventOf(to));
  });
}

// ---- Registration ---------------------------------------------------------------------------------------------------

const DeviceRegistration registration(kDLCUDA, [] {
  PortcallDeviceAPI api{};
  api.struct_size = sizeof(api);
  api.flags = kPortcallDevicePlainAddresses;
  api.set_device = SetDevice;
  api.get_attr = GetAttr;
  api.alloc = Alloc;
  api.free = Free;
  api.copy = Copy;
  api.create_stream = CreateStream;
  api.free_stream = FreeStream;
  api.sync_stream = SyncStream;
  api.sync_streams = SyncStreams;
  api.start_timer = StartTimer;
  api.stop_timer = StopTimer;
  api.create_event = CreateEvent;
  api.free_event = FreeEvent;
  api.record_event = RecordEvent;
  api.wait_event = WaitEvent;
  api.sync_event = SyncEvent;
  api.event_time = EventTime;
  return api;
}());

// Pinned memory of the host, which copies to and from a GPU fastest. Its index is that of a GPU.
const DeviceRegistration host_registration(kDLCUDAHost, [] {
  PortcallDeviceAPI api{};
  api.struct_size = sizeof(api);
  api.flags = kPortcallDevicePlainAddresses | kPortcallDeviceHostReadable;
  api.get_attr = GetAttr;
  api.alloc = AllocHost;
  api.free = FreeHost;
  api.copy = CopyHost;
  return api;
}());

}  // namespace

Context Gpu::context() const {
  std::call_once(retained_, [this] { PORTCALL_CU(cuDevicePrimaryCtxRetain, &context_, ordinal_); });
  return context_;
}

int Gpu::Attribute(int what) const {
  int value = 0;
  PORTCALL_CU(cuDeviceGetAttribute, &value, what, ordinal_);
  return value;
}

std::string Gpu::Capability(const char* between) const {
  return std::to_string(Attribute(kCapabilityMajor)) + between + std::to_string(Attribute(kCapabilityMinor));
}

size_t GpuCount() { return AllGpus().size(); }

const Gpu& GpuAt(int32_t index) {
  const Api& api = Cu();  // once: a second try may find a driver
  PORTCALL_CHECK(api.missing.empty(), DeviceError)
      << "there is no CUDA here: " << api.missing << "; install NVIDIA's driver, such as the package nvidia-driver";
  PORTCALL_CHECK(index >= 0 && static_cast<size_t>(index) < GpuCount(), DeviceError)
      << "there is no device cuda:" << index << "; there are " << GpuCount() << " (nvidia-smi lists them)";
  return *AllGpus()[static_cast<size_t>(index)];
}

int32_t CurrentGpu() { return current_gpu; }

Scope::Scope(int32_t index, Use use) {
  Context context = GpuAt(index).context();
  Status status = Cu().cuCtxGetCurrent(&before_);
  if (status == kSuccess && before_ == context) return;
  if (status == kSuccess || use == kFree) status = Cu().cuCtxSetCurrent(context);
  if (use == kWork) CheckStatus(status, "the choice of a GPU (cuCtxSetCurrent)");
  changed_ = status == kSuccess && before_ != nullptr;  // where nothing was current, it may stay
}

Scope::~Scope() {
  if (changed_) Cu().cuCtxSetCurrent(before_);
}

}  // namespace portcall::cuda
