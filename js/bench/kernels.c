/* SPDX-License-Identifier: Apache-2.0 */
/* y[i] = x[i] + 1, for WebAssembly as a function of the core, and for this machine as a plain one. */
#include <portcall/c_api.h>

void add_one(const float* restrict x, float* restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + 1;
}

int __tvm_ffi_add_one(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n, (void)result;
  const DLTensor* x = (const DLTensor*)((const char*)args[0].v_ptr + 24); /* behind the header of an object */
  const DLTensor* y = (const DLTensor*)((const char*)args[1].v_ptr + 24);
  add_one(x->data, y->data, x->shape[0]);
  return 0;
}
