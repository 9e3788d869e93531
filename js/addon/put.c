// SPDX-License-Identifier: Apache-2.0
// Values of JavaScript as cells of the core.
#include "put.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "handles.h"
#include "tensors.h"
#include "text.h"

#define SMALL_TEXT 7         // bytes that a cell itself holds
#define SAFE_INTEGER 0x1p53  // below it every whole number is exact as a double

static void PutNumber(double number, TVMFFIAny* cell) {
  // A whole number of up to 53 bits is an int, but not -0.
  const bool fits = number > -SAFE_INTEGER && number < SAFE_INTEGER;
  const int64_t whole = fits ? (int64_t)number : 0;
  if (fits && (double)whole == number && (whole != 0 || !signbit(number))) {
    cell->type_index = kTVMFFIInt;
    cell->v_int64 = whole;
  } else {
    cell->type_index = kTVMFFIFloat;
    cell->v_float64 = number;
  }
}

static bool PutBigInt(napi_env env, napi_value value, TVMFFIAny* cell) {
  bool exact = false;
  napi_get_value_bigint_int64(env, value, &cell->v_int64, &exact);
  cell->type_index = kTVMFFIInt;
  if (!exact) ThrowError(env, "RangeError", "a BigInt does not fit 64 bits");
  return exact;
}

// Text is UTF-8; Node writes U+FFFD for half of a surrogate pair, which only a hook can tell from a real one.
static bool CheckText(Environment* e, napi_value value, const char* text, size_t size) {
  for (const char *at = text, *end = text + size; (at = memchr(at, 0xef, (size_t)(end - at))) != NULL; ++at) {
    if (end - at >= 3 && memcmp(at, "\xef\xbf\xbd", 3) == 0) return CallHook(e, kLower, 1, &value) != NULL;
  }
  return true;
}

static bool PutTextBytes(Environment* e, napi_value value, const char* text, size_t size, TVMFFIAny* cell) {
  if (!CheckText(e, value, text, size)) return false;
  if (size <= SMALL_TEXT) {
    cell->type_index = kTVMFFISmallStr;
    cell->small_str_len = (uint32_t)size;
    memcpy(cell->v_bytes, text, size);
    return true;
  }
  const TVMFFIByteArray bytes = {text, size};
  if (portcall->string_from_byte_array(&bytes, cell) == 0) return true;
  ThrowRaised(e);
  return false;
}

static bool PutText(Environment* e, napi_value value, TVMFFIAny* cell) {
  char fast[256];
  size_t size = 0;
  napi_get_value_string_utf8(e->env, value, fast, sizeof fast, &size);
  if (size < sizeof fast - 4) return PutTextBytes(e, value, fast, size, cell);  // no character was left out at the end
  TVMFFIByteArray text;
  if (!ReadText(e->env, value, &text)) return false;
  const bool put = PutTextBytes(e, value, text.data, text.size, cell);
  free((char*)text.data);
  return put;
}

static bool PutBytes(Environment* e, const void* data, size_t size, TVMFFIAny* cell) {
  const TVMFFIByteArray bytes = {data, size};
  if (portcall->bytes_from_byte_array(&bytes, cell) == 0) return true;
  ThrowRaised(e);
  return false;
}

static bool PutItem(Environment* e, napi_value array, uint32_t i, TVMFFIAny* cell, int depth) {
  napi_handle_scope scope;
  napi_value item;
  napi_open_handle_scope(e->env, &scope);
  const bool put = napi_get_element(e->env, array, i, &item) == napi_ok && PutValue(e, item, cell, depth);
  napi_close_handle_scope(e->env, scope);
  return put;
}

// An Array of the items, or a Map of the keys and values in a row.
static bool PutItems(Environment* e, napi_value array, bool is_map, TVMFFIAny* cell, int depth) {
  uint32_t count = 0, done = 0;
  napi_get_array_length(e->env, array, &count);
  if (!MayDescend(e, depth)) return false;
  TVMFFIAny* items = calloc((size_t)count + 1, sizeof *items);
  if (items == NULL) {
    ThrowError(e->env, "RangeError", "there is no memory left for an array");
    return false;
  }
  while (done < count && PutItem(e, array, done, items + done, depth + 1)) ++done;
  bool put = done == count;
  if (put) {
    TVMFFIObjectHandle made = NULL;
    const int status =
        is_map ? portcall->map_create(items, count / 2, &made) : portcall->array_create(items, count, &made);
    put = status == 0;
    if (!put) ThrowRaised(e);
    cell->type_index = is_map ? kTVMFFIMap : kTVMFFIArray;
    cell->v_obj = made;
  }
  for (uint32_t i = 0; i < done; ++i) ClearCell(items + i);
  free(items);
  return put;
}

static bool PutCarrier(Environment* e, napi_value value, TVMFFIAny* cell) {
  cell->type_index = carrier_type;
  cell->v_ptr = MakeCarrier(e, value);
  if (cell->v_ptr == NULL) ThrowError(e->env, "RangeError", "there is no memory left for an object");
  return cell->v_ptr != NULL;
}

// What Node-API knows nothing of: a hook says what it consists of, or throws. Of nothing: it goes through as it is.
static bool PutLowered(Environment* e, napi_value value, TVMFFIAny* cell, int depth) {
  napi_env env = e->env;
  napi_value parts = CallHook(e, kLower, 1, &value), part;
  uint32_t count = 0;
  if (parts == NULL) return false;
  napi_get_array_length(env, parts, &count);
  if (count == 0) return PutCarrier(e, value, cell);
  cell->type_index = (int32_t)PartOf(env, parts, 0);
  switch (cell->type_index) {
    case kTVMFFIFloat:
      napi_get_element(env, parts, 1, &part);
      return napi_get_value_double(env, part, &cell->v_float64) == napi_ok;
    case kTVMFFIDataType:
      cell->v_dtype.code = (uint8_t)PartOf(env, parts, 1);
      cell->v_dtype.bits = (uint8_t)PartOf(env, parts, 2);
      cell->v_dtype.lanes = (uint16_t)PartOf(env, parts, 3);
      return true;
    case kTVMFFIDevice:
      cell->v_device.device_type = (DLDeviceType)PartOf(env, parts, 1);
      cell->v_device.device_id = (int32_t)PartOf(env, parts, 2);
      return true;
    case kTVMFFITensor:
      return PutShapedArray(e, parts, cell);
    default:
      napi_get_element(env, parts, 1, &part);
      return PutItems(e, part, true, cell, depth);
  }
}

static bool PutTypedArray(Environment* e, napi_value value, TVMFFIAny* cell, int depth) {
  napi_typedarray_type type = (napi_typedarray_type)-1;
  size_t size;
  void* data;
  DLTensor tensor;
  int64_t extent;
  napi_get_typedarray_info(e->env, value, &type, &size, &data, NULL, NULL);
  if (type == napi_uint8_array) return PutBytes(e, data, size, cell);
  if (!DescribeArray(e->env, value, &tensor, &extent)) return PutLowered(e, value, cell, depth);
  return PutArray(e, value, &tensor, cell);
}

static bool PutHandle(Environment* e, Handle* handle, TVMFFIAny* cell) {
  if (handle->disposed) {
    ThrowError(e->env, "TypeError", "a value was disposed of");
    return false;
  }
  cell->type_index = handle->object->type_index;
  cell->v_obj = handle->object;
  portcall->object_inc_ref(handle->object);
  return true;
}

TVMFFIObjectHandle MakeFunction(Environment* e, napi_value function, const char* name) {
  TVMFFIObjectHandle made = NULL;
  Kept* kept = Keep(e, function);
  if (kept == NULL) {
    ThrowError(e->env, "RangeError", "there is no memory left for a function");
  } else if (portcall->function_create(kept, e->callers.to_javascript, ReleaseKept, 0, name, &made) != 0) {
    ReleaseKept(kept);
    ThrowRaised(e);
  }
  return made;
}

static bool PutObject(Environment* e, napi_value value, bool callable, TVMFFIAny* cell, int depth) {
  bool is = false;
  if (!callable && napi_is_typedarray(e->env, value, &is) == napi_ok && is) return PutTypedArray(e, value, cell, depth);
  if (!callable && napi_is_array(e->env, value, &is) == napi_ok && is) return PutItems(e, value, false, cell, depth);
  Handle* handle = HandleOf(e, value);
  if (handle != NULL) return PutHandle(e, handle, cell);
  if (!callable) return PutLowered(e, value, cell, depth);
  cell->type_index = kTVMFFIFunction;
  cell->v_ptr = MakeFunction(e, value, NULL);
  return cell->v_ptr != NULL;
}

bool PutValue(Environment* e, napi_value value, TVMFFIAny* cell, int depth) {
  double number;
  napi_valuetype type;
  bool truth = false;
  cell->type_index = kTVMFFINone;
  cell->zero_padding = 0;
  cell->v_int64 = 0;
  bool put = true;
  if (napi_get_value_double(e->env, value, &number) == napi_ok) {
    PutNumber(number, cell);
    return true;
  }
  napi_typeof(e->env, value, &type);
  switch (type) {
    case napi_undefined:
    case napi_null:
      return true;
    case napi_boolean:
      napi_get_value_bool(e->env, value, &truth);
      cell->type_index = kTVMFFIBool;
      cell->v_int64 = truth;
      return true;
    case napi_bigint:
      put = PutBigInt(e->env, value, cell);
      break;
    case napi_string:
      put = PutText(e, value, cell);
      break;
    case napi_object:
    case napi_function:
      put = PutObject(e, value, type == napi_function, cell, depth);
      break;
    default:
      put = PutLowered(e, value, cell, depth);
  }
  if (!put) cell->type_index = kTVMFFINone;
  return put;
}
