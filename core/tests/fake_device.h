// SPDX-License-Identifier: Apache-2.0
// An accelerator for tests, with memory of its own: its addresses are handles that the host cannot follow, and its work
// waits in streams until somebody synchronizes. Code that forgets either fails at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "portcall/portcall.h"

class FakeDevice {
 public:
  // The one of a kind; registers it at first use and lives forever.
  static FakeDevice& Of(int32_t kind);

  portcall::Device device(int32_t index = 0) const { return {kind_, index}; }
  size_t blocks() const;                // in use
  size_t pending() const;               // copies that wait
  int streams() const;                  // that were created and not freed
  void set_capacity(size_t capacity);   // in bytes, of all blocks together
  std::vector<int32_t> chosen() const;  // the devices that __tvm_set_device named
  void* CreateStream();
  void FreeStream(void* stream);

 private:
  explicit FakeDevice(int32_t kind) : kind_(kind) {}

  static FakeDevice* Self(void* ctx) { return static_cast<FakeDevice*>(ctx); }
  static int SetDevice(void* ctx, DLDevice device);
  static int GetAttr(void* ctx, DLDevice device, PortcallDeviceAttr attr, TVMFFIAny* out);
  static int Alloc(void* ctx, DLDevice device, size_t nbytes, size_t alignment, DLDataType hint, void** out);
  static int Free(void* ctx, DLDevice device, void* ptr);
  static int Copy(void* ctx, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
                  DLDevice to_device, size_t nbytes, void* stream);
  static int Create(void* ctx, DLDevice device, void** out);
  static int Destroy(void* ctx, DLDevice device, void* stream);
  static int Sync(void* ctx, DLDevice device, void* stream);

  char* Resolve(const void* address, size_t offset, DLDevice device, size_t nbytes);

  static constexpr uintptr_t kFirst = sizeof(void*) == 8 ? uintptr_t{0x7F} << 56 : 0xC0000000;  // not of user space

  const int32_t kind_;
  mutable std::mutex mutex_;
  std::map<uintptr_t, std::vector<char>> blocks_;  // by handle
  uintptr_t next_ = kFirst;
  size_t in_use_ = 0;
  size_t capacity_ = SIZE_MAX;
  std::map<void*, std::deque<std::function<void()>>> streams_;
  int created_ = 0;  // streams
  std::vector<int32_t> chosen_;
};
