// SPDX-License-Identifier: Apache-2.0
#include "board/ending.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "portcall/c_api.h"

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
    {"device", "a device failed for good", true},
    {"expired", "its time of $ is over", true},
    {"disk", "its files took more than $", true},
    {"abandoned", "its client was gone and its work did not end", false},
    {"stopped", "the server was stopped", false},
    {"failed", "the server could not continue it: $", true},
    {"lease", "its lease of the farm was over", true},
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
constexpr Name kTypes[] = {
    {kTVMFFINone, "None"},     {kTVMFFIInt, "int"},           {kTVMFFIBool, "bool"},
    {kTVMFFIFloat, "float"},   {kTVMFFIOpaquePtr, "pointer"}, {kTVMFFIDataType, "dtype"},
    {kTVMFFIDevice, "device"}, {kTVMFFIRawStr, "str"},        {kTVMFFIByteArrayPtr, "bytes"},
    {kTVMFFISmallStr, "str"},  {kTVMFFISmallBytes, "bytes"},  {kTVMFFIStr, "str"},
    {kTVMFFIBytes, "bytes"},   {kTVMFFIFunction, "function"}, {kTVMFFIShape, "Shape"},
    {kTVMFFIArray, "Array"},   {kTVMFFIMap, "Map"},           {kTVMFFIModule, "module"},
    {kTVMFFIList, "List"},     {kTVMFFIDict, "Dict"},
};
constexpr Name kCodes[] = {
    {kDLInt, "int"}, {kDLUInt, "uint"}, {kDLFloat, "float"}, {kDLBfloat, "bfloat"}, {kDLComplex, "complex"}};
constexpr size_t kMostLines = 10, kMostLine = 200;  // of the last words that a client is told
constexpr size_t kMostWord = 1500;                  // characters of a word; a reply has 4096 at most

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

std::string ArgumentIn(const Progress::Argument& arg) {
  if (arg.bits == 0) {
    for (const Name& one : kTypes) {
      if (one.number == arg.type) return one.name;
    }
    return "object";
  }
  std::string text = arg.code == kDLBool ? "bool" : "code" + std::to_string(arg.code) + "_";
  for (const Name& one : kCodes) {
    if (one.number == arg.code) text = one.name;
  }
  if (arg.code != kDLBool) text += std::to_string(arg.bits);
  if (arg.lanes > 1) text += "x" + std::to_string(arg.lanes);
  text += '[';
  const auto most = static_cast<int>(std::size(arg.shape));
  for (int i = 0; i < std::min<int>(arg.ndim, most); ++i) text += (i ? ", " : "") + std::to_string(arg.shape[i]);
  return text + (arg.ndim > most ? ", …]" : "]");
}

// The function that runs, with the types of its arguments; empty for none.
std::string CallIn(const Progress& progress) {
  if (!progress.depth) return {};
  std::string text(progress.name, strnlen(progress.name, sizeof(progress.name)));
  if (text.empty()) text = "a function without a name";
  text += '(';
  for (uint32_t i = 0; i < std::min<uint32_t>(progress.num_args, std::size(progress.args)); ++i) {
    text += (i ? ", " : "") + ArgumentIn(progress.args[i]);
  }
  return text + (progress.num_args > std::size(progress.args) ? ", …)" : ")");
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
  const size_t at = text.find('$');
  if (at != std::string::npos) {
    text.replace(at, 1, how == "crash" ? signal : how == "exit" ? std::to_string(code) : detail);
  }
  if (signal == "SIGKILL") text += " (it was killed, possibly by the OOM killer)";
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
  for (const char* told : {"crash", "exit", "expired", "abandoned"}) {
    if (ending.how != told) continue;
    ending.call = CallIn(progress);
    const size_t size = std::min<size_t>(progress.last_words_size, sizeof(progress.last_words));
    const char* just_read = progress.last_words + size;  // when it crashed
    const size_t more = strnlen(just_read, sizeof(progress.last_words) - size);
    ending.last_words = LastLines(std::string(progress.last_words, size + more) + rest);
  }
  return ending;
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
