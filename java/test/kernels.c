/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of Java call: the kernels and the objects of the tests of JavaScript, and threads that call back. */
#include "native/kernels.c"

#include <pthread.h>

#include "objects.h"

typedef struct {
  TVMFFIObjectHandle function;
  int64_t calls, sum;
  int status;
} Task;

static void* work(void* given) {
  Task* task = given;
  for (int64_t i = 0; i < task->calls && task->status == 0; ++i) {
    const TVMFFIAny arg = {.type_index = kTVMFFIInt, .v_int64 = i};
    TVMFFIAny result = {.type_index = kTVMFFINone};
    task->status = TVMFFIFunctionCall(task->function, &arg, 1, &result);
    task->sum += result.v_int64;
  }
  return NULL;
}

/* (function, threads, calls): calls a function from threads of its own, all at a time; the sum of the results. */
static int in_threads(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n;
  Task tasks[64] = {{0}};
  pthread_t threads[64];
  const int count = (int)args[1].v_int64;
  for (int i = 0; i < count; ++i) {
    tasks[i].function = args[0].v_obj, tasks[i].calls = args[2].v_int64;
    if (pthread_create(&threads[i], NULL, work, &tasks[i]) != 0) return -1;
  }
  result->type_index = kTVMFFIInt;
  result->v_int64 = 0;
  int failed = 0;
  for (int i = 0; i < count; ++i) {
    pthread_join(threads[i], NULL);
    result->v_int64 += tasks[i].sum;
    failed |= tasks[i].status;
  }
  if (failed) TVMFFIErrorSetRaisedFromCStr("RuntimeError", "a call of a thread failed");
  return failed ? -1 : 0;
}

int __tvm_ffi_threads(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n;
  TVMFFIObjectHandle made;
  if (PortcallFunctionCreate(NULL, in_threads, NULL, 0, "threads", &made) != 0) return -1;
  result->type_index = kTVMFFIFunction;
  result->v_obj = (TVMFFIObject*)made;
  return 0;
}

static void* forever(void* given) {
  Task* task = given;
  for (;;) {
    const TVMFFIAny arg = {.type_index = kTVMFFIInt, .v_int64 = 1};
    TVMFFIAny result = {.type_index = kTVMFFINone};
    TVMFFIFunctionCall(task->function, &arg, 1, &result);
  }
  return NULL;
}

/* Calls a function from a thread that does not end. */
static int go_on(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n, (void)result;
  static Task task;
  pthread_t thread;
  task.function = args[0].v_obj;
  TVMFFIObjectIncRef(task.function);
  return pthread_create(&thread, NULL, forever, &task);
}

int __tvm_ffi_forever(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n;
  TVMFFIObjectHandle made;
  if (PortcallFunctionCreate(NULL, go_on, NULL, 0, "forever", &made) != 0) return -1;
  result->type_index = kTVMFFIFunction;
  result->v_obj = (TVMFFIObject*)made;
  return 0;
}
