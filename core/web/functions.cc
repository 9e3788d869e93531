// SPDX-License-Identifier: Apache-2.0
// Functions of JavaScript as function objects. JavaScript holds them in a table; `self` is a place in it.
#include "web/web.h"

static int Call(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  return portcall_web_call(self, args, n, result);
}
static void Free(void* self) { portcall_web_free(self); }

int PortcallWebFunction(void* self, const char* name, TVMFFIObjectHandle* out) {
  return PortcallFunctionCreate(self, Call, Free, 0, name, out);
}
