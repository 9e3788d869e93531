// SPDX-License-Identifier: Apache-2.0
// The callback that a thread of a client runs for its server.
#ifndef PORTCALL_RPC_RUNNING_CALLBACK_H_
#define PORTCALL_RPC_RUNNING_CALLBACK_H_

#include <cstdint>

namespace portcall::rpc {

struct RunningCallback {
  const void* session = nullptr;  // its ClientConnection
  uint64_t number = 0;            // 0: this thread runs none
  int depth = 0;
};
extern thread_local RunningCallback running_callback;

inline bool InCallback() { return running_callback.number != 0; }

// While it lives, what this thread frees belongs to no callback, if `on`.
class FreeingOutside {
 public:
  explicit FreeingOutside(bool on) : callback_(running_callback.number) {
    if (on) running_callback.number = 0;
  }
  FreeingOutside(const FreeingOutside&) = delete;
  FreeingOutside& operator=(const FreeingOutside&) = delete;
  ~FreeingOutside() { running_callback.number = callback_; }

 private:
  uint64_t callback_;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_RUNNING_CALLBACK_H_
