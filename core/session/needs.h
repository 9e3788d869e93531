// SPDX-License-Identifier: Apache-2.0
// What this machine is, and what of a library's needs it has not, as clients ask before they upload (docs/wire.md,
// section 7).
#ifndef PORTCALL_SESSION_NEEDS_H_
#define PORTCALL_SESSION_NEEDS_H_

#include <string>
#include <string_view>

#include "session/linkage.h"

namespace portcall::session {

// The answer as JSON. `needs` are those of a library that lies in `folder`, or will, as JSON; empty for the machine alone.
// `places`: the answer says, too, where the libraries lie that are needed ("found"). Throws ValueError for other questions.
std::string DescribeMachine(const std::string& folder, std::string_view needs, const Beside& beside,
                            bool places = false);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_NEEDS_H_
