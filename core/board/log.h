// SPDX-License-Identifier: Apache-2.0
// The log on standard error: lines for people, or one JSON object a line for programs. It never waits for a reader: what
// it does not take at once is dropped and counted.
#ifndef PORTCALL_BOARD_LOG_H_
#define PORTCALL_BOARD_LOG_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "facts/server.h"
#include "session/text.h"

namespace portcall::board {

using namespace session;
using namespace facts;

enum class LogStyle { kText, kJson, kNone };

// Text that waits in a pipe, which does not block; there are processes that print forever.
constexpr size_t kMostRest = 1 << 20;  // bytes
std::string ReadRest(int pipe);

class Log {
 public:
  explicit Log(LogStyle style) : style_(style) {}
  LogStyle style() const { return style_; }

  // Names with values as JSON.
  using Facts = std::vector<std::pair<const char*, std::string>>;
  // `session` is its number, 0 for none; `event` is for programs, `text` a sentence for people.
  void Write(Event event, const std::string& text, int session = 0, const Facts& facts = {});
  // What sessions wrote, in any pieces.
  void Output(std::string_view data);
  void EndOutput();

 private:
  std::string Format(Event event, const std::string& text, int session, const Facts& facts) const;
  void OutputLine(std::string_view line);
  void Send(const std::string& line);

  LogStyle style_;
  std::string rest_;  // of the sessions' last line
  size_t dropped_ = 0;
};

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_LOG_H_
