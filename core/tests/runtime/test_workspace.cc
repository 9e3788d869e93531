// SPDX-License-Identifier: Apache-2.0
// Workspaces through the C ABI. The kind of device is one that no other test registers; it counts what is in use.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "portcall/portcall.h"
#include "tests/check.h"

using namespace portcall;

namespace {

constexpr int kDevice = kDLTrn;

std::atomic<int> blocks_in_use{0};
std::atomic<size_t> last_size{0};
std::atomic<bool> refuse{false};

int AllocOnDevice(void*, DLDevice, size_t nbytes, size_t alignment, DLDataType, void** out) {
  return Guard([&] {
    PORTCALL_CHECK(!refuse, MemoryError) << "the fake device is full";
    *out = std::aligned_alloc(alignment, nbytes);
    last_size = nbytes;
    ++blocks_in_use;
  });
}

int FreeOnDevice(void*, DLDevice, void* data) {
  std::free(data);
  --blocks_in_use;
  return 0;
}

void RegisterDevice() {
  static const bool once = [] {
    PortcallDeviceAPI api{};
    api.struct_size = sizeof(api);
    api.alloc = AllocOnDevice;
    api.free = FreeOnDevice;
    api.get_attr = [](void*, DLDevice, PortcallDeviceAttr, TVMFFIAny* out) {
      *out = Any(1).release();
      return 0;
    };
    api.copy = [](void*, const void* from, size_t from_offset, DLDevice, void* to, size_t to_offset, DLDevice,
                  size_t nbytes, void*) {
      std::memcpy(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset, nbytes);
      return 0;
    };
    Check(PortcallDeviceRegister(kDevice, &api));
    return true;
  }();
  (void)once;
}

void* Alloc(uint64_t nbytes, int device = kDLCPU) { return TVMBackendAllocWorkspace(device, 0, nbytes, kDLFloat, 32); }
int Free(void* data, int device = kDLCPU) { return TVMBackendFreeWorkspace(device, 0, data); }

// The kind of error that a call left, "" if none.
std::string RaisedKind() {
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  return raised ? std::string(Error(ObjectRef::Steal(raised)).kind()) : "";
}

}  // namespace

TEST("a workspace is aligned, writable to its end and apart from others") {
  std::vector<std::pair<char*, size_t>> blocks;
  for (size_t size : {0, 1, 64, 1000, 4096, 4097, 100000, 1 << 20}) {
    auto* data = static_cast<char*>(Alloc(size));
    CHECK(data != nullptr);
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % 128, 0);
    std::memset(data, static_cast<int>(blocks.size() + 1), size);
    blocks.emplace_back(data, size);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [data, size] = blocks[i];
    CHECK_EQ(std::count(data, data + size, static_cast<char>(i + 1)), static_cast<std::ptrdiff_t>(size));
  }
  for (size_t i = blocks.size(); i-- > 0;) CHECK_EQ(Free(blocks[i].first), 0);
}

TEST("a freed workspace is used again at once") {
  std::thread([] {
    void* first = Alloc(5000);
    CHECK_EQ(Free(first), 0);
    void* second = Alloc(8192);  // of the same two pages
    CHECK(second == first);
    void* third = Alloc(8192);
    CHECK(third != second);
    CHECK_EQ(Free(third), 0);
    CHECK_EQ(Free(second), 0);
  }).join();
}

TEST("workspaces may be freed in any order") {
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(Alloc(4096));
  for (int i : {2, 0, 5, 1, 4, 3}) CHECK_EQ(Free(blocks[static_cast<size_t>(i)]), 0);
}

TEST("TVMBackendFreeWorkspace refuses a pointer that is not a workspace in use") {
  int local = 0;
  void* freed = Alloc(10);
  CHECK_EQ(Free(freed), 0);
  for (void* bad : {static_cast<void*>(&local), static_cast<void*>(nullptr), freed}) {
    CHECK_EQ(Free(bad), -1);
    CHECK_EQ(RaisedKind(), "ValueError");
  }
  void* data = Alloc(10);
  CHECK_EQ(Free(static_cast<char*>(data) + 1), -1);
  CHECK_EQ(TVMBackendFreeWorkspace(kDLCPU, 1, data), -1);
  CHECK_EQ(RaisedKind(), "ValueError");
  CHECK_EQ(Free(data), 0);
}

TEST("a workspace of another thread is refused") {
  void* data = Alloc(10);
  std::thread([&] {
    CHECK_EQ(Free(data), -1);
    CHECK_EQ(RaisedKind(), "ValueError");
  }).join();
  CHECK_EQ(Free(data), 0);
}

TEST("a size that overflowed is a MemoryError, not a crash") {
  for (uint64_t size : {UINT64_MAX, UINT64_MAX - 4095, uint64_t{1} << 63, (uint64_t{1} << 40) + 1}) {
    CHECK(Alloc(size) == nullptr);
    CHECK_EQ(RaisedKind(), "MemoryError");
  }
  void* data = Alloc(16);
  CHECK_EQ(Free(data), 0);
}

TEST("a workspace of a device comes from its kind and goes when the thread ends") {
  RegisterDevice();
  std::thread([] {
    void* one = Alloc(100, kDevice);
    void* two = Alloc(100, kDevice);
    CHECK_EQ(blocks_in_use.load(), 2);
    CHECK_EQ(last_size.load(), 4096);
    CHECK_EQ(Free(two, kDevice), 0);
    CHECK_EQ(blocks_in_use.load(), 2);
    CHECK_EQ(Free(one), -1);  // not of the host
    CHECK_EQ(Free(one, kDevice), 0);
    CHECK(Alloc(4096, kDevice) != nullptr);  // one stays in use: its kernel failed before it freed it
    CHECK_EQ(blocks_in_use.load(), 2);
  }).join();
  CHECK_EQ(blocks_in_use.load(), 0);
}

TEST("a freed workspace of a device is used again on the same stream only") {
  RegisterDevice();
  std::thread([] {
    int streams[2];
    void* of_stream[2];
    for (int i = 0; i < 2; ++i) {
      CHECK_EQ(TVMFFIEnvSetStream(kDevice, 0, &streams[i], nullptr), 0);
      of_stream[i] = Alloc(100, kDevice);
      CHECK_EQ(Free(of_stream[i], kDevice), 0);
    }
    CHECK(of_stream[0] != of_stream[1]);
    CHECK_EQ(Alloc(100, kDevice), of_stream[1]);
    CHECK_EQ(TVMFFIEnvSetStream(kDevice, 0, &streams[0], nullptr), 0);
    CHECK_EQ(Alloc(100, kDevice), of_stream[0]);
    CHECK_EQ(Free(of_stream[1], kDevice), 0);  // of the stream before
    CHECK_EQ(Free(of_stream[0], kDevice), 0);
  }).join();
  CHECK_EQ(blocks_in_use.load(), 0);
}

TEST("a block that is too small is replaced, so that memory does not grow with the number of sizes") {
  RegisterDevice();
  std::thread([] {
    for (int pages = 1; pages < 20; ++pages) {
      void* data = Alloc(static_cast<uint64_t>(pages) * 4096, kDevice);
      CHECK_EQ(last_size.load(), static_cast<size_t>(pages) * 4096);
      CHECK_EQ(blocks_in_use.load(), 1);
      CHECK_EQ(Free(data, kDevice), 0);
    }
  }).join();
}

TEST("a device without memory left is an error and its workspace works again later") {
  RegisterDevice();
  std::thread([] {
    refuse = true;
    CHECK(Alloc(100, kDevice) == nullptr);
    CHECK_EQ(RaisedKind(), "MemoryError");
    refuse = false;
    void* data = Alloc(100, kDevice);
    CHECK(data != nullptr);
    CHECK_EQ(Free(data, kDevice), 0);
  }).join();
  CHECK_EQ(blocks_in_use.load(), 0);
}

TEST("a workspace of a kind that nothing registered is an error") {
  CHECK(TVMBackendAllocWorkspace(4711, 0, 16, kDLFloat, 32) == nullptr);
  CHECK(RaisedKind() != "");
  CHECK_EQ(TVMBackendFreeWorkspace(4711, 0, nullptr), -1);
  CHECK(RaisedKind() != "");
}

TEST("workers of a parallel loop have workspaces of their own") {
  auto task = [](int id, TVMParallelGroupEnv* env, void* cdata) {
    void* data = Alloc(4096);
    static_cast<void**>(cdata)[id] = data;
    if (!data || TVMBackendParallelBarrier(id, env) != 0) return -1;
    return Free(data);
  };
  void* seen[4] = {};
  CHECK_EQ(TVMBackendParallelLaunch(task, seen, 4), 0);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < i; ++j) CHECK(seen[i] != seen[j]);
  }
}
