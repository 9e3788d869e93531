// SPDX-License-Identifier: Apache-2.0
// What carries the bytes: sockets, pipes, functions.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <thread>

#include "rpc/channel.h"
#include "tests/check.h"
#include "tests/helpers.h"
#include "tests/rpc/peer.h"

using namespace rpc_test;

namespace {

constexpr Deadline kPast = Deadline::min();

// Two ends; the channel owns one, the test the other.
struct Ends {
  std::unique_ptr<Channel> channel;
  int read_fd, write_fd;

  ~Ends() {
    CloseTheirs();
    if (channel) channel->Close();
  }
  void CloseTheirs() {
    if (read_fd >= 0) close(read_fd);
    if (write_fd >= 0 && write_fd != read_fd) close(write_fd);
    read_fd = write_fd = -1;
  }
};

Ends Sockets() {
  int fds[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  return {MakeFdChannel(fds[0], fds[0]), fds[1], fds[1]};
}
Ends Pipes() {
  std::signal(SIGPIPE, SIG_IGN);  // as every host of portcall does
  int to[2], from[2];
  CHECK_EQ(pipe(to) + pipe(from), 0);
  return {MakeFdChannel(from[0], to[1]), to[0], from[1]};
}

std::string Receive(Channel* channel, size_t size = 100) {
  std::string data(size, '\0');
  data.resize(channel->Receive(data.data(), size, kNoDeadline));
  return data;
}

// The message, once `word` was said by the other thread; then what the other thread does must fail.
std::string Interrupted(Channel* channel, void (*wait)(Channel*)) {
  std::string error;
  std::thread waiting([&] { error = Thrown([&] { wait(channel); }); });
  channel->Interrupt();
  waiting.join();
  return error;
}

}  // namespace

// A server gives the session's reading a descriptor of its own, to end it when a device has failed.
TEST("a socket by two descriptors waits inside of its calls") {
  int fds[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  const int reading = dup(fds[0]);
  Ends ends{MakeFdChannel(reading, fds[0]), fds[1], fds[1]};
  CHECK_EQ(fcntl(reading, F_GETFL) & O_NONBLOCK, 0);
}

TEST("bytes go both ways over a socket and over pipes, in parts") {
  for (auto make : {Sockets, Pipes}) {
    Ends ends = make();
    CHECK_EQ(ends.channel->Send({{"ab", 2}, {"cdef", 4}}, kNoDeadline), 6);
    char seen[6];
    CHECK_EQ(read(ends.read_fd, seen, 6), 6);
    CHECK_EQ(std::string_view(seen, 6), "abcdef");
    CHECK_EQ(write(ends.write_fd, "12345", 5), 5);
    CHECK_EQ(Receive(ends.channel.get(), 2), "12");
    CHECK_EQ(Receive(ends.channel.get()), "345");
  }
}

TEST("the end of the peer is the end of what is received, and breaks what is sent") {
  for (auto make : {Sockets, Pipes}) {
    Ends ends = make();
    CHECK_EQ(write(ends.write_fd, "12", 2), 2);
    ends.CloseTheirs();
    CHECK_EQ(Receive(ends.channel.get()), "12");
    CHECK_EQ(Receive(ends.channel.get()), "");
    CHECK_EQ(KindOf(Thrown([&] { ends.channel->Send({{"ab", 2}}, kNoDeadline); })), "SessionBrokenError");
  }
}

TEST("a deadline that has passed ends the wait, not what needs none") {
  for (auto make : {Sockets, Pipes}) {
    Ends ends = make();
    char data[8];
    CHECK_EQ(KindOf(Thrown([&] { ends.channel->Receive(data, 8, kPast); })), "SessionTimeoutError");
    CHECK_EQ(write(ends.write_fd, "12", 2), 2);
    CHECK_EQ(ends.channel->Receive(data, 8, kPast), 2);
    std::string much(1 << 20, 'x');
    std::string error = Thrown([&] {
      for (;;) ends.channel->Send({{much.data(), much.size()}}, kPast);  // until nobody takes any more
    });
    CHECK_EQ(KindOf(error), "SessionTimeoutError");
  }
}

TEST("a deadline ends a wait that began before it, near or more than a look for signals away") {
  for (double seconds : {0.02, 1.1}) {
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    Ends ends{MakeFdChannel(fds[0], fds[0], true), fds[1], fds[1]};
    char data[8];
    Deadline deadline = DeadlineIn(seconds);
    CHECK_EQ(KindOf(Thrown([&] { ends.channel->Receive(data, 8, deadline); })), "SessionTimeoutError");
    CHECK(std::chrono::steady_clock::now() >= deadline);
  }
}

TEST("an interrupt ends a wait from another thread, over sockets and pipes") {
  for (auto make : {Sockets, Pipes}) {
    Ends ends = make();
    std::string error = Interrupted(ends.channel.get(), [](Channel* channel) { Receive(channel); });
    CHECK_EQ(KindOf(error), "SessionClosedError");
    Ends full = make();
    error = Interrupted(full.channel.get(), [](Channel* channel) {
      std::string much(1 << 20, 'x');
      for (;;) channel->Send({{much.data(), much.size()}}, kNoDeadline);
    });
    CHECK(KindOf(error) == "SessionClosedError" || KindOf(error) == "SessionBrokenError");
  }
}

TEST("a signal is seen while much flows without a wait, either way") {
  auto signalled = [] {
    TVMFFIErrorSetRaisedFromCStr("KeyboardInterrupt", "Ctrl-C");
    return -1;
  };
  constexpr size_t kMuch = 1 << 20, kInAll = 1 << 30;
  std::string much(kMuch, 'x');
  for (bool sending : {false, true}) {
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    Ends ends{MakeFdChannel(fds[0], fds[0], true), fds[1], fds[1]};
    std::thread peer([&, theirs = fds[1]] {
      std::string data(kMuch, 'x');
      while ((sending ? recv(theirs, data.data(), kMuch, 0) : send(theirs, data.data(), kMuch, MSG_NOSIGNAL)) > 0) {
      }
    });
    TVMFFIEnvRegisterCAPI("PyErr_CheckSignals", reinterpret_cast<void*>(+signalled));
    std::string error = Thrown([&] {
      for (size_t moved = 0; moved < kInAll;) {
        moved += sending ? ends.channel->Send({{much.data(), kMuch}}, kNoDeadline)
                         : ends.channel->Receive(much.data(), kMuch, kNoDeadline);
      }
    });
    TVMFFIEnvRegisterCAPI("PyErr_CheckSignals", nullptr);
    CHECK_EQ(KindOf(error), "KeyboardInterrupt");
    ends.channel->Close();
    peer.join();
  }
}

TEST("a closed channel says so, and may be closed and interrupted again") {
  for (auto make : {Sockets, Pipes}) {
    Ends ends = make();
    ends.channel->Close();
    ends.channel->Interrupt();
    ends.channel->Close();
    CHECK_EQ(KindOf(Thrown([&] { Receive(ends.channel.get()); })), "SessionClosedError");
    CHECK_EQ(KindOf(Thrown([&] { ends.channel->Send({{"a", 1}}, kNoDeadline); })), "SessionClosedError");
  }
}

TEST("functions of the user's own carry bytes") {
  std::string sent, coming = "hello";
  int closed = 0;
  PackedFunc send([&](Args args, RetValue* rv) {
    Bytes bytes = args[0].cast<Bytes>();
    sent.append(bytes.view().substr(0, 3));
    *rv = static_cast<int64_t>(std::min<size_t>(bytes.size(), 3));
  });
  PackedFunc receive([&](Args args, RetValue* rv) {
    auto most = static_cast<size_t>(args[0].cast<int64_t>());
    *rv = Bytes(coming.substr(0, most));
    coming.erase(0, most);
  });
  PackedFunc close([&](Args, RetValue*) {
    ++closed;
    PORTCALL_THROW(OSError) << "closing fails";
  });
  auto channel = MakeFunctionChannel(send, receive, close);
  CHECK_EQ(channel->Send({{"ab", 2}, {"cd", 2}}, kNoDeadline), 3);
  CHECK_EQ(sent, "abc");
  CHECK_EQ(Receive(channel.get(), 2), "he");
  CHECK_EQ(Receive(channel.get(), 100), "llo");
  CHECK_EQ(Receive(channel.get(), 100), "");
  channel->Close();  // what it raises reaches nobody
  channel->Close();
  CHECK_EQ(closed, 1);
  CHECK_EQ(Raised(), "");
}

TEST("functions that take or give an impossible count break the session") {
  for (int64_t n : {int64_t{0}, int64_t{-1}, int64_t{3}, INT64_MAX}) {
    auto channel = MakeFunctionChannel(PackedFunc([n](Args, RetValue* rv) { *rv = n; }),
                                       PackedFunc([](Args, RetValue* rv) { *rv = Bytes("too much"); }), nullptr);
    CHECK_EQ(KindOf(Thrown([&] { channel->Send({{"ab", 2}}, kNoDeadline); })), "SessionBrokenError");
    CHECK_EQ(KindOf(Thrown([&] { Receive(channel.get(), 2); })), "SessionBrokenError");
  }
}

TEST("much is offered to a function in parts, since what it does not take is copied again") {
  size_t largest = 0;
  PackedFunc send([&](Args args, RetValue* rv) {
    largest = std::max(largest, args[0].cast<Bytes>().size());
    *rv = 1;
  });
  auto channel = MakeFunctionChannel(send, PackedFunc([](Args, RetValue*) {}), nullptr);
  std::string much(8 << 20, 'x');
  for (int i = 0; i < 10; ++i) channel->Send({{much.data(), much.size()}, {"a", 1}}, kNoDeadline);
  CHECK(largest <= 1 << 20);
}

TEST("no limit is a deadline that never comes") {
  CHECK(DeadlineIn(0) == kNoDeadline);
  CHECK(DeadlineIn(-1) == kNoDeadline);
  CHECK(DeadlineIn(1e300) == kNoDeadline);
  CHECK(DeadlineIn(std::nan("")) == kNoDeadline);
  CHECK(DeadlineIn(60) != kNoDeadline);
}
