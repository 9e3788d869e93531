// SPDX-License-Identifier: Apache-2.0
// A library on the apache-tvm-ffi headers: what an author of C++ extensions for that package would write.
//
// Rules: only public headers and the typed-export macro; the runtime is only ever called, and only from exported
// functions, so lazy binding is enough (tvm_ffi_alloc.cc and tvm_ffi_objects.cc need it sooner).
// tvm_ffi_kernels.py lists the exports with their meaning.

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace portcall_test {

namespace ffi = tvm::ffi;

int64_t AddInt(int64_t x, int64_t y) { return x + y; }

double AddFloat(double x, double y) { return x + y; }

bool Not(bool flag) { return !flag; }

ffi::Any Echo(ffi::Any value) { return value; }

ffi::String Concat(ffi::String left, ffi::String right) {
  return ffi::String(std::string(left.data(), left.size()) + std::string(right.data(), right.size()));
}

ffi::Bytes Reversed(ffi::Bytes bytes) {
  std::string text(bytes.data(), bytes.size());
  std::reverse(text.begin(), text.end());
  return ffi::Bytes(text);
}

ffi::Optional<int64_t> PositiveOrNone(int64_t x) {
  if (x > 0) return x;
  return std::nullopt;
}

int64_t SumArray(ffi::Array<int64_t> values) {
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  return sum;
}

ffi::Array<ffi::Any> ArrayOfKinds() { return {1, 2.5, ffi::String("a string object"), nullptr, true}; }

ffi::Map<ffi::String, int64_t> Doubled(ffi::Map<ffi::String, int64_t> map) {
  ffi::Map<ffi::String, int64_t> doubled;
  for (auto [key, value] : map) doubled.Set(key, value * 2);
  return doubled;
}

int64_t ShapeProduct(ffi::Shape shape) { return shape.Product(); }

DLDataType DtypeOf(ffi::TensorView tensor) { return tensor.dtype(); }

DLDevice DeviceOf(ffi::TensorView tensor) { return tensor.device(); }

ffi::Any Apply(ffi::Function function, ffi::Any value) { return function(value); }

ffi::Function MakeAdder(int64_t amount) {
  return ffi::Function::FromTyped([amount](int64_t x) { return x + amount; });
}

void CheckVector(const ffi::TensorView& tensor, const char* name) {
  if (tensor.ndim() != 1) TVM_FFI_THROW(ValueError) << name << " must have 1 dimension, it has " << tensor.ndim();
  if (tensor.dtype() != DLDataType{kDLFloat, 32, 1}) TVM_FFI_THROW(TypeError) << name << " must be float32";
}

float* Elements(const ffi::TensorView& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
}

void AddOne(ffi::TensorView x, ffi::TensorView y) {
  CheckVector(x, "x");
  CheckVector(y, "y");
  if (x.size(0) != y.size(0)) TVM_FFI_THROW(ValueError) << "x and y must have the same size";
  for (int64_t i = 0; i < x.size(0); ++i) Elements(y)[i] = Elements(x)[i] + 1.0f;
}

ffi::Tensor SameTensor(ffi::Tensor tensor) { return tensor; }

int64_t StreamOf(ffi::TensorView tensor) {
  DLDevice device = tensor.device();
  return reinterpret_cast<int64_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

void Raise(ffi::String kind, ffi::String message) {
  throw ffi::Error(std::string(kind.data(), kind.size()), std::string(message.data(), message.size()),
                   TVMFFIBacktrace(__FILE__, __LINE__, "Raise", 0));
}

void RaiseValueError(int64_t x) { TVM_FFI_THROW(ValueError) << "x is " << x << ", which is wrong"; }

void RaiseStandardException(ffi::String message) {
  throw std::runtime_error(std::string(message.data(), message.size()));
}

ffi::String CatchKind(ffi::Function function) {
  try {
    function();
  } catch (const ffi::Error& error) {
    return ffi::String(error.kind());
  }
  return ffi::String("none");
}

// As after Ctrl-C, without a wait: C's handler of the signal has run when this goes on.
void Interrupted() {
  std::raise(SIGINT);
  if (TVMFFIEnvCheckSignals() != 0) throw ffi::EnvErrorAlreadySet();
}

ffi::Any CallGlobal(ffi::String name, ffi::Any value) { return ffi::Function::GetGlobalRequired(name)(value); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_int, AddInt);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_float, AddFloat);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(logical_not, Not);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(echo, Echo);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(concat, Concat);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(reversed, Reversed);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(positive_or_none, PositiveOrNone);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sum_array, SumArray);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(array_of_kinds, ArrayOfKinds);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(doubled, Doubled);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(shape_product, ShapeProduct);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(dtype_of, DtypeOf);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(device_of, DeviceOf);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply, Apply);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_adder, MakeAdder);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, AddOne);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(same_tensor, SameTensor);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(stream_of, StreamOf);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(raise, Raise);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(raise_value_error, RaiseValueError);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(raise_standard_exception, RaiseStandardException);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(catch_kind, CatchKind);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(interrupted, Interrupted);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(call_global, CallGlobal);

}  // namespace portcall_test
