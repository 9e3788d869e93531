/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that take objects and use threads, as libraries in C++ do. */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "../objects.h"

PORTCALL_API const int32_t portcall_abi_version = PORTCALL_ABI_VERSION;

typedef struct {
  const TVMFFIAny* args;
  int32_t n;
  TVMFFIAny* result;
  int status;
  TVMFFIObjectHandle error;
} Call;

static void* run(void* data) {
  Call* call = data;
  call->status = TVMFFIFunctionCall(call->args[0].v_obj, call->args + 1, call->n - 1, call->result);
  if (call->status != 0) TVMFFIErrorMoveFromRaised(&call->error);
  return NULL;
}

/* Calls a function, in this thread. */
int __tvm_ffi_call(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self;
  return TVMFFIFunctionCall(args[0].v_obj, args + 1, n - 1, result);
}

/* The same in another thread, for whose end it waits. */
int __tvm_ffi_call_elsewhere(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self;
  Call call = {args, n, result, 0, NULL};
  pthread_t thread;
  pthread_create(&thread, NULL, run, &call);
  pthread_join(thread, NULL);
  if (call.error != NULL) {
    TVMFFIErrorSetRaised(call.error);
    TVMFFIObjectDecRef(call.error);
  }
  return call.status;
}

/* Calls a function with a tensor that is gone after the call, and sets the flag then. */
int __tvm_ffi_lend(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n;
  int64_t extent = 4;
  DLTensor view = {NULL, {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &extent, NULL, 0};
  const TVMFFIAny arg = {.type_index = kTVMFFIDLTensorPtr, .v_ptr = &view};
  view.data = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int status = TVMFFIFunctionCall(args[0].v_obj, &arg, 1, result);
  munmap(view.data, 4096);
  const DLTensor* flag = args[1].type_index == kTVMFFIDLTensorPtr ? args[1].v_ptr : (DLTensor*)(args[1].v_obj + 1);
  __atomic_store_n((int32_t*)flag->data, 1, __ATOMIC_RELEASE);
  return status;
}

static TVMFFIAny kept;

/* Keeps a value. */
int __tvm_ffi_keep(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n, (void)result;
  return TVMFFIAnyViewToOwnedAny(args, &kept);
}

/* Returns it. */
int __tvm_ffi_kept(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n;
  return TVMFFIAnyViewToOwnedAny(&kept, result);
}

static void* drop(void* data) {
  (void)data;
  if (kept.type_index >= kTVMFFIObject) TVMFFIObjectDecRef(kept.v_obj);
  kept.type_index = kTVMFFINone;
  return NULL;
}

/* Forgets it, in another thread. */
int __tvm_ffi_drop_elsewhere(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n, (void)result;
  pthread_t thread;
  pthread_create(&thread, NULL, drop, NULL);
  pthread_join(thread, NULL);
  return 0;
}

/* Waits until the first element of a tensor of int32 is not 0, and returns it. */
int __tvm_ffi_wait_for(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n;
  const DLTensor* tensor = args[0].type_index == kTVMFFIDLTensorPtr ? args[0].v_ptr : (DLTensor*)(args[0].v_obj + 1);
  int32_t* flag = tensor->data;
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) sched_yield();
  result->type_index = kTVMFFIInt;
  result->v_int64 = *flag;
  return 0;
}
