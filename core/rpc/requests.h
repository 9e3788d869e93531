// SPDX-License-Identifier: Apache-2.0
// Requests to a peer, and their answers, which come in the same order. Many threads may have requests on their way; where
// the peer does not take several at once they go one after the other.
//
// A request that fails halfway (timeout, interrupt, lost connection, an answer that the protocol does not allow) closes
// the session, so that no answer is ever taken for another's.
#ifndef PORTCALL_RPC_REQUESTS_H_
#define PORTCALL_RPC_REQUESTS_H_

#include <memory>

#include "rpc/callback_pool.h"
#include "rpc/client_connection.h"
#include "rpc/posted_requests.h"

namespace portcall::rpc {

// Shared, because the thread that drops the session may hold a lock (such as Python's GIL) that the threads of its parts
// need to finish.
class Requests : public ClientConnection {
 public:
  Requests(std::unique_ptr<Channel> channel, const RemoteOptions& options)
      : ClientConnection(std::move(channel), options), posted_(this), callbacks_(this, &posted_) {}

  // Sends a request and waits for its answer. Throws what the peer answered, or how the session ended.
  void Do(Code code, const WriteBody& write, const ReadBody& read = {}, void* to = nullptr, uint64_t to_size = 0);
  // Sends a request, now or soon, and does not wait. The request keeps itself.
  void Send(const std::shared_ptr<Pending>& request, const WriteBody& write);
  // Sends a request that is not answered, now or soon.
  void Post(Code code, uint64_t target, const WriteBody& write, Deadline deadline = kNoDeadline);
  // Waits until all that was sent so far is done, and throws the first error of what was not answered.
  void Sync();
  // Waits for a request's answer; returns whether it has come before the time.
  bool Wait(Pending* request, Deadline until);
  bool Done(const Pending* request);
  // Sends, in front of the next request, one that frees a handle.
  void FreeLater(Code code, DLDevice device, uint64_t handle) { posted_.FreeLater(code, device, handle); }
  CallbackPool& callbacks() { return callbacks_; }
  // What is called with what the server's code printed.
  void set_output(PackedFunc output) { output_ = std::move(output); }
  // Closes the session for good, and releases the functions that it may call.
  void Release();

 private:
  using Stream = PendingTable::Stream;

  void Submit(Pending* request, const WriteBody& write);
  bool Await(Lock& lock, Pending* request, Deadline until);
  void ThrowIfFailed(Lock& lock, Pending* request);

  FrameReader& frames() { return link_.frames(); }  // of the thread that receives
  bool Handle(FrameReader::Event event) override;
  void WakeThreads() override;
  bool HandleMessage(Stream& stream, Code code);
  bool HandleOutput();  // returns whether it was agreed upon
  bool Finish(Stream& stream);

  PostedRequests posted_;
  CallbackPool callbacks_;
  PackedFunc output_;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_REQUESTS_H_
