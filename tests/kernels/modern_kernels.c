// SPDX-License-Identifier: Apache-2.0
// A library of the modern ABI written by hand: what no code generator emits but a loader must survive.
//
// Rules: each MODERN_BLOB_* macro gives another embedded-module blob; without one there is none.

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  int32_t type_index;
  uint32_t small_length;
  union {
    int64_t v_int64;
    void* v_ptr;
    char v_bytes[8];
  };
} Any;

enum { kNone = 0, kInt = 1, kSmallStr = 11 };

EXPORT void* __tvm_ffi__library_ctx = NULL;
EXPORT int (*__TVMFFIEnvModLookupFromImports)(void* ctx, const char* name, void** out) = NULL;
EXPORT int (*__TVMFFIFunctionCall)(void* func, const Any* args, int32_t n, Any* result) = NULL;

// answer() -> int: 42.
EXPORT int __tvm_ffi_answer(void* self, const Any* args, int32_t n, Any* result) {
  (void)self, (void)args, (void)n;
  *result = (Any){.type_index = kInt, .v_int64 = 42};
  return 0;
}

// greeting() -> str: 'hi', as a small string.
EXPORT int __tvm_ffi_greeting(void* self, const Any* args, int32_t n, Any* result) {
  (void)self, (void)args, (void)n;
  *result = (Any){.type_index = kSmallStr, .small_length = 2, .v_bytes = "hi"};
  return 0;
}

// first_index(*args) -> int: the type index of the first argument, -1 without arguments.
EXPORT int __tvm_ffi_first_index(void* self, const Any* args, int32_t n, Any* result) {
  (void)self;
  *result = (Any){.type_index = kInt, .v_int64 = n > 0 ? args[0].type_index : -1};
  return 0;
}

// handle_is_null() -> int: 1 if the symbol was called with a NULL handle.
EXPORT int __tvm_ffi_handle_is_null(void* self, const Any* args, int32_t n, Any* result) {
  (void)args, (void)n;
  *result = (Any){.type_index = kInt, .v_int64 = self == NULL};
  return 0;
}

// context_is_set() -> int: 1 if the loader has filled the library context.
EXPORT int __tvm_ffi_context_is_set(void* self, const Any* args, int32_t n, Any* result) {
  (void)self, (void)args, (void)n;
  *result = (Any){.type_index = kInt, .v_int64 = __tvm_ffi__library_ctx != NULL};
  return 0;
}

// call_import(*args) -> any: portcall_test.from_import(*args), looked up in the imports, then among the globals.
EXPORT int __tvm_ffi_call_import(void* self, const Any* args, int32_t n, Any* result) {
  (void)self;
  void* callee = NULL;
  if (__TVMFFIEnvModLookupFromImports(__tvm_ffi__library_ctx, "portcall_test.from_import", &callee) != 0) return -1;
  return __TVMFFIFunctionCall(callee, args, n, result);
}

// fail_silently(): returns -1 and raises no error.
EXPORT int __tvm_ffi_fail_silently(void* self, const Any* args, int32_t n, Any* result) {
  (void)self, (void)args, (void)n, (void)result;
  return -1;
}

#if defined(MODERN_BLOB_UNKNOWN) || defined(MODERN_BLOB_CORRUPT)

typedef struct __attribute__((packed)) {
  uint64_t nbytes;
  uint64_t indptr_count;
  uint64_t indptr[3];
  uint64_t children_count;
  uint64_t children[1];
  uint64_t lib_length;
  char lib[4];
  uint64_t kind_length;
  char kind[21];
  uint64_t payload_length;
  char payload[7];
} Blob;

// The library imports one module of a kind that no runtime knows. The corrupt variant claims a payload of a
// terabyte, which must be refused before anything is read or allocated.
EXPORT const Blob __tvm_ffi__library_bin = {
    .nbytes = sizeof(Blob) - sizeof(uint64_t),
    .indptr_count = 3,
    .indptr = {0, 1, 1},
    .children_count = 1,
    .children = {1},
    .lib_length = 4,
    .lib = {'_', 'l', 'i', 'b'},
    .kind_length = 21,
    .kind = "portcall_unknown_kind",
#ifdef MODERN_BLOB_CORRUPT
    .payload_length = UINT64_C(1) << 40,
#else
    .payload_length = 7,
#endif
    .payload = "payload",
};

#endif
