// SPDX-License-Identifier: Apache-2.0
// What a language model keeps from token to token, with the functions that all kinds of it have.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vm/builtin.h"

namespace portcall::lm {

using bytes::Throw;
using vm::Arguments;
using vm::Builtin;
using vm::Result;

class State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  virtual ~State() = default;
  virtual void Clear() = 0;
  virtual void Add(int64_t id) = 0;
  virtual void Remove(int64_t id) = 0;
  virtual void Fork(int64_t parent, int64_t child, int64_t at) = 0;
  virtual void Pop(int64_t id, int64_t count) = 0;
  virtual void Begin(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts) = 0;
  virtual void End() = 0;

  std::recursive_mutex mutex;  // a kernel may be a function of the user, who calls back
};

// The types have TVM's names.
struct StateObj : Object {
  static constexpr const char* kTypeKey = "relax.vm.KVState";
  static constexpr bool kHoldsObjects = true;
  std::unique_ptr<State> state;
  explicit StateObj(std::unique_ptr<State> s) : state(std::move(s)) {}
};

// The state of an argument; TypeError for other values.
State& StateAt(const Arguments& args, int32_t i);

double FloatAt(const Arguments& args, int32_t i);
// The function of an argument; null if it is something else and may be.
PackedFunc FunctionAt(const Arguments& args, int32_t i, bool required = true);

// The items of a tuple, as arguments.
Arguments ItemsAt(const Arguments& args, int32_t i);

// The arguments of a kernel.
class Call {
 public:
  Call& operator<<(const DLTensor& tensor) {
    Next(kTVMFFIDLTensorPtr).v_ptr = const_cast<DLTensor*>(&tensor);
    return *this;
  }
  Call& operator<<(const Tensor& tensor) {
    Next(kTVMFFITensor).v_obj = tensor.get();
    return *this;
  }
  Call& operator<<(int64_t number) {
    Next(kTVMFFIInt).v_int64 = number;
    return *this;
  }
  Call& operator<<(double number) {
    Next(kTVMFFIFloat).v_float64 = number;
    return *this;
  }
  void operator()(const PackedFunc& kernel) const { kernel.CallPacked(cells_, count_); }

 private:
  TVMFFIAny& Next(int32_t type) {
    TVMFFIAny& cell = cells_[count_++];
    detail::SetCell(&cell, type);
    return cell;
  }
  TVMFFIAny cells_[20];
  int32_t count_ = 0;
};

constexpr DLDataType kInt32{kDLInt, 32, 1};

// Copies numbers to a buffer of that size on a device. One that is there is taken again, but not while somebody looks at it.
void* PlaceNumbers(Tensor* buffer, const int32_t* numbers, size_t size, Device device);

}  // namespace portcall::lm
