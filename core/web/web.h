// SPDX-License-Identifier: Apache-2.0
// The door for JavaScript, beside c_api.h: its imports, and functions for JavaScript alone.
#ifndef PORTCALL_WEB_WEB_H_
#define PORTCALL_WEB_WEB_H_

#include "portcall/c_api.h"

#define PORTCALL_WEB_IMPORT(NAME) __attribute__((import_module("portcall"), import_name(NAME)))

extern "C" {

// Calls function number `self` of JavaScript; 0, or -1 with an error raised.
PORTCALL_WEB_IMPORT("call")
int portcall_web_call(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result);
// Nobody has that function any more.
PORTCALL_WEB_IMPORT("free") void portcall_web_free(void* self);

// A function of JavaScript as a function object; `name` may be null.
PORTCALL_API int PortcallWebFunction(void* self, const char* name, TVMFFIObjectHandle* out);

// A library that JavaScript placed in this memory: the names and addresses of what it exports.
PORTCALL_API int PortcallWebModule(const TVMFFIByteArray* names, void* const* addresses, int32_t count,
                                   TVMFFIObjectHandle* out);
}

#endif  // PORTCALL_WEB_WEB_H_
