// SPDX-License-Identifier: Apache-2.0
// A library of the modern ABI as a code generator would write it. It needs no runtime, so both load it unchanged.
#include <portcall/c_api.h>

#define EXPORT __attribute__((visibility("default")))

// add(x: int, y: int) -> int
EXPORT int __tvm_ffi_add(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self;
  if (num_args != 2 || args[0].type_index != kTVMFFIInt || args[1].type_index != kTVMFFIInt) return -1;
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = args[0].v_int64 + args[1].v_int64;
  return 0;
}

// nop(...): nothing, as the kernel of a graph whose own cost is measured.
EXPORT int __tvm_ffi_nop(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)args, (void)num_args, (void)result;
  return 0;
}
