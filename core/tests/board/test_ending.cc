// SPDX-License-Identifier: Apache-2.0
#include "board/ending.h"

#include <signal.h>

#include <cstring>

#include "portcall/c_api.h"
#include "tests/check.h"

using namespace portcall::board;
using namespace portcall::facts;

namespace {

constexpr int kExited = 1 << 8;  // as wait() has an exit code

Progress In(uint32_t state) {
  Progress progress;
  progress.state = state;
  return progress;
}

std::string WordOf(const Ending& ending, const std::string& name) {
  for (const auto& [word, value] : ending.Answer()) {
    if (word == name) return value;
  }
  return "(none)";
}

Progress Calling(const char* name) {
  Progress progress = In(0);
  progress.call.depth = 1;
  std::strncpy(progress.call.name, name, sizeof(progress.call.name));
  return progress;
}

void SayLast(Progress* progress, const std::string& words) {
  progress->last_words.size = static_cast<uint32_t>(words.size());
  std::memcpy(progress->last_words.text, words.data(), words.size());
}

}  // namespace

TEST("a session ended in order where its process and its progress say so") {
  CHECK_EQ(EndingOf(0, In(kClosed), {}, "").how, "closed");
  CHECK_EQ(EndingOf(0, In(kLost), {}, "").how, "lost");
  CHECK_EQ(EndingOf(0, In(kBetween), {}, "").how, "exit");
  CHECK_EQ(EndingOf(kDeviceFailed * kExited, In(kClosed), {}, "").how, "device");
  CHECK_EQ(EndingOf(kDeviceFailed * kExited, In(kBetween), {}, "").how, "exit");
  CHECK_EQ(EndingOf(3 * kExited, In(kClosed), {}, "").how, "exit");
  CHECK_EQ(WordOf(EndingOf(3 * kExited, In(kClosed), {}, ""), "code"), "3");
  for (const uint32_t state : {4u, 0xffffffffu}) CHECK_EQ(EndingOf(0, In(state), {}, "").how, "exit");
}

TEST("a session that the server killed ended so, unless it had ended before") {
  const Ending killed{"expired", {}, 0, "1 s"};
  CHECK_EQ(EndingOf(SIGKILL, In(0), killed, "").how, "expired");
  CHECK_EQ(EndingOf(0, In(kClosed), killed, "").how, "closed");
  CHECK_EQ(EndingOf(SIGKILL, In(kClosed), {}, "").how, "crash");
}

TEST("a crash names its signal, and what ran") {
  const Ending ending = EndingOf(SIGSEGV, Calling("demo.crash"), {}, "");
  CHECK_EQ(ending.how, "crash");
  CHECK_EQ(WordOf(ending, "signal"), "SIGSEGV");
  CHECK_EQ(ending.call, "demo.crash()");
  CHECK_EQ(WordOf(ending, "call"), "demo.crash%28%29");
  CHECK(ending.Text().find("demo.crash()") != std::string::npos);
  CHECK_EQ(WordOf(EndingOf(0, In(kClosed), {}, ""), "call"), "(none)");
  CHECK(WordOf(EndingOf(SIGRTMIN + 3, In(0), {}, ""), "signal") != "(none)");
}

TEST("the arguments of a call are shown, whatever the process wrote there") {
  Progress progress = Calling("f");
  progress.call.num_args = 2;
  progress.call.args[0].type = kTVMFFIInt;
  progress.call.args[1].type = kTVMFFITensor;
  progress.call.args[1].code = kDLFloat;
  progress.call.args[1].bits = 32;
  progress.call.args[1].lanes = 1;
  progress.call.args[1].ndim = 2;
  progress.call.args[1].shape[0] = 3;
  progress.call.args[1].shape[1] = 4;
  CHECK_EQ(EndingOf(SIGABRT, progress, {}, "").call, "f(int, float32[3, 4])");
  progress.call.num_args = 0xffffffff;
  for (Argument& argument : progress.call.args) {
    argument.type = kTVMFFITensor;
    argument.ndim = 0x7fffffff;
  }
  CHECK(!EndingOf(SIGABRT, progress, {}, "").call.empty());
  for (Argument& argument : progress.call.args) argument.ndim = argument.type = -1;
  std::memset(progress.call.name, 'x', sizeof(progress.call.name));  // which has no end
  CHECK(EndingOf(SIGABRT, progress, {}, "").call.compare(0, 96, std::string(96, 'x')) == 0);
  CHECK(!EndingOf(SIGABRT, Calling(""), {}, "").call.empty());
}

TEST("the last lines on stderr are told, those that were read last too") {
  Progress progress = In(0);
  SayLast(&progress, "one\ntwo\n");
  CHECK_EQ(EndingOf(SIGABRT, progress, {}, "").last_words, "one\ntwo");
  CHECK_EQ(EndingOf(SIGABRT, progress, {}, "three\n\n").last_words, "one\ntwo\nthree");
  std::memcpy(progress.last_words.text + progress.last_words.size, "just", 4);
  CHECK_EQ(EndingOf(SIGABRT, progress, {}, " read").last_words, "one\ntwo\njust read");
  CHECK_EQ(EndingOf(0, In(kClosed), {}, "text").last_words, "");
  progress.last_words.size = 0xffffffff;
  std::memset(progress.last_words.text, 'y', sizeof(progress.last_words.text));
  const Ending ending = EndingOf(SIGABRT, progress, {}, std::string(100'000, '\n') + "end");
  CHECK(ending.last_words.size() < 10'000);
  CHECK_EQ(ending.last_words.substr(ending.last_words.size() - 3), "end");
}

TEST("an answer's words have no blanks in them") {
  Progress progress = Calling("a b\n\xff");
  SayLast(&progress, "50% of ü\tx");
  for (const auto& [name, value] : EndingOf(SIGABRT, progress, {}, "").Answer()) {
    CHECK_EQ(value.find_first_of(" \t\r\n\v\f"), std::string::npos);
    CHECK(!name.empty());
  }
  CHECK_EQ(WordOf(EndingOf(SIGABRT, progress, {}, ""), "stderr"), "50%25%20of%20%C3%BC%09x");
}

TEST("a client is told on its connection what it cannot ask for") {
  const Ending crash{"crash", "SIGSEGV"}, expired{"expired", {}, 0, "1 s"}, closed{"closed"};
  CHECK(!LastMessage(crash, false, 0).empty());
  CHECK(LastMessage(crash, true, 0).empty());
  CHECK(LastMessage(closed, false, 0).empty());
  for (const bool portcall : {false, true}) {
    CHECK(LastMessage(expired, portcall, 1).find("Your 1.0s session has expired") != std::string::npos);
    CHECK(LastMessage(expired, portcall, 0.25).find("Your 0.25s session") != std::string::npos);
  }
}
