// SPDX-License-Identifier: Apache-2.0
#include "board/log.h"

#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <ctime>

namespace portcall::board {
namespace {

constexpr size_t kMostBytes = 4096;  // of a line: what a pipe that has room takes at once (PIPE_BUF)

}  // namespace

std::string ReadRest(int pipe) {
  char text[4096];
  std::string rest;
  for (ssize_t n; rest.size() < kMostRest && (n = read(pipe, text, sizeof(text))) > 0;) {
    rest.append(text, static_cast<size_t>(n));
  }
  return rest;
}

std::string Log::Format(Event event, const std::string& text, int session, const Facts& facts) const {
  timeval now{};
  gettimeofday(&now, nullptr);
  char stamp[32];
  tm parts{};
  if (style_ == LogStyle::kText) {
    strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S ", localtime_r(&now.tv_sec, &parts));
    return stamp + (session ? Print("session %d: ", session) : "") + Printable(text);
  }
  strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &parts));
  std::string line = "{\"time\": \"" + std::string(stamp) + Print(".%03dZ\"", static_cast<int>(now.tv_usec / 1000)) +
                     ", \"event\": " + Quoted(kEventNames[static_cast<int>(event)]);
  if (session) line += Print(", \"session\": %d", session);
  line += ", \"message\": " + Quoted(text);
  for (const auto& [name, value] : facts) line += ", " + Quoted(name) + ": " + value;
  return line + "}";
}

void Log::Write(Event event, const std::string& text, int session, const Facts& facts) {
  if (style_ != LogStyle::kNone) Send(Format(event, text, session, facts));
}

void Log::Output(std::string_view data) {
  rest_ += data;
  for (size_t end; (end = rest_.find('\n')) != std::string::npos || rest_.size() >= kMostBytes / 2;) {
    end = std::min(end, rest_.size());
    OutputLine(std::string_view(rest_).substr(0, end));
    rest_.erase(0, end + 1);
  }
}

void Log::EndOutput() {
  if (!rest_.empty()) OutputLine(rest_);
  rest_.clear();
}

void Log::OutputLine(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (style_ == LogStyle::kNone) Send(Printable(line));
  else if (style_ == LogStyle::kJson) Send(Format(Event::kOutput, std::string(line), 0, {}));
  else Send(Format(Event::kOutput, "output: " + std::string(line), 0, {}));
}

void Log::Send(const std::string& line) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  const bool ready = poll(&room, 1, 0) == 1 && (room.revents & POLLOUT);
  std::string whole;
  if (ready && dropped_) {
    whole = Format(Event::kLinesDropped, std::to_string(dropped_) + " lines were dropped, which nobody read in time", 0,
                   {});
    dropped_ = 0;
    Send(whole);
    return Send(line);
  }
  whole = line.substr(0, kMostBytes - 1) + "\n";
  if (!ready || write(STDERR_FILENO, whole.data(), whole.size()) < 0) ++dropped_;
}

}  // namespace portcall::board
