// SPDX-License-Identifier: Apache-2.0
#include "loader/mapped_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "bytes/message.h"

namespace portcall::loader {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) bytes::Throw("ModuleLoadError", {"cannot open '", path, "': ", std::strerror(errno)});
  bool is_file = fstat(fd, &info_) == 0 && S_ISREG(info_.st_mode);
  size_ = is_file ? static_cast<size_t>(info_.st_size) : 0;
  if (size_) data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (!is_file) bytes::Throw("ModuleLoadError", {"'", path, "' is not a file"});
  if (size_ && data_ == MAP_FAILED) bytes::Throw("ModuleLoadError", {"cannot read '", path, "'"});
}

}  // namespace portcall::loader
