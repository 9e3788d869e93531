// SPDX-License-Identifier: Apache-2.0
// Values of JavaScript as cells of the core.
#ifndef PORTCALL_ADDON_PUT_H_
#define PORTCALL_ADDON_PUT_H_

#include "environment.h"

// Writes a value; the cell owns what it holds. On failure it holds nothing. `depth`: of arrays within arrays.
bool PutValue(Environment* e, napi_value value, TVMFFIAny* cell, int depth);
// A function of JavaScript as a function of the core; NULL with an exception.
TVMFFIObjectHandle MakeFunction(Environment* e, napi_value function, const char* name);

#endif  // PORTCALL_ADDON_PUT_H_
