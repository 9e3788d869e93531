// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_RUNTIME_DEVICE_TABLE_H_
#define PORTCALL_RUNTIME_DEVICE_TABLE_H_

#include "portcall/c_api.h"

namespace portcall {

// The table of a kind; null where nothing supports it, or the plug-in for it does not load.
const PortcallDeviceAPI* FindDeviceApi(int32_t device_type);

}  // namespace portcall
#endif  // PORTCALL_RUNTIME_DEVICE_TABLE_H_
