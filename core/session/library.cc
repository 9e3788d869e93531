// SPDX-License-Identifier: Apache-2.0
// What libportcall_session offers to the server in Python, as functions of a library: no client can ask for them by name.
// The server without Python has the same parts linked in.
#include "portcall/function.h"
#include "session/files.h"

using namespace portcall;
using namespace portcall::session;

PORTCALL_EXPORT_TYPED(register_standard_names, []() {
  RegisterStandardNames();
  RegisterContainerNames();
})
