// SPDX-License-Identifier: Apache-2.0
// What the addon exports to js/src/native.
#include <stdlib.h>

#include "async.h"
#include "environment.h"
#include "errors.h"
#include "functions.h"
#include "get.h"
#include "handles.h"
#include "put.h"
#include "tensors.h"
#include "text.h"

// Types stand in the registry of the core, under keys; that of core/web is the same.
static const TVMFFIByteArray kCarrierKey = {"portcall.JSObject", 17};

// getGlobal(name): the function, or null.
static napi_value GetGlobal(napi_env env, napi_callback_info info) {
  Environment* e;
  napi_value arg, found = NULL;
  size_t count = 1;
  TVMFFIByteArray name;
  TVMFFIObjectHandle function = NULL;
  napi_get_instance_data(env, (void**)&e);
  napi_get_cb_info(env, info, &count, &arg, NULL, NULL);
  if (!ReadText(env, arg, &name)) return NULL;
  if (portcall->function_get_global(&name, &function) != 0) {
    ThrowRaised(e);
  } else if (function == NULL) {
    napi_get_null(env, &found);
  } else {
    found = WrapFunction(e, function, name.data);
  }
  free((char*)name.data);
  return found;
}

// register(name, f, override)
static napi_value Register(napi_env env, napi_callback_info info) {
  Environment* e;
  napi_value args[3];
  size_t count = 3;
  napi_valuetype type = napi_undefined;
  bool override = false;
  TVMFFIByteArray name;
  napi_get_instance_data(env, (void**)&e);
  napi_get_cb_info(env, info, &count, args, NULL, NULL);
  napi_typeof(env, args[1], &type);
  if (type != napi_function) {
    ThrowError(env, "TypeError", "only a function can be registered");
    return NULL;
  }
  napi_get_value_bool(env, args[2], &override);
  if (!ReadText(env, args[0], &name)) return NULL;
  TVMFFIObjectHandle function = MakeFunction(e, args[1], name.data);
  if (function != NULL && portcall->function_set_global(&name, function, override) == 0) {
    NoteRegistered(e, name.data, name.size, function);
  } else if (function != NULL) {
    portcall->object_dec_ref(function);
    ThrowRaised(e);
  }
  free((char*)name.data);
  return NULL;
}

// dispose(object)
static napi_value Dispose(napi_env env, napi_callback_info info) {
  Environment* e;
  napi_value target;
  size_t count = 1;
  napi_get_instance_data(env, (void**)&e);
  napi_get_cb_info(env, info, &count, &target, NULL, NULL);
  Handle* handle = HandleOf(e, target);
  if (handle != NULL) DisposeHandle(handle);
  return NULL;
}

// abandon(): threads that wait for JavaScript wait no longer, because the process ends.
static napi_value Abandon(napi_env env, napi_callback_info info) {
  Environment* e;
  (void)info;
  napi_get_instance_data(env, (void**)&e);
  AbandonVisits(e);
  return NULL;
}

// start(hooks): the version of the core.
static napi_value Start(napi_env env, napi_callback_info info) {
  Environment* e;
  napi_value hooks, hook, version;
  size_t count = 1;
  napi_get_instance_data(env, (void**)&e);
  napi_get_cb_info(env, info, &count, &hooks, NULL, NULL);
  for (uint32_t i = 0; i < kNumHooks; ++i) {
    napi_get_element(env, hooks, i, &hook);
    if (e->hooks[i] != NULL) napi_delete_reference(env, e->hooks[i]);
    if (napi_create_reference(env, hook, 1, &e->hooks[i]) != napi_ok) return NULL;
  }
  napi_create_string_utf8(env, portcall->version, NAPI_AUTO_LENGTH, &version);
  return version;
}

NAPI_MODULE_INIT() {
#define EXPORT(name, function)                                 \
  {                                                            \
    name, NULL, function, NULL, NULL, NULL, napi_default, NULL \
  }
  const napi_property_descriptor all[] = {
      EXPORT("start", Start),
      EXPORT("abandon", Abandon),
      EXPORT("getGlobal", GetGlobal),
      EXPORT("register", Register),
      EXPORT("dispose", Dispose),
      EXPORT("callAsync", CallAsync),
      EXPORT("allocate", AllocateTensor),
      EXPORT("buffer", BufferOfTensor),
      EXPORT("detach", DetachBuffer),
  };
  portcall = PortcallGetCore();
  if (portcall->struct_size < sizeof *portcall) {  // an older libportcall.so was loaded before, which the linker took
    napi_throw_error(env, NULL, "the addon of portcall got a core of another version");
    return NULL;
  }
  carrier_type = TVMFFITypeGetOrAllocIndex(&kCarrierKey, -1, 1, 0, 0, kTVMFFIObject);
  if (StartEnvironment(env, callers) == NULL) {
    napi_throw_error(env, NULL, "the addon of portcall cannot start");
    return NULL;
  }
  napi_define_properties(env, exports, sizeof all / sizeof *all, all);
  return exports;
}
