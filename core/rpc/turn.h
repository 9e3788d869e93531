// SPDX-License-Identifier: Apache-2.0
// Turn: a lock whose waiters can be interrupted, for requests that take their turns on one channel.
#ifndef PORTCALL_RPC_TURN_H_
#define PORTCALL_RPC_TURN_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "portcall/error.h"

namespace portcall::rpc {

class Turn {
 public:
  // Waits until nobody else has the turn. Throws what a signal handler of the embedding language raised meanwhile.
  void lock() {
    std::unique_lock<std::mutex> guard(mutex_);
    while (taken_) {
      free_.wait_for(guard, std::chrono::milliseconds(100));
      if (!taken_) break;
      guard.unlock();
      Check(TVMFFIEnvCheckSignals());
      guard.lock();
    }
    taken_ = true;
  }
  bool try_lock() {
    std::lock_guard<std::mutex> guard(mutex_);
    if (taken_) return false;
    return taken_ = true;
  }
  void unlock() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      taken_ = false;
    }
    free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_TURN_H_
