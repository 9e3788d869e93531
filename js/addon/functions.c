// SPDX-License-Identifier: Apache-2.0
// Calls, both ways.
#include "functions.h"

#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "get.h"
#include "handles.h"
#include "put.h"
#include "tensors.h"

#define FAST_ARGUMENTS 8  // of calls without memory from the heap
#define MOST_UNSCOPED 8   // calls of JavaScript whose values may stay until the core's call that made them is over

_Thread_local Environment* visited = NULL;

// ---- The core calls JavaScript ------------------------------------------------------------------------------------

// A tensor that is borrowed for the call: JavaScript gets a copy of its own, so that it may keep it.
static bool CopyView(Environment* e, const DLTensor* view, Held* held) {
  TVMFFIObjectHandle copy = NULL;
  if (portcall->tensor_alloc(view, &copy) == 0 && portcall->tensor_copy(view, TensorOf(copy)) == 0) {
    held->copy = copy;
    return true;
  }
  ThrowRaised(e);
  if (copy != NULL) portcall->object_dec_ref(copy);
  return false;
}

// What JavaScript wrote into the copy goes back. Memory that it only read may be read-only.
static void ReturnView(const Held* held, const TVMFFIAny* arg) {
  DLTensor* view = arg->v_ptr;
  const DLTensor* copy = TensorOf(held->copy);
  const bool comparable = view->device.device_type == kDLCPU && IsCompact(view);
  if (!comparable || memcmp((char*)view->data + view->byte_offset, copy->data, (size_t)SizeOf(copy)) != 0) {
    portcall->tensor_copy(copy, view);
  }
}

static bool GetArgument(Environment* e, const TVMFFIAny* arg, Held* held, napi_value* out) {
  held->copy = NULL;
  if (arg->type_index == kTVMFFIDLTensorPtr) {
    if (!CopyView(e, arg->v_ptr, held)) return false;
    const TVMFFIAny copy = {.type_index = kTVMFFITensor, .v_obj = held->copy};
    *out = GetValue(e, &copy, false);
    if (*out == NULL) portcall->object_dec_ref(held->copy);
  } else {
    *out = GetValue(e, arg, false);
  }
  return *out != NULL;
}

// A call of another thread, which waits, is a visit. When that is abandoned meanwhile, its arguments are gone.
static int CallWith(Kept* function, const Visit* visit, const TVMFFIAny* args, int32_t count, napi_value* values,
                    Held* held, TVMFFIAny* result) {
  Environment* e = function->environment;
  napi_env env = e->env;
  napi_handle_scope scope = NULL;
  napi_value callee, undefined, returned;
  int32_t done = 0;
  if (e->unscoped >= MOST_UNSCOPED) {
    napi_open_handle_scope(env, &scope);
  } else {
    ++e->unscoped;
  }
  napi_get_undefined(env, &undefined);
  napi_get_reference_value(env, function->reference, &callee);
  while (done < count && GetArgument(e, args + done, held + done, values + done)) ++done;
  const bool called = done == count &&
                      napi_call_function(env, undefined, callee, (size_t)count, values, &returned) == napi_ok &&
                      PutValue(e, returned, result, 0);
  const int status = called ? 0 : RaisePending(e);
  for (int32_t i = 0; i < done; ++i) {
    if (held[i].copy == NULL) continue;
    if (visit == NULL || visit == e->current) ReturnView(held + i, args + i);
    portcall->object_dec_ref(held[i].copy);
  }
  if (scope != NULL) napi_close_handle_scope(env, scope);
  return status;
}

static int CallHere(Kept* function, const Visit* visit, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  napi_value fast[FAST_ARGUMENTS];
  Held fast_held[FAST_ARGUMENTS];
  if (count <= FAST_ARGUMENTS) return CallWith(function, visit, args, count, fast, fast_held, result);
  napi_value* values = malloc((size_t)count * sizeof *values);
  Held* held = malloc((size_t)count * sizeof *held);
  int status = -1;
  if (values != NULL && held != NULL) {
    status = CallWith(function, visit, args, count, values, held, result);
  } else {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "there is no memory left for the arguments of a call");
  }
  free(values);
  free(held);
  return status;
}

static int RunVisit(Visit* visit, TVMFFIAny* result) {
  return CallHere(visit->function, visit, visit->args, visit->count, result);
}

static int CallJavaScript(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  Kept* function = self;
  Environment* e = function->environment;
  if (IsHere(e)) return CallHere(function, NULL, args, count, result);
  if (visited == e) {
    Visit visit = {.run = RunVisit, .function = function, .args = args, .count = count, .result = result};
    return VisitJavaScript(&visit);
  }
  TVMFFIErrorSetRaisedFromCStr(
      "RuntimeError", atomic_load(&e->ended)
                          ? "the thread of a JavaScript function has ended"
                          : "a JavaScript function is called from another thread than its own: call what starts that "
                            "call by f.async(), and let it call the function from its own thread");
  return -1;
}

// ---- JavaScript calls the core ------------------------------------------------------------------------------------

// A typed array as compiled kernels take it: on the stack. Memory that is not aligned goes another way.
typedef struct Borrowed {
  DLTensor tensor;
  int64_t extent;
} Borrowed;

static bool BorrowArray(napi_env env, napi_value value, TVMFFIAny* cell, Borrowed* borrowed) {
  bool is = false;
  if (napi_is_typedarray(env, value, &is) != napi_ok || !is) return false;
  if (!DescribeArray(env, value, &borrowed->tensor, &borrowed->extent)) return false;
  if (borrowed->tensor.dtype.code == kDLUInt && borrowed->tensor.dtype.bits == 8) return false;  // bytes
  if ((uintptr_t)borrowed->tensor.data % ALIGNMENT != 0) return false;
  cell->type_index = kTVMFFIDLTensorPtr;
  cell->zero_padding = 0;
  cell->v_ptr = &borrowed->tensor;
  return true;
}

typedef struct Frame {
  Handle* handle;
  TVMFFIAny* cells;
  Borrowed* borrowed;
  Held* held;
} Frame;

static bool PutArgument(const Frame* frame, size_t i, napi_value value, Held** end) {
  Environment* e = frame->handle->environment;
  TVMFFIAny* cell = frame->cells + i;
  const int32_t flags = frame->handle->flags;
  if (flags & kPortcallFunctionGenerated && BorrowArray(e->env, value, cell, frame->borrowed + i)) return true;
  if (!PutValue(e, value, cell, 0)) return false;
  if (cell->type_index < kTVMFFIObject) return true;
  Held* held = (*end)++;
  held->object = cell->v_obj;
  held->copy = NULL;
  if (flags & kPortcallFunctionGenerated && cell->type_index == kTVMFFIStr) {  // it knows only text of C
    cell->type_index = kTVMFFIRawStr;
    cell->v_c_str = ((TVMFFIByteArray*)(held->object + 1))->data;
  }
  return !(flags & kPortcallFunctionLibrary) || cell->type_index != kTVMFFITensor ||
         AlignArgument(e, cell, held, frame->held);
}

static napi_value Call(const Frame* frame, size_t count, const napi_value* args) {
  Handle* handle = frame->handle;
  Environment* e = handle->environment;
  Held* end = frame->held;
  TVMFFIAny result = {0};
  for (size_t i = 0; i < count; ++i) {
    if (!PutArgument(frame, i, args[i], &end)) {
      ReleaseHeld(frame->held, end);
      return NULL;
    }
  }
  ++handle->calls;
  const int32_t unscoped = e->unscoped;
  e->unscoped = 0;
  const int status = handle->call(handle->self, frame->cells, (int32_t)count, &result);
  e->unscoped = unscoped;
  if (--handle->calls == 0 && handle->disposed) DisposeHandle(handle);
  ReleaseHeld(frame->held, end);
  if (status == 0) return GetValue(e, &result, true);
  ThrowRaised(e);
  return NULL;
}

static napi_value CallWithMany(napi_env env, napi_callback_info info, Handle* handle, size_t count) {
  napi_value* args = malloc(count * sizeof *args);
  TVMFFIAny* cells = malloc(count * sizeof *cells);
  Borrowed* borrowed = malloc(count * sizeof *borrowed);
  Held* held = malloc(count * sizeof *held);
  napi_value result = NULL;
  if (args != NULL && cells != NULL && borrowed != NULL && held != NULL) {
    napi_get_cb_info(env, info, &count, args, NULL, NULL);
    result = Call(&(Frame){handle, cells, borrowed, held}, count, args);
  } else {
    ThrowError(env, "RangeError", "there is no memory left for the arguments of a call");
  }
  free(held);
  free(borrowed);
  free(cells);
  free(args);
  return result;
}

static napi_value CallFunction(napi_env env, napi_callback_info info) {
  napi_value args[FAST_ARGUMENTS];
  TVMFFIAny cells[FAST_ARGUMENTS];
  Borrowed borrowed[FAST_ARGUMENTS];
  Held held[FAST_ARGUMENTS];
  size_t count = FAST_ARGUMENTS;
  void* data;
  napi_get_cb_info(env, info, &count, args, NULL, &data);
  Handle* handle = data;
  if (handle->disposed) {
    ThrowError(env, "TypeError", "the function was disposed of");
    return NULL;
  }
  if (count > FAST_ARGUMENTS) return CallWithMany(env, info, handle, count);
  return Call(&(Frame){handle, cells, borrowed, held}, count, args);
}

const Callers callers = {CallFunction, CallJavaScript};
