// SPDX-License-Identifier: Apache-2.0
#include "board/ending.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "bytes/byte_order.h"
#include "portcall/c_api.h"

namespace portcall::board {

using bytes::BytesOf;
namespace {

const EndingKind& KindOf(const std::string& how) {
  for (const EndingKind& kind : kEndings) {
    if (how == kind.name) return kind;
  }
  return kEndings[0];
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

std::string ExceptionFrame(const std::string& text) {
  std::string body = BytesOf(static_cast<uint32_t>(Code::kException)) + BytesOf<uint32_t>(1) + BytesOf<uint32_t>(8) +
                     BytesOf<uint64_t>(text.size()) + text;
  return BytesOf<uint64_t>(body.size()) + body;
}

std::string ArgumentIn(const Argument& arg) {
  if (arg.bits == 0) {
    for (const TypeWord& one : kTypeWords) {
      if (one.number == arg.type) return one.word;
    }
    return "object";
  }
  std::string text = arg.code == kDLBool ? "bool" : "code" + std::to_string(arg.code) + "_";
  for (const TypeWord& one : kDtypeWords) {
    if (one.number == arg.code) text = one.word;
  }
  if (arg.code != kDLBool) text += std::to_string(arg.bits);
  if (arg.lanes > 1) text += "x" + std::to_string(arg.lanes);
  text += '[';
  const auto most = static_cast<int>(std::size(arg.shape));
  for (int i = 0; i < std::min<int>(arg.ndim, most); ++i) text += (i ? ", " : "") + std::to_string(arg.shape[i]);
  return text + (arg.ndim > most ? ", …]" : "]");
}

// The function that runs, with the types of its arguments; empty for none.
std::string CallIn(const Call& call) {
  if (!call.depth) return {};
  std::string text(call.name, strnlen(call.name, sizeof(call.name)));
  if (text.empty()) text = kNameless;
  text += '(';
  for (uint32_t i = 0; i < std::min<uint32_t>(call.num_args, std::size(call.args)); ++i) {
    text += (i ? ", " : "") + ArgumentIn(call.args[i]);
  }
  return text + (call.num_args > std::size(call.args) ? ", …)" : ")");
}

std::string LastLines(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::string lines;
  for (size_t end = text.size(), count = 0; count < kMostLines && end != std::string::npos; ++count) {
    const size_t begin = end ? text.rfind('\n', end - 1) : std::string::npos;
    const size_t first = begin == std::string::npos ? 0 : begin + 1;
    if (count) lines.insert(0, 1, '\n');
    lines.insert(0, text, first, std::min(end - first, kMostLine));
    end = begin;
  }
  return lines;
}

std::string PercentEncoded(const std::string& text) {
  std::string encoded;
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (isalnum(byte) || strchr("_.-~", c)) {
      encoded += c;
    } else {
      (encoded += '%') += "0123456789ABCDEF"[byte >> 4];
      encoded += "0123456789ABCDEF"[byte & 15];
    }
  }
  return encoded.substr(0, kMostWord);
}

Ending HowItEnded(int status, const Progress& progress, const Ending& killed) {
  const bool in_order = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (in_order && progress.state == kClosed) return {"closed"};
  if (in_order && progress.state == kLost) return {"lost"};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kDeviceFailed && progress.state == kClosed) return {"device"};
  if (!killed.how.empty()) return killed;
  if (WIFSIGNALED(status)) return {"crash", SignalName(WTERMSIG(status))};
  return {"exit", {}, WEXITSTATUS(status)};
}

}  // namespace

std::string Ending::Text() const {
  std::string text = KindOf(how).log;
  for (const auto& [name, value] :
       {std::pair("{signal}", signal), {"{code}", std::to_string(code)}, {"{detail}", detail}}) {
    const size_t at = text.find(name);
    if (at != std::string::npos) text.replace(at, std::strlen(name), value);
  }
  if (signal == "SIGKILL") text += kOutOfMemory;
  return call.empty() ? text : text + " in " + call;
}

Words Ending::Answer() const {
  Words words = {{"ended", how}};
  if (!signal.empty()) words.emplace_back("signal", signal);
  if (how == "exit") words.emplace_back("code", std::to_string(code));
  if (!call.empty()) words.emplace_back("call", PercentEncoded(call));
  if (!last_words.empty()) words.emplace_back("stderr", PercentEncoded(last_words));
  return words;
}

Ending EndingOf(int status, const Progress& progress, const Ending& killed, const std::string& rest) {
  Ending ending = HowItEnded(status, progress, killed);
  if (!KindOf(ending.how).told) return ending;
  ending.call = CallIn(progress.call);
  const LastWords& words = progress.last_words;
  const size_t size = std::min<size_t>(words.size, sizeof(words.text));
  const char* just_read = words.text + size;  // when it crashed
  const size_t more = strnlen(just_read, sizeof(words.text) - size);
  ending.last_words = LastLines(std::string(words.text, size + more) + rest);
  return ending;
}

std::string WithRemedy(std::string why) {
  return why.find(strerror(EMFILE)) == std::string::npos ? why : why.append(kMoreFiles);
}

std::string LastMessage(const Ending& ending, bool portcall, double seconds) {
  if (ending.how == "expired") {  // in the words that TVM clients know
    char limit[32];
    snprintf(limit, sizeof(limit), "%.12g", seconds);
    std::string number = limit;
    if (number.find_first_of(".e") == std::string::npos) number += ".0";
    return ExceptionFrame(std::string(kTimeoutPrefix) + "Your " + number + "s" + std::string(kTimeoutWords));
  }
  if (portcall || !KindOf(ending.how).last_message) return {};
  return ExceptionFrame("the session ended on the server: " + ending.Text());
}

}  // namespace portcall::board
