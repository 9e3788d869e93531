// SPDX-License-Identifier: Apache-2.0
#include "rpc/requests.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "portcall/container.h"

namespace portcall::rpc {
namespace {

constexpr size_t kMaxPendingFrees = 256;  // with one request: their answers must fit into what a connection holds
constexpr size_t kMaxPending = 1024;      // requests on their way,
constexpr uint64_t kMaxPendingBytes = 64 << 20;  // and their bytes; one that has more goes alone
constexpr size_t kGathered = 4 << 10;            // bytes of posted requests that are sent together
constexpr size_t kMaxPosted = 256;               // requests until one asks for an answer
constexpr uint64_t kMaxPostedBytes = 8 << 20;    // and their bytes
constexpr size_t kMaxReports = 64;
constexpr auto kGatherTime = std::chrono::microseconds(300);
constexpr double kLastWordsTime = 0.2;  // seconds

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

std::string Join(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (std::string_view part : parts) text += part;
  return text;
}

bool IsLate(const Error& error) { return error.kind() == "SessionTimeoutError" && error.message() == kTimeIsUp; }

}  // namespace

Requests::Requests(std::unique_ptr<Channel> channel, const RemoteOptions& options)
    : options_(options),
      link_(std::move(channel), options.name, options.max_frame,
            [this](FrameReader::Event event) { return Handle(event); }),
      call_timeout_(options.call_timeout) {
  [[maybe_unused]] static const int counted = pthread_atfork(nullptr, nullptr, [] { ++forks; });
}

std::atomic<uint32_t> Requests::forks{0};

// ---- Requests -----------------------------------------------------------------------------------------------------

void Requests::Do(Code code, const WriteBody& write, const ReadBody& read, void* to, uint64_t to_size) {
  Pending request;
  request.code = code;
  request.read = read;
  request.to = to;
  request.to_size = to_size;
  CheckOurs();  // before a lock that may be taken forever in a copy
  request.callback = Callback();
  Lock lock = link_.Take();
  Admit(lock);
  Submit(lock, &request, write);
  if (StreamOf(Callback()).unreported) WriteFence(true);
  Flush(lock);
  try {
    Await(lock, &request, kNoDeadline);
  } catch (const Error& error) {
    if (lock.owns_lock()) Abandon(lock, &request, error);  // a signal came; else the session is over
    throw;
  }
  CheckDone(lock, &request);
}

void Requests::Post(const std::shared_ptr<Pending>& request, const WriteBody& write) {
  CheckOurs();
  request->callback = Callback();
  Lock lock = link_.Take();
  Admit(lock);
  bool idle = StreamOf(request->callback).pending.empty();
  Submit(lock, request.get(), write);
  request->self = request;
  if (idle || link_.out().size() >= kGathered || link_.out().full()) Flush(lock);
  else FlushSoon();
}

void Requests::PostSilent(Code code, uint64_t target, const WriteBody& write) {
  CheckOurs();
  Lock lock = link_.Take();
  Admit(lock);
  WriteFrees();
  SendQueue& out = link_.out();
  SendQueue::Mark start = out.End();
  size_t before = out.size();
  try {
    Writer writer = out.Lend(nullptr);
    writer.BeginPosted(code, target, Callback());
    write(writer);
    writer.End();
  } catch (...) {
    out.CutTo(start);
    throw;
  }
  posted_bytes_ += out.size() - before;
  StreamOf(Callback()).unreported = true;
  if (++posted_ >= kMaxPosted || posted_bytes_ >= kMaxPostedBytes) WriteFence(false);
  if (out.size() >= kGathered || out.full()) Flush(lock);
  else FlushSoon();
}

// A request whose answer says that all before it is done: so little is on its way that it fits into the peer's memory.
// It may tell of errors, too, which Sync raises unless something else has.
void Requests::WriteFence(bool report) {
  auto fence = std::make_shared<Pending>();
  fence->code = Code::kSync;
  fence->callback = Callback();
  Writer writer = link_.out().Copy();
  writer.Begin(fence->code, fence->callback);
  Sequence args;
  args.push_back(WireValue::Int(report));
  writer.Values(args, Form::kRequest);
  writer.End();
  fence->began = Clock::now();
  fence->size = std::exchange(posted_bytes_, 0) + 1;
  posted_ = 0;
  Append(fence.get());
  fence->self = fence;
  if (!report) return;
  StreamOf(fence->callback).unreported = false;
  auto silent = [](const auto& one) { return one->done && !one->failure; };
  reports_.erase(std::remove_if(reports_.begin(), reports_.end(), silent), reports_.end());
  if (reports_.size() < kMaxReports) reports_.push_back(fence);
}

void Requests::Sync() {
  CheckOurs();
  Lock lock = link_.Take();
  CheckOpen(lock);
  if (StreamOf(Callback()).unreported) WriteFence(true);
  Flush(lock);
  // A callback waits for its own alone: the others come when it is over.
  uint64_t callback = Callback();
  auto others = [&](const auto& one) { return one->callback != callback && (callback || !(one->done || one->lost)); };
  auto mine = std::stable_partition(reports_.begin(), reports_.end(), others);
  std::vector<std::shared_ptr<Pending>> reports(mine, reports_.end());
  reports_.erase(mine, reports_.end());
  for (const auto& report : reports) Await(lock, report.get(), kNoDeadline);
  for (const auto& report : reports) {
    if (report->lost || report->failure) CheckDone(lock, report.get());
  }
}

bool Requests::Wait(Pending* request, Deadline until) {
  CheckOurs();
  Lock lock = link_.Take();
  if (!request->done && !request->lost) Flush(lock);
  if (!Await(lock, request, until)) return false;
  CheckDone(lock, request);
  return true;
}

bool Requests::Done(const Pending* request) {
  Lock lock = link_.Take();
  return request->done || request->lost;
}

void Requests::CheckDone(Lock& lock, Pending* request) {
  if (request->lost) ThrowEnd(lock, now_);
  if (!request->failure) return lock.unlock();
  std::string_view text = request->failure->message();
  auto same = [&](const auto& one) { return one->done && one->failure && one->failure->message() == text; };
  reports_.erase(std::remove_if(reports_.begin(), reports_.end(), same), reports_.end());
  lock.unlock();
  throw Error(*request->failure);
}

// Leaves a request whose turn has not come to nobody; one that may be under way ends the session.
void Requests::Abandon(Lock& lock, Pending* request, const Error& error) {
  std::deque<Pending*>& pending = StreamOf(request->callback).pending;
  auto place = std::find(pending.begin(), pending.end(), request);
  if (place == pending.begin()) Fail(lock, error);
  auto nobody = std::make_shared<Pending>();
  nobody->code = request->code;
  nobody->to_size = request->to_size;
  nobody->began = request->began;
  nobody->size = request->size;
  nobody->callback = request->callback;
  *place = nobody.get();
  (*place)->self = std::move(nobody);
}

// Waits until another request may be on its way.
void Requests::Admit(Lock& lock) {
  CheckOpen(lock);
  uint64_t callback = Callback();  // those of callbacks do not wait for others
  const std::deque<Pending*>& pending = StreamOf(callback).pending;
  while (!pending.empty() &&
         (!pipelined_ || pending.size() >= kMaxPending || (!callback && pending_bytes_ > kMaxPendingBytes))) {
    if (!pipelined_) {
      link_.Wait(lock, kNoDeadline);
    } else {
      Flush(lock);
      if (!pending.empty()) ReadOn(lock, kNoDeadline);
    }
    CheckOpen(lock);
  }
}

// Writes the frame; all of it or, when that fails, nothing.
void Requests::Submit(Lock&, Pending* request, const WriteBody& write) {
  size_t before = link_.out().size();
  WriteFrees();
  SendQueue::Mark start = link_.out().End();
  try {
    Writer writer = link_.out().Lend(nullptr);  // what the caller gave stays until it is sent
    writer.Begin(request->code, request->callback);
    write(writer);
    writer.End();
  } catch (...) {
    link_.out().CutTo(start);
    throw;
  }
  request->began = Clock::now();
  request->size = link_.out().size() - before + std::exchange(posted_bytes_, 0);
  posted_ = 0;
  request->sent_before = link_.sent() + before;
  request->received_before = link_.received();
  Append(request);
}

void Requests::Append(Pending* request) {
  link_.Expect(true);
  StreamOf(request->callback).pending.push_back(request);
  pending_bytes_ += request->size;
}

void Requests::FreeLater(Code code, DLDevice device, uint64_t handle) {
  if (handle == 0 || closed_) return;
  std::lock_guard<std::mutex> guard(frees_mutex_);
  frees_.push_back({code, device, handle, Callback()});
  any_frees_ = true;
}

// A free waits behind the requests that may use its handle: those of a callback that goes on, or else of the top.
void Requests::WriteFrees() {
  if (!any_frees_.load(std::memory_order_relaxed)) return;
  std::vector<PendingFree> frees;
  {
    std::lock_guard<std::mutex> guard(frees_mutex_);
    auto end = frees_.begin() + static_cast<ptrdiff_t>(std::min(frees_.size(), kMaxPendingFrees));
    frees.assign(frees_.begin(), end);
    frees_.erase(frees_.begin(), end);
    any_frees_ = !frees_.empty();
  }
  for (const PendingFree& item : frees) {
    auto nested = nested_.find(item.callback);
    uint64_t callback = nested == nested_.end() || nested->second.over ? 0 : item.callback;
    Sequence args;
    if (item.code == Code::kDevFreeData) args.push_back(WireValue::OfDevice(item.device));
    args.push_back(WireValue::Pointer(item.handle));
    Writer writer = link_.out().Copy();
    posts_ ? writer.BeginPosted(item.code, 0, callback) : writer.Begin(item.code, callback);
    writer.Values(args, Form::kRequest);
    writer.End();
    if (!posts_) StreamOf(callback).pending.push_back(nullptr);
  }
}

// ---- Sending and waiting ------------------------------------------------------------------------------------------

void Requests::Flush(Lock& lock) {
  try {
    link_.Flush(lock, DeadlineIn(call_timeout_), pipelined_ && (posts_ || calls_back_ || top_.pending.size() > 1));
  } catch (const Error& error) {
    Fail(lock, error);
  }
}

// Returns whether the request's answer, or the session's end, has come before the time.
bool Requests::Await(Lock& lock, Pending* request, Deadline until) {
  struct Waiting {
    Lock* lock;
    Requests* self = nullptr;
    uint64_t callback = 0;
    ~Waiting() {
      if (!self) return;
      const bool left = !lock->owns_lock();  // by an error, which may meet another thread that ends the session
      if (left) lock->lock();
      if (--self->StreamOf(callback).waiting == 0 && !self->calls_.empty()) self->attend_.notify_all();
      self->Forget(callback);
      if (left) lock->unlock();
    }
  };
  Waiting waiting{&lock};
  if (calls_back_) {
    ++StreamOf(request->callback).waiting;
    waiting.self = this;
    waiting.callback = request->callback;
  }
  uint64_t callback = request->callback;  // which may be gone when it is done
  while (!request->done && !request->lost) {
    if (!calls_.empty() && RunCallback(lock, callback)) continue;
    if (until != kNoDeadline && Clock::now() >= until) return false;
    ReadOn(lock, until);
  }
  return true;
}

// Reads answers, of whatever request, or waits while another thread does.
void Requests::ReadOn(Lock& lock, Deadline until) {
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

// A request's time begins when those before it were answered.
Deadline Requests::FrontDeadline() const {
  double seconds = call_timeout_;
  if (!(seconds > 0)) return kNoDeadline;
  const Pending* request = Front();
  if (!request) return kNoDeadline;
  Deadline now = Clock::now();
  Deadline limit = DeadlineIn(seconds);
  return limit == kNoDeadline ? limit : limit - (now - std::max(request->began, last_answer_));
}

// The first request that waits for its answer, outside of callbacks if there is one.
const Pending* Requests::Front() const {
  const Pending* front = nullptr;
  ForEach([&](const Pending* request) { front = front ? front : request; });
  return front;
}

template <typename Each> void Requests::ForEach(Each&& each) const {
  for (Pending* request : top_.pending) {
    if (request) each(request);
  }
  for (const auto& [_, stream] : nested_) {
    for (Pending* request : stream.pending) {
      if (request) each(request);
    }
  }
}

// Has a thread send what was posted, unless somebody does before.
void Requests::FlushSoon() {
  if (flush_wanted_) return;
  flush_wanted_ = true;
  if (flusher_) return flush_.notify_one();
  std::thread([self = shared_from_this()] { self->FlushLoop(); }).detach();
  flusher_ = true;
}

void Requests::FlushLoop() {
  Lock lock = link_.Take();
  while (!closed_) {
    flush_.wait(lock, [&] { return flush_wanted_ || closed_; });
    flush_.wait_for(lock, kGatherTime, [&] { return closed_.load(); });
    flush_wanted_ = false;
    try {
      if (!closed_) Flush(lock);
    } catch (const Error&) {  // those who wait for a request hear of it
      if (!lock.owns_lock()) lock.lock();
    }
  }
}

// ---- Answers ------------------------------------------------------------------------------------------------------

bool Requests::Handle(FrameReader::Event event) {
  Code code = frames().code();
  if (event == FrameReader::kMessage && calls_back_ && (code == Code::kCallback || code == Code::kDropFunction)) {
    HandleCallback();
    return true;
  }
  Stream* stream = &top_;
  Pending* front = nullptr;
  {
    Lock lock = link_.Take();
    if (frames().callback()) {
      auto nested = nested_.find(frames().callback());
      stream = nested == nested_.end() ? nullptr : &nested->second;
    }
    bool any = stream && !stream->pending.empty();
    bool output = event == FrameReader::kMessage && code == Code::kOutput && (output_.defined() || link_.hears());
    if (!any && !output) ThrowProtocolError("an answer came to no request");
    if (any) front = stream->pending.front();
  }
  switch (event) {
    case FrameReader::kMessage:
      if (code == Code::kOutput && HandleOutput()) return true;
      if (!stream || stream->pending.empty()) ThrowProtocolError("an answer came to no request");
      return HandleMessage(*stream, code);
    case FrameReader::kPayload:
      if (frames().code() != Code::kCopyAck || !front || !front->to_size || frames().payload_size() != front->to_size) {
        ThrowProtocolError("a copy of " + std::to_string(front ? front->to_size : 0) + " bytes was answered with " +
                           std::to_string(frames().payload_size()));
      }
      frames().Receive(front->to);
      return true;
    case FrameReader::kPayloadEnd:
      return Finish(*stream);
    default:
      break;
  }
  return true;
}

bool Requests::HandleMessage(Stream& stream, Code code) {
  Pending* front = stream.pending.front();
  if (code == Code::kShutdown) {
    throw Error("SessionBrokenError", options_.name + " ended the session because of a failure on its side");
  }
  if (code != Code::kReturn && code != Code::kException) {
    ThrowProtocolError("an answer has code " + std::to_string(static_cast<int32_t>(code)));
  }
  if (code == Code::kException) {
    Error failure = RemoteErrorOf(frames().body());
    if (front) front->failure = std::move(failure);  // that a handle was not freed is of no interest: it is gone anyway
  } else if (front) {
    if (front->read) front->read(frames().reader());
    if (front->to_size) ThrowProtocolError("a copy was answered without its bytes");
  }
  if (!front && frames().buffered() == 0) link_.channel().Acknowledge();
  return Finish(stream);
}

// What the server's code printed comes between answers.
bool Requests::HandleOutput() {
  Lock lock = link_.Take();
  PackedFunc output = output_;
  lock.unlock();
  if (!output.defined() && !link_.hears()) return false;
  Reader reader(frames().body());
  auto stream = reader.Take<int32_t>();
  auto dropped = reader.Take<uint64_t>();
  std::string_view text = reader.Text();
  reader.ExpectEnd();
  if (stream != 1 && stream != 2) ThrowProtocolError("output of stream " + std::to_string(stream));
  if (output.defined() && (dropped || !text.empty())) output(stream, static_cast<int64_t>(dropped), Bytes(text));
  return true;
}

// Returns whether there are more to answer.
bool Requests::Finish(Stream& stream) {
  std::shared_ptr<Pending> last;  // goes without the lock
  Lock lock = link_.Take();
  Pending* front = stream.pending.front();
  stream.pending.pop_front();
  if (!front) return !top_.pending.empty();
  Clock::time_point now = Clock::now();
  double seconds = Seconds(now - std::max(front->began, last_answer_));
  last_answer_ = now;
  pending_bytes_ -= front->size;
  if (pending_bytes_ == 0) link_.Expect(false);
  ++stats_.requests;
  stats_.waited += seconds;
  if (front->code == Code::kCallFunc) stats_.run += seconds;
  if (front->code == Code::kCopyToRemote || front->code == Code::kCopyAmongRemote) stats_.copy += seconds;
  if (front->code == Code::kCopyFromRemote) stats_.fetch += seconds;
  front->done = true;
  last = std::move(front->self);
  bool more = !top_.pending.empty() || !nested_.empty() || !lent_.empty();
  Forget(front->callback);
  lock.unlock();
  return more;
}

// The error that an Exception message stands for. A server that ends a session says so once, asked or not: that throws.
Error Requests::RemoteErrorOf(std::string_view body) const {
  Error error = rpc::RemoteErrorOf(body, options_.name);
  constexpr std::string_view kTimeout = "RPCSessionTimeoutError: ";
  if (error.message().substr(0, kTimeout.size()) == kTimeout) {
    throw Error("SessionTimeoutError", error.message().substr(kTimeout.size()));
  }
  return error;
}

// ---- The session's end --------------------------------------------------------------------------------------------

// Sends the shutdown message without waiting: requests that are under way elsewhere are cut off.
void Requests::Close() {
  if (closed_.exchange(true)) return;
  if (!IsOurs()) return link_.Forget();
  Lock lock = link_.Take();
  flush_.notify_one();
  attend_.notify_all();
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
    LoseAll();
    now_ = Closed();
  }
  link_.End();
}

// No request is answered any more. Those that nobody waits for go.
void Requests::LoseAll() {
  auto lose = [](Stream& stream) {
    for (Pending* request : stream.pending) {
      if (!request) continue;
      request->lost = true;
      const std::shared_ptr<Pending> left = std::move(request->self);
    }
    stream.pending.clear();
  };
  lose(top_);
  for (auto& [_, stream] : nested_) lose(stream);
}

void Requests::Leave() {
  Close();
  if (!IsOurs()) {
    kept_ = shared_from_this();
    return;
  }
  Dismiss();
  PackedFunc explain, output;  // go without the lock
  Lock lock = link_.Take();
  explain = std::move(explain_);
  output = std::move(output_);
  if (!link_.busy()) link_.frames() = FrameReader(0);  // its memory, which a thread would keep that is leaving
}

// An error with facts: front ends read the peer from the extra context, not from the text.
Error Requests::ErrorOf(std::string_view kind, std::string_view message, std::string_view backtrace) const {
  return Error(kind, message, backtrace, nullptr, Array<Any>({Any("portcall.RPCError"), Any(options_.name)}));
}

void Requests::CheckOurs() const {
  if (IsOurs()) return;
  throw ErrorOf("SessionClosedError", Join({"the session with ", options_.name, " belongs to process ",
                                            std::to_string(process_), ", of which this one is a copy; open another"}));
}

void Requests::CheckOpen(Lock& lock) const {
  if (!closed_) return;
  ThrowEnd(lock, later_.text.empty() ? Closed() : later_);
}

void Requests::ThrowEnd(Lock& lock, const End& end) const {
  const End copy = end;  // NOLINT(performance-unnecessary-copy-initialization): it may change without the lock
  PackedFunc explain = explain_;
  if (lock.owns_lock()) lock.unlock();
  if (explain.defined()) explain(copy.kind, copy.text, &end != &now_);
  throw ErrorOf(copy.kind, copy.text);
}

// A server that gives up halfway through a request says why before it closes the connection: returns that, or `lost`.
Error Requests::EndReason(Lock& lock, const Error& lost) {
  Pending* last = top_.pending.empty() ? nullptr : top_.pending.back();
  Deadline until = DeadlineIn(kLastWordsTime);
  try {
    while (last && !last->done && !link_.reading()) link_.Receive(lock, until);
  } catch (const Error& why) {
    if (why.kind() == "SessionTimeoutError" && why.message() != kTimeIsUp) return why;  // else that was all
  }
  return last && last->done && last->failure ? *last->failure : lost;
}

// Ends the session: what is on its way is lost, and memory that was lent to it is the caller's again.
void Requests::Fail(Lock& lock, const Error& error) {
  if (!lock.owns_lock()) lock.lock();
  bool by_us = closed_.exchange(true);
  bool lost = !by_us && error.kind() == "SessionBrokenError" && link_.channel().KeepsDeadlines();
  Error why = lost ? EndReason(lock, error) : error;
  bool ours = by_us;
  if (now_.text.empty()) ours = RecordEnd(why, by_us);
  flush_.notify_one();
  attend_.notify_all();
  link_.End();
  link_.AwaitIdle(lock);
  LoseAll();
  link_.Changed();
  if (ours) ThrowEnd(lock, now_);
  lock.unlock();
  throw Error(why);
}

// How the session ended, for requests on their way and for later users. Returns whether it is the session's own error.
bool Requests::RecordEnd(const Error& error, bool by_us) {
  const Pending* request = Front();
  Activity front = request ? Describe(*request) : Activity();
  const std::string& peer = options_.name;
  std::string kind(error.kind()), message(error.message());
  if (by_us) {
    now_ = {"SessionClosedError", Join({"the session with ", peer, " was closed while it waited for ", front.what})};
  } else if (IsLate(error) && Clock::now() >= link_.silent_at()) {
    now_ = {"SessionBrokenError",
            Join({"no sign of life from ", peer, " for ", Milliseconds(Seconds(Clock::now() - link_.last_sign())),
                  " s, while ", front.what, " had taken ", Milliseconds(front.seconds),
                  " s: its machine or the network is down, or its process is stopped; the session is closed; ",
                  "connect again, or raise heartbeat= if it may be silent for longer"})};
    later_ = {now_.kind, Join({"the session with ", peer, " is over: ", now_.text})};
  } else if (IsLate(error)) {
    later_ = {"SessionClosedError", Join({"the session with ", peer, " is closed: ", front.what, " ran out of time"})};
    now_ = {kind, Join({peer, " did not answer in time: ", WaitSummary(front), "; the session is closed; raise ",
                        front.code == Code::kInitServer ? "timeout=" : "call_timeout=", " if it may take longer"})};
  } else if (kind == "SessionTimeoutError" || kind == "SessionBrokenError") {
    later_ = {kind, Join({"the session with ", peer, " is over: ", message})};
    now_ = {kind, message};
  } else if (kind == "RemoteProtocolError") {
    later_ = {kind, Join({"the session with ", peer, " is over, because the peer broke the protocol: ", message})};
    now_ = {kind, Join({peer, " broke the protocol: ", message, "; the session is closed"})};
  } else {
    later_ = now_ = {"SessionClosedError",
                     Join({"the session with ", peer, " is closed: ", front.what, " was interrupted by ", kind})};
    return false;
  }
  return true;
}

std::string Requests::WaitSummary(const Activity& front) const {
  std::string sent = std::to_string(front.sent), to_send = std::to_string(front.to_send);
  std::string received = std::to_string(front.received);
  if (front.to_receive) received += " of " + std::to_string(front.to_receive);
  return Join({front.what, " took more than ", Milliseconds(front.seconds), " s, of which nothing came or went for ",
               Milliseconds(front.silent), " s (sent ", sent, " of ", to_send, " bytes, received ", received, ")"});
}

// ---- What is seen of it -------------------------------------------------------------------------------------------

SessionStats Requests::stats() {
  Lock lock = link_.Take();
  SessionStats stats = stats_;
  stats.bytes_sent = link_.sent();
  stats.bytes_received = link_.received();
  return stats;
}

Activity Requests::activity() {
  Lock lock = link_.Take();
  const Pending* request = Front();
  return !request || closed_ ? Activity() : Describe(*request);
}

Activity Requests::Describe(const Pending& request) const {
  Clock::time_point now = Clock::now(), since = std::max(request.began, last_answer_);
  uint64_t sent = link_.sent(), received = link_.received() - request.received_before;
  sent = sent < request.sent_before ? 0 : std::min(sent - request.sent_before, request.size);
  double silent = Seconds(now - std::max(link_.last_bytes(), request.began));
  return {request.code, NameOf(request.code), Seconds(now - since), silent, sent, request.size,
          received,     request.to_size};
}

}  // namespace portcall::rpc
