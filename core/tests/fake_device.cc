// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_device.h"

#include <cstring>
#include <utility>

using namespace portcall;

FakeDevice& FakeDevice::Of(int32_t kind) {
  static std::mutex mutex;
  static auto* devices = new std::map<int32_t, FakeDevice*>();
  std::lock_guard<std::mutex> lock(mutex);
  FakeDevice*& device = (*devices)[kind];
  if (!device) {
    device = new FakeDevice(kind);
    PortcallDeviceAPI api{};
    api.struct_size = sizeof(api);
    api.ctx = device;
    api.set_device = SetDevice;
    api.get_attr = GetAttr;
    api.alloc = Alloc;
    api.free = Free;
    api.copy = Copy;
    api.create_stream = Create;
    api.free_stream = Destroy;
    api.sync_stream = Sync;
    Check(PortcallDeviceRegister(kind, &api));
  }
  return *device;
}

size_t FakeDevice::blocks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return blocks_.size();
}

size_t FakeDevice::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t n = 0;
  for (const auto& [stream, work] : streams_) n += work.size();
  return n;
}

void FakeDevice::set_capacity(size_t capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  capacity_ = capacity;
}

std::vector<int32_t> FakeDevice::chosen() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return chosen_;
}

void* FakeDevice::CreateStream() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++created_;
  return new char;
}

int FakeDevice::streams() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return created_;
}

void FakeDevice::FreeStream(void* stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(stream);
  --created_;
  delete static_cast<char*>(stream);
}

int FakeDevice::SetDevice(void* ctx, DLDevice device) {
  return Guard([&] {
    PORTCALL_CHECK(device.device_id < 2, DeviceError) << "there are two fake devices, got " << ToString(device);
    std::lock_guard<std::mutex> lock(Self(ctx)->mutex_);
    Self(ctx)->chosen_.push_back(device.device_id);
  });
}

int FakeDevice::GetAttr(void*, DLDevice device, PortcallDeviceAttr attr, TVMFFIAny* out) {
  return Guard([&] {
    Any value;
    if (attr == kPortcallAttrExist) value = device.device_id < 2;
    if (attr == kPortcallAttrDeviceName) value = "a fake accelerator";
    *out = value.release();
  });
}

int FakeDevice::Alloc(void* ctx, DLDevice device, size_t nbytes, size_t alignment, DLDataType, void** out) {
  return Guard([&] {
    FakeDevice* self = Self(ctx);
    std::lock_guard<std::mutex> lock(self->mutex_);
    PORTCALL_CHECK(nbytes > 0 && alignment > 0 && device.device_type == self->kind_, InternalError) << "a bad request";
    PORTCALL_CHECK(nbytes <= self->capacity_ - self->in_use_, MemoryError) << "the fake device is full";
    uintptr_t handle = (self->next_ + alignment - 1) / alignment * alignment;
    self->next_ = handle + nbytes;
    self->in_use_ += nbytes;
    self->blocks_[handle].resize(nbytes);
    *out = reinterpret_cast<void*>(handle);
  });
}

int FakeDevice::Free(void* ctx, DLDevice, void* ptr) {
  return Guard([&] {
    FakeDevice* self = Self(ctx);
    std::lock_guard<std::mutex> lock(self->mutex_);
    auto it = self->blocks_.find(reinterpret_cast<uintptr_t>(ptr));
    PORTCALL_CHECK(it != self->blocks_.end(), InternalError) << "freed what was never allocated, or twice";
    self->in_use_ -= it->second.size();
    self->blocks_.erase(it);
  });
}

// The bytes behind an address of the host or of this device; null when they are not all within one block.
char* FakeDevice::Resolve(const void* address, size_t offset, DLDevice device, size_t nbytes) {
  if (device.device_type == kDLCPU) return static_cast<char*>(const_cast<void*>(address)) + offset;
  uintptr_t at = reinterpret_cast<uintptr_t>(address) + offset;
  auto it = blocks_.upper_bound(at);
  if (it == blocks_.begin()) return nullptr;
  --it;
  size_t within = at - it->first;
  return within <= it->second.size() && nbytes <= it->second.size() - within ? it->second.data() + within : nullptr;
}

int FakeDevice::Copy(void* ctx, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
                     DLDevice to_device, size_t nbytes, void* stream) {
  return Guard([&] {
    FakeDevice* self = Self(ctx);
    std::lock_guard<std::mutex> lock(self->mutex_);
    for (int32_t type : {from_device.device_type, to_device.device_type}) {
      PORTCALL_CHECK(type == kDLCPU || type == self->kind_, InternalError)
          << "asked to copy on " << DeviceKindName(type);
    }
    char* source = self->Resolve(from, from_offset, from_device, nbytes);
    char* target = self->Resolve(to, to_offset, to_device, nbytes);
    PORTCALL_CHECK(source && target, InternalError) << "a copy outside of every block";
    self->streams_[stream].push_back([=] { std::memmove(target, source, nbytes); });
  });
}

int FakeDevice::Create(void* ctx, DLDevice, void** out) {
  *out = Self(ctx)->CreateStream();
  return 0;
}

int FakeDevice::Destroy(void* ctx, DLDevice, void* stream) {
  Self(ctx)->FreeStream(stream);
  return 0;
}

int FakeDevice::Sync(void* ctx, DLDevice, void* stream) {
  std::lock_guard<std::mutex> lock(Self(ctx)->mutex_);
  for (const auto& work : Self(ctx)->streams_[stream]) work();
  Self(ctx)->streams_[stream].clear();
  return 0;
}
