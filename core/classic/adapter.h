// SPDX-License-Identifier: Apache-2.0
// Values and functions on their way between the classic ABI (value and code in two arrays) and the modern one (cells).
//
// Rules
//  * The modern objects are the only ones: a classic handle is the address of one. Tensors are never copied.
//  * Whatever has no place in the other ABI is refused with the position of the argument, never passed on.
//  * A boolean of a classic tensor is a "uint1" that has a byte for itself; here its type is bool.
#ifndef PORTCALL_CLASSIC_ADAPTER_H_
#define PORTCALL_CLASSIC_ADAPTER_H_

#include <memory>
#include <string>

#include "portcall/classic_api.h"
#include "portcall/function.h"
#include "portcall/tensor.h"

namespace portcall::classic {

// A function of a classic library as a modern one. `symbol` is a TVMBackendPackedCFunc. The function holds `keep_alive`.
// It takes numbers, text, bytes, 64-byte aligned tensors, pointers, data types, devices, functions and modules.
PackedFunc WrapSymbol(void* symbol, ObjectRef keep_alive, const std::string& name);

// Room for one item per argument of a call, on the stack unless there are many.
template <typename T> class Room {
 public:
  explicit Room(int32_t n) {
    if (n > kInline) heap_.reset(new T[static_cast<size_t>(n)]);
  }
  T* get() noexcept { return heap_ ? heap_.get() : stack_; }

 private:
  static constexpr int32_t kInline = 16;
  T stack_[kInline];
  std::unique_ptr<T[]> heap_;
};

constexpr DLDataType kClassicBool{kDLUInt, 1, 1}, kModernBool{kDLBool, 8, 1};

// Tensors of booleans as the other side of a call knows them: descriptions of the same memory, for the time of the call.
class BoolTensors {
 public:
  explicit BoolTensors(int32_t n) : count_(n), shown_(n) {}

  // What to hand over as argument i: the tensor itself unless its elements are of type `from`.
  DLTensor* WithType(int32_t i, DLTensor* tensor, DLDataType from, DLDataType to) noexcept {
    if (tensor->dtype.code != from.code || tensor->dtype.bits != from.bits) return tensor;
    DLTensor* shown = shown_.get() + i;
    *shown = *tensor;
    shown->dtype = {to.code, to.bits, tensor->dtype.lanes};
    return shown;
  }
  // The argument that was handed over as `pointer`, if that is a description of ours; otherwise -1.
  int32_t Find(const void* pointer) noexcept {
    for (int32_t i = 0; i < count_; ++i) {
      if (pointer == shown_.get() + i) return i;
    }
    return -1;
  }

 private:
  int32_t count_;
  Room<DLTensor> shown_;
};

// A C callback as a modern function. It takes every object, as code 8, and tensors as code 13, so that
// TVMCbArgToReturn can keep them.
PackedFunc WrapCallback(TVMPackedCFunc func, void* resource, TVMPackedCFuncFinalizer fin);

// The object behind a handle that a caller gave us, which `type_index` says it must be (kTVMFFIObject: any). Throws for
// NULL and for memory that does not start like such an object.
TVMFFIObject* CheckHandle(void* handle, int32_t type_index, const char* what);
// The same for the DLTensor inside a tensor object.
TVMFFIObject* CheckArray(const void* handle);

// A borrowed cell for a classic value: argument #position of `function`, or its result when position is -1.
TVMFFIAny ViewOf(const TVMValue& value, int code, int position, const char* function);
// Takes over a value that a library function returned.
Any TakeResult(const TVMValue& value, int code, const char* function);
// Gives a result to the classic caller. Text and bytes stay in this thread's storage until the next one.
void GiveResult(Any result, TVMValue* value, int* code);
bool IsBytesOfLastResult(const TVMByteArray* bytes) noexcept;

// Throws the error that a function left behind by a nonzero return, or says that it left none.
[[noreturn]] void ThrowFailure(const char* function);

// One call through the classic doors, in either direction. Classic programs read an error and leave it in its slot;
// the outermost call of a thread may therefore drop it, a nested one may not: there it may still be under way.
class CallScope {
 public:
  CallScope() noexcept { ++depth_; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  ~CallScope() { --depth_; }
  bool outermost() const noexcept { return depth_ == 1; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace portcall::classic
#endif  // PORTCALL_CLASSIC_ADAPTER_H_
