// SPDX-License-Identifier: Apache-2.0
// Text of JavaScript and of the core, which is UTF-8.
#ifndef PORTCALL_ADDON_TEXT_H_
#define PORTCALL_ADDON_TEXT_H_

#include "environment.h"

napi_value MakeText(napi_env env, const char* data, size_t size);
// Reads a string into memory that the caller frees, with a zero at its end.
bool ReadText(napi_env env, napi_value value, TVMFFIByteArray* out);

#endif  // PORTCALL_ADDON_TEXT_H_
