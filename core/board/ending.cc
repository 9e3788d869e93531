// SPDX-License-Identifier: Apache-2.0
#include "board/ending.h"

#include <signal.h>
#include <sys/wait.h>

#include <cstdio>

namespace portcall::board {
namespace {

enum { kBetween = 1, kClosed = 2, kLost = 3 };

struct Kind {
  const char* how;
  const char* log;  // $ is the signal, the code or the detail
  bool last_message;
};

constexpr Kind kKinds[] = {
    {"closed", "closed by the client", false},
    {"lost", "the connection was lost in the middle of a message", false},
    {"crash", "crashed with $", true},
    {"exit", "its process exited with code $", true},
    {"expired", "its time of $ is over", true},
    {"disk", "its files took more than $", true},
    {"abandoned", "its client was gone and its work did not end", false},
    {"stopped", "the server was stopped", false},
    {"failed", "the server could not continue it: $", true},
    // Before the session is open:
    {"silent", "sent nothing for $ during the handshake", false},
    {"crowded", "was silent while others wanted to connect", false},
    {"left", "left during the handshake", false},
    {"unstarted", "$", false},
};

const Kind& KindOf(const std::string& how) {
  for (const Kind& kind : kKinds) {
    if (how == kind.how) return kind;
  }
  return kKinds[0];
}

struct Name {
  int number;
  const char* name;
};
#define PORTCALL_BOARD_SIGNAL(name) {name, #name}
constexpr Name kSignals[] = {
    PORTCALL_BOARD_SIGNAL(SIGHUP),  PORTCALL_BOARD_SIGNAL(SIGINT),  PORTCALL_BOARD_SIGNAL(SIGQUIT),
    PORTCALL_BOARD_SIGNAL(SIGILL),  PORTCALL_BOARD_SIGNAL(SIGTRAP), PORTCALL_BOARD_SIGNAL(SIGABRT),
    PORTCALL_BOARD_SIGNAL(SIGBUS),  PORTCALL_BOARD_SIGNAL(SIGFPE),  PORTCALL_BOARD_SIGNAL(SIGKILL),
    PORTCALL_BOARD_SIGNAL(SIGUSR1), PORTCALL_BOARD_SIGNAL(SIGSEGV), PORTCALL_BOARD_SIGNAL(SIGUSR2),
    PORTCALL_BOARD_SIGNAL(SIGPIPE), PORTCALL_BOARD_SIGNAL(SIGALRM), PORTCALL_BOARD_SIGNAL(SIGTERM),
    PORTCALL_BOARD_SIGNAL(SIGXCPU), PORTCALL_BOARD_SIGNAL(SIGXFSZ), PORTCALL_BOARD_SIGNAL(SIGSYS),
};
#undef PORTCALL_BOARD_SIGNAL

std::string SignalName(int number) {
  for (const Name& one : kSignals) {
    if (one.number == number) return one.name;
  }
  return "SIG" + std::to_string(number);
}

template <typename T> std::string LittleEndian(T value) {
  std::string bytes(sizeof(value), '\0');
  for (size_t i = 0; i < sizeof(value); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string ExceptionFrame(const std::string& text) {
  std::string body = LittleEndian<uint32_t>(5) + LittleEndian<uint32_t>(1) + LittleEndian<uint32_t>(8) +
                     LittleEndian<uint64_t>(text.size()) + text;
  return LittleEndian<uint64_t>(body.size()) + body;
}

}  // namespace

std::string Ending::Text() const {
  std::string text = KindOf(how).log;
  const size_t at = text.find('$');
  if (at != std::string::npos) {
    text.replace(at, 1, how == "crash" ? signal : how == "exit" ? std::to_string(code) : detail);
  }
  return signal == "SIGKILL" ? text + " (it was killed, possibly by the OOM killer)" : text;
}

Words Ending::Answer() const {
  Words words = {{"ended", how}};
  if (!signal.empty()) words.emplace_back("signal", signal);
  if (how == "exit") words.emplace_back("code", std::to_string(code));
  return words;
}

Ending EndingOf(int status, const Progress& progress, const Ending& killed) {
  const bool in_order = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (in_order && progress.state == kClosed) return {"closed"};
  if (in_order && progress.state == kLost) return {"lost"};
  if (!killed.how.empty()) return killed;
  if (WIFSIGNALED(status)) return {"crash", SignalName(WTERMSIG(status))};
  return {"exit", {}, WEXITSTATUS(status)};
}

std::string LastMessage(const Ending& ending, bool portcall, double seconds) {
  if (ending.how == "expired") {  // in the words that TVM clients know
    char limit[32];
    snprintf(limit, sizeof(limit), "%.12g", seconds);
    std::string number = limit;
    if (number.find_first_of(".e") == std::string::npos) number += ".0";
    return ExceptionFrame("RPCSessionTimeoutError: Your " + number +
                          "s session has expired, try to increase the \"session_timeout\" value.");
  }
  if (portcall || !KindOf(ending.how).last_message) return {};
  return ExceptionFrame("the session ended on the server: " + ending.Text());
}

}  // namespace portcall::board
