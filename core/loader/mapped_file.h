// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_LOADER_MAPPED_FILE_H_
#define PORTCALL_LOADER_MAPPED_FILE_H_

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace portcall::loader {

// A file, mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // ModuleLoadError: it cannot be read, or is no file
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
