// SPDX-License-Identifier: Apache-2.0
// Errors on their way through calls, and objects of JavaScript that the core carries.
#ifndef PORTCALL_ADDON_ERRORS_H_
#define PORTCALL_ADDON_ERRORS_H_

#include "environment.h"

TVMFFIObjectHandle MakeCarrier(Environment* e, napi_value value);   // NULL: there is no memory left
napi_value CarriedBy(Environment* e, const TVMFFIObject* object);   // NULL: nothing of this thread
napi_value ErrorToValue(Environment* e, TVMFFIObjectHandle error);  // takes the reference
// Throws the error of the thread's slot: an object that JavaScript threw is thrown again.
void ThrowRaised(Environment* e);
// Leaves the pending exception in the thread's slot, for the core.
int RaisePending(Environment* e);

#endif  // PORTCALL_ADDON_ERRORS_H_
