// SPDX-License-Identifier: Apache-2.0
// The signature of a function as text in the library: for who lists its functions without loading it, and for
// inspect.signature in Python. The text is what the compiler calls the type, so it is the C++ types.
#ifndef PORTCALL_SIGNATURE_H_
#define PORTCALL_SIGNATURE_H_

#include <cstddef>
#include <string_view>

namespace portcall::detail {

template <size_t N> struct Text {
  char characters[N];
};

template <typename F> constexpr const char* PrettySignature() { return __PRETTY_FUNCTION__; }  // has "F = R(A...)"

// A mark by which a reader of the file finds it, a name, a NUL, a signature or nothing, a NUL.
constexpr std::string_view kExportMark = "\x7fportcall exports ";
constexpr std::string_view kGlobalMark = "\x7fportcall registers ";

template <size_t N>
constexpr Text<N> JoinText(std::string_view mark, std::string_view name, std::string_view signature) {
  Text<N> text{};
  size_t at = 0;
  for (char c : mark) text.characters[at++] = c;
  for (char c : name) text.characters[at++] = c;
  ++at;
  for (char c : signature) text.characters[at++] = c;
  return text;
}

// `Name::text` is a name. As an object of static storage it is in the library's file.
template <typename Name, typename F> constexpr auto ExportText() {
  constexpr std::string_view signature = PrettySignature<F>();
  return JoinText<kExportMark.size() + Name::text.size() + signature.size() + 2>(kExportMark, Name::text, signature);
}
template <typename Name, typename F> constexpr auto GlobalText() {
  constexpr std::string_view signature = PrettySignature<F>();
  return JoinText<kGlobalMark.size() + Name::text.size() + signature.size() + 2>(kGlobalMark, Name::text, signature);
}
template <typename Name, typename F> constexpr auto kGlobalText = GlobalText<Name, F>();

// Has the compiler believe that somebody reads it.
inline void KeepText(const char* text) { asm volatile("" : : "r"(text)); }

}  // namespace portcall::detail
#endif  // PORTCALL_SIGNATURE_H_
