// SPDX-License-Identifier: Apache-2.0
#include "loader/private_file.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "bytes/message.h"
#include "bytes/this_machine.h"

namespace portcall::loader {
namespace {

[[noreturn]] void Fail(const char* what, const std::string& path) {
  bytes::Throw("ModuleLoadError", {"cannot ", what, " '", path, "': ", std::strerror(errno)});
}

constexpr uint64_t kLarge = 4 << 20;

// The dynamic linker takes two libraries of one name for the same, and numbers of descriptors are used again: so slashes
// spell a number that is not. A debugger opens libraries by these names, too: it has no such thread, so that it finds none,
// where /proc/self/fd/N would be a descriptor of its own, such as a pipe from which it would read for ever.
std::string UniquePath(int fd) {
  static std::atomic<uint32_t> count{0};
  char thread[64] = "";  // PID/task/TID, as /proc has them: a sandbox has other numbers
  ssize_t at = readlink("/proc/thread-self", thread, sizeof(thread) - 1);
  while (at > 0 && thread[at - 1] != '/') --at;
  std::string path = bytes::Join({"/proc/self/task/", thread + std::max<ssize_t>(at, 0), "/fd/"});
  for (uint32_t bits = ++count; bits > 0; bits >>= 1) path += bits & 1 ? "./" : ".//";
  return path + std::to_string(fd);
}

}  // namespace

PrivateFile::PrivateFile(const std::string& name, uint64_t nbytes) {
  if (nbytes < kLarge && OpenInMemory(name)) return;
  path_ = bytes::Join({TemporaryFolder(), "/", name, "-XXXXXX.so"});
  fd_ = mkostemps(path_.data(), 3, O_CLOEXEC);
  if (fd_ < 0) Fail("create", path_);
  temporary_ = path_;
}

PrivateFile::~PrivateFile() {
  close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

bool PrivateFile::OpenInMemory(const std::string& name) {
#ifdef SYS_memfd_create  // glibc has no function for it before 2.27
  constexpr unsigned kCloseOnExec = 1;
  fd_ = static_cast<int>(syscall(SYS_memfd_create, name.substr(0, 200).c_str(), kCloseOnExec));
#endif
  if (fd_ < 0) return false;
  path_ = UniquePath(fd_);
  if (access(path_.c_str(), R_OK) == 0) return true;
  close(fd_);  // there is no /proc
  return false;
}

void PrivateFile::Write(uint64_t at, const void* data, uint64_t nbytes) const {
  auto* from = static_cast<const char*>(data);
  while (nbytes > 0) {
    ssize_t written = pwrite(fd_, from, nbytes, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) Fail("write", path_);
    auto done = static_cast<uint64_t>(written);
    from += done;
    at += done;
    nbytes -= done;
  }
}

}  // namespace portcall::loader
