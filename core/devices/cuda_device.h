// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, numbered as the driver numbers them.
#ifndef PORTCALL_DEVICES_CUDA_DEVICE_H_
#define PORTCALL_DEVICES_CUDA_DEVICE_H_

#include <mutex>
#include <string>

#include "devices/cuda_api.h"

namespace portcall::cuda {

class Gpu {
 public:
  explicit Gpu(Ordinal ordinal) : ordinal_(ordinal) {}

  Ordinal ordinal() const { return ordinal_; }
  // The primary one, which cudart and torch use, too: memory and streams of theirs are ours.
  Context context() const;
  int Attribute(int what) const;
  std::string Capability(const char* between) const;  // "9" between "0"

 private:
  Ordinal ordinal_;
  mutable std::once_flag retained_;
  mutable Context context_ = nullptr;
};

size_t GpuCount();
const Gpu& GpuAt(int32_t index);  // throws DeviceError

// What __tvm_set_device chose for this thread. The driver's own choice belongs to others in the process.
int32_t CurrentGpu();

// Makes a GPU the driver's current one for this thread, and puts the one before it back. What frees goes on when the
// driver fails here.
class Scope {
 public:
  enum Use : uint8_t { kWork, kFree };
  explicit Scope(int32_t index, Use use = kWork);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Context before_ = nullptr;
  bool changed_ = false;
};

}  // namespace portcall::cuda
#endif  // PORTCALL_DEVICES_CUDA_DEVICE_H_
