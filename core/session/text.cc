// SPDX-License-Identifier: Apache-2.0
#include "session/text.h"

#include <algorithm>
#include <cstdint>

#include "bytes/utf8.h"

namespace portcall::session {
namespace {

// Marks that end lines or change the direction of text, as code points.
bool Steers(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

// Calls take(bytes, code point) for each character; a byte that is not UTF-8 has the code point -1.
template <typename Take> void ForEachCharacter(std::string_view text, Take take) {
  while (!text.empty()) {
    const auto lead = static_cast<uint8_t>(text[0]);
    const size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    std::string_view character = text.substr(0, length);
    int64_t code = lead & (length == 1 ? 0x7f : 0xff >> (length + 1));
    for (char c : character.substr(1)) code = code << 6 | (c & 0x3f);
    if (character.size() < length || !bytes::IsUtf8(character)) {
      character = text.substr(0, 1);
      code = -1;
    }
    take(character, code);
    text.remove_prefix(character.size());
  }
}

}  // namespace

std::vector<std::string> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string> parts;
  for (size_t at = 0; (at = text.find_first_not_of(separators, at)) != text.npos;) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    parts.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return parts;
}

std::string Join(const std::vector<std::string>& names, const char* comma) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : comma) + name;
  return text;
}

std::string Printable(std::string_view text) {
  std::string shown;
  ForEachCharacter(text, [&](std::string_view character, int64_t code) {
    if (code < 0) shown += Print("\\x%02x", static_cast<uint8_t>(character[0]));
    else if (code != '\n' && Steers(static_cast<uint32_t>(code)))
      shown += Print(code < 256 ? "\\x%02x" : "\\u%04x", int(code));
    else shown += character;
  });
  return shown;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  ForEachCharacter(text, [&](std::string_view character, int64_t code) {
    if (code == '"' || code == '\\') (quoted += '\\') += character;
    else if (code == '\n') quoted += "\\n";
    else if (code < 0) quoted += Print("\\\\x%02x", static_cast<uint8_t>(character[0]));
    else if (Steers(static_cast<uint32_t>(code))) quoted += Print("\\u%04x", int(code));
    else quoted += character;
  });
  return quoted + "\"";
}

}  // namespace portcall::session
