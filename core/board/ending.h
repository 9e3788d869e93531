// SPDX-License-Identifier: Apache-2.0
// How sessions end: the words for the log, for the client's connection and for a client that asks. No I/O here.
#ifndef PORTCALL_BOARD_ENDING_H_
#define PORTCALL_BOARD_ENDING_H_

#include <cstdint>
#include <string>

#include "board/hello.h"

namespace portcall::board {

// How far a session's process is, as it says itself, in the layout of rpc/progress.h. It may lie: any bytes are valid.
struct Progress {
  struct Argument {
    int32_t type;
    uint8_t code, bits;
    uint16_t lanes;
    int32_t ndim, unused;
    int64_t shape[5];
  };
  uint32_t state = 0;  // 1: every answer has been sent whole; 2 and 3: ended, between messages or within one
  uint32_t unused = 0;
  uint64_t received = 0, sent = 0;  // bytes
  uint32_t depth = 0;               // of calls that run
  uint32_t num_args = 0;
  char name[96] = {};  // of the function
  Argument args[8] = {};
  uint32_t last_words_size = 0;
  char last_words[2044] = {};  // on stderr
};
static_assert(sizeof(Progress) == 24 + 104 + 8 * 56 + 2048);

constexpr int kDeviceFailed = 71;  // the exit code of a session of which a device failed for good

struct Ending {
  std::string how;  // see ending.cc; empty: none
  std::string signal = {};
  int code = 0;
  std::string detail = {};
  std::string call = {}, last_words = {};  // what ran, and what it printed on stderr

  std::string Text() const;  // for the log
  Words Answer() const;      // for a client that asks
};

// `status` is of wait(); `killed` says why the server killed the process, if it did; `rest` is text of stderr that
// nobody had read.
Ending EndingOf(int status, const Progress& progress, const Ending& killed, const std::string& rest);
// The frame that tells a client on its connection; empty for none. A portcall client asks for all but the end of its time.
std::string LastMessage(const Ending& ending, bool portcall, double seconds);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_ENDING_H_
