// SPDX-License-Identifier: Apache-2.0
#include "tests/ir/nodes.h"

namespace nodes {
PORTCALL_REGISTER_OBJECT(ExprObj);
PORTCALL_REGISTER_OBJECT(VarObj);
PORTCALL_REGISTER_OBJECT(ConstObj);
PORTCALL_REGISTER_OBJECT(AddObj);
PORTCALL_REGISTER_OBJECT(LambdaObj);
}  // namespace nodes
