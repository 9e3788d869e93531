// SPDX-License-Identifier: Apache-2.0
#include "rpc/client_connection.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "portcall/container.h"
#include "rpc/running_callback.h"

namespace portcall::rpc {
namespace {

constexpr size_t kMaxPending = 1024;             // requests on their way,
constexpr uint64_t kMaxPendingBytes = 64 << 20;  // and their bytes; one that has more goes alone
constexpr double kLastWordsTime = 0.2;           // seconds

// What was asked for, in words.
const char* NameOf(Code code) {
  switch (code) {
    case Code::kInitServer:
      return "opening the session";
    case Code::kCallFunc:
      return "a call";
    case Code::kCopyToRemote:
      return "a copy to it";
    case Code::kCopyFromRemote:
      return "a copy from it";
    case Code::kSync:
      return "what was posted";
    case Code::kDevStreamSync:
      return "the work of a device";
    default:
      return "a request";
  }
}

double Seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string Milliseconds(double seconds) {  // in seconds, with no digit beyond
  int64_t count = std::llround(seconds * 1000);
  std::string text = std::to_string(count / 1000), digits = std::to_string(1000 + count % 1000);
  if (count % 1000 == 0) return text;
  return text + '.' + digits.substr(1, digits.find_last_not_of('0'));
}

// `text` with the parts in place of its "{}".
std::string Format(std::string_view text, std::initializer_list<std::string_view> parts) {
  std::string result;
  for (std::string_view part : parts) {
    size_t at = text.find("{}");
    result += text.substr(0, at);
    result += part;
    text.remove_prefix(at + 2);
  }
  result += text;
  return result;
}

bool IsLate(const Error& error) { return error.kind() == "SessionTimeoutError" && error.message() == kTimeIsUp; }

}  // namespace

std::atomic<uint32_t> ClientConnection::forks{0};
thread_local RunningCallback running_callback;

ClientConnection::ClientConnection(std::unique_ptr<Channel> channel, const RemoteOptions& options)
    : options_(options),
      link_(std::move(channel), options.name, options.max_frame,
            [this](FrameReader::Event event) { return Handle(event); }),
      call_timeout_(options.call_timeout) {
  [[maybe_unused]] static const int counted = pthread_atfork(nullptr, nullptr, [] { ++forks; });
}

uint64_t ClientConnection::CurrentCallback() const {
  return running_callback.session == this ? running_callback.number : 0;
}

// ---- Sending and waiting ------------------------------------------------------------------------------------------

void ClientConnection::Admit(Lock& lock) {
  CheckOpen(lock);
  uint64_t callback = CurrentCallback();  // requests of callbacks do not wait for others
  const std::deque<Pending*>& pending = pending_.StreamOf(callback).pending;
  while (!pending.empty() &&
         (!pipelined_ || pending.size() >= kMaxPending || (!callback && pending_.bytes() > kMaxPendingBytes))) {
    if (!pipelined_) {
      link_.Wait(lock, kNoDeadline);
    } else {
      Flush(lock);
      if (!pending.empty()) ReadOn(lock, kNoDeadline);
    }
    CheckOpen(lock);
  }
}

void ClientConnection::Append(Pending* request) {
  link_.Expect(true);
  pending_.Append(request);
}

void ClientConnection::Flush(Lock& lock) {
  try {
    link_.Flush(lock, DeadlineIn(call_timeout_),
                pipelined_ && (posts_ || calls_back_ || pending_.top().pending.size() > 1));
  } catch (const Error& error) {
    Fail(lock, error);
  }
}

void ClientConnection::ReadOn(Lock& lock, Deadline until) {
  if (link_.reading()) return link_.Wait(lock, until);
  Deadline front = std::min(FrontDeadline(), link_.silent_at());
  try {
    link_.Receive(lock, std::min(until, front));
  } catch (const Error& error) {
    if (!IsLate(error) || front <= until) Fail(lock, error);
  } catch (const std::exception& error) {
    Fail(lock, Error("RuntimeError", error.what()));
  }
}

Deadline ClientConnection::FrontDeadline() const {
  double seconds = call_timeout_;
  if (!(seconds > 0)) return kNoDeadline;
  const Pending* request = pending_.Front();
  if (!request) return kNoDeadline;
  Deadline now = Clock::now();
  Deadline limit = DeadlineIn(seconds);
  return limit == kNoDeadline ? limit : limit - (now - pending_.StartOf(*request));
}

// ---- The session's end --------------------------------------------------------------------------------------------

void ClientConnection::Close() {
  if (closed_.exchange(true)) return;
  if (!IsOurs()) return link_.Forget();
  Lock lock = link_.Take();
  WakeThreads();
  if (!link_.busy()) {
    try {
      std::string shutdown;
      Writer writer(&shutdown);
      writer.Begin(Code::kShutdown);
      writer.End();
      // What a channel of the user's own does not take at once it may wait for: it has no other idea of "at once".
      Channel& channel = link_.channel();
      channel.Send({{shutdown.data(), shutdown.size()}}, channel.KeepsDeadlines() ? Clock::now() : kNoDeadline);
    } catch (const Error&) {  // the peer is gone already
    }
    pending_.LoseAll();
    now_ = Closed();
  }
  link_.End();
}

Error ClientConnection::RemoteErrorOf(std::string_view body) const {
  Error error = rpc::RemoteErrorOf(body, options_.name);
  if (error.message().substr(0, kTimeoutPrefix.size()) == kTimeoutPrefix) {
    throw Error("SessionTimeoutError", error.message().substr(kTimeoutPrefix.size()));
  }
  constexpr std::string_view kOverdue = "CallTimeoutError: ", kNotBegun = "the call was not begun";
  if (cancels_ && error.message().substr(0, kOverdue.size()) == kOverdue) {
    const std::string_view text = error.message().substr(kOverdue.size());
    const bool begun = text.substr(0, kNotBegun.size()) != kNotBegun;
    return ErrorOf("CallTimeoutError", Format("{}: {}", {options_.name, text}), begun ? "stopped" : "not-begun");
  }
  return error;
}

void ClientConnection::ThrowOverdue(Lock& lock, bool begun) {
  lock.unlock();
  constexpr const char* kGoesOn =
      "{}: the call did not end in its time, and was not stopped: what was begun goes on, and later requests of the "
      "session wait for it";
  constexpr const char* kNotBegun =
      "{}: the call was not begun in its time, since another request of the session goes on; it is dropped when that "
      "ends";
  throw ErrorOf("CallTimeoutError", Format(begun ? kGoesOn : kNotBegun, {options_.name}),
                begun ? "goes-on" : "not-begun");
}

// An error with facts: front ends read the peer from the extra context, not from the text.
Error ClientConnection::ErrorOf(std::string_view kind, std::string_view message, std::string_view reason) const {
  return Error(kind, message, {}, nullptr,
               Array<Any>({Any("portcall.RPCError"), Any(options_.name), Any(String(reason))}));
}

void ClientConnection::CheckOurs() const {
  if (IsOurs()) return;
  throw ErrorOf("SessionClosedError",
                Format("the session with {} belongs to process {}, of which this one is a copy; open another",
                       {options_.name, std::to_string(process_)}));
}

void ClientConnection::CheckOpen(Lock& lock) const {
  if (!closed_) return;
  ThrowEnd(lock, later_.text.empty() ? Closed() : later_);
}

void ClientConnection::ThrowEnd(Lock& lock, const End& end) const {
  const End copy = end;  // NOLINT(performance-unnecessary-copy-initialization): it may change without the lock
  PackedFunc explain = explain_;
  if (lock.owns_lock()) lock.unlock();
  if (explain.defined()) explain(copy.kind, copy.text, &end != &now_);
  throw ErrorOf(copy.kind, copy.text);
}

// A server that gives up halfway through a request says why before it closes the connection: returns that, or `lost`.
Error ClientConnection::EndReason(Lock& lock, const Error& lost) {
  Pending* last = pending_.top().pending.empty() ? nullptr : pending_.top().pending.back();
  Deadline until = DeadlineIn(kLastWordsTime);
  try {
    while (last && !last->done && !link_.reading()) link_.Receive(lock, until);
  } catch (const Error& why) {
    if (why.kind() == "SessionTimeoutError" && why.message() != kTimeIsUp) return why;  // else that was all
  }
  return last && last->done && last->failure ? *last->failure : lost;
}

// Ends the session: what is on its way is lost, and memory that was lent to it is the caller's again.
void ClientConnection::Fail(Lock& lock, const Error& error) {
  if (!lock.owns_lock()) lock.lock();
  bool by_us = closed_.exchange(true);
  bool lost = !by_us && error.kind() == "SessionBrokenError" && link_.channel().KeepsDeadlines();
  Error why = lost ? EndReason(lock, error) : error;
  bool ours = by_us;
  if (now_.text.empty()) ours = RecordEnd(why, by_us);
  WakeThreads();
  link_.End();
  link_.AwaitIdle(lock);
  pending_.LoseAll();
  link_.Changed();
  if (ours) ThrowEnd(lock, now_);
  lock.unlock();
  throw Error(why);
}

// How the session ended, for requests on their way and for later users. Returns whether it is the session's own error.
bool ClientConnection::RecordEnd(const Error& error, bool by_us) {
  const Pending* request = pending_.Front();
  Activity front = request ? Describe(*request) : Activity();
  const std::string& peer = options_.name;
  std::string kind(error.kind()), message(error.message());
  const char* kept = nullptr;  // how the reason is told to later users
  if (by_us) {
    now_ = {"SessionClosedError", Format("the session with {} was closed while it waited for {}", {peer, front.what})};
  } else if (IsLate(error) && Clock::now() >= link_.silent_at()) {
    now_ = {
        "SessionBrokenError",
        Format(
            "no sign of life from {} for {} s, while {} had taken {} s: its machine or the network is down, or its "
            "process is stopped; the session is closed; connect again, or raise heartbeat= if it may be silent for "
            "longer",
            {peer, Milliseconds(Seconds(Clock::now() - link_.last_sign())), front.what, Milliseconds(front.seconds)})};
    kept = "the session with {} is over: {}";
    message = now_.text;
  } else if (IsLate(error)) {
    const char* option = front.code == Code::kInitServer ? "timeout="
                         : call_timeout_ > 0             ? "call_timeout="
                                                         : "its timeout";
    later_ = {"SessionClosedError", Format("the session with {} is closed: {} ran out of time", {peer, front.what})};
    now_ = {kind, Format("{} did not answer in time: {}; the session is closed; raise {} if it may take longer",
                         {peer, WaitSummary(front), option})};
  } else if (kind == "SessionTimeoutError" || kind == "SessionBrokenError") {
    kept = "the session with {} is over: {}";
    now_ = {kind, message};
  } else if (kind == "RemoteProtocolError") {
    kept = "the session with {} is over, because the peer broke the protocol: {}";
    now_ = {kind, Format("{} broke the protocol: {}; the session is closed", {peer, message})};
  } else {
    later_ = now_ = {"SessionClosedError",
                     Format("the session with {} is closed: {} was interrupted by {}", {peer, front.what, kind})};
    return false;
  }
  if (kept) later_ = {now_.kind, Format(kept, {peer, message})};
  return true;
}

std::string ClientConnection::WaitSummary(const Activity& front) const {
  std::string received = std::to_string(front.received);
  if (front.to_receive) received += " of " + std::to_string(front.to_receive);
  return Format("{} took more than {} s, of which nothing came or went for {} s (sent {} of {} bytes, received {})",
                {front.what, Milliseconds(front.seconds), Milliseconds(front.silent), std::to_string(front.sent),
                 std::to_string(front.to_send), received});
}

// ---- What is seen of it -------------------------------------------------------------------------------------------

SessionStats ClientConnection::stats() {
  Lock lock = link_.Take();
  SessionStats stats = pending_.stats();
  stats.bytes_sent = link_.sent();
  stats.bytes_received = link_.received();
  return stats;
}

Activity ClientConnection::activity() {
  Lock lock = link_.Take();
  const Pending* request = pending_.Front();
  return !request || closed_ ? Activity() : Describe(*request);
}

Activity ClientConnection::Describe(const Pending& request) const {
  Clock::time_point now = Clock::now(), since = pending_.StartOf(request);
  uint64_t sent = link_.sent(), received = link_.received() - request.received_before;
  sent = sent < request.sent_before ? 0 : std::min(sent - request.sent_before, request.size);
  double silent = Seconds(now - std::max(link_.last_bytes(), request.began));
  return {request.code, NameOf(request.code), Seconds(now - since), silent, sent, request.size,
          received,     request.to_size};
}

}  // namespace portcall::rpc
