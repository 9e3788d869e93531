// SPDX-License-Identifier: Apache-2.0
// The agent of a farm's place: a process that asks the farm for orders, says at the gate (gate.h) who may come in, and
// reports what becomes of them. Sessions do not depend on it: while the farm is away, or answers nonsense, they go on, and
// the agent tries again forever, after growing pauses. Only a token that the farm refuses ends it; and at its start a name
// that another one keeps.
//
// An offer is accepted once the server knows the key of its client. When a lease ends, all its sessions do, and the farm
// hears when nothing of it is left.
#ifndef PORTCALL_BOARD_FARM_AGENT_H_
#define PORTCALL_BOARD_FARM_AGENT_H_

#include <cstdint>
#include <map>
#include <string>

#include "board/log.h"
#include "board/options.h"
#include "session/descriptor.h"

namespace portcall::board {

using namespace session;

// What an agent begins with; another one may have been there before it.
struct AgentTask {
  const Options* options;
  std::string host;  // where the server listens; empty for a Unix socket
  int port;
  int64_t fence;                // the last one that is known
  std::map<int, int64_t> open;  // sessions and their fences
  bool served;                  // the farm has known this server already
  std::string instance;         // tells this server from others of the same name; comes with the token
};

// The child's whole life, until the other end of the link is closed. The first message on it is that of SendToAgent.
void RunAgent(const Descriptor& link, AgentTask task, LogStyle style);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_FARM_AGENT_H_
