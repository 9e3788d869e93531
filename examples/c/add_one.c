// SPDX-License-Identifier: Apache-2.0
// A library in plain C: one function, add_one(A: float32[n], B: float32[n]), which sets B = A + 1.
//
// It links nothing. TVMFFIErrorSetRaisedFromCStr stays undefined and is bound to the runtime that loads the library:
//
//   cc -shared -fPIC -I INCLUDE add_one.c -o add_one.so       # INCLUDE is portcall.toolchain.include_dir()
#include <portcall/c_api.h>

static int fail(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

// A tensor argument is an object, whose description follows its header, or the description itself.
static const DLTensor* tensor_of(const TVMFFIAny* arg) {
  if (arg->type_index == kTVMFFITensor) return (const DLTensor*)(arg->v_obj + 1);
  if (arg->type_index == kTVMFFIDLTensorPtr) return (const DLTensor*)arg->v_ptr;
  return NULL;
}

static int is_float32_vector(const DLTensor* tensor) {
  return tensor && tensor->ndim == 1 && tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32 &&
         tensor->dtype.lanes == 1 && tensor->device.device_type == kDLCPU;
}

static float* elements(const DLTensor* tensor) { return (float*)((char*)tensor->data + tensor->byte_offset); }

// The symbol of a function is its name behind __tvm_ffi_.
PORTCALL_API int __tvm_ffi_add_one(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self;
  (void)result;  // untouched: None
  if (num_args != 2) return fail("TypeError", "add_one(A: float32[n], B: float32[n]) takes 2 arguments");
  const DLTensor* a = tensor_of(&args[0]);
  const DLTensor* b = tensor_of(&args[1]);
  if (!is_float32_vector(a)) return fail("TypeError", "add_one(): argument #0 is not a float32 vector");
  if (!is_float32_vector(b)) return fail("TypeError", "add_one(): argument #1 is not a float32 vector");
  if (a->shape[0] != b->shape[0]) return fail("ValueError", "add_one(): the vectors differ in length");
  for (int64_t i = 0; i < a->shape[0]; ++i) elements(b)[i] = elements(a)[i] + 1;
  return 0;
}
