// SPDX-License-Identifier: Apache-2.0
// Channels over file descriptors.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "rpc/channel.h"

namespace portcall::rpc {
namespace {

constexpr size_t kFewBytes = 256 << 10;
constexpr int kForever = -1;
constexpr int kSignalMs = 1000;  // between looks for signals
constexpr size_t kSignalBytes = 256 << 20;

class FdChannel : public Channel {
 public:
  FdChannel(int read_fd, int write_fd, bool interactive)
      : read_fd_(read_fd), write_fd_(write_fd), longest_wait_(interactive ? kSignalMs : kForever) {
    struct stat reading{}, writing{};
    socket_ = fstat(read_fd, &reading) == 0 && fstat(write_fd, &writing) == 0 && S_ISSOCK(reading.st_mode) &&
              reading.st_ino == writing.st_ino && reading.st_dev == writing.st_dev;
    for (int fd : {read_fd, write_fd}) {
      int flags = fcntl(fd, F_GETFL);
      fcntl(fd, F_SETFL, socket_ ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
    }
    if (!socket_) wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (socket_ && interactive) {
      timeval most{kSignalMs / 1000, kSignalMs % 1000 * 1000L};
      for (int option : {SO_RCVTIMEO, SO_SNDTIMEO}) setsockopt(read_fd, SOL_SOCKET, option, &most, sizeof(most));
    }
  }
  ~FdChannel() override { Close(); }

  size_t Send(const std::vector<Chunk>& chunks, Deadline deadline) override {
    iovec parts[kMaxChunks];
    size_t count = std::min(chunks.size(), kMaxChunks), size = 0;
    for (size_t i = 0; i < count; ++i) {
      parts[i] = {const_cast<void*>(chunks[i].data), chunks[i].size};
      size += chunks[i].size;
    }
    for (;;) {
      CheckOpen();
      ssize_t n = Write(parts, count, FlagsFor(size, deadline));
      if (n > 0) return Moved(n);
      if (n < 0 && !MayTryAgain()) Lost("sending");
      Wait(write_fd_, POLLOUT, deadline);
    }
  }

  size_t Receive(void* data, size_t size, Deadline deadline) override {
    for (;;) {
      CheckOpen();
      ssize_t n = socket_ ? recv(read_fd_, data, size, FlagsFor(size, deadline)) : read(read_fd_, data, size);
      if (n > 0) return Moved(n);
      if (n == 0 || errno == ECONNRESET) {
        CheckOpen();  // an interrupt looks like the peer's end
        return 0;
      }
      if (!MayTryAgain()) Lost("receiving");
      Wait(read_fd_, POLLIN, deadline);
    }
  }

  size_t TrySend(const std::vector<Chunk>& chunks) override {
    iovec parts[kMaxChunks];
    size_t count = std::min(chunks.size(), kMaxChunks);
    for (size_t i = 0; i < count; ++i) parts[i] = {const_cast<void*>(chunks[i].data), chunks[i].size};
    CheckOpen();
    ssize_t n = Write(parts, count, MSG_DONTWAIT);
    if (n < 0 && !MayTryAgain()) Lost("sending");
    return n > 0 ? Moved(n) : 0;
  }

  bool WaitFor(bool receive, Deadline deadline) override {
    CheckOpen();
    pollfd entries[] = {{write_fd_, POLLOUT, 0}, {receive ? read_fd_ : -1, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    Poll(entries, 3, deadline);
    return entries[1].revents != 0;
  }

  bool WaitForInput(Deadline deadline) override {
    CheckOpen();
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd entries[] = {{read_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    return poll(entries, 2, static_cast<int>(std::max<int64_t>(left, 0))) > 0;  // signals are those of other threads
  }

  void Acknowledge() override {
    int on = 1;
    setsockopt(read_fd_, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));  // fails where it does not matter: no TCP
  }

  void Interrupt() override {
    std::lock_guard<std::mutex> lock(mutex_);
    interrupted_ = true;
    if (read_fd_ < 0) return;
    if (wake_fd_ < 0) shutdown(write_fd_, SHUT_RDWR);
    else eventfd_write(wake_fd_, 1);
  }
  void Close() noexcept override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (read_fd_ < 0) return;
    close(read_fd_);
    if (write_fd_ != read_fd_) close(write_fd_);
    if (wake_fd_ >= 0) close(wake_fd_);
    read_fd_ = write_fd_ = wake_fd_ = -1;
  }

 private:
  // A socket waits for few bytes inside of its first call, which saves two others; poll() takes over where that was not
  // enough. Many bytes come faster with poll() alone: more of them have arrived when it wakes.
  int FlagsFor(size_t size, Deadline deadline) const {
    if (size > kFewBytes) return MSG_DONTWAIT;
    if (deadline == kNoDeadline) return 0;
    auto longest = std::chrono::milliseconds(longest_wait_);
    return longest_wait_ > 0 && deadline > std::chrono::steady_clock::now() + longest ? 0 : MSG_DONTWAIT;
  }

  ssize_t Write(iovec* parts, size_t count, int flags) const {
    if (socket_ && count == 1) return send(write_fd_, parts->iov_base, parts->iov_len, MSG_NOSIGNAL | flags);
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    if (socket_) return sendmsg(write_fd_, &message, MSG_NOSIGNAL | flags);
    ssize_t n = sendmsg(write_fd_, &message, MSG_NOSIGNAL);
    return n < 0 && errno == ENOTSOCK ? writev(write_fd_, parts, static_cast<int>(count)) : n;
  }

  // Much may flow without a wait, in which a signal would be seen.
  size_t Moved(ssize_t n) {
    size_t size = static_cast<size_t>(n);
    if (longest_wait_ != kForever) unseen_ += size;
    if (unseen_ >= kSignalBytes) {
      unseen_ = 0;
      Check(TVMFFIEnvCheckSignals());
    }
    return size;
  }

  // After a call that failed. A signal may belong to the embedding language, which then has something to raise.
  static bool MayTryAgain() {
    int error = errno;
    if (error == EINTR) Check(TVMFFIEnvCheckSignals());
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
  }

  void CheckOpen() const {
    PORTCALL_CHECK(read_fd_ >= 0 && !interrupted_, SessionClosedError) << "the connection is closed";
  }

  [[noreturn]] static void Lost(const char* doing) {
    throw Error("SessionBrokenError", std::string("the connection was lost while ") + doing + ": " + strerror(errno));
  }

  void Wait(int fd, short events, Deadline deadline) const {
    PORTCALL_CHECK(deadline > std::chrono::steady_clock::now(), SessionTimeoutError) << kTimeIsUp;
    pollfd entries[] = {{fd, events, 0}, {wake_fd_, POLLIN, 0}};
    Poll(entries, 2, deadline);
  }
  // Those with a negative number are passed over.
  void Poll(pollfd* entries, nfds_t count, Deadline deadline) const {
    int timeout = longest_wait_;
    if (deadline != kNoDeadline) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, longest_wait_ < 0 ? 1 << 30 : longest_wait_));
    }
    // A signal may belong to the embedding language, which then has something to raise.
    if (poll(entries, count, timeout) <= 0) Check(TVMFFIEnvCheckSignals());
  }

  int read_fd_, write_fd_;
  bool socket_;  // one socket, maybe by two descriptors, which blocks; otherwise pipes, which do not
  const int longest_wait_;
  std::atomic<size_t> unseen_{0};  // bytes since a look for signals
  int wake_fd_ = -1;               // wakes a reader for an interrupt, where there is no socket to shut down
  std::atomic<bool> interrupted_{false};
  std::mutex mutex_;  // keeps Interrupt and Close apart: a closed number may be in use again at once
};

}  // namespace

std::unique_ptr<Channel> MakeFdChannel(int read_fd, int write_fd, bool interactive) {
  return std::make_unique<FdChannel>(read_fd, write_fd, interactive);
}

}  // namespace portcall::rpc
