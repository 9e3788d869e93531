// SPDX-License-Identifier: Apache-2.0
// Values of JavaScript as cells of the core, and back.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "addon.h"

void ClearCell(TVMFFIAny* cell) {
  if (cell->type_index >= kTVMFFIObject) portcall->object_dec_ref(cell->v_obj);
  cell->type_index = kTVMFFINone;
}

int64_t PartOf(napi_env env, napi_value parts, uint32_t i) {
  napi_value part;
  int64_t value = 0;
  if (napi_get_element(env, parts, i, &part) == napi_ok) napi_get_value_int64(env, part, &value);
  return value;
}

// ---- From JavaScript ----------------------------------------------------------------------------------------------

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
  napi_get_value_string_utf8(e->env, value, NULL, 0, &size);
  char* text = malloc(size + 1);
  if (text == NULL) {
    ThrowError(e->env, "RangeError", "there is no memory left for a string");
    return false;
  }
  napi_get_value_string_utf8(e->env, value, text, size + 1, &size);
  const bool put = PutTextBytes(e, value, text, size, cell);
  free(text);
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
  if (depth >= DEEPEST) {
    ThrowError(e->env, "RangeError", "a value has too many levels, or contains itself");
    return false;
  }
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

// ---- To JavaScript ------------------------------------------------------------------------------------------------

static bool IsAscii(const char* data, size_t size) {
  uint64_t word, all = 0;
  size_t i = 0;
  for (; i + sizeof word <= size; i += sizeof word) {
    memcpy(&word, data + i, sizeof word);
    all |= word;
  }
  for (; i < size; ++i) all |= (uint8_t)data[i];
  return (all & UINT64_C(0x8080808080808080)) == 0;
}

napi_value MakeText(napi_env env, const char* data, size_t size) {
  napi_value text = NULL;
  const napi_status status = IsAscii(data, size) ? napi_create_string_latin1(env, data, size, &text)
                                                 : napi_create_string_utf8(env, data, size, &text);
  if (status != napi_ok) ThrowError(env, "RangeError", "text of the core is too long for a string");
  return text;
}

static napi_value MakeBytes(napi_env env, const char* data, size_t size) {
  napi_value buffer, array = NULL;
  void* memory = NULL;
  if (napi_create_arraybuffer(env, size, &memory, &buffer) != napi_ok) return NULL;
  if (size != 0) memcpy(memory, data, size);
  napi_create_typedarray(env, napi_uint8_array, size, buffer, 0, &array);
  return array;
}

static napi_value MakeInt(napi_env env, int64_t number) {
  napi_value value = NULL;
  if (number == (int32_t)number) {
    napi_create_int32(env, (int32_t)number, &value);
  } else if (number > -(int64_t)SAFE_INTEGER && number < (int64_t)SAFE_INTEGER) {
    napi_create_double(env, (double)number, &value);
  } else {
    napi_create_bigint_int64(env, number, &value);
  }
  return value;
}

// Calls the hook that makes what C cannot: kMake(type, numbers…).
static napi_value MakeOf(Environment* e, int32_t type, int count, const int64_t* numbers) {
  napi_value args[4];
  args[0] = MakeInt(e->env, type);
  for (int i = 0; i < count; ++i) args[i + 1] = MakeInt(e->env, numbers[i]);
  return CallHook(e, kMake, (size_t)count + 1, args);
}

static bool SetItem(Environment* e, napi_value array, uint32_t i, const TVMFFIAny* cell) {
  napi_handle_scope scope;
  napi_open_handle_scope(e->env, &scope);
  napi_value item = GetValue(e, cell, false);
  const bool set = item != NULL && napi_set_element(e->env, array, i, item) == napi_ok;
  napi_close_handle_scope(e->env, scope);
  return set;
}

static napi_value GetArray(Environment* e, TVMFFIObject* object) {
  const TVMFFISeqCell* items = (const TVMFFISeqCell*)(object + 1);
  napi_value array = NULL;
  if (items->size > UINT32_MAX || napi_create_array_with_length(e->env, (size_t)items->size, &array) != napi_ok) {
    ThrowError(e->env, "RangeError", "an array of the core is too long for JavaScript");
    return NULL;
  }
  for (int64_t i = 0; i < items->size; ++i) {
    if (!SetItem(e, array, (uint32_t)i, (const TVMFFIAny*)items->data + i)) return NULL;
  }
  return array;
}

static napi_value GetMap(Environment* e, TVMFFIObject* object) {
  napi_value args[2];
  uint32_t i = 0;
  args[0] = MakeInt(e->env, kTVMFFIMap);
  if (napi_create_array(e->env, &args[1]) != napi_ok) return NULL;
  for (const TVMFFIAny* pair = portcall->map_next(object, NULL); pair; pair = portcall->map_next(object, pair)) {
    if (!SetItem(e, args[1], i++, pair) || !SetItem(e, args[1], i++, pair + 1)) return NULL;
  }
  return CallHook(e, kMake, 2, args);
}

static napi_value WrapObject(Environment* e, TVMFFIObject* object) {
  napi_value carried = CarriedBy(e, object);
  if (carried != NULL) {
    portcall->object_dec_ref(object);
    return carried;
  }
  const TVMFFITypeInfo* type = portcall->get_type_info(object->type_index);
  Handle* handle = MakeHandle(e, object);
  if (handle == NULL) return NULL;
  const TVMFFIByteArray no_key = {"", 0}, key = type == NULL ? no_key : type->type_key;
  const napi_value args[] = {MakeInt(e->env, object->type_index), MakeText(e->env, key.data, key.size)};
  napi_value target = CallHook(e, kMake, 2, args);
  return AttachHandle(target, handle) ? target : NULL;
}

static napi_value GetContainer(Environment* e, TVMFFIObject* object) {
  static _Thread_local int depth = 0;
  if (depth >= DEEPEST) {
    ThrowError(e->env, "RangeError", "a value of the core has too many levels");
    return NULL;
  }
  ++depth;
  napi_value value = object->type_index == kTVMFFIMap ? GetMap(e, object) : GetArray(e, object);
  --depth;
  return value;
}

static napi_value GetObject(Environment* e, TVMFFIObject* object, bool owned) {
  const TVMFFIByteArray* bytes = (const TVMFFIByteArray*)(object + 1);
  napi_value value;
  switch (object->type_index) {
    case kTVMFFIStr:
      value = MakeText(e->env, bytes->data, bytes->size);
      break;
    case kTVMFFIBytes:
      value = MakeBytes(e->env, bytes->data, bytes->size);
      break;
    case kTVMFFIArray:
    case kTVMFFIMap:
      value = GetContainer(e, object);
      break;
    default:
      if (!owned) portcall->object_inc_ref(object);
      if (object->type_index == kTVMFFIFunction) return WrapFunction(e, object, NULL);
      return object->type_index == kTVMFFITensor ? WrapTensor(e, object) : WrapObject(e, object);
  }
  if (owned) portcall->object_dec_ref(object);
  return value;
}

napi_value GetValue(Environment* e, const TVMFFIAny* cell, bool owned) {
  napi_env env = e->env;
  napi_value value = NULL;
  switch (cell->type_index) {
    case kTVMFFINone:
      napi_get_null(env, &value);
      return value;
    case kTVMFFIInt:
      return MakeInt(env, cell->v_int64);
    case kTVMFFIBool:
      napi_get_boolean(env, cell->v_int64 != 0, &value);
      return value;
    case kTVMFFIFloat:
      napi_create_double(env, cell->v_float64, &value);
      return value;
    case kTVMFFIDataType:
      return MakeOf(e, kTVMFFIDataType, 3, (int64_t[]){cell->v_dtype.code, cell->v_dtype.bits, cell->v_dtype.lanes});
    case kTVMFFIDevice:
      return MakeOf(e, kTVMFFIDevice, 2, (int64_t[]){cell->v_device.device_type, cell->v_device.device_id});
    case kTVMFFISmallStr:
      return MakeText(env, cell->v_bytes, cell->small_str_len);
    case kTVMFFISmallBytes:
      return MakeBytes(env, cell->v_bytes, cell->small_str_len);
    case kTVMFFIRawStr:
      return MakeText(env, cell->v_c_str, strlen(cell->v_c_str));
    case kTVMFFIByteArrayPtr: {
      const TVMFFIByteArray* bytes = cell->v_ptr;
      return MakeBytes(env, bytes->data, bytes->size);
    }
    case kTVMFFIObjectRValueRef:
      return GetObject(e, *(TVMFFIObject**)cell->v_ptr, false);
  }
  if (cell->type_index < kTVMFFIObject) return MakeInt(env, cell->v_int64);  // a pointer
  return GetObject(e, cell->v_obj, owned);
}
