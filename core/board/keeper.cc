// SPDX-License-Identifier: Apache-2.0
#include "board/keeper.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdlib>
#include <functional>

#include "board/directories.h"

namespace portcall::board {
namespace {

constexpr int kCountEvery = 1000;  // milliseconds

// Deletes in a child process, which ends with this one: there may be a million files.
void Apart(const std::function<void()>& deletion) {
  const pid_t keeper = getpid(), pid = fork();
  if (pid > 0) return;
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != keeper) _exit(0);
  }
  deletion();
  if (pid == 0) _exit(0);
}

void DeleteApart(const std::string& directory) {
  Apart([&] { DeleteTree(directory); });
}

}  // namespace

std::string SessionDirectory(const std::string& base, int number) {
  return base + "/session-" + std::to_string(number);
}

std::string ContentsDirectory(const std::string& base) { return base + "/contents"; }

Descriptor Keeper::Connect() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw SystemError("cannot make a socket");
  link_ = Descriptor(ends[0]);
  orders_.clear();
  return Descriptor(ends[1]);
}

void Keeper::Send(Order order) {
  orders_.push_back(order);
  SendWaiting();
}

void Keeper::SendWaiting() {
  while (!orders_.empty() && send(link_.get(), &orders_.front(), sizeof(Order), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    orders_.pop_front();
  }
}

int Keeper::Receive() {
  int32_t number = 0;
  return recv(link_.get(), &number, sizeof(number), MSG_DONTWAIT) == sizeof(number) ? number : 0;
}

void RunKeeper(const Descriptor& link, KeeperTask task) {
  signal(SIGCHLD, SIG_IGN);  // its children are not waited for
  Apart([&] { DeleteAbandonedDirectories(task.place); });
  for (const std::string& directory : task.left) DeleteApart(directory);
  for (;;) {
    pollfd event{link.get(), POLLIN, 0};
    const int ready = poll(&event, 1, task.disk_limit ? kCountEvery : -1);
    Keeper::Order order{};
    if (ready > 0) {
      const ssize_t n = recv(link.get(), &order, sizeof(order), 0);
      if (n <= 0 && errno != EINTR) break;
      if (n == sizeof(order) && order.begins) {
        task.sessions[order.number] = order.pid;
      } else if (n == sizeof(order)) {
        task.sessions.erase(order.number);
        DeleteApart(SessionDirectory(task.base, order.number));
      }
      continue;
    }
    for (const auto& [number, pid] : task.sessions) {
      if (DiskUsage(SessionDirectory(task.base, number), task.disk_limit) > task.disk_limit) {
        send(link.get(), &number, sizeof(number), MSG_DONTWAIT | MSG_NOSIGNAL);
      }
    }
  }
  for (const auto& [number, pid] : task.sessions) kill(-pid, SIGKILL);
  while (wait(nullptr) > 0 || errno == EINTR) {
  }
  DeleteTree(task.base);
}

}  // namespace portcall::board
