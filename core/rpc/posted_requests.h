// SPDX-License-Identifier: Apache-2.0
// PostedRequests: requests of a client that get no answer each. Their errors come with a report,
// which the next request that is answered asks for. Frees of handles are posted, too, where the server takes that.
#ifndef PORTCALL_RPC_POSTED_REQUESTS_H_
#define PORTCALL_RPC_POSTED_REQUESTS_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "rpc/client_connection.h"

namespace portcall::rpc {

// All with the connection's lock, unless it says otherwise.
class PostedRequests {
 public:
  using Lock = Link::Lock;

  explicit PostedRequests(ClientConnection* connection) : connection_(*connection) {}

  // Sends a request, now or soon.
  void Post(Lock& lock, Code code, uint64_t target, const WriteBody& write, Deadline deadline);
  // Sends what is in the connection's queue if that is much; else has a thread send it, unless it is sent before.
  void FlushOrSoon(Lock& lock);
  void WakeThread() { flush_.notify_one(); }  // at the session's end
  // Writes a request whose answer says that all before it is done, so that what is on its way fits into the peer's memory.
  // `report`: it tells the errors of what was posted, too, unless something else has told them.
  void WriteFence(bool report);
  // Numbers the call that is written next, so that it is cancelled at its deadline, unless it was answered before. Does
  // nothing without a deadline, inside of a callback, and with a server that cannot cancel.
  void NumberCall(Deadline deadline);
  uint64_t last_number() const { return last_number_; }
  void Answered(uint64_t last_number);  // and all calls before
  // The bytes posted since the last request with an answer, which count as part of the next one.
  uint64_t TakeBytes();
  // Fences whose answers a wait for all of this thread's requests waits for. A callback waits for its own alone: the
  // others come when it is over.
  std::vector<std::shared_ptr<Pending>> TakeReports();
  // Drops reports that have come, such as those of an error that was raised.
  void DropReports(const std::function<bool(const Pending&)>& dropped);

  // Without the lock: sends, in front of the next request, one that frees a handle.
  void FreeLater(Code code, DLDevice device, uint64_t handle);
  void WriteFrees();

 private:
  struct PendingFree {
    Code code;
    DLDevice device;
    uint64_t handle;
    uint64_t callback;  // the callback that the thread ran which let it go
  };
  void SendSoon();
  void SendLoop();
  Deadline NextDeadline() const;
  void WriteCancels();

  ClientConnection& connection_;
  size_t count_ = 0;  // since the last request with an answer
  uint64_t bytes_ = 0;
  std::vector<std::shared_ptr<Pending>> reports_;
  bool has_thread_ = false, flush_wanted_ = false;
  std::condition_variable flush_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Deadline> deadlines_;  // of calls with a number
  Deadline wakes_at_ = kNoDeadline;         // the thread

  std::mutex frees_mutex_;  // an object may go while the lock is held
  std::vector<PendingFree> frees_;
  std::atomic<bool> any_frees_{false};
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_POSTED_REQUESTS_H_
