// SPDX-License-Identifier: Apache-2.0
// What a session looks like from this process: modules of type "rpc", functions, tensors and references to objects.
#ifndef PORTCALL_RPC_REMOTE_OBJECTS_H_
#define PORTCALL_RPC_REMOTE_OBJECTS_H_

#include <memory>

#include "portcall/module.h"
#include "rpc/session.h"

namespace portcall::rpc {

// The root module of a session: its functions are those of the session.
Module RootModule(std::shared_ptr<Session> session);

// The session behind a module of type "rpc"; TypeError for another.
std::shared_ptr<Session> SessionOf(const Module& module);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_REMOTE_OBJECTS_H_
