// SPDX-License-Identifier: Apache-2.0
// What a session looks like from this process: modules of type "rpc", functions, tensors and references to objects.
#ifndef PORTCALL_RPC_REMOTE_OBJECTS_H_
#define PORTCALL_RPC_REMOTE_OBJECTS_H_

#include <memory>
#include <string>
#include <vector>

#include "portcall/module.h"
#include "rpc/channel.h"
#include "rpc/session.h"

namespace portcall::rpc {

// The root module of a session: its functions are those of the session.
Module RootModule(std::shared_ptr<Session> session);

// The session behind a module of type "rpc"; TypeError for another.
std::shared_ptr<Session> SessionOf(const Module& module);

// The root of a session over a channel on which the handshake is over.
Module OpenSession(std::unique_ptr<Channel> channel, std::string name, double call_timeout,
                   const std::vector<Any>& constructor);
// Has a session use extensions that both sides have.
void UseFeatures(Module root, std::vector<std::string> features);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_REMOTE_OBJECTS_H_
