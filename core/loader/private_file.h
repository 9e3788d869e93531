// SPDX-License-Identifier: Apache-2.0
// Libraries that the loader writes, to map them: no other program opens these files.
#ifndef PORTCALL_LOADER_PRIVATE_FILE_H_
#define PORTCALL_LOADER_PRIVATE_FILE_H_

#include <cstdint>
#include <string>

namespace portcall::loader {

// A file in memory; in the folder of temporary files where the system has none in memory, or where it is large: pages of a
// file on disk need not stay in memory. The file goes with this object; what is mapped of it stays.
class PrivateFile {
 public:
  // `nbytes` will be written.
  PrivateFile(const std::string& name, uint64_t nbytes);
  PrivateFile(const PrivateFile&) = delete;
  PrivateFile& operator=(const PrivateFile&) = delete;
  ~PrivateFile();

  void Write(uint64_t at, const void* data, uint64_t nbytes) const;
  // For dlopen, in this process, as long as this object lives. No two files have the same path.
  const std::string& path() const { return path_; }

 private:
  bool OpenInMemory(const std::string& name);

  int fd_ = -1;
  std::string path_;
  std::string temporary_;  // the path, if it is one on disk
};

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_PRIVATE_FILE_H_
