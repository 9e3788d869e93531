// SPDX-License-Identifier: Apache-2.0
#include <tvm/runtime/packed_func.h>
