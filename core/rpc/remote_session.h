// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_RPC_REMOTE_SESSION_H_
#define PORTCALL_RPC_REMOTE_SESSION_H_

#include <memory>
#include <string>

#include "rpc/channel.h"
#include "rpc/session.h"

namespace portcall::rpc {

struct RemoteOptions {
  std::string name;         // for messages: "127.0.0.1:9090"
  double call_timeout = 0;  // seconds for one request and its answer; not positive: no limit
  uint64_t max_frame = uint64_t{1} << 34;
};

// Counts of a session's life, for its user.
struct SessionStats {
  uint64_t requests = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  double waited = 0;  // seconds spent on the channel
};

// A session on the other end of a channel. Thread-safe: one request at a time is on its way. Frees never wait: they go
// out in front of the next request. A request that fails half-way (time-out, interrupt, lost connection) closes the
// session, so that no answer is ever taken for another's.
class RemoteSession : public Session {
 public:
  virtual void InitServer(const std::vector<Any>& constructor_args) = 0;
  virtual const RemoteOptions& options() const = 0;
  virtual SessionStats stats() const = 0;
  virtual void set_call_timeout(double seconds) = 0;
};

std::shared_ptr<RemoteSession> MakeRemoteSession(std::unique_ptr<Channel> channel, RemoteOptions options);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_REMOTE_SESSION_H_
