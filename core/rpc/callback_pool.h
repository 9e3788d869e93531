// SPDX-License-Identifier: Apache-2.0
// CallbackPool: functions that a client lends to its session's server, and the calls of them. A thread that waits for an
// answer runs those that are part of what it waits for; threads of the pool run the others.
#ifndef PORTCALL_RPC_CALLBACK_POOL_H_
#define PORTCALL_RPC_CALLBACK_POOL_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rpc/client_connection.h"
#include "rpc/posted_requests.h"

namespace portcall::rpc {

class CallbackPool {
 public:
  using Lock = Link::Lock;
  // Calls a function with its arguments (a sequence), and writes what it returns; what `Run` returns lives until that is
  // on its way.
  using Run = std::function<std::shared_ptr<void>(const PackedFunc&, const std::string& args, Writer*)>;

  CallbackPool(ClientConnection* connection, PostedRequests* posted) : connection_(*connection), posted_(*posted) {}

  void set_run(Run run) { run_ = std::move(run); }
  // Without the lock: functions that the server may call, by their numbers.
  uint64_t Lend(PackedFunc function);
  void TakeBack(uint64_t number);
  void TakeBackAll();

  // Takes a message of the server: a call, or that it does not need a function any more. By the thread that receives,
  // without the lock.
  void Take(FrameReader& frames);

  // All of the following with the lock.
  bool any_functions() const { return !functions_.empty(); }
  bool any_calls() const { return !calls_.empty(); }
  // Runs a callback that is part of the caller's requests: those of the callback `caller`, or of none. Returns whether
  // there was one.
  bool RunOneOf(Lock& lock, uint64_t caller);
  void WakeThreads() { wake_.notify_all(); }  // at the session's end, and when no thread waits for an answer any more

 private:
  // A call of a function, which is the callback `number`.
  struct Call {
    uint64_t number, caller;  // `caller`: the callback in which the server's code makes it; 0: in a request of ours
    uint64_t function;
    std::string args;
  };

  void RunNow(Lock& lock, Call call, bool* busy);
  void AddThread();
  void ThreadMain();
  void AwaitCall(Lock& lock, int* looks);
  bool IsForThread(const Call& call) const;
  bool AnyForThread() const;
  std::optional<Call> TakeCall(const std::function<bool(const Call&)>& is_one);  // the first such

  ClientConnection& connection_;
  PostedRequests& posted_;
  Run run_;
  std::map<uint64_t, PackedFunc> functions_;
  uint64_t last_function_ = 0;
  std::vector<Call> calls_;  // not begun yet
  std::condition_variable wake_;
  int threads_ = 0, busy_ = 0, idle_ = 0, asleep_ = 0;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_CALLBACK_POOL_H_
