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

// Counts of a session's life, for its user. Times are seconds.
struct SessionStats {
  uint64_t requests = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  double waited = 0;                    // on the channel, of which
  double run = 0, copy = 0, fetch = 0;  // calls, copies to the session and within it, copies from it
};

// The request that is on its way, for those who wonder what it waits for.
struct Activity {
  Code code = Code::kNone;  // kNone: there is none
  const char* what = "";    // the code in words
  double seconds = 0;       // since it began
  double silent = 0;        // since bytes came or went
  uint64_t sent = 0, to_send = 0;
  uint64_t received = 0, to_receive = 0;  // 0: nobody knows
};

// A session on the other end of a channel. Thread-safe: one request at a time is on its way. Frees never wait: they go
// out in front of the next request. A request that fails halfway (timeout, interrupt, lost connection, an answer that
// the protocol does not allow) closes the session, so that no answer is ever taken for another's.
class RemoteSession : public Session {
 public:
  virtual void InitServer(const std::vector<Any>& constructor_args) = 0;
  virtual const RemoteOptions& options() const = 0;
  virtual SessionStats stats() const = 0;
  virtual Activity activity() const = 0;
  virtual void set_call_timeout(double seconds) = 0;
  // What is called when the session turns out to be broken, to throw what tells more: the peer may know how it ended.
  virtual void set_explain(PackedFunc explain) = 0;
};

std::shared_ptr<RemoteSession> MakeRemoteSession(std::unique_ptr<Channel> channel, RemoteOptions options);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_REMOTE_SESSION_H_
