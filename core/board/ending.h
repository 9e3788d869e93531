// SPDX-License-Identifier: Apache-2.0
// How sessions end: the words for the log, for the client's connection and for a client that asks. No I/O here.
#ifndef PORTCALL_BOARD_ENDING_H_
#define PORTCALL_BOARD_ENDING_H_

#include <cstdint>
#include <string>

#include "facts/progress.h"
#include "facts/server.h"
#include "session/hello.h"

namespace portcall::board {

using namespace session;
using namespace facts;  // what a session says of itself, how it ends

struct Ending {
  std::string how;  // a name of facts::kEndings; empty: none
  std::string signal = {};
  int code = 0;
  std::string detail = {};
  std::string call = {}, last_words = {};  // what ran, and what it printed on stderr

  std::string Text() const;  // for the log
  Words Answer() const;      // for a client that asks
};

// `status` is of wait(); `killed` says why the server killed the process, if it did; `rest` is text of stderr that
// had not been read.
Ending EndingOf(int status, const Progress& progress, const Ending& killed, const std::string& rest);
// What failed, with what to do where that was the limit of open files.
std::string WithRemedy(std::string why);
// The frame that tells a client on its connection; empty for none. A portcall client asks for all but the end of its time.
std::string LastMessage(const Ending& ending, bool portcall, double seconds);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_ENDING_H_
