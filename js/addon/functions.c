// SPDX-License-Identifier: Apache-2.0
// Calls, both ways, and errors on their way through them.
#include <stdlib.h>
#include <string.h>

#include "addon.h"

_Thread_local Environment* visited = NULL;

// ---- Handles ------------------------------------------------------------------------------------------------------

void DisposeHandle(Handle* handle) {
  handle->disposed = true;
  if (handle->calls != 0 || handle->object == NULL) return;
  TVMFFIObject* object = handle->object;
  int64_t counted;
  handle->object = NULL;
  if (handle->counted != 0) napi_adjust_external_memory(handle->environment->env, -handle->counted, &counted);
  handle->counted = 0;
  portcall->object_dec_ref(object);
}

static void FreeHandle(napi_env env, void* data, void* hint) {
  Handle* handle = data;
  Environment* e = handle->environment;
  (void)env, (void)hint;
  DisposeHandle(handle);
  RemoveHandle(e, handle);
  free(handle);
  Release(e);
}

Handle* MakeHandle(Environment* e, TVMFFIObjectHandle object) {
  Handle* handle = calloc(1, sizeof *handle);
  if (handle == NULL || !AddHandle(e, handle)) {
    free(handle);
    portcall->object_dec_ref(object);
    ThrowError(e->env, "RangeError", "there is no memory left for an object");
    return NULL;
  }
  handle->environment = e;
  handle->object = object;
  Retain(e);
  return handle;
}

bool AttachHandle(napi_value target, Handle* handle) {
  napi_env env = handle->environment->env;
  if (target != NULL && napi_wrap(env, target, handle, FreeHandle, NULL, NULL) == napi_ok) return true;
  FreeHandle(env, handle, NULL);
  return false;
}

Handle* HandleOf(Environment* e, napi_value value) {
  void* pointer;
  if (napi_unwrap(e->env, value, &pointer) != napi_ok || !HasHandle(e, pointer)) return NULL;
  return pointer;
}

// ---- Errors -------------------------------------------------------------------------------------------------------

TVMFFIObjectHandle MakeCarrier(Environment* e, napi_value value) {
  TVMFFIObjectHandle carrier = NULL;
  Kept* kept = Keep(e, value);
  if (kept != NULL && portcall->object_create_opaque(kept, carrier_type, ReleaseKept, &carrier) != 0) ReleaseKept(kept);
  return carrier;
}

napi_value CarriedBy(Environment* e, const TVMFFIObject* object) {
  napi_value value = NULL;
  if (object == NULL || object->type_index != carrier_type) return NULL;
  const Kept* kept = *(Kept**)(object + 1);
  if (kept->environment == e) napi_get_reference_value(e->env, kept->reference, &value);
  return value;
}

napi_value ErrorToValue(Environment* e, TVMFFIObjectHandle error) {
  static const TVMFFIErrorCell unknown = {.kind = {"RuntimeError", 12},
                                          .message = {"a call failed without an error", 30}};
  const TVMFFIErrorCell* cell = error == NULL ? &unknown : (TVMFFIErrorCell*)((TVMFFIObject*)error + 1);
  napi_value value = CarriedBy(e, cell->extra_context);
  if (value == NULL) {
    napi_value args[3];
    args[0] = MakeText(e->env, cell->kind.data, cell->kind.size);
    args[1] = MakeText(e->env, cell->message.data, cell->message.size);
    args[2] = MakeText(e->env, cell->backtrace.data, cell->backtrace.size);
    value = CallHook(e, kError, 3, args);
  }
  if (error != NULL) portcall->object_dec_ref(error);
  return value;
}

void ThrowRaised(Environment* e) {
  TVMFFIObjectHandle error = NULL;
  portcall->error_move_from_raised(&error);
  napi_value value = ErrorToValue(e, error);
  if (value != NULL) napi_throw(e->env, value);
}

static TVMFFIByteArray BytesOf(const TVMFFIAny* text) {
  const TVMFFIByteArray small = {text->v_bytes, text->small_str_len};
  return text->type_index == kTVMFFISmallStr ? small : *(TVMFFIByteArray*)(text->v_obj + 1);
}

static void RaiseWith(Environment* e, TVMFFIByteArray kind, TVMFFIByteArray message, napi_value object) {
  static const TVMFFIByteArray no_trace = {"", 0};
  TVMFFIObjectHandle carrier = MakeCarrier(e, object), error = NULL;
  if (portcall->error_create(&kind, &message, &no_trace, NULL, carrier, &error) == 0) {
    portcall->error_set_raised(error);
    portcall->object_dec_ref(error);
  }
  if (carrier != NULL) portcall->object_dec_ref(carrier);
}

// Leaves what was thrown in the slot, as a hook describes it: [[class, message], error].
static bool RaiseThrown(Environment* e, napi_value thrown) {
  napi_value parts = CallHook(e, kDescribe, 1, &thrown), texts, object;
  TVMFFIAny cell;
  if (parts == NULL) return false;
  napi_get_element(e->env, parts, 0, &texts);
  napi_get_element(e->env, parts, 1, &object);
  if (!PutValue(e, texts, &cell, 0)) return false;
  const TVMFFIAny* items = ((TVMFFISeqCell*)(cell.v_obj + 1))->data;
  RaiseWith(e, BytesOf(&items[0]), BytesOf(&items[1]), object);
  ClearCell(&cell);
  return true;
}

int RaisePending(Environment* e) {
  static const TVMFFIByteArray kind = {"RuntimeError", 12}, message = {"JavaScript has no room for its error", 36};
  napi_value thrown, another;
  bool pending = false;
  napi_is_exception_pending(e->env, &pending);
  if (!pending || napi_get_and_clear_last_exception(e->env, &thrown) != napi_ok) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "the thread of a JavaScript function is ending");
  } else if (!RaiseThrown(e, thrown)) {  // where the stack is at its end
    napi_get_and_clear_last_exception(e->env, &another);
    RaiseWith(e, kind, message, thrown);
  }
  return -1;
}

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
  portcall->object_dec_ref(held->copy);
}

static bool GetArgument(Environment* e, const TVMFFIAny* arg, Held* held, napi_value* out) {
  held->copy = NULL;
  if (arg->type_index == kTVMFFIDLTensorPtr) {
    if (!CopyView(e, arg->v_ptr, held)) return false;
    const TVMFFIAny copy = {.type_index = kTVMFFITensor, .v_obj = held->copy};
    *out = GetValue(e, &copy, false);
  } else {
    *out = GetValue(e, arg, false);
  }
  return *out != NULL;
}

static int CallWith(Kept* function, const TVMFFIAny* args, int32_t count, napi_value* values, Held* held,
                    TVMFFIAny* result) {
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
    if (held[i].copy != NULL) ReturnView(held + i, args + i);
  }
  if (scope != NULL) napi_close_handle_scope(env, scope);
  return status;
}

int CallHere(Kept* function, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  napi_value fast[FAST_ARGUMENTS];
  Held fast_held[FAST_ARGUMENTS];
  if (count <= FAST_ARGUMENTS) return CallWith(function, args, count, fast, fast_held, result);
  napi_value* values = malloc((size_t)count * sizeof *values);
  Held* held = malloc((size_t)count * sizeof *held);
  int status = -1;
  if (values != NULL && held != NULL) {
    status = CallWith(function, args, count, values, held, result);
  } else {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "there is no memory left for the arguments of a call");
  }
  free(values);
  free(held);
  return status;
}

static int CallJavaScript(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  Kept* function = self;
  Environment* e = function->environment;
  if (IsHere(e)) return CallHere(function, args, count, result);
  if (visited == e) {
    Visit visit = {.function = function, .args = args, .count = count, .result = result};
    return VisitJavaScript(&visit);
  }
  TVMFFIErrorSetRaisedFromCStr(
      "RuntimeError", atomic_load(&e->ended)
                          ? "the thread of a JavaScript function has ended"
                          : "a JavaScript function is called from another thread than its own: call what starts that "
                            "call by f.async(), and let it call the function from its own thread");
  return -1;
}

TVMFFIObjectHandle MakeFunction(Environment* e, napi_value function, const char* name) {
  TVMFFIObjectHandle made = NULL;
  Kept* kept = Keep(e, function);
  if (kept == NULL) {
    ThrowError(e->env, "RangeError", "there is no memory left for a function");
  } else if (portcall->function_create(kept, CallJavaScript, ReleaseKept, 0, name, &made) != 0) {
    ReleaseKept(kept);
    ThrowRaised(e);
  }
  return made;
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

napi_value WrapFunction(Environment* e, TVMFFIObjectHandle object, const char* name) {
  PortcallFunctionInfo about;
  napi_value args[2];
  Handle* handle = MakeHandle(e, object);
  if (handle == NULL) return NULL;
  portcall->function_get_info(object, &about);
  handle->call = about.call;
  handle->self = about.self;
  handle->flags = about.flags;
  if (napi_create_function(e->env, name == NULL ? about.name : name, NAPI_AUTO_LENGTH, CallFunction, handle,
                           &args[1]) != napi_ok) {
    args[1] = NULL;
  }
  if (!AttachHandle(args[1], handle)) return NULL;
  napi_create_int32(e->env, kTVMFFIFunction, &args[0]);
  return CallHook(e, kMake, 2, args);  // gives it its methods
}
