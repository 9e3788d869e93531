// SPDX-License-Identifier: Apache-2.0
// f.async(…): a call in a thread of Node's pool, while the event loop goes on.
#include "async.h"

#include <stdlib.h>

#include "errors.h"
#include "functions.h"
#include "get.h"
#include "handles.h"
#include "put.h"
#include "tensors.h"

typedef struct Task {
  Handle* handle;
  napi_ref function;  // so that the handle stays
  napi_async_work work;
  napi_deferred promise;
  TVMFFIAny result;
  TVMFFIObjectHandle error;
  int status;
  int32_t count;
  TVMFFIAny* cells;
  Held *held, *end;
} Task;

static void Run(napi_env env, void* data) {
  Task* task = data;
  (void)env;
  visited = task->handle->environment;
  task->status = task->handle->call(task->handle->self, task->cells, task->count, &task->result);
  if (task->status != 0) portcall->error_move_from_raised(&task->error);
  visited = NULL;
}

static void FreeTask(Task* task) {
  Handle* handle = task->handle;
  ReleaseHeld(task->held, task->end);
  if (--handle->calls == 0 && handle->disposed) DisposeHandle(handle);
  napi_delete_reference(handle->environment->env, task->function);
  free(task->held);
  free(task->cells);
  free(task);
}

static void Settle(napi_env env, napi_status status, void* data) {
  Task* task = data;
  Environment* e = task->handle->environment;
  napi_deferred promise = task->promise;
  TVMFFIAny result = task->result;
  TVMFFIObjectHandle error = task->error;
  const bool failed = task->status != 0;
  napi_value value;
  napi_delete_async_work(env, task->work);
  FreeTask(task);
  if (status == napi_cancelled) return;
  value = failed ? ErrorToValue(e, error) : GetValue(e, &result, true);
  if (value != NULL && !failed) {
    napi_resolve_deferred(env, promise, value);
    return;
  }
  if (value == NULL && napi_get_and_clear_last_exception(env, &value) != napi_ok) return;
  napi_reject_deferred(env, promise, value);
}

static bool PutArguments(Environment* e, Task* task, napi_value args) {
  for (int32_t i = 0; i < task->count; ++i) {
    napi_value value;
    TVMFFIAny* cell = task->cells + i;
    if (napi_get_element(e->env, args, (uint32_t)i, &value) != napi_ok || !PutValue(e, value, cell, 0)) return false;
    if (cell->type_index < kTVMFFIObject) continue;
    Held* held = task->end++;
    held->object = cell->v_obj;
    held->copy = NULL;
    if (task->handle->flags & kPortcallFunctionLibrary && cell->type_index == kTVMFFITensor &&
        !AlignArgument(e, cell, held, task->held)) {
      return false;
    }
  }
  return true;
}

// callAsync(f, arguments): a promise of the result.
napi_value CallAsync(napi_env env, napi_callback_info info) {
  Environment* e;
  napi_value args[2], name, promise = NULL;
  size_t given = 2;
  uint32_t count = 0;
  napi_get_instance_data(env, (void**)&e);
  napi_get_cb_info(env, info, &given, args, NULL, NULL);
  Handle* handle = HandleOf(e, args[0]);
  if (handle == NULL || handle->disposed || handle->call == NULL) {
    ThrowError(env, "TypeError", "the function was disposed of");
    return NULL;
  }
  napi_get_array_length(env, args[1], &count);
  Task* task = calloc(1, sizeof *task);
  if (task != NULL) {
    task->cells = calloc((size_t)count + 1, sizeof *task->cells);
    task->held = task->end = calloc((size_t)count + 1, sizeof *task->held);
  }
  if (task == NULL || task->cells == NULL || task->held == NULL) {
    if (task != NULL) free(task->cells), free(task->held);
    free(task);
    ThrowError(env, "RangeError", "there is no memory left for a call");
    return NULL;
  }
  task->handle = handle;
  task->count = (int32_t)count;
  ++handle->calls;
  napi_create_reference(env, args[0], 1, &task->function);
  napi_create_string_utf8(env, "portcall", NAPI_AUTO_LENGTH, &name);
  if (!PutArguments(e, task, args[1]) ||
      napi_create_async_work(env, NULL, name, Run, Settle, task, &task->work) != napi_ok) {
    FreeTask(task);
    return NULL;
  }
  napi_create_promise(env, &task->promise, &promise);
  napi_queue_async_work(env, task->work);
  return promise;
}
