// SPDX-License-Identifier: Apache-2.0
// What a supervisor in another process sees of a session, through memory that both map: whether all that was answered
// has left this process whole, so that the supervisor may still say something after killing it; how it ended; which
// call runs; and the last text on stderr. portcall.rpc.wire._endings reads it.
#ifndef PORTCALL_RPC_PROGRESS_H_
#define PORTCALL_RPC_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <string_view>

#include "portcall/c_api.h"

namespace portcall::rpc {

// The call that runs: the function's name, and the types of its first arguments.
class CallRecord {
 public:
  void Begin(std::string_view name, const TVMFFIAny* args, size_t num_args);
  void End() { depth_.fetch_sub(1, std::memory_order_release); }

 private:
  struct Argument {
    int32_t type = 0;
    DLDataType dtype{};
    int32_t ndim = 0;
    int32_t unused = 0;
    int64_t shape[5] = {};
  };
  std::atomic<uint32_t> depth_{0};  // 0: nothing runs; above 1, the outermost call is described
  uint32_t num_args_ = 0;
  char name_[96] = {};
  Argument args_[8];
};

struct Progress {
  enum State : uint32_t { kBusy = 0, kBetween = 1, kClosed = 2, kLost = 3 };
  std::atomic<uint32_t> state{kBusy};
  std::atomic<uint64_t> received{0};
  std::atomic<uint64_t> sent{0};
  CallRecord call;
  uint32_t last_words_size = 0;
  char last_words[2044] = {};  // on stderr

  void Enter(State next) { state.store(next, std::memory_order_release); }
  // Reads what was printed, as read(2) does, into the last words at once, since another thread may crash meanwhile. What
  // is there after `last_words_size`, up to the first 0, was read when that happened.
  ssize_t ReadLastWords(int fd, size_t most);
};
static_assert(sizeof(Progress) == 24 + 104 + 8 * 56 + 2048 && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_PROGRESS_H_
