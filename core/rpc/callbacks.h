// SPDX-License-Identifier: Apache-2.0
// Callbacks: the way from a served session to functions that its client lends. Any thread of the session may call one.
// Who waits for a result reads what comes, unless another thread does, and serves the client's requests that belong to it.
#ifndef PORTCALL_RPC_CALLBACKS_H_
#define PORTCALL_RPC_CALLBACKS_H_

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rpc/endpoint.h"
#include "rpc/outlet.h"

namespace portcall::rpc {

constexpr int kMaxCallbackDepth = 64;          // callbacks in callbacks of one thread
constexpr size_t kMaxCallbacks = 1024;         // at once
constexpr uint64_t kOfNoRequest = UINT64_MAX;  // the request of a callback that another thread of the session makes

// The signal that interrupts a call, in a process whose main thread serves one session. Its handler takes the interruption,
// and raises if there was one.
void InterruptCallsBy(int signal);
bool TakeInterruption();

class Callbacks : public ClientFunctions, public std::enable_shared_from_this<Callbacks> {
 public:
  // All outlive End(). The thread that calls this is the one that serves.
  void Begin(Endpoint* endpoint, Channel* channel, Outlet* outlet, Progress* progress);
  // No callback is made from now on, and those that wait fail. Returns whether none is left that uses what Begin got.
  bool End();

  Any Function(uint64_t number) override;
  bool has_functions() const override { return functions_ > 0; }
  void Yield() override;
  bool reads_elsewhere() const override { return elsewhere_; }
  void Return() override;
  void Deliver(uint64_t callback, std::string_view frame) override;
  void WriteDrops(SendQueue* out) override;
  // Calls `func` with what another session gave, if it is a function of a client that this session goes on to: nothing is
  // taken apart on the way, and `answer` gets what the client returned. Null: it is not. What is returned keeps that
  // until the session has it.
  static std::shared_ptr<void> PassOn(const PackedFunc& func, const Session& session,
                                      const std::vector<CallResult>& args,
                                      const std::function<void(const Sequence&)>& answer);
  bool Defer(std::function<void()> work) override;
  void BeginCall(uint64_t number, bool interrupts) override;
  bool EndCall() override;

 private:
  class WithClient;
  struct Function_;
  struct Waiting;
  using Take = std::function<void(Endpoint&, Reader)>;
  using Lock = std::unique_lock<std::mutex>;
  struct Frame {
    uint64_t place;  // among all of callbacks
    std::string bytes;
  };
  using Mail = std::deque<Frame>;  // until they were served

  Any Call(uint64_t function, const TVMFFIAny* args, int32_t num_args);
  void Ask(Waiting* waiting, uint64_t function, const std::vector<CallResult>& args, const Take& take);
  void Wait(Waiting* waiting, const Take& take);
  bool Receive();
  void Read(Lock& lock, bool wait);
  void Watch();
  void Cancel(uint64_t number);
  void Interrupt();
  void Drop(uint64_t number);
  uint64_t FirstUnserved() const;
  void RunDeferred(Lock& lock);

  Endpoint* endpoint_ = nullptr;
  Channel* channel_ = nullptr;
  Outlet* outlet_ = nullptr;
  Progress* progress_ = nullptr;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool reading_ = true, ended_ = false,
       wanted_ = false;  // whether a thread reads; whether the one that serves wants to
  uint64_t last_ = 0, last_frame_ = 0;
  std::map<uint64_t, Mail*> waiting_;
  std::deque<std::pair<uint64_t, std::function<void()>>> deferred_;  // until all frames up to that one were served
  // The call that runs and may be cancelled; calls that were cancelled, and have not begun.
  uint64_t call_ = 0, last_call_ = 0;
  bool interrupted_ = false;  // the call that runs
  bool late_ = false;         // the signal waits for the end of
  int with_client_ = 0;       // what this thread asks of the client
  std::set<uint64_t> cancelled_;
  pthread_t server_{};  // the thread that serves
  std::thread watcher_;
  std::atomic<bool> elsewhere_{false}, dropped_{false};
  std::atomic<int64_t> functions_{0};
  std::mutex drops_mutex_;
  std::vector<uint64_t> drops_;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_CALLBACKS_H_
