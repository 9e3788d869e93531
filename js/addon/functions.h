// SPDX-License-Identifier: Apache-2.0
// Calls of functions: of the core by JavaScript, and of JavaScript by the core.
#ifndef PORTCALL_ADDON_FUNCTIONS_H_
#define PORTCALL_ADDON_FUNCTIONS_H_

#include "environment.h"

extern const Callers callers;
extern _Thread_local Environment* visited;  // for the threads of asynchronous calls

#endif  // PORTCALL_ADDON_FUNCTIONS_H_
