// SPDX-License-Identifier: Apache-2.0
// A place in bytes that nobody has checked. Whatever does not add up is a GraphError that says where.
#ifndef PORTCALL_GRAPH_CURSOR_H_
#define PORTCALL_GRAPH_CURSOR_H_

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include "graph/plan.h"

namespace portcall::graph {

class Cursor {
 public:
  // `what` names the bytes in messages, such as "the parameter blob".
  Cursor(std::string_view bytes, const char* what) : bytes_(bytes), what_(what) {}

  size_t left() const { return bytes_.size() - at_; }
  [[noreturn]] void Fail(std::initializer_list<Piece> why) const;

  std::string_view Bytes(uint64_t n, const char* name);
  template <typename T> T Take(const char* name) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, Bytes(sizeof(T), name).data(), sizeof(T));
    return value;
  }
  // Bytes that follow their number.
  std::string_view Text(const char* name) { return Bytes(Take<uint64_t>(name), name); }
  // How many of something follow, each of which takes `at_least` bytes: nothing is allocated on a number's word alone.
  size_t Count(size_t at_least, const char* name);
  void ExpectEnd() const;

 private:
  std::string_view bytes_;
  const char* what_;
  size_t at_ = 0;
};

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_CURSOR_H_
