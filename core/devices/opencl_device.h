// SPDX-License-Identifier: Apache-2.0
// The OpenCL devices of this machine, and what a thread does on them.
#ifndef PORTCALL_DEVICES_OPENCL_DEVICE_H_
#define PORTCALL_DEVICES_OPENCL_DEVICE_H_

#include <mutex>
#include <string>

#include "devices/opencl_api.h"
#include "portcall/device.h"

namespace portcall::opencl {

class ClDevice {
 public:
  explicit ClDevice(DeviceId id) : id_(id) {}

  DeviceId id() const { return id_; }
  Context context() const { return (Open(), context_); }
  Queue queue() const { return (Open(), queue_); }
  Queue NewQueue() const {
    Status status = kSuccess;
    Queue queue = Cl().CreateCommandQueue(context(), id_, kProfiling, &status);
    CheckStatus(status, "clCreateCommandQueue");
    return queue;
  }
  template <typename T> T Info(Number what) const {
    T value{};
    PORTCALL_CL(GetDeviceInfo, id_, what, sizeof(value), &value, nullptr);
    return value;
  }
  std::string Text(Number what) const {
    size_t size = 0;
    PORTCALL_CL(GetDeviceInfo, id_, what, 0, nullptr, &size);
    std::string text(size, '\0');
    PORTCALL_CL(GetDeviceInfo, id_, what, size, text.data(), nullptr);
    return text.c_str();
  }

 private:
  void Open() const {
    std::call_once(opened_, [this] {
      Status status = kSuccess;
      if (!context_) context_ = Cl().CreateContext(nullptr, 1, &id_, nullptr, nullptr, &status);
      CheckStatus(status, "clCreateContext");
      queue_ = Cl().CreateCommandQueue(context_, id_, kProfiling, &status);
      CheckStatus(status, "clCreateCommandQueue");
    });
  }

  DeviceId id_;
  mutable std::once_flag opened_;
  mutable Context context_ = nullptr;
  mutable Queue queue_ = nullptr;
};

size_t DeviceCount();
const ClDevice& DeviceAt(int32_t index);  // throws DeviceError
int32_t CurrentDevice();                  // what __tvm_set_device chose for this thread

// A stream is a queue; null is the device's own.
Queue QueueOf(int32_t index, void* stream);

// Where a command leaves its event while a timer of this thread runs.
class Timed {
 public:
  Timed() = default;
  ~Timed();
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  Event* out();

 private:
  Event event_ = nullptr;
};

// ---- Memory (opencl_memory.cc) --------------------------------------------------------------------------------------

// Functions of the device's table.
int Alloc(void*, DLDevice device, size_t nbytes, size_t alignment, DLDataType hint, void** out);
int AllocScope(void*, DLDevice device, const DLTensor* like, const char* scope, void** out);
int Free(void*, DLDevice device, void* data);
int MakeView(void*, DLDevice device, void* data, size_t offset, size_t nbytes, void** out);
int Copy(void*, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
         DLDevice to_device, size_t nbytes, void* stream);

// Whether memory is an image. Asks the driver only if this process has made one.
bool IsImage(const void* data);

}  // namespace portcall::opencl
#endif  // PORTCALL_DEVICES_OPENCL_DEVICE_H_
