// SPDX-License-Identifier: Apache-2.0
// Errors: an object that JavaScript threw comes back as that object.
#include "errors.h"

#include <stdlib.h>

#include "text.h"

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

static void RaiseWith(Environment* e, TVMFFIByteArray kind, TVMFFIByteArray message, napi_value object) {
  static const TVMFFIByteArray no_trace = {"", 0};
  TVMFFIObjectHandle carrier = MakeCarrier(e, object), error = NULL;
  if (portcall->error_create(&kind, &message, &no_trace, NULL, carrier, &error) == 0) {
    portcall->error_set_raised(error);
    portcall->object_dec_ref(error);
  }
  if (carrier != NULL) portcall->object_dec_ref(carrier);
}

// Reads text i of an array that a hook returned.
static bool ReadPart(Environment* e, napi_value texts, uint32_t i, TVMFFIByteArray* out) {
  napi_value text;
  return napi_get_element(e->env, texts, i, &text) == napi_ok && ReadText(e->env, text, out);
}

// Leaves what was thrown in the slot, as a hook describes it: [[class, message], error].
static bool RaiseThrown(Environment* e, napi_value thrown) {
  napi_value parts = CallHook(e, kDescribe, 1, &thrown), texts, object;
  TVMFFIByteArray kind = {NULL, 0}, message = {NULL, 0};
  if (parts == NULL) return false;
  napi_get_element(e->env, parts, 0, &texts);
  napi_get_element(e->env, parts, 1, &object);
  const bool read = ReadPart(e, texts, 0, &kind) && ReadPart(e, texts, 1, &message);
  if (read) RaiseWith(e, kind, message, object);
  free((char*)kind.data);
  free((char*)message.data);
  return read;
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
