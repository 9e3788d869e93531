// SPDX-License-Identifier: Apache-2.0
// The whole C++ API of portcall.
#ifndef PORTCALL_PORTCALL_H_
#define PORTCALL_PORTCALL_H_

#include "container.h"
#include "device.h"
#include "error.h"
#include "function.h"
#include "module.h"
#include "object.h"
#include "reflection.h"
#include "tensor.h"
#include "value.h"

#endif  // PORTCALL_PORTCALL_H_
