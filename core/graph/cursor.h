// SPDX-License-Identifier: Apache-2.0
// A place in bytes that nobody has checked. Whatever does not add up is a GraphError that says where.
#ifndef PORTCALL_GRAPH_CURSOR_H_
#define PORTCALL_GRAPH_CURSOR_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "portcall/error.h"

namespace portcall::graph {

class Cursor {
 public:
  // `what` names the bytes in messages, such as "the parameter blob".
  Cursor(std::string_view bytes, const char* what) : bytes_(bytes), what_(what) {}

  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }

  [[noreturn]] void Fail(const std::string& why) const {
    throw Error("GraphError", std::string(what_) + " is damaged at byte " + std::to_string(at_) + ": " + why);
  }

  std::string_view Bytes(uint64_t n, const char* name) {
    if (n > left()) {
      Fail(std::string(name) + " takes " + std::to_string(n) + " bytes, and " + std::to_string(left()) + " are left");
    }
    std::string_view part = bytes_.substr(at_, n);
    at_ += n;
    return part;
  }
  template <typename T> T Take(const char* name) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, Bytes(sizeof(T), name).data(), sizeof(T));
    return value;
  }
  // How many of something follow, each of which takes `at_least` bytes: nothing is allocated on a number's word alone.
  template <typename T> size_t Count(size_t at_least, const char* name) {
    auto count = static_cast<uint64_t>(Take<T>(name));
    if (count > left() / at_least) {
      at_ -= sizeof(T);
      Fail(std::string(name) + " is " + std::to_string(count) + ", more than the bytes that follow can hold");
    }
    return count;
  }
  void ExpectEnd() const {
    if (left()) Fail(std::to_string(left()) + " bytes follow the end");
  }

 private:
  std::string_view bytes_;
  const char* what_;
  size_t at_ = 0;
};

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_CURSOR_H_
