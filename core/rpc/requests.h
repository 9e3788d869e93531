// SPDX-License-Identifier: Apache-2.0
// Requests on their way to a peer, and their answers, which come in the same order. Many threads may have requests on
// their way; where the peer does not take several at once they go one after the other.
//
// A request that fails halfway (timeout, interrupt, lost connection, an answer that the protocol does not allow) closes
// the session, so that no answer is ever taken for another's.
#ifndef PORTCALL_RPC_REQUESTS_H_
#define PORTCALL_RPC_REQUESTS_H_

#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "rpc/client_facts.h"
#include "rpc/link.h"

namespace portcall::rpc {

using WriteBody = std::function<void(Writer&)>;
using ReadBody = std::function<void(Reader)>;

// A request that was not answered yet. Whoever waits for it has it, or it has itself.
struct Pending {
  Code code = Code::kNone;
  ReadBody read;       // gets the body of a Return
  void* to = nullptr;  // where a CopyAck of `to_size` bytes goes; null: nowhere
  uint64_t to_size = 0;

  uint64_t callback = 0;            // that it belongs to; 0: none
  bool done = false, lost = false;  // answered; or never to be
  std::optional<Error> failure;     // what the peer answered
  std::shared_ptr<Pending> self;    // until it is answered
  std::chrono::steady_clock::time_point began;
  uint64_t size = 0, sent_before = 0, received_before = 0;
};

// A callback that the server asks for, to be answered with RemoteSession's help.
struct CallbackCall {
  uint64_t number, request;  // `request`: the callback in which the server's code makes it; 0: in a request of ours
  uint64_t function;
  std::string args;  // a sequence
};

// In a shared_ptr: its threads, which send what was posted and run callbacks, have shares, since whoever lets go of a
// session may hold a lock, such as Python's GIL, that Python's code in such a thread waits for.
class Requests : public std::enable_shared_from_this<Requests> {
 public:
  Requests(std::unique_ptr<Channel> channel, const RemoteOptions& options);

  // Sends a request and waits for its answer. Throws what the peer answered, or how the session ended.
  void Do(Code code, const WriteBody& write, const ReadBody& read = {}, void* to = nullptr, uint64_t to_size = 0);
  // Sends a request, now or soon, and does not wait. The request keeps itself.
  void Post(const std::shared_ptr<Pending>& request, const WriteBody& write);
  // Sends a request that is not answered, now or soon.
  void PostSilent(Code code, uint64_t target, const WriteBody& write);
  // Waits until all that was sent so far is done, and throws the first error of what was not answered.
  void Sync();
  // Waits for a request's answer; returns whether it has come before the time.
  bool Wait(Pending* request, Deadline until);
  bool Done(const Pending* request);
  // Functions that the server may call. `run` is called with the function and its arguments, by a thread that waits for an
  // answer or by one for callbacks, and writes what it returns; what `run` returns lives until that is on its way.
  using Run = std::function<std::shared_ptr<void>(const PackedFunc&, const std::string& args, Writer*)>;
  uint64_t Lend(PackedFunc function);
  void TakeBack(uint64_t number);
  void set_run(Run run) { run_ = std::move(run); }
  // Sends a request whose answer nobody wants, in front of the next one.
  void FreeLater(Code code, DLDevice device, uint64_t handle);

  void Close();
  void Leave();    // closes, for good, and lets go of what it calls
  void Dismiss();  // lets go of functions that were lent
  bool IsOurs() const {
    return forks_ == forks.load(std::memory_order_relaxed);
  }  // a child process must not end what is its parent's
  bool closed() const { return closed_ || !IsOurs(); }
  bool pipelined() const { return pipelined_; }
  void set_pipelined(bool on) { pipelined_ = on && link_.channel().KeepsDeadlines(); }
  bool posts() const { return posts_; }
  bool calls_back() const { return calls_back_; }
  void set_calls_back(bool on) { calls_back_ = on && pipelined_; }
  void set_posts(bool on) { posts_ = on && pipelined_; }
  SessionStats stats();
  Activity activity();
  void set_call_timeout(double seconds) { call_timeout_ = seconds; }
  void set_silence(double seconds) { link_.set_silence(seconds); }
  void set_explain(PackedFunc explain) { explain_ = std::move(explain); }
  void set_output(PackedFunc output) { output_ = std::move(output); }
  FrameReader& frames() { return link_.frames(); }  // of whoever reads an answer

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = Link::Lock;

  struct End {
    std::string kind, text;
  };
  struct PendingFree {
    Code code;
    DLDevice device;
    uint64_t handle;
    uint64_t callback;  // whose thread lets it go
  };

  // Requests of one callback, or of none, are answered in order.
  struct Stream {
    std::deque<Pending*> pending;  // null: an answer that nobody wants
    int waiting = 0;               // threads
    bool over = false;             // of a callback: it was answered
    bool unreported = false;       // whether something was posted whose errors nobody has asked for
  };
  uint64_t Callback() const;  // that this thread runs for the session; 0: none
  Stream& StreamOf(uint64_t callback) { return callback ? nested_[callback] : top_; }
  void Forget(uint64_t callback);
  bool AnyPending() const;
  template <typename Each> void ForEach(Each&& each) const;
  const Pending* Front() const;

  void HandleCallback();
  bool RunCallback(Lock& lock, uint64_t stream);
  void RunNow(Lock& lock, CallbackCall call, bool* busy);
  void Attend();
  void AwaitCallback(Lock& lock, int* looks);
  void AddAttendant();
  bool IsForAttendant(const CallbackCall& call) const;
  std::vector<CallbackCall>::iterator FirstForAttendant();

  void Abandon(Lock& lock, Pending* request, const Error& error);
  void Admit(Lock& lock);
  void Append(Pending* request);
  void Submit(Lock& lock, Pending* request, const WriteBody& write);
  void WriteFrees();
  void WriteFence(bool report);
  void Flush(Lock& lock);
  bool Await(Lock& lock, Pending* request, Deadline until);
  void ReadOn(Lock& lock, Deadline until);
  Deadline FrontDeadline() const;
  void FlushSoon();
  void FlushLoop();
  void CheckDone(Lock& lock, Pending* request);

  bool Handle(FrameReader::Event event);
  bool HandleMessage(Stream& stream, Code code);
  bool HandleOutput();  // returns whether it was agreed upon
  bool Finish(Stream& stream);
  Error RemoteErrorOf(std::string_view body) const;

  // How the session ended.
  void CheckOurs() const;
  void CheckOpen(Lock& lock) const;
  End Closed() const { return {"SessionClosedError", "the session with " + options_.name + " is closed"}; }
  [[noreturn]] void ThrowEnd(Lock& lock, const End& end) const;
  Error EndReason(Lock& lock, const Error& lost);
  [[noreturn]] void Fail(Lock& lock, const Error& error);
  void LoseAll();
  bool RecordEnd(const Error& error, bool by_us);
  Error ErrorOf(std::string_view kind, std::string_view message, std::string_view backtrace = {}) const;
  Activity Describe(const Pending& request) const;
  std::string WaitSummary(const Activity& front) const;

  // Between the first process and this one; counted, because getpid() takes its time.
  static std::atomic<uint32_t> forks;

  const pid_t process_ = getpid();
  const uint32_t forks_ = forks;
  std::shared_ptr<Requests> kept_;  // in a child process, for good: its locks may be of threads that are not there
  const RemoteOptions options_;
  Link link_;  // its lock is that of all the following
  Stream top_;
  std::map<uint64_t, Stream> nested_;
  uint64_t pending_bytes_ = 0;  // of those
  uint64_t posted_bytes_ = 0;   // behind the last of those
  size_t posted_ = 0;
  std::vector<std::shared_ptr<Pending>> reports_;  // answers that may have them
  Clock::time_point last_answer_;
  SessionStats stats_;
  End later_, now_;       // what using the session raises, where it was not simply closed; and in requests on their way
  bool flusher_ = false;  // whether there is a thread that sends what was posted and nobody waits for
  std::condition_variable flush_;
  bool flush_wanted_ = false;

  std::mutex frees_mutex_;  // an object may go while the lock is held
  std::vector<PendingFree> frees_;
  std::atomic<bool> any_frees_{false};
  PackedFunc explain_, output_;
  Run run_;
  std::unordered_map<uint64_t, PackedFunc> lent_;
  std::vector<CallbackCall> calls_;  // that nobody runs yet
  uint64_t last_lent_ = 0;
  std::condition_variable attend_;
  int attendants_ = 0, busy_attendants_ = 0, idle_attendants_ = 0, asleep_ = 0;
  std::atomic<double> call_timeout_;
  std::atomic<bool> closed_{false}, pipelined_{false}, posts_{false}, calls_back_{false};
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_REQUESTS_H_
