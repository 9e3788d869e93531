// SPDX-License-Identifier: Apache-2.0
// A library of the classic ABI as 0.6 had it: three arguments, no results.

#include "classic_abi.h"

CLASSIC_EXPORT void* __tvm_module_ctx = NULL;
CLASSIC_EXPORT void (*__TVMAPISetLastError)(const char* text) = NULL;

CLASSIC_EXPORT const char __tvm_main__[] = "add_one";

static int fail(const char* text) {
  __TVMAPISetLastError(text);
  return -1;
}

// add_one(A: float32[n], B: float32[n]): B = A + 1. A caller of the later era passes three more arguments, which
// the calling conventions of the supported machines let a function ignore.
CLASSIC_EXPORT int add_one(void* packed_args, int* codes, int n) {
  const TVMValue* args = (const TVMValue*)packed_args;
  if (n != 2) return fail("add_one: num_args should be 2");
  for (int i = 0; i < 2; ++i) {
    if (codes[i] != kTVMDLTensorHandle && codes[i] != kTVMNDArrayHandle && codes[i] != kTVMOpaqueHandle) {
      return fail(i == 0 ? "add_one: Expect arg[0] to be pointer" : "add_one: Expect arg[1] to be pointer");
    }
  }
  const DLTensor* a = (const DLTensor*)args[0].v_handle;
  const DLTensor* b = (const DLTensor*)args[1].v_handle;
  for (int64_t i = 0; i < a->shape[0]; ++i) ((float*)b->data)[i] = ((const float*)a->data)[i] + 1.0f;
  return 0;
}
