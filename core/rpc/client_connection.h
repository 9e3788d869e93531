// SPDX-License-Identifier: Apache-2.0
// ClientConnection: the client's end of a session's link, with the requests pending on it, and how the session ended. What
// posts requests and what runs callbacks builds on it, and Requests puts them together.
#ifndef PORTCALL_RPC_CLIENT_CONNECTION_H_
#define PORTCALL_RPC_CLIENT_CONNECTION_H_

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "rpc/client_facts.h"
#include "rpc/link.h"
#include "rpc/pending_table.h"

namespace portcall::rpc {

using WriteBody = std::function<void(Writer&)>;

class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  using Lock = Link::Lock;
  using Clock = std::chrono::steady_clock;

  ClientConnection(std::unique_ptr<Channel> channel, const RemoteOptions& options);
  virtual ~ClientConnection() = default;
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  // The callback that this thread runs for the session; 0: none.
  uint64_t CurrentCallback() const;
  // A child process must not end what is its parent's.
  bool IsOurs() const { return forks_ == forks.load(std::memory_order_relaxed); }
  bool closed() const { return closed_ || !IsOurs(); }
  bool pipelined() const { return pipelined_; }
  bool posts() const { return posts_; }
  bool calls_back() const { return calls_back_; }
  bool cancels() const { return cancels_; }
  void set_pipelined(bool on) { pipelined_ = on && link_.channel().KeepsDeadlines(); }
  void set_posts(bool on) { posts_ = on && pipelined_; }
  void set_calls_back(bool on) { calls_back_ = on && pipelined_; }
  void set_cancels(bool on) { cancels_ = on && pipelined_; }
  void set_call_timeout(double seconds) { call_timeout_ = seconds; }
  void set_silence(double seconds) { link_.set_silence(seconds); }
  void set_explain(PackedFunc explain) { explain_ = std::move(explain); }
  SessionStats stats();
  Activity activity();
  // Requests that were not answered, as far as answers were read.
  size_t on_their_way() {
    Lock lock = link_.Take();
    return pending_.top().pending.size();
  }
  // Sends the shutdown message without waiting: requests that other threads wait for are cut off.
  void Close();

  // For its parts, with the lock. Its lock is theirs, too.
  Link& link() { return link_; }
  SendQueue& out() { return link_.out(); }
  PendingTable& pending() { return pending_; }
  void Append(Pending* request);  // the request is in out()
  // Sends what is in out(). Throws how the session ended, as all of the following do, without the lock.
  void Flush(Lock& lock);
  // Reads answers, of any request, or waits while another thread does.
  void ReadOn(Lock& lock, Deadline until);
  // Waits until another request of this thread may be sent.
  void Admit(Lock& lock);
  void CheckOpen(Lock& lock) const;
  // For a process that has forked. Without the lock, which may be taken forever in a copy.
  void CheckOurs() const;
  // Ends the session because of an error.
  [[noreturn]] void Fail(Lock& lock, const Error& error);

 protected:
  // How the session ended: an error's kind and text.
  struct End {
    std::string kind, text;
  };
  virtual bool Handle(FrameReader::Event event) = 0;  // as Link::Handler
  virtual void WakeThreads() = 0;                     // at the session's end, with the lock
  // For a call whose time is over, and which the server has not ended; `begun`: it waits for no other request.
  [[noreturn]] void ThrowOverdue(Lock& lock, bool begun);
  [[noreturn]] void ThrowLost(Lock& lock) const { ThrowEnd(lock, now_); }
  // The error that an Exception message stands for. A server that ends a session says so once, asked or not: that throws.
  Error RemoteErrorOf(std::string_view body) const;

  const RemoteOptions options_;
  Link link_;
  PendingTable pending_;
  PackedFunc explain_;
  std::shared_ptr<ClientConnection>
      kept_;  // in a child process, forever: its locks may be of threads that are not there

 private:
  Deadline FrontDeadline() const;
  End Closed() const { return {"SessionClosedError", "the session with " + options_.name + " is closed"}; }
  [[noreturn]] void ThrowEnd(Lock& lock, const End& end) const;
  Error EndReason(Lock& lock, const Error& lost);
  bool RecordEnd(const Error& error, bool by_us);
  Error ErrorOf(std::string_view kind, std::string_view message, std::string_view reason = {}) const;
  Activity Describe(const Pending& request) const;
  std::string WaitSummary(const Activity& front) const;

  // Forks between the first process and this one; counted, because getpid() takes its time.
  static std::atomic<uint32_t> forks;

  const pid_t process_ = getpid();
  const uint32_t forks_ = forks;
  End later_, now_;  // what later uses of the session raise, if it was not simply closed; and what pending requests do
  std::atomic<double> call_timeout_;
  std::atomic<bool> closed_{false}, pipelined_{false}, posts_{false}, calls_back_{false}, cancels_{false};
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_CLIENT_CONNECTION_H_
