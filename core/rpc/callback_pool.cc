// SPDX-License-Identifier: Apache-2.0
#include "rpc/callback_pool.h"

#include <thread>
#include <utility>

#include "rpc/running_callback.h"

namespace portcall::rpc {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMaxThreads = 64;  // that run callbacks
constexpr int kMaxDepth = 100;   // callbacks in callbacks of one thread; servers of portcall stop before
constexpr size_t kMaxCalls = 2048;
constexpr auto kLookTime = std::chrono::milliseconds(20);  // between looks whether another thread receives
constexpr auto kListenTime = std::chrono::milliseconds(50);
constexpr int kLooks = 50;  // without a function that was lent

}  // namespace

// ---- Functions ----------------------------------------------------------------------------------------------------

uint64_t CallbackPool::Lend(PackedFunc function) {
  Lock lock = connection_.link().Take();
  connection_.CheckOpen(lock);
  functions_.emplace(++last_function_, std::move(function));
  if (threads_ == 0) AddThread();
  else if (asleep_) wake_.notify_one();
  return last_function_;
}

void CallbackPool::TakeBack(uint64_t number) {
  PackedFunc gone;  // goes without the lock
  Lock lock = connection_.link().Take();
  auto it = functions_.find(number);
  if (it == functions_.end()) return;
  gone = std::move(it->second);
  functions_.erase(it);
}

void CallbackPool::TakeBackAll() {
  std::map<uint64_t, PackedFunc> gone;  // without the lock
  Lock lock = connection_.link().Take();
  gone.swap(functions_);
}

// ---- Calls --------------------------------------------------------------------------------------------------------

void CallbackPool::Take(FrameReader& frames) {
  Reader reader(frames.body());
  if (frames.code() == Code::kDropFunction) return TakeBack(reader.Take<uint64_t>());
  Call call;
  call.number = frames.callback();
  call.caller = reader.Take<uint64_t>();
  call.function = reader.Take<uint64_t>();
  call.args = std::string(reader.Bytes(reader.left()));
  Lock lock = connection_.link().Take();
  if (calls_.size() >= kMaxCalls || call.number == 0) ThrowProtocolError("too many callbacks");
  bool for_thread = IsForThread(call);
  calls_.push_back(std::move(call));
  if (for_thread) wake_.notify_one();
  else connection_.link().Changed();
}

bool CallbackPool::RunOneOf(Lock& lock, uint64_t caller) {
  std::optional<Call> call = TakeCall([&](const Call& one) { return one.caller == caller; });
  if (call) RunNow(lock, std::move(*call), nullptr);
  return call.has_value();
}

std::optional<CallbackPool::Call> CallbackPool::TakeCall(const std::function<bool(const Call&)>& is_one) {
  for (auto it = calls_.begin(); it != calls_.end(); ++it) {
    if (!is_one(*it)) continue;
    std::optional<Call> call(std::move(*it));
    calls_.erase(it);
    return call;
  }
  return std::nullopt;
}

void CallbackPool::RunNow(Lock& lock, Call call, bool* busy) {
  RunningCallback before = std::exchange(running_callback, {&connection_, call.number, running_callback.depth + 1});
  auto function = functions_.find(call.function);
  PackedFunc func = function == functions_.end() ? PackedFunc() : function->second;
  connection_.pending().StreamOf(call.number);  // its requests have a stream from now on
  posted_.WriteFrees();                         // of earlier ones: what this one has goes after its result is there
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
    PORTCALL_CHECK(running_callback.depth <= kMaxDepth, RecursionError) << "too many callbacks in callbacks";
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
  running_callback = before;
  if (connection_.closed()) return;
  if (busy && std::exchange(*busy, false)) --busy_;
  PendingTable::Stream& stream = connection_.pending().StreamOf(call.number);
  stream.over = true;
  if (stream.unreported) connection_.pending().top().unreported = true;
  connection_.out().Copy().Content(answer);
  connection_.pending().EraseIfOver(call.number);
  connection_.Flush(lock);
}

// ---- Threads ------------------------------------------------------------------------------------------------------

// Whether no thread waits for what the call is part of.
bool CallbackPool::IsForThread(const Call& call) const {
  const PendingTable::Stream* stream = connection_.pending().Find(call.caller);
  return !stream || stream->waiting == 0;
}

bool CallbackPool::AnyForThread() const {
  for (const Call& call : calls_) {
    if (IsForThread(call)) return true;
  }
  return false;
}

void CallbackPool::AddThread() {
  std::thread([this, kept = connection_.shared_from_this()] { ThreadMain(); }).detach();
  ++threads_;
}

// The work of a thread for callbacks that no other thread waits for, and that receives while no other does. It runs one,
// and leaves its place to another. It is not joined: it may wait for a lock of the thread that closes the session.
void CallbackPool::ThreadMain() {
  bool busy = false;
  Lock lock = connection_.link().Take();
  int looks = 0;
  try {
    while (!connection_.closed()) {
      std::optional<Call> call = TakeCall([&](const Call& one) { return IsForThread(one); });
      if (!call) {
        AwaitCall(lock, &looks);
        continue;
      }
      busy = true;
      ++busy_;
      if (idle_ > 0) wake_.notify_one();
      else if (threads_ < kMaxThreads) AddThread();
      RunNow(lock, std::move(*call), &busy);
      break;
    }
  } catch (const std::exception&) {  // those who wait for a request hear of it
    if (!lock.owns_lock()) lock.lock();
  }
  if (busy) --busy_;
  --threads_;
  if (threads_ == busy_ && !connection_.closed()) AddThread();
}

// Looks again and again for a while, so that most calls with a function need not wake it.
void CallbackPool::AwaitCall(Lock& lock, int* looks) {
  struct Idle {
    int* count;
    ~Idle() { --*count; }
  } idle{&idle_};
  ++idle_;
  Link& link = connection_.link();
  if (functions_.empty() || link.listening()) {
    if (++*looks < kLooks) {
      wake_.wait_for(lock, kLookTime);
    } else {
      ++asleep_;
      wake_.wait(lock);
      --asleep_;
      *looks = 0;
    }
    return;
  }
  *looks = 0;
  if (!link.reading()) {
    try {
      link.Listen(lock, Clock::now() + kListenTime);
    } catch (const Error& error) {
      connection_.Fail(lock, error);
    }
    if (connection_.closed()) return;
    if (!link.reading()) connection_.ReadOn(lock, Clock::now());
  }
  if (!connection_.closed() && !AnyForThread()) wake_.wait_for(lock, kLookTime);  // others read
}

}  // namespace portcall::rpc
