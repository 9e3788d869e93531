// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_BOARD_CLOCK_H_
#define PORTCALL_BOARD_CLOCK_H_

#include <time.h>

namespace portcall::board {

// Seconds since some moment.
inline double Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_CLOCK_H_
