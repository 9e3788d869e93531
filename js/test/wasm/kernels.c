/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for the tests: a library for the target wasm32, with the C ABI of the core. */
#include "../objects.h"

float expf(float);

static const DLTensor* tensor_of(const TVMFFIAny* arg) {
  return arg->type_index == kTVMFFIDLTensorPtr ? arg->v_ptr : (const DLTensor*)((const char*)arg->v_ptr + 24);
}

/* y[i] = exp(x[i]) */
int __tvm_ffi_exp(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)result;
  if (n != 2) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "exp takes two tensors");
    return -1;
  }
  const DLTensor *x = tensor_of(&args[0]), *y = tensor_of(&args[1]);
  for (int64_t i = 0; i < x->shape[0]; ++i) ((float*)y->data)[i] = expf(((const float*)x->data)[i]);
  return 0;
}

/* out[i] = x[i] + w[i] */
int __tvm_ffi_add(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n, (void)result;
  const DLTensor *x = tensor_of(&args[0]), *w = tensor_of(&args[1]), *out = tensor_of(&args[2]);
  for (int64_t i = 0; i < x->shape[0]; ++i) ((float*)out->data)[i] = ((float*)x->data)[i] + ((float*)w->data)[i];
  return 0;
}

/* Kernel compilers leave such variables to who loads the library. */
void* (*__TVMBackendAllocWorkspace)(int kind, int index, uint64_t nbytes, int code, int bits);
int (*__TVMBackendFreeWorkspace)(int kind, int index, void* data);

int __tvm_ffi_workspace(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n;
  void* data = __TVMBackendAllocWorkspace(1, 0, 1000, 2, 32);
  result->type_index = kTVMFFIBool;
  result->v_int64 = data && __TVMBackendFreeWorkspace(1, 0, data) == 0;
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
