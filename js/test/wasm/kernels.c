/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for the tests: a library for the target wasm32, with the C ABI of the core. */
#include <portcall/c_api.h>

float expf(float);

/* y[i] = exp(x[i]) */
int __tvm_ffi_exp(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)result;
  if (n != 2) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "exp takes two tensors");
    return -1;
  }
  const DLTensor* x = args[0].v_ptr;
  const DLTensor* y = args[1].v_ptr;
  if (args[0].type_index != kTVMFFIDLTensorPtr) x = (const DLTensor*)((const char*)args[0].v_ptr + 24);
  if (args[1].type_index != kTVMFFIDLTensorPtr) y = (const DLTensor*)((const char*)args[1].v_ptr + 24);
  for (int64_t i = 0; i < x->shape[0]; ++i) ((float*)y->data)[i] = expf(((const float*)x->data)[i]);
  return 0;
}

static int calls;
static int (*const functions[])(int) = {0};

int __tvm_ffi_count(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n, (void)functions;
  result->type_index = kTVMFFIInt;
  result->v_int64 = ++calls;
  return 0;
}

int __tvm_ffi_trap(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n, (void)result;
  __builtin_trap();
}
