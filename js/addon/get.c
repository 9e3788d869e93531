// SPDX-License-Identifier: Apache-2.0
// Cells of the core as values of JavaScript.
#include "get.h"

#include <string.h>

#include "errors.h"
#include "handles.h"
#include "tensors.h"
#include "text.h"

#define SAFE_INTEGER (INT64_C(1) << 53)  // below it every whole number is exact as a double

static napi_value BytesFrom(napi_env env, const char* data, size_t size) {
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
  } else if (number > -SAFE_INTEGER && number < SAFE_INTEGER) {
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

napi_value WrapFunction(Environment* e, TVMFFIObjectHandle object, const char* name) {
  PortcallFunctionInfo about;
  napi_value args[2];
  Handle* handle = MakeHandle(e, object);
  if (handle == NULL) return NULL;
  portcall->function_get_info(object, &about);
  handle->call = about.call;
  handle->self = about.self;
  handle->flags = about.flags;
  if (napi_create_function(e->env, name == NULL ? about.name : name, NAPI_AUTO_LENGTH, e->callers.to_core, handle,
                           &args[1]) != napi_ok) {
    args[1] = NULL;
  }
  if (!AttachHandle(args[1], handle)) return NULL;
  napi_create_int32(e->env, kTVMFFIFunction, &args[0]);
  return CallHook(e, kMake, 2, args);  // gives it its methods
}

static napi_value GetContainer(Environment* e, TVMFFIObject* object) {
  static _Thread_local int depth = 0;
  if (!MayDescend(e, depth)) return NULL;
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
      value = BytesFrom(e->env, bytes->data, bytes->size);
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
      return BytesFrom(env, cell->v_bytes, cell->small_str_len);
    case kTVMFFIRawStr:
      return MakeText(env, cell->v_c_str, strlen(cell->v_c_str));
    case kTVMFFIByteArrayPtr: {
      const TVMFFIByteArray* bytes = cell->v_ptr;
      return BytesFrom(env, bytes->data, bytes->size);
    }
    case kTVMFFIObjectRValueRef:
      return GetObject(e, *(TVMFFIObject**)cell->v_ptr, false);
  }
  if (cell->type_index < kTVMFFIObject) return MakeInt(env, cell->v_int64);  // a pointer
  return GetObject(e, cell->v_obj, owned);
}
