// SPDX-License-Identifier: Apache-2.0
// Messages of errors that checks of input raise: such checks are many, so what a message compiles to is kept small.
#ifndef PORTCALL_BYTES_MESSAGE_H_
#define PORTCALL_BYTES_MESSAGE_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "portcall/error.h"

namespace portcall::bytes {

// A part of a message: text or a number. Two words, because messages are most of what checks compile to.
class Piece {
 public:
  Piece(const char* text) : Piece(std::string_view(text)) {}                                   // NOLINT
  Piece(const std::string& text) : Piece(std::string_view(text)) {}                            // NOLINT
  Piece(std::string_view text) : text_(text.data() ? text.data() : ""), word_(text.size()) {}  // NOLINT
  template <typename T, typename = std::enable_if_t<std::is_integral_v<T>>>
  Piece(T number)  // NOLINT(google-explicit-constructor)
      : text_(std::is_signed_v<T> ? &kSigned : nullptr), word_(static_cast<uint64_t>(number)) {}

  void AppendTo(std::string* out) const {
    if (text_ && text_ != &kSigned) {
      out->append(text_, word_);
    } else {
      *out += text_ ? std::to_string(static_cast<int64_t>(word_)) : std::to_string(word_);
    }
  }

 private:
  static constexpr char kSigned = 0;
  const char* text_;  // null: an unsigned number
  uint64_t word_;     // its length
};

[[gnu::noinline]] inline std::string Join(std::initializer_list<Piece> pieces) {
  std::string text;
  for (const Piece& piece : pieces) piece.AppendTo(&text);
  return text;
}

[[noreturn, gnu::noinline, gnu::cold]] inline void Throw(const char* kind, std::initializer_list<Piece> pieces) {
  throw Error(kind, Join(pieces));
}

}  // namespace portcall::bytes
#endif  // PORTCALL_BYTES_MESSAGE_H_
