// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_LOADER_MAPPED_FILE_H_
#define PORTCALL_LOADER_MAPPED_FILE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "portcall/error.h"

namespace portcall::loader {

// A file, mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) : path_(path) {
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    PORTCALL_CHECK(fd >= 0, ModuleLoadError) << "cannot open '" << path << "': " << std::strerror(errno);
    bool is_file = fstat(fd, &info_) == 0 && S_ISREG(info_.st_mode);
    size_ = is_file ? static_cast<size_t>(info_.st_size) : 0;
    if (size_) data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    PORTCALL_CHECK(is_file, ModuleLoadError) << "'" << path << "' is not a file";
    PORTCALL_CHECK(size_ == 0 || data_ != MAP_FAILED, ModuleLoadError) << "cannot read '" << path << "'";
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (size_) munmap(data_, size_);
  }

  // `count` entries of T at `offset`, or null when they are not aligned or not within the file.
  template <typename T> const T* At(uint64_t offset, uint64_t count = 1) const {
    if (offset > size_ || count > (size_ - offset) / sizeof(T) || offset % alignof(T) != 0) return nullptr;
    return reinterpret_cast<const T*>(static_cast<const char*>(data_) + offset);
  }
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  const struct stat& info() const { return info_; }
  // Empty for what is longer than any name that matters: a damaged file may have names without end.
  std::string Text(uint64_t offset) const {
    constexpr size_t kLongest = 4096;
    const char* start = At<char>(offset);
    if (!start || offset >= size_) return {};
    size_t length = strnlen(start, static_cast<size_t>(std::min<uint64_t>(size_ - offset, kLongest)));
    return length < kLongest ? std::string(start, length) : std::string();
  }

 private:
  std::string path_;
  struct stat info_{};
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_MAPPED_FILE_H_
