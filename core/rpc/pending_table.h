// SPDX-License-Identifier: Apache-2.0
// PendingTable: the requests that a peer has not answered yet, in the order of their answers. No I/O and no lock here: its
// user holds one.
#ifndef PORTCALL_RPC_PENDING_TABLE_H_
#define PORTCALL_RPC_PENDING_TABLE_H_

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "rpc/client_facts.h"
#include "rpc/codec.h"

namespace portcall::rpc {

using ReadBody = std::function<void(Reader)>;

// A request without an answer yet. Owned by its waiter, or by itself (`self`) if nobody waits.
struct Pending {
  using Clock = std::chrono::steady_clock;

  Code code = Code::kNone;
  ReadBody read;       // gets the body of a Return
  void* to = nullptr;  // where a CopyAck of `to_size` bytes goes; null: the bytes are discarded
  uint64_t to_size = 0;

  uint64_t callback = 0;                                  // the callback in which it was made; 0: none
  bool done = false, lost = false;                        // answered; or never to be
  std::optional<Error> failure;                           // what the peer answered
  std::shared_ptr<Pending> self;                          // until it is answered
  Clock::time_point deadline = Clock::time_point::max();  // of a call with a deadline of its own
  uint64_t last_number = 0;                               // of the calls up to this request that can be cancelled
  Clock::time_point began;
  uint64_t size = 0, sent_before = 0, received_before = 0;
};

class PendingTable {
 public:
  using Clock = Pending::Clock;

  // The requests of one callback, or of none. They are answered in order.
  struct Stream {
    std::deque<Pending*> pending;  // null: the answer is discarded
    int waiting = 0;               // threads
    bool over = false;             // whether the callback was answered
    bool unreported = false;       // whether something was posted whose errors were not asked for yet
    const Pending* Front() const;
  };

  Stream& top() { return top_; }
  const Stream& top() const { return top_; }
  Stream& StreamOf(uint64_t callback) { return callback ? nested_[callback] : top_; }
  Stream* Find(uint64_t callback);  // null: there is none
  bool has_nested() const { return !nested_.empty(); }
  // Removes a callback that is over, once all of its requests are answered.
  void EraseIfOver(uint64_t callback);

  void Append(Pending* request);
  // The same for one whose answer is discarded.
  void AppendDiscarded(uint64_t callback) {
    Pending* none = nullptr;
    StreamOf(callback).pending.push_back(none);
  }
  // Takes the first request of a stream, which was answered. Returns its own reference to itself, if it has one.
  std::shared_ptr<Pending> Finish(Stream& stream);
  // Has the answer of a request be discarded: the request itself may go. Returns false for the first of its stream,
  // whose answer may be partly here.
  bool Discard(Pending* request);
  // No request is answered any more.
  void LoseAll();

  // The first request that waits for its answer, outside of callbacks if there is one; null: there is none.
  const Pending* Front() const;
  // When a request's time began: it does not include the wait for those before it.
  Clock::time_point StartOf(const Pending& request) const { return std::max(request.began, last_answer_); }
  uint64_t bytes() const { return bytes_; }
  const SessionStats& stats() const { return stats_; }

 private:
  Stream top_;
  std::map<uint64_t, Stream> nested_;
  uint64_t bytes_ = 0;
  Clock::time_point last_answer_;
  SessionStats stats_;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_PENDING_TABLE_H_
