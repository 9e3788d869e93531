// SPDX-License-Identifier: Apache-2.0
#include "rpc/callbacks.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "portcall/container.h"
#include "rpc/remote_session.h"
#include "rpc/running_callback.h"

namespace portcall::rpc {
namespace {

constexpr auto kEndTime = std::chrono::seconds(1);
constexpr auto kWatchTime = std::chrono::milliseconds(50);  // between looks whether the call is over
constexpr int kMostReads = 64;                              // of what has come, before a call
constexpr size_t kMostCancelled = 1024;

// How a call is interrupted: a signal, whose handler asks whether it is for the call that runs. There is one session in
// such a process.
std::atomic<int> interrupt_signal{0};
std::atomic<bool> call_interrupted{false};

// What this thread runs for a client: the callback that it belongs to, and how many are around it.
struct Inside {
  const ClientFunctions* client = nullptr;
  uint64_t callback = 0;
  int depth = 0;
};
thread_local Inside inside;

class Restored {
 public:
  explicit Restored(const Inside& now) : before_(std::exchange(inside, now)) {}
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;
  ~Restored() { inside = before_; }

 private:
  Inside before_;
};

}  // namespace

// A function of the client.
struct Callbacks::Function_ {
  std::shared_ptr<Callbacks> client;
  uint64_t number;

  static int Run(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* out) {
    auto* func = static_cast<Function_*>(self);
    return Guard([&] { *out = func->client->Call(func->number, args, num_args).release(); });
  }
  static void Delete(void* self) {
    std::unique_ptr<Function_> gone(static_cast<Function_*>(self));
    gone->client->Drop(gone->number);
  }
};

void Callbacks::Begin(Endpoint* endpoint, Channel* channel, Outlet* outlet, Progress* progress) {
  endpoint_ = endpoint;
  channel_ = channel;
  outlet_ = outlet;
  progress_ = progress;
  server_ = pthread_self();
  inside = {this, 0, 0};
}

bool Callbacks::End() {
  inside = {};
  Lock lock(mutex_);
  ended_ = true;
  channel_->Interrupt();
  changed_.notify_all();
  if (watcher_.joinable()) {
    lock.unlock();
    watcher_.join();
    lock.lock();
  }
  return changed_.wait_for(lock, kEndTime, [&] { return waiting_.empty(); });
}

Any Callbacks::Function(uint64_t number) {
  auto func = std::make_unique<Function_>(Function_{shared_from_this(), number});
  TVMFFIObjectHandle object = nullptr;
  Check(PortcallFunctionCreate(func.get(), Function_::Run, Function_::Delete, 0, "a function of the client", &object));
  (void)func.release();
  ++functions_;
  return ObjectRef::Steal<PackedFunc>(object);
}

// ---- Whose turn it is to read -------------------------------------------------------------------------------------

void Callbacks::Yield() {
  Lock lock(mutex_);
  reading_ = false;
  elsewhere_ = true;
  changed_.notify_all();
}

void Callbacks::Return() {
  Lock lock(mutex_);
  wanted_ = true;
  changed_.wait(lock, [&] { return !reading_; });
  wanted_ = false;
  reading_ = true;
  elsewhere_ = false;
}

// Receives once; false when the channel has ended.
bool Callbacks::Receive() {
  auto [space, room] = endpoint_->Space();
  size_t n = channel_->Receive(space, room, kNoDeadline);
  endpoint_->Filled(n);
  Count(&progress_->received, n);
  endpoint_->Collect();
  return n != 0;
}

// Reads: once, and waits for it, or what has come already. What is not for a callback is kept.
void Callbacks::Read(Lock& lock, bool wait) {
  reading_ = true;
  lock.unlock();
  bool open = true;
  try {
    const bool found = endpoint_->Collect();
    if (wait && !found) open = Receive();
    for (int i = 0; !wait && i < kMostReads && open; ++i) {
      if (!channel_->WaitForInput(std::chrono::steady_clock::now())) break;
      open = Receive();
    }
  } catch (const Error&) {  // the thread that serves finds the same
    open = false;
  }
  lock.lock();
  if (!open) ended_ = true;
  reading_ = false;
  changed_.notify_all();
}

void Callbacks::Deliver(uint64_t callback, std::string_view frame) {
  Lock lock(mutex_);
  if (static_cast<Code>(NumberAt<int32_t>(frame.data() + sizeof(uint64_t))) == Code::kCancel) return Cancel(callback);
  auto it = waiting_.find(callback);
  if (it == waiting_.end() || !it->second) return;  // it was not asked for
  it->second->push_back({++last_frame_, std::string(frame)});
  changed_.notify_all();
}

// While it lives, the thread that serves may wait for the client: a signal must not meet it in the middle of a frame.
class Callbacks::WithClient {
 public:
  explicit WithClient(Callbacks* self) : self_(pthread_equal(pthread_self(), self->server_) ? self : nullptr) {
    if (!self_) return;
    Lock lock(self_->mutex_);
    ++self_->with_client_;
  }
  WithClient(const WithClient&) = delete;
  WithClient& operator=(const WithClient&) = delete;
  ~WithClient() {
    if (!self_) return;
    Lock lock(self_->mutex_);
    if (--self_->with_client_ == 0 && std::exchange(self_->late_, false))
      pthread_kill(self_->server_, interrupt_signal);
  }

 private:
  Callbacks* self_;
};

// ---- Calls --------------------------------------------------------------------------------------------------------

// A callback on its way, until what it returned was taken.
struct Callbacks::Waiting {
  explicit Waiting(std::shared_ptr<Callbacks> callbacks) : self(std::move(callbacks)) {
    PORTCALL_CHECK(inside.client != self.get() || inside.depth < kMaxCallbackDepth, RecursionError)
        << "callbacks are nested more than " << kMaxCallbackDepth << " deep";
    Lock lock(self->mutex_);
    PORTCALL_CHECK(!self->ended_, SessionClosedError) << "the client, whose function this is, has gone";
    PORTCALL_CHECK(self->waiting_.size() < kMaxCallbacks, RuntimeError)
        << "more than " << kMaxCallbacks << " callbacks are on their way";
    number = ++self->last_;
    self->waiting_.emplace(number, &mail);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    Lock lock(self->mutex_);
    self->waiting_[number] = nullptr;
    self->RunDeferred(lock);
    self->waiting_.erase(number);
    self->changed_.notify_all();
  }

  std::shared_ptr<Callbacks> self;
  uint64_t number = 0;
  Mail mail;
};

Any Callbacks::Call(uint64_t function, const TVMFFIAny* args, int32_t num_args) {
  Waiting waiting(shared_from_this());
  std::vector<CallResult> given(static_cast<size_t>(num_args));
  std::vector<std::pair<void*, Tensor>> lent;  // memory of the caller, who may not want it kept, and its copy
  for (int32_t i = 0; i < num_args; ++i) {
    Any arg = Any::Copy(args[i]);
    if (const DLTensor* tensor = args[i].type_index == kTVMFFIDLTensorPtr ? TryDLTensor(args[i]) : nullptr) {
      Tensor copy = Tensor::Empty({tensor->shape, tensor->shape + tensor->ndim}, tensor->dtype, tensor->device);
      copy.CopyFrom(*tensor);
      lent.emplace_back(args[i].v_ptr, copy);
      arg = copy;
    }
    endpoint_->Export(std::move(arg), &given[static_cast<size_t>(i)]);
  }
  Any result;
  Ask(&waiting, function, given, [&](Endpoint& nested, Reader body) { result = nested.Import(body); });
  for (const auto& [original, copy] : lent) {
    Check(PortcallTensorCopy(copy.dl_tensor(), static_cast<DLTensor*>(original)));
  }
  return result;
}

std::shared_ptr<void> Callbacks::PassOn(const PackedFunc& func, const Session& session,
                                        const std::vector<CallResult>& args,
                                        const std::function<void(const Sequence&)>& answer) {
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(func.get(), &info);
  if (info.call != Function_::Run) return nullptr;
  auto* given = static_cast<Function_*>(info.self);
  auto waiting = std::make_shared<Waiting>(given->client);
  if (!given->client->endpoint_->Serves(session)) return nullptr;
  given->client->Ask(waiting.get(), given->number, args,
                     [&](Endpoint& nested, Reader body) { answer(nested.Result(body)); });
  return waiting;
}

void Callbacks::Ask(Waiting* waiting, uint64_t function, const std::vector<CallResult>& args, const Take& take) {
  const bool serves = inside.client == this;
  SendQueue out;
  Writer writer = out.Lend(nullptr);
  writer.Begin(Code::kCallback, waiting->number);
  writer.Put<uint64_t>(serves ? inside.callback : kOfNoRequest);
  writer.Put<uint64_t>(function);
  writer.Put<int32_t>(3 * static_cast<int32_t>(args.size()));
  for (const CallResult& value : args) {
    writer.Value(WireValue::Int(value.type), Form::kReply);
    writer.Value(value.value, Form::kReply);
    writer.Value(WireValue::Pointer(value.handle), Form::kReply);
  }
  writer.End();
  WithClient with(this);
  if (serves && inside.callback == 0) {  // the thread that serves, which has answers that were known before
    if (!elsewhere_) Yield();
    outlet_->Flush(&endpoint_->output());
  }
  outlet_->Flush(&out);
  Restored now({this, waiting->number, serves ? inside.depth + 1 : 1});
  Wait(waiting, take);
}

void Callbacks::Wait(Waiting* waiting, const Take& take) {
  std::unique_ptr<Endpoint> nested;
  Mail& mail = waiting->mail;
  Lock lock(mutex_);
  for (;;) {
    if (!mail.empty()) {
      std::string frame = std::move(mail.front().bytes);
      lock.unlock();
      if (!nested) nested = std::make_unique<Endpoint>(endpoint_, waiting->number);
      auto code = static_cast<Code>(NumberAt<int32_t>(frame.data() + sizeof(uint64_t)));
      std::string_view body = std::string_view(frame).substr(sizeof(uint64_t) + sizeof(code));
      if (code == Code::kReturn) return take(*nested, Reader(body));
      if (code == Code::kException) throw RemoteErrorOf(body, "the client");
      nested->Give(frame);
      bool more;
      do {
        more = nested->Serve();
        outlet_->Flush(&nested->output());
      } while (more);
      lock.lock();
      mail.pop_front();
      RunDeferred(lock);
    } else if (ended_) {
      throw Error("SessionBrokenError", "the client has gone, whose function was called");
    } else if (reading_ || wanted_) {
      changed_.wait(lock);
    } else {
      Read(lock, true);
    }
  }
}

// ---- Calls that the client cancels ---------------------------------------------------------------------------------

void Callbacks::BeginCall(uint64_t number, bool interrupts) {
  Lock lock(mutex_);
  if (!reading_) Read(lock, false);
  const bool unwanted = cancelled_.count(number) != 0;
  cancelled_.erase(cancelled_.begin(), cancelled_.upper_bound(number));
  last_call_ = std::max(last_call_, number);
  PORTCALL_CHECK(!unwanted, CallTimeoutError) << "the call was not begun when its time was over";
  if (!interrupts || interrupt_signal == 0) return;
  call_ = number;
  if (!watcher_.joinable()) watcher_ = std::thread([this] { Watch(); });
  changed_.notify_all();
}

bool Callbacks::EndCall() {
  Lock lock(mutex_);
  call_ = 0;
  late_ = false;
  call_interrupted = false;
  return std::exchange(interrupted_, false);
}

// Reads while such a call runs, and nobody else does.
void Callbacks::Watch() {
  Lock lock(mutex_);
  while (!ended_) {
    if (call_ == 0 || interrupted_ || reading_ || wanted_) {
      changed_.wait(lock);
      continue;
    }
    reading_ = true;
    lock.unlock();
    bool input = false;
    try {
      input = channel_->WaitForInput(std::chrono::steady_clock::now() + kWatchTime);
    } catch (const Error&) {  // the session ends
    }
    lock.lock();
    reading_ = false;
    changed_.notify_all();
    if (input && !ended_) Read(lock, false);
  }
}

void Callbacks::Cancel(uint64_t number) {
  if (number == call_ && number != 0 && !interrupted_) Interrupt();
  else if (number > last_call_ && cancelled_.size() < kMostCancelled) cancelled_.insert(number);
}

void Callbacks::Interrupt() {
  interrupted_ = true;
  call_interrupted = true;
  if (with_client_ > 0) late_ = true;
  else pthread_kill(server_, interrupt_signal);
}

void InterruptCallsBy(int signal) { interrupt_signal = signal; }
bool TakeInterruption() { return call_interrupted.exchange(false); }

// ---- What waits until frames were served ---------------------------------------------------------------------------

uint64_t Callbacks::FirstUnserved() const {
  uint64_t first = UINT64_MAX;
  for (const auto& [_, mail] : waiting_) {
    if (mail && !mail->empty()) first = std::min(first, mail->front().place);
  }
  return first;
}

bool Callbacks::Defer(std::function<void()> work) {
  Lock lock(mutex_);
  if (FirstUnserved() > last_frame_) return false;
  deferred_.emplace_back(last_frame_, std::move(work));
  return true;
}

void Callbacks::RunDeferred(Lock& lock) {
  while (!deferred_.empty() && deferred_.front().first < FirstUnserved()) {
    std::function<void()> work = std::move(deferred_.front().second);
    deferred_.pop_front();
    lock.unlock();
    FreeingOutside outside(true);
    try {
      work();
    } catch (const std::exception&) {  // nothing waits for it
    }
    lock.lock();
  }
}

// ---- Functions without references --------------------------------------------------------------------------------

void Callbacks::Drop(uint64_t number) {
  std::lock_guard<std::mutex> guard(drops_mutex_);
  --functions_;
  drops_.push_back(number);
  dropped_ = true;
}

void Callbacks::WriteDrops(SendQueue* out) {
  if (!dropped_) return;
  std::vector<uint64_t> drops;
  {
    std::lock_guard<std::mutex> guard(drops_mutex_);
    dropped_ = false;
    drops.swap(drops_);
  }
  for (uint64_t number : drops) {
    Writer writer = out->Copy();
    writer.Begin(Code::kDropFunction);
    writer.Put<uint64_t>(number);
    writer.End();
  }
}

}  // namespace portcall::rpc
