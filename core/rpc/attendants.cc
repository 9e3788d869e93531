// SPDX-License-Identifier: Apache-2.0
// Callbacks at the client: functions that the server's code calls, and the threads that run them where none waits.
#include <algorithm>
#include <thread>
#include <utility>

#include "rpc/remote_session.h"
#include "rpc/requests.h"

namespace portcall::rpc {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMaxAttendants = 64;  // threads that run callbacks
constexpr int kMaxDepth = 100;      // callbacks in callbacks of one thread; servers of portcall stop before
constexpr size_t kMaxCalls = 2048;
constexpr auto kAttendTime = std::chrono::milliseconds(20);  // between looks whether somebody receives
constexpr auto kListenTime = std::chrono::milliseconds(50);
constexpr int kLooks = 50;                  // without a function that was lent
constexpr size_t kMaxTraceback = 16 << 10;  // bytes

// The callback that this thread runs.
struct Running {
  const Requests* requests = nullptr;
  uint64_t callback = 0;
  int depth = 0;
};
thread_local Running running;

}  // namespace

bool InCallback() { return running.callback != 0; }
FreeingOutside::FreeingOutside(bool on) : callback_(running.callback) {
  if (on) running.callback = 0;
}
FreeingOutside::~FreeingOutside() { running.callback = callback_; }

uint64_t Requests::Callback() const { return running.requests == this ? running.callback : 0; }

// A callback that is over has no requests once all are answered.
void Requests::Forget(uint64_t callback) {
  auto it = nested_.find(callback);
  if (it != nested_.end() && it->second.pending.empty() && it->second.over && it->second.waiting == 0)
    nested_.erase(it);
}

uint64_t Requests::Lend(PackedFunc function) {
  Lock lock = link_.Take();
  CheckOpen(lock);
  lent_.emplace(++last_lent_, std::move(function));
  if (attendants_ == 0) AddAttendant();
  else if (asleep_) attend_.notify_one();
  return last_lent_;
}

void Requests::AddAttendant() {
  std::thread([self = shared_from_this()] { self->Attend(); }).detach();
  ++attendants_;
}

void Requests::TakeBack(uint64_t number) {
  PackedFunc gone;  // goes without the lock
  Lock lock = link_.Take();
  auto it = lent_.find(number);
  if (it == lent_.end()) return;
  gone = std::move(it->second);
  lent_.erase(it);
}

void Requests::HandleCallback() {
  Reader reader(frames().body());
  if (frames().code() == Code::kDropFunction) return TakeBack(reader.Take<uint64_t>());
  CallbackCall call;
  call.number = frames().callback();
  call.request = reader.Take<uint64_t>();
  call.function = reader.Take<uint64_t>();
  call.args = std::string(reader.Bytes(reader.left()));
  Lock lock = link_.Take();
  if (calls_.size() >= kMaxCalls || call.number == 0) ThrowProtocolError("too many callbacks");
  bool waits = IsForAttendant(call);
  calls_.push_back(std::move(call));
  if (waits) attend_.notify_one();
  else link_.Changed();
}

// Whether no thread waits for what the callback is part of.
bool Requests::IsForAttendant(const CallbackCall& call) const {
  if (call.request == 0) return top_.waiting == 0;
  auto stream = nested_.find(call.request);
  return stream == nested_.end() || stream->second.waiting == 0;
}

std::vector<CallbackCall>::iterator Requests::FirstForAttendant() {
  return std::find_if(calls_.begin(), calls_.end(), [&](const auto& one) { return IsForAttendant(one); });
}

// Runs a callback that the server makes in a request of ours, which waits for it. Returns whether there was one.
bool Requests::RunCallback(Lock& lock, uint64_t stream) {
  auto call = std::find_if(calls_.begin(), calls_.end(), [&](const auto& one) { return one.request == stream; });
  if (call == calls_.end()) return false;
  CallbackCall mine = std::move(*call);
  calls_.erase(call);
  RunNow(lock, std::move(mine), nullptr);
  return true;
}

void Requests::RunNow(Lock& lock, CallbackCall call, bool* busy) {
  Running before = std::exchange(running, {this, call.number, running.depth + 1});
  auto function = lent_.find(call.function);
  PackedFunc func = function == lent_.end() ? PackedFunc() : function->second;
  nested_[call.number];
  WriteFrees();  // of earlier ones: what this one has goes after its result is there
  lock.unlock();
  std::string answer;
  std::shared_ptr<void> kept;
  Writer writer(&answer);
  auto fail = [&](const Error& error) {
    answer.clear();
    Sequence values;
    std::string text = TextOf(error);
    values.push_back(WireValue::Text(text));
    values.push_back(WireValue::Text(error.backtrace().substr(0, kMaxTraceback)));
    writer.Begin(Code::kException, call.number);
    writer.Values(values, Form::kReply);
    writer.End();
  };
  try {
    PORTCALL_CHECK(running.depth <= kMaxDepth, RecursionError) << "too many callbacks in callbacks";
    PORTCALL_CHECK(func.defined(), RuntimeError) << "the server calls a function that it has not been lent";
    writer.Begin(Code::kReturn, call.number);
    kept = run_(func, call.args, &writer);
    writer.End();
  } catch (const Error& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(Error("RuntimeError", error.what()));
  }
  func = PackedFunc();
  lock.lock();
  running = before;
  if (closed_) return;
  if (busy && std::exchange(*busy, false)) --busy_attendants_;
  Stream& stream = nested_[call.number];
  stream.over = true;
  if (stream.unreported) top_.unreported = true;
  link_.out().Copy().Content(answer);
  Forget(call.number);
  Flush(lock);
}

// The work of a thread for callbacks that no other thread waits for, and that receives while no other does. It runs one,
// and leaves its place to another. Nobody waits for it: it may wait for a lock of who closes the session.
void Requests::Attend() {
  bool busy = false;
  Lock lock = link_.Take();
  int looks = 0;
  try {
    while (!closed_) {
      auto call = FirstForAttendant();
      if (call == calls_.end()) {
        AwaitCallback(lock, &looks);
        continue;
      }
      CallbackCall mine = std::move(*call);
      calls_.erase(call);
      busy = true;
      ++busy_attendants_;
      if (idle_attendants_ > 0) attend_.notify_one();
      else if (attendants_ < kMaxAttendants) AddAttendant();
      RunNow(lock, std::move(mine), &busy);
      break;
    }
  } catch (const std::exception&) {  // those who wait for a request hear of it
    if (!lock.owns_lock()) lock.lock();
  }
  if (busy) --busy_attendants_;
  --attendants_;
  if (attendants_ == busy_attendants_ && !closed_) AddAttendant();
}

// Looks again and again for a while, so that most calls with a function need not wake it.
void Requests::AwaitCallback(Lock& lock, int* looks) {
  struct Idle {
    int* count;
    ~Idle() { --*count; }
  } idle{&idle_attendants_};
  ++idle_attendants_;
  if (lent_.empty() || link_.listening()) {
    if (++*looks < kLooks) {
      attend_.wait_for(lock, kAttendTime);
    } else {
      ++asleep_;
      attend_.wait(lock);
      --asleep_;
      *looks = 0;
    }
    return;
  }
  *looks = 0;
  if (!link_.reading()) {
    try {
      link_.Listen(lock, Clock::now() + kListenTime);
    } catch (const Error& error) {
      Fail(lock, error);
    }
    if (closed_) return;
    if (!link_.reading()) ReadOn(lock, Clock::now());
  }
  if (!closed_ && FirstForAttendant() == calls_.end()) attend_.wait_for(lock, kAttendTime);  // others read
}

void Requests::Dismiss() {
  std::unordered_map<uint64_t, PackedFunc> gone;  // without the lock
  Lock lock = link_.Take();
  gone.swap(lent_);
}

}  // namespace portcall::rpc
