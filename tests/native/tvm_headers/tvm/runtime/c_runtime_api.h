// SPDX-License-Identifier: Apache-2.0
#include <portcall/classic_api.h>
#define TVM_ATTRIBUTE_UNUSED __attribute__((unused))
