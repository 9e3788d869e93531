// SPDX-License-Identifier: Apache-2.0
// Objects of JavaScript that stand for one of the core.
#ifndef PORTCALL_ADDON_HANDLES_H_
#define PORTCALL_ADDON_HANDLES_H_

#include "environment.h"

struct Handle {
  Environment* environment;
  TVMFFIObject* object;  // NULL once it was disposed of
  TVMFFISafeCallType call;
  void* self;
  int32_t flags;    // of the function
  int32_t calls;    // that are going on; it is freed after the last one
  bool disposed;    // by the user
  int64_t counted;  // bytes that the garbage collector was told of
};

Handle* MakeHandle(Environment* e, TVMFFIObjectHandle object);  // takes the reference, also when it fails
bool AttachHandle(napi_value target, Handle* handle);           // on failure the handle is gone
Handle* HandleOf(Environment* e, napi_value value);             // NULL: it is none of ours
void DisposeHandle(Handle* handle);

#endif  // PORTCALL_ADDON_HANDLES_H_
