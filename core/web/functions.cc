// SPDX-License-Identifier: Apache-2.0
// Functions and other objects of JavaScript as objects of the core. JavaScript holds them in a table; `self` is a place in
// it.
#include "web/web.h"

static int Call(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  const int status = portcall_web_call(self, args, n, result);
  if (status != kPortcallWebPending) return status;
  portcall_web_wait();
  return portcall_web_settled(result);
}
static void Free(void* self) { portcall_web_free(self); }

int PortcallWebFunction(void* self, const char* name, TVMFFIObjectHandle* out) {
  return PortcallFunctionCreate(self, Call, Free, 0, name, out);
}

namespace portcall {

int32_t JsObjectType() {
  static const int32_t type = [] {
    constexpr char kKey[] = "portcall.JSObject";
    const TVMFFIByteArray key{kKey, sizeof(kKey) - 1};
    return TVMFFITypeGetOrAllocIndex(&key, -1, 1, 0, 0, kTVMFFIObject);
  }();
  return type;
}

}  // namespace portcall

int PortcallWebObject(void* self, TVMFFIObjectHandle* out) {
  return TVMFFIObjectCreateOpaque(self, portcall::JsObjectType(), Free, out);
}
