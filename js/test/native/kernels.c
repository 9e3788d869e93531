/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for the tests of the native core, as a kernel compiler makes them. */
#include <portcall/c_api.h>

static DLTensor* tensor_of(const TVMFFIAny* arg) {
  return arg->type_index == kTVMFFIDLTensorPtr ? arg->v_ptr : (DLTensor*)(arg->v_obj + 1);
}

/* y[i] = x[i] + 1 */
int __tvm_ffi_add_one(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)result;
  if (n != 2) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "add_one takes two tensors");
    return -1;
  }
  const DLTensor *x = tensor_of(&args[0]), *y = tensor_of(&args[1]);
  for (int64_t i = 0; i < x->shape[0]; ++i) ((float*)y->data)[i] = ((const float*)x->data)[i] + 1;
  return 0;
}

/* Where the elements of a tensor are. */
int __tvm_ffi_address(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n;
  result->type_index = kTVMFFIInt;
  result->v_int64 = (int64_t)tensor_of(&args[0])->data;
  return 0;
}

/* How many bytes text has. */
int __tvm_ffi_size(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n;
  const char* text = args[0].type_index == kTVMFFIRawStr ? args[0].v_c_str : args[0].v_bytes;
  result->type_index = kTVMFFIInt;
  result->v_int64 = 0;
  while (text[result->v_int64] != 0) ++result->v_int64;
  return 0;
}
