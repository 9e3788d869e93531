// SPDX-License-Identifier: Apache-2.0
// Reads parameters and bundles. Damaged bytes are a GraphError that says where.
#ifndef PORTCALL_GRAPH_CURSOR_H_
#define PORTCALL_GRAPH_CURSOR_H_

#include <initializer_list>
#include <string_view>

#include "bytes/cursor.h"
#include "graph/plan.h"

namespace portcall::graph {

class Cursor : public bytes::Cursor<Cursor> {
 public:
  // `what` names the bytes in messages, such as "the parameter blob".
  Cursor(std::string_view bytes, const char* what) : bytes::Cursor<Cursor>(bytes), what_(what) {}

  [[noreturn]] void Fail(std::initializer_list<Piece> why) const {
    ThrowGraphError({what_, " is damaged at byte ", at_, ": ", Join(why)});
  }
  [[noreturn]] void FailShort(const char* name, uint64_t n) const {
    Fail({name, " takes ", n, " bytes, and ", left(), " are left"});
  }

  // Bytes that follow their number.
  std::string_view Text(const char* name) { return Bytes(Take<uint64_t>(name), name); }
  // The number of things that follow; each takes at least `least` bytes.
  size_t Count(size_t least, const char* name) {
    auto count = Take<uint64_t>(name);
    if (CanHold(count, least)) return count;
    at_ -= sizeof(count);
    Fail({name, " is ", count, ", more than the bytes that follow can hold"});
  }
  void ExpectEnd() const {
    if (left()) Fail({left(), " bytes follow the end"});
  }

 private:
  const char* what_;
};

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_CURSOR_H_
