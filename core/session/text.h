// SPDX-License-Identifier: Apache-2.0
// Text that a stranger may have written, for people and programs. No I/O here.
#ifndef PORTCALL_SESSION_TEXT_H_
#define PORTCALL_SESSION_TEXT_H_

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace portcall::session {

// As printf() has it, in less than 64 bytes.
template <typename... A> std::string Print(const char* format, A... values) {
  char text[64];
  return {text, static_cast<size_t>(snprintf(text, sizeof(text), format, values...))};
}

// The parts of a text between any of the separators; none is empty.
std::vector<std::string> Split(std::string_view text, std::string_view separators);
// Names with commas between them.
std::string Join(const std::vector<std::string>& names, const char* comma = ",");
// A string as JSON.
std::string Quoted(std::string_view text);
// A text in which control characters, such as those that steer a terminal, and bytes that are not UTF-8 are escapes.
std::string Printable(std::string_view text);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_TEXT_H_
