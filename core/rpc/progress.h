// SPDX-License-Identifier: Apache-2.0
// What a supervisor in another process sees of a session, through memory that both map: whether all that was answered
// has left this process whole, so that the supervisor may still say something after killing it; how it ended; which
// call runs; and the last text on stderr.
#ifndef PORTCALL_RPC_PROGRESS_H_
#define PORTCALL_RPC_PROGRESS_H_

#include <sys/types.h>

#include <chrono>
#include <string_view>

#include "facts/progress.h"
#include "portcall/c_api.h"

namespace portcall::rpc {

using facts::Progress;

inline void Enter(Progress* progress, uint32_t state) { __atomic_store_n(&progress->state, state, __ATOMIC_RELEASE); }

// Adds to a counter of bytes, as one thread at a time does.
inline void Count(uint64_t* counter, size_t n) {
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

// The call that runs: the function's name, and the types of its first arguments. Calls in it change its depth alone.
void BeginCall(facts::Call* call, std::string_view name, const TVMFFIAny* args, size_t num_args);
inline uint64_t Nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}
inline void EndCall(facts::Call* call) {
  if (call->timed == 2 && call->depth == 1) {
    call->end = Nanoseconds();
    call->timed = 3;
  }
  __atomic_fetch_sub(&call->depth, 1, __ATOMIC_RELEASE);
}

// Reads what was printed, as read(2) does, into the last words at once, since another thread may crash meanwhile. What
// is there after `size`, up to the first 0, was read when that happened.
ssize_t ReadLastWords(facts::LastWords* words, int fd, size_t most);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_PROGRESS_H_
