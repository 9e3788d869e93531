// SPDX-License-Identifier: Apache-2.0
// Calls in a thread of Node's pool.
#ifndef PORTCALL_ADDON_ASYNC_H_
#define PORTCALL_ADDON_ASYNC_H_

#include "environment.h"

napi_value CallAsync(napi_env env, napi_callback_info info);

#endif  // PORTCALL_ADDON_ASYNC_H_
