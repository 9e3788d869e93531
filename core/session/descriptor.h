// SPDX-License-Identifier: Apache-2.0
// A file descriptor that closes itself, and errors of the system.
#ifndef PORTCALL_SESSION_DESCRIPTOR_H_
#define PORTCALL_SESSION_DESCRIPTOR_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "portcall/error.h"

namespace portcall::session {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    const int before = errno;
    if (fd_ >= 0) close(std::exchange(fd_, -1));
    errno = before;
  }

 private:
  int fd_ = -1;
};

// The error that errno stands for, of the class that Python has for it.
inline Error SystemError(const std::string& what, int error = errno) {
  const char* kind = "OSError";
  if (error == ENOENT) kind = "FileNotFoundError";
  if (error == EACCES || error == EPERM) kind = "PermissionError";
  if (error == EISDIR) kind = "IsADirectoryError";
  return Error(kind, what + ": " + strerror(error));
}

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_DESCRIPTOR_H_
