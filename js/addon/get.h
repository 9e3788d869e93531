// SPDX-License-Identifier: Apache-2.0
// Cells of the core as values of JavaScript.
#ifndef PORTCALL_ADDON_GET_H_
#define PORTCALL_ADDON_GET_H_

#include "environment.h"

// Reads a cell; an owned one gives its reference up, also when it fails.
napi_value GetValue(Environment* e, const TVMFFIAny* cell, bool owned);
napi_value WrapFunction(Environment* e, TVMFFIObjectHandle object, const char* name);  // takes the reference

#endif  // PORTCALL_ADDON_GET_H_
