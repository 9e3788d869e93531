// SPDX-License-Identifier: Apache-2.0
#include "board/farm/hook.h"

#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

#include "board/clock.h"
#include "facts/farm.h"

namespace portcall::board {
namespace {

std::string LastLine(std::string text) {
  while (!text.empty() && strchr(" \t\r\n", text.back())) text.pop_back();
  return text.substr(text.rfind('\n') + 1).substr(0, facts::kHookWords);
}

}  // namespace

Hook::Hook(std::string command, double limit, const Variables& variables)
    : command_(std::move(command)), limit_(limit), deadline_(Now() + limit) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe");
  output_ = Descriptor(ends[0]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const Descriptor theirs(ends[1]);
  pid_ = fork();
  if (pid_ < 0) throw SystemError("cannot start a process");
  if (pid_ > 0) return;
  setsid();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(theirs.get(), STDOUT_FILENO);
  dup2(theirs.get(), STDERR_FILENO);
  execl("/bin/sh", "sh", "-c", command_.c_str(), nullptr);
  _exit(127);
}

void Hook::Kill() {
  if (pid_ <= 0) return;
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

bool Hook::Ended(std::string* why) {
  char data[4096];
  ssize_t n = output_ ? 1 : 0;
  while (n > 0 && (n = read(output_.get(), data, sizeof(data))) > 0) {
    said_.append(data, static_cast<size_t>(n));
    if (said_.size() > facts::kHookSaid) said_.erase(0, said_.size() - facts::kHookSaid);
  }
  if (n == 0) output_.Close();
  int status = 0;
  const bool ended = !output_ && waitpid(pid_, &status, WNOHANG) == pid_;
  if (!ended && Now() < deadline_) return false;
  if (!ended) {
    char limit[32];
    snprintf(limit, sizeof(limit), "%g", limit_);
    Kill();
    *why = "'" + command_ + "' took longer than " + limit + " s";
    return true;
  }
  pid_ = 0;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  const std::string last = LastLine(said_);
  *why = code ? "'" + command_ + "' failed with code " + std::to_string(code) + (last.empty() ? "" : ": " + last) : "";
  return true;
}

}  // namespace portcall::board
