// SPDX-License-Identifier: Apache-2.0
// How sessions end: the words for the log, for the client's connection and for a client that asks. No I/O here.
#ifndef PORTCALL_BOARD_ENDING_H_
#define PORTCALL_BOARD_ENDING_H_

#include <cstdint>
#include <string>

#include "board/hello.h"

namespace portcall::board {

// How far a session's process is, as it says itself: see `Progress` in rpc/serve.cc.
struct Progress {
  uint32_t state = 0;  // 1: every answer has been sent whole; 2 and 3: ended, between messages or within one
  uint32_t unused = 0;
  uint64_t received = 0, sent = 0;  // bytes
};
static_assert(sizeof(Progress) == 24);

struct Ending {
  std::string how;  // see ending.cc; empty: none
  std::string signal = {};
  int code = 0;
  std::string detail = {};

  std::string Text() const;  // for the log
  Words Answer() const;      // for a client that asks
};

// `status` is of wait(); `killed` says why the server killed the process, if it did.
Ending EndingOf(int status, const Progress& progress, const Ending& killed);
// The frame that tells a client on its connection; empty for none. A portcall client asks for all but the end of its time.
std::string LastMessage(const Ending& ending, bool portcall, double seconds);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_ENDING_H_
