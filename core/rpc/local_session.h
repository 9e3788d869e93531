// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_RPC_LOCAL_SESSION_H_
#define PORTCALL_RPC_LOCAL_SESSION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/handles.h"
#include "rpc/session.h"

namespace portcall::rpc {

// This process as a session. `patterns` name the global functions that it offers ("testing.*"); asking for another one
// is an error that says how to offer it.
std::shared_ptr<Session> MakeLocalSession(std::vector<std::string> patterns);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_LOCAL_SESSION_H_
