// SPDX-License-Identifier: Apache-2.0
#include "graph/cursor.h"

namespace portcall::graph {

void Cursor::Fail(std::initializer_list<Piece> why) const {
  ThrowGraphError({what_, " is damaged at byte ", at_, ": ", Join(why)});
}

std::string_view Cursor::Bytes(uint64_t n, const char* name) {
  if (n > left()) Fail({name, " takes ", n, " bytes, and ", left(), " are left"});
  std::string_view part = bytes_.substr(at_, n);
  at_ += n;
  return part;
}

size_t Cursor::Count(size_t at_least, const char* name) {
  auto count = Take<uint64_t>(name);
  if (count <= left() / at_least) return count;
  at_ -= sizeof(count);
  Fail({name, " is ", count, ", more than the bytes that follow can hold"});
}

void Cursor::ExpectEnd() const {
  if (left()) Fail({left(), " bytes follow the end"});
}

}  // namespace portcall::graph
