// SPDX-License-Identifier: Apache-2.0
#include "rpc/requests.h"

#include <utility>

namespace portcall::rpc {
namespace {

constexpr auto kCancelTime = std::chrono::milliseconds(500);  // for the server to end a call that was cancelled

}  // namespace

// ---- Requests -----------------------------------------------------------------------------------------------------

void Requests::Do(Code code, const WriteBody& write, const ReadBody& read, void* to, uint64_t to_size) {
  Pending request;
  request.code = code;
  request.read = read;
  request.to = to;
  request.to_size = to_size;
  CheckOurs();
  request.callback = CurrentCallback();
  Lock lock = link_.Take();
  Admit(lock);
  Submit(&request, write);
  if (pending_.StreamOf(request.callback).unreported) posted_.WriteFence(true);
  Flush(lock);
  try {
    Await(lock, &request, kNoDeadline);
  } catch (const Error& error) {
    // A signal came, or else the session is over. If the answer may be partly here, the session ends.
    if (lock.owns_lock() && !pending_.Discard(&request)) Fail(lock, error);
    throw;
  }
  ThrowIfFailed(lock, &request);
}

void Requests::Send(const std::shared_ptr<Pending>& request, const WriteBody& write) {
  CheckOurs();
  request->callback = CurrentCallback();
  Lock lock = link_.Take();
  Admit(lock);
  bool idle = pending_.StreamOf(request->callback).pending.empty();
  Submit(request.get(), write);
  request->self = request;
  idle ? Flush(lock) : posted_.FlushOrSoon(lock);
}

void Requests::Post(Code code, uint64_t target, const WriteBody& write, Deadline deadline) {
  CheckOurs();
  Lock lock = link_.Take();
  posted_.Post(lock, code, target, write, deadline);
}

void Requests::Sync() {
  CheckOurs();
  Lock lock = link_.Take();
  CheckOpen(lock);
  if (pending_.StreamOf(CurrentCallback()).unreported) posted_.WriteFence(true);
  Flush(lock);
  std::vector<std::shared_ptr<Pending>> reports = posted_.TakeReports();
  for (const auto& report : reports) Await(lock, report.get(), kNoDeadline);
  for (const auto& report : reports) {
    if (report->lost || report->failure) ThrowIfFailed(lock, report.get());
  }
}

bool Requests::Wait(Pending* request, Deadline until) {
  CheckOurs();
  Lock lock = link_.Take();
  if (!request->done && !request->lost) Flush(lock);
  if (!Await(lock, request, until)) return false;
  ThrowIfFailed(lock, request);
  return true;
}

bool Requests::Done(const Pending* request) {
  Lock lock = link_.Take();
  return request->done || request->lost;
}

void Requests::ThrowIfFailed(Lock& lock, Pending* request) {
  if (request->lost) ThrowLost(lock);
  if (!request->failure) return lock.unlock();
  posted_.DropReports(
      [&](const Pending& one) { return one.failure && one.failure->message() == request->failure->message(); });
  lock.unlock();
  throw Error(*request->failure);
}

// Writes the frame; all of it or, when that fails, nothing.
void Requests::Submit(Pending* request, const WriteBody& write) {
  size_t before = link_.out().size();
  posted_.WriteFrees();
  SendQueue::Mark start = link_.out().End();
  posted_.NumberCall(request->deadline);
  request->last_number = posted_.last_number();
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
  request->size = link_.out().size() - before + posted_.TakeBytes();
  request->sent_before = link_.sent() + before;
  request->received_before = link_.received();
  Append(request);
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
      if (--self->pending_.StreamOf(callback).waiting == 0 && self->callbacks_.any_calls()) {
        self->callbacks_.WakeThreads();
      }
      self->pending_.EraseIfOver(callback);
      if (left) lock->unlock();
    }
  };
  Waiting waiting{&lock};
  if (calls_back()) {
    ++pending_.StreamOf(request->callback).waiting;
    waiting.self = this;
    waiting.callback = request->callback;
  }
  uint64_t callback = request->callback;  // which may be gone when it is done
  while (!request->done && !request->lost) {
    if (callbacks_.any_calls() && callbacks_.RunOneOf(lock, callback)) continue;
    if (until != kNoDeadline && Clock::now() >= until) return false;
    Deadline last = request->deadline;
    if (last != kNoDeadline) {
      const bool begun = pending_.StreamOf(callback).pending.front() == request;
      if (begun && cancels()) last += kCancelTime;
      if (Clock::now() >= last) {
        if (cancels()) ThrowOverdue(lock, begun);
        Fail(lock, Error("SessionTimeoutError", kTimeIsUp));
      }
    }
    ReadOn(lock, std::min(until, last));
  }
  return true;
}

// ---- Answers ------------------------------------------------------------------------------------------------------

bool Requests::Handle(FrameReader::Event event) {
  Code code = frames().code();
  if (event == FrameReader::kMessage && calls_back() && (code == Code::kCallback || code == Code::kDropFunction)) {
    callbacks_.Take(frames());
    return true;
  }
  Stream* stream = nullptr;
  Pending* front = nullptr;
  {
    Lock lock = link_.Take();
    stream = pending_.Find(frames().callback());
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
  bool more = pending_.has_nested() || callbacks_.any_functions();
  if (Pending* front = stream.pending.front(); front && !front->callback) posted_.Answered(front->last_number);
  last = pending_.Finish(stream);
  if (pending_.bytes() == 0) link_.Expect(false);
  more = more || !pending_.top().pending.empty();
  lock.unlock();
  return more;
}

// ---- The session's end --------------------------------------------------------------------------------------------

void Requests::WakeThreads() {
  posted_.WakeThread();
  callbacks_.WakeThreads();
}

void Requests::Release() {
  Close();
  if (!IsOurs()) {
    kept_ = shared_from_this();
    return;
  }
  callbacks_.TakeBackAll();
  PackedFunc explain, output;  // go without the lock
  Lock lock = link_.Take();
  explain = std::move(explain_);
  output = std::move(output_);
  if (!link_.busy()) link_.frames() = FrameReader(0);  // its memory, which a thread would keep that is leaving
}

}  // namespace portcall::rpc
