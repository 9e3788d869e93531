// SPDX-License-Identifier: Apache-2.0
// A library of the classic ABI, 0.7 to 0.20: six arguments, results in out_ret and out_code.
//
// Rules: messages have the form of that era, "<name>: <what was expected>"; integers are not accepted as floats.
// Compiled once as it is, and once more for each CLASSIC_BLOB_* macro, which adds embedded modules.

#include "classic_abi.h"

#include <string.h>

CLASSIC_EXPORT void* __tvm_module_ctx = NULL;
CLASSIC_EXPORT int (*__TVMFuncCall)(void* func, TVMValue* args, int* codes, int n, TVMValue* ret, int* ret_code) = NULL;
CLASSIC_EXPORT void (*__TVMAPISetLastError)(const char* text) = NULL;
CLASSIC_EXPORT int (*__TVMBackendGetFuncFromEnv)(void* mod, const char* name, void** out) = NULL;
CLASSIC_EXPORT void* (*__TVMBackendAllocWorkspace)(int type, int id, uint64_t nbytes, int code, int bits) = NULL;
CLASSIC_EXPORT int (*__TVMBackendFreeWorkspace)(int type, int id, void* ptr) = NULL;
CLASSIC_EXPORT int (*__TVMBackendParallelLaunch)(FTVMParallelLambda lambda, void* cdata, int num_task) = NULL;
CLASSIC_EXPORT int (*__TVMBackendParallelBarrier)(int task_id, TVMParallelGroupEnv* env) = NULL;

CLASSIC_EXPORT const char __tvm_main__[] = "add_one";

static int fail(const char* text) {
  __TVMAPISetLastError(text);
  return -1;
}

static int is_tensor(int code) {
  return code == kTVMOpaqueHandle || code == kTVMNullptr || code == kTVMDLTensorHandle || code == kTVMNDArrayHandle;
}

static int is_float32_vector(const DLTensor* tensor) {
  return tensor->ndim == 1 && tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32 && tensor->dtype.lanes == 1;
}

static int is_bool_vector(const DLTensor* tensor) {
  return tensor->ndim == 1 && tensor->dtype.code == kDLUInt && tensor->dtype.bits == 1 && tensor->dtype.lanes == 1;
}

static float* elements(const DLTensor* tensor) { return (float*)((char*)tensor->data + tensor->byte_offset); }

// Declares the two equally long float32 vectors that every tensor function here takes, or fails in its name.
#define TAKE_VECTORS(NAME, A, B)                                                                      \
  if (n != 2) return fail(NAME ": num_args should be 2");                                             \
  if (!is_tensor(codes[0])) return fail(NAME ": Expect arg[0] to be pointer");                        \
  if (!is_tensor(codes[1])) return fail(NAME ": Expect arg[1] to be pointer");                        \
  const DLTensor* A = (const DLTensor*)args[0].v_handle;                                              \
  const DLTensor* B = (const DLTensor*)args[1].v_handle;                                              \
  if (A == NULL || !is_float32_vector(A)) return fail(NAME ": Expect arg[0] to be a float32 vector"); \
  if (B == NULL || !is_float32_vector(B)) return fail(NAME ": Expect arg[1] to be a float32 vector"); \
  if (A->shape[0] != B->shape[0])                                                                     \
  return fail("Assert fail: (n == int32(arg1.shape[0])), Argument arg1.shape[0] has an unsatisfied constraint")

// add_one(A: float32[n], B: float32[n]): B = A + 1.
CLASSIC_EXPORT int add_one(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)out_ret, (void)out_code, (void)resource;
  TAKE_VECTORS("add_one", A, B);
  for (int64_t i = 0; i < A->shape[0]; ++i) elements(B)[i] = elements(A)[i] + 1.0f;
  return 0;
}

// invert(A: bool[n], B: bool[n]): B = not A.
CLASSIC_EXPORT int invert(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)out_ret, (void)out_code, (void)resource;
  if (n != 2) return fail("invert: num_args should be 2");
  if (!is_tensor(codes[0])) return fail("invert: Expect arg[0] to be pointer");
  if (!is_tensor(codes[1])) return fail("invert: Expect arg[1] to be pointer");
  const DLTensor* a = (const DLTensor*)args[0].v_handle;
  const DLTensor* b = (const DLTensor*)args[1].v_handle;
  if (a == NULL || !is_bool_vector(a)) return fail("invert: arg0.dtype is expected to be bool");
  if (b == NULL || !is_bool_vector(b)) return fail("invert: arg1.dtype is expected to be bool");
  const uint8_t* from = (const uint8_t*)a->data + a->byte_offset;
  uint8_t* to = (uint8_t*)b->data + b->byte_offset;
  for (int64_t i = 0; i < a->shape[0]; ++i) to[i] = !from[i];
  return 0;
}

// add_int(x: int, y: int) -> int: x + y.
CLASSIC_EXPORT int add_int(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)resource;
  if (n != 2) return fail("add_int: num_args should be 2");
  if (codes[0] != kTVMArgInt) return fail("add_int: Expect arg[0] to be int");
  if (codes[1] != kTVMArgInt) return fail("add_int: Expect arg[1] to be int");
  out_ret->v_int64 = args[0].v_int64 + args[1].v_int64;
  *out_code = kTVMArgInt;
  return 0;
}

// half(x: float) -> float: x / 2; an int is refused, as the generated code of that era refuses it.
CLASSIC_EXPORT int half(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)resource;
  if (n != 1) return fail("half: num_args should be 1");
  if (codes[0] != kTVMArgFloat) return fail("half: Expect arg[0] to be float");
  out_ret->v_float64 = args[0].v_float64 / 2;
  *out_code = kTVMArgFloat;
  return 0;
}

// string_length(text: str) -> int: its length in bytes.
CLASSIC_EXPORT int string_length(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)resource;
  if (n != 1) return fail("string_length: num_args should be 1");
  if (codes[0] != kTVMStr) return fail("string_length: Expect arg[0] to be str");
  out_ret->v_int64 = (int64_t)strlen(args[0].v_str);
  *out_code = kTVMArgInt;
  return 0;
}

// first_code(*args) -> int: the classic type code of the first argument, -1 without arguments.
CLASSIC_EXPORT int first_code(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)args, (void)resource;
  out_ret->v_int64 = n > 0 ? codes[0] : -1;
  *out_code = kTVMArgInt;
  return 0;
}

// log_value(x: int, y: float): portcall_test.log_value(x, y, 'a string literal'), looked up through the module.
CLASSIC_EXPORT int log_value(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)resource;
  if (n != 2) return fail("log_value: num_args should be 2");
  void* callee = NULL;
  if (__TVMBackendGetFuncFromEnv(__tvm_module_ctx, "portcall_test.log_value", &callee) != 0) return -1;
  TVMValue call_args[3] = {args[0], args[1], {.v_str = "a string literal"}};
  int call_codes[3] = {codes[0], codes[1], kTVMStr};
  return __TVMFuncCall(callee, call_args, call_codes, 3, out_ret, out_code);
}

// call_missing(): portcall_test.never_registered(), which nobody registers.
CLASSIC_EXPORT int call_missing(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)resource;
  void* callee = NULL;
  if (__TVMBackendGetFuncFromEnv(__tvm_module_ctx, "portcall_test.never_registered", &callee) != 0) return -1;
  return __TVMFuncCall(callee, args, codes, n, out_ret, out_code);
}

// apply(f: function, *args) -> any: f(*args).
CLASSIC_EXPORT int apply(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)resource;
  if (n < 1) return fail("apply: num_args should be at least 1");
  if (codes[0] != kTVMPackedFuncHandle) return fail("apply: Expect arg[0] to be function");
  return __TVMFuncCall(args[0].v_handle, args + 1, codes + 1, n - 1, out_ret, out_code);
}

typedef struct {
  const DLTensor* a;
  const DLTensor* b;
} Vectors;

static int double_task(int task_id, TVMParallelGroupEnv* env, void* cdata) {
  const Vectors* vectors = (const Vectors*)cdata;
  int64_t extent = vectors->a->shape[0];
  int64_t step = (extent + env->num_task - 1) / env->num_task;
  int64_t end = (task_id + 1) * step < extent ? (task_id + 1) * step : extent;
  for (int64_t i = task_id * step; i < end; ++i) {
    if (elements(vectors->a)[i] < 0) return fail("ValueError: negative element");
    elements(vectors->b)[i] = elements(vectors->a)[i] * 2;
  }
  return 0;
}

// double_parallel(A: float32[n], B: float32[n]): B = A * 2 on the thread pool; ValueError if an element is negative.
CLASSIC_EXPORT int double_parallel(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code,
                                   void* resource) {
  (void)out_ret, (void)out_code, (void)resource;
  TAKE_VECTORS("double_parallel", A, B);
  Vectors vectors = {A, B};
  return __TVMBackendParallelLaunch(double_task, &vectors, 0);
}

static int reverse_twice_task(int task_id, TVMParallelGroupEnv* env, void* cdata) {
  void** pointers = (void**)cdata;
  const DLTensor* a = (const DLTensor*)pointers[0];
  const DLTensor* b = (const DLTensor*)pointers[1];
  float* scratch = (float*)pointers[2];
  int64_t extent = a->shape[0];
  for (int64_t i = task_id; i < extent; i += env->num_task) scratch[i] = elements(a)[extent - 1 - i];
  if (__TVMBackendParallelBarrier(task_id, env) != 0) return -1;
  for (int64_t i = task_id; i < extent; i += env->num_task) elements(b)[i] = scratch[extent - 1 - i];
  return 0;
}

// reverse_twice(A: float32[n], B: float32[n]): B = A by way of a workspace, two parallel phases and a barrier.
CLASSIC_EXPORT int reverse_twice(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)out_ret, (void)out_code, (void)resource;
  TAKE_VECTORS("reverse_twice", A, B);
  void* scratch = __TVMBackendAllocWorkspace(kDLCPU, 0, (uint64_t)A->shape[0] * sizeof(float), kDLFloat, 32);
  if (scratch == NULL) return -1;
  void* pointers[3] = {(void*)A, (void*)B, scratch};
  int status = __TVMBackendParallelLaunch(reverse_twice_task, pointers, 0);
  if (__TVMBackendFreeWorkspace(kDLCPU, 0, scratch) != 0) return -1;
  return status;
}

// fail_with(text: str): fails with that very text as the last error.
CLASSIC_EXPORT int fail_with(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)out_ret, (void)out_code, (void)resource;
  if (n != 1 || codes[0] != kTVMStr) return fail("fail_with: Expect arg[0] to be str");
  return fail(args[0].v_str);
}

// fail_silently(): returns -1 and sets no error.
CLASSIC_EXPORT int fail_silently(TVMValue* args, int* codes, int n, TVMValue* out_ret, int* out_code, void* resource) {
  (void)args, (void)codes, (void)n, (void)out_ret, (void)out_code, (void)resource;
  return -1;
}

#if defined(CLASSIC_BLOB_LIB) || defined(CLASSIC_BLOB_UNKNOWN)

#ifdef CLASSIC_BLOB_UNKNOWN
#define MODULE_COUNT 2
#else
#define MODULE_COUNT 1
#endif

typedef struct __attribute__((packed)) {
  uint64_t nbytes;
  uint64_t count;
  uint64_t first_length;
  char first[4];
#ifdef CLASSIC_BLOB_UNKNOWN
  uint64_t unknown_length;
  char unknown[21];
  uint64_t payload;
#endif
  uint64_t tree_length;
  char tree[12];
  uint64_t row_count;
  uint64_t rows[MODULE_COUNT + 1];
  uint64_t child_count;
#ifdef CLASSIC_BLOB_UNKNOWN
  uint64_t children[1];
#endif
} Blob;

// CLASSIC_BLOB_LIB: the library and its import tree, no other module. CLASSIC_BLOB_UNKNOWN: a module of a kind
// that no runtime knows stands between them, with a payload whose length only that kind's loader could tell.
CLASSIC_EXPORT const Blob __tvm_dev_mblob = {
    .nbytes = sizeof(Blob) - sizeof(uint64_t),
    .count = MODULE_COUNT + 1,
    .first_length = 4,
    .first = {'_', 'l', 'i', 'b'},
#ifdef CLASSIC_BLOB_UNKNOWN
    .unknown_length = 21,
    .unknown = "portcall_unknown_kind",
    .payload = 0x0102030405060708,
#endif
    .tree_length = 12,
    .tree = {'_', 'i', 'm', 'p', 'o', 'r', 't', '_', 't', 'r', 'e', 'e'},
    .row_count = MODULE_COUNT + 1,
#ifdef CLASSIC_BLOB_UNKNOWN
    .rows = {0, 1, 1},
    .children = {1},
#endif
    .child_count = MODULE_COUNT - 1,
};

#endif
