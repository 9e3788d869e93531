// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_RUNTIME_LIBRARY_GLOBALS_H_
#define PORTCALL_RUNTIME_LIBRARY_GLOBALS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace portcall {

// While one lives, what this thread registers belongs to that library: its constructors are running. A later copy of
// the same file, rebuilt or not, takes these names over.
class LibraryGlobals {
 public:
  explicit LibraryGlobals(std::string path)
      : path_(std::move(path)), load_(++loads_), outer_(std::exchange(current_, this)) {}
  LibraryGlobals(const LibraryGlobals&) = delete;
  LibraryGlobals& operator=(const LibraryGlobals&) = delete;
  ~LibraryGlobals() { current_ = outer_; }
  static const LibraryGlobals* current() { return current_; }

  // Removes what earlier copies registered and this one did not.
  void RemoveOlder() const;

  const std::string& path() const { return path_; }
  uint64_t load() const { return load_; }

  // What is registered now, a global function or a type: the current one keeps the name.
  static void Note(std::string_view name);
  const std::vector<std::string>& registered() const { return registered_; }

 private:
  static thread_local const LibraryGlobals* current_;
  static inline uint64_t loads_ = 0;  // one library is loaded at a time

  std::string path_;
  mutable std::vector<std::string> registered_;
  uint64_t load_;
  const LibraryGlobals* outer_;
};

// A flag of functions beside those of c_api.h: a library that is loaded may register another one of that name.
constexpr int32_t kFunctionGivesWay = 1 << 16;

}  // namespace portcall
#endif  // PORTCALL_RUNTIME_LIBRARY_GLOBALS_H_
