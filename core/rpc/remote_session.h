// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_RPC_REMOTE_SESSION_H_
#define PORTCALL_RPC_REMOTE_SESSION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/channel.h"
#include "rpc/client_facts.h"
#include "rpc/session.h"

namespace portcall::rpc {

struct Pending;  // a call on its way

// A session on the other end of a channel. Thread-safe. Frees never wait: they go out in front of the next request. A
// request that fails halfway (timeout, interrupt, lost connection, an answer that the protocol does not allow) closes
// the session, so that no answer is ever taken for another's.
class RemoteSession : public Session {
 public:
  // Sends a call, and waits for its answer later: null if it has not come in time; throws what the call threw.
  // At its deadline a call is cancelled, if the server can; else the session ends.
  virtual std::shared_ptr<Pending> CallLater(uint64_t function, const Sequence& args, Deadline deadline) = 0;
  virtual CallResult* WaitFor(Pending* call, Deadline until) = 0;
  virtual bool IsDone(const Pending* call) = 0;
  // In a pipeline of this thread, whose requests are posted where that is possible: their errors come with what uses
  // their handles, or with Sync.
  virtual bool posting() const = 0;
  virtual uint64_t PostCall(uint64_t function, const Sequence& args, Deadline deadline) = 0;  // a handle of the result
  virtual void Fetch(uint64_t handle, CallResult* result) = 0;  // which stays the handle's
  virtual void Sync() = 0;
  virtual void set_posts(bool on) = 0;

  // Whether several requests may be on their way at once; otherwise they go one after the other.
  virtual bool pipelined() const = 0;
  virtual void set_pipelined(bool on) = 0;

  virtual void InitServer(const std::vector<Any>& constructor_args) = 0;
  virtual const RemoteOptions& options() const = 0;
  virtual SessionStats stats() const = 0;
  virtual Activity activity() const = 0;
  virtual size_t on_their_way() const = 0;      // requests that were not answered, as far as was read
  virtual void set_by_value(bool allowed) = 0;  // as the peers have agreed
  virtual void set_calls_back(bool allowed) = 0;
  virtual void set_cancels(bool allowed) = 0;
  virtual void TakeBack(uint64_t function) = 0;  // one that was lent for a call that was not made
  virtual void set_call_timeout(double seconds) = 0;
  // That a peer which says something every second while it works may say nothing, until it is taken for gone.
  virtual void set_silence(double seconds) = 0;
  // What is called with the error that a use of the session after its end throws (its kind and text, and whether the
  // session had ended before), to throw one that tells more: the peer may know how it ended.
  virtual void set_explain(PackedFunc explain) = 0;
  // What is called with what the peer's code printed: (stream, lines dropped before, text), stream 1 or 2. It comes from
  // within a request, and must not use the session.
  virtual void set_output(PackedFunc output) = 0;
};

// The session of this thread's pipeline; null: none. While it is null, requests are answered.
extern thread_local const Session* pipelined_session;

// What runs a function for the server: takes the arguments, calls it, and writes its result by the last one. What it
// returns lives until the result is on its way.
using CallbackRunner = std::shared_ptr<void> (*)(const std::shared_ptr<Session>&, const PackedFunc&,
                                                 std::vector<CallResult>*, const std::function<void(const Sequence&)>&);

std::shared_ptr<RemoteSession> MakeRemoteSession(std::unique_ptr<Channel> channel, RemoteOptions options,
                                                 CallbackRunner runner = nullptr);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_REMOTE_SESSION_H_
