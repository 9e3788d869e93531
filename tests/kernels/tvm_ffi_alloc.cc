// SPDX-License-Identifier: Apache-2.0
// A library on the apache-tvm-ffi headers that allocates its result in the caller's framework. It takes the address
// of TVMFFIEnvTensorAlloc, so dlopen needs that symbol even when it binds lazily.

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>

namespace portcall_test {

namespace ffi = tvm::ffi;

ffi::Tensor Allocate(ffi::ShapeView shape) {
  return ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, shape, DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
}

ffi::Tensor Ramp(int64_t size) {
  ffi::Tensor ramp = Allocate(ffi::ShapeView(&size, 1));
  for (int64_t i = 0; i < size; ++i) static_cast<float*>(ramp.data_ptr())[i] = static_cast<float>(i);
  return ramp;
}

ffi::Tensor OnesLike(ffi::TensorView tensor) {
  ffi::Tensor ones = Allocate(tensor.shape());
  std::fill_n(static_cast<float*>(ones.data_ptr()), ones.numel(), 1.0f);
  return ones;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(ramp, Ramp);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ones_like, OnesLike);

}  // namespace portcall_test
