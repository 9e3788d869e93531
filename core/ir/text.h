// SPDX-License-Identifier: Apache-2.0
// Text as JSON needs it: UTF-8, base64 (RFC 4648, with padding), wide integers in hexadecimal digits, doubles.
#ifndef PORTCALL_IR_TEXT_H_
#define PORTCALL_IR_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace portcall::ir {

void AppendUtf8(uint32_t code_point, std::string* out);

void AppendBase64(std::string_view bytes, std::string* out);
// How many bytes the text stands for, -1 when its length or padding is wrong. Decode then checks the digits.
int64_t Base64Size(std::string_view text);
bool DecodeBase64(std::string_view text, char* out);

// "-0x1f…" from words of 64 bits, two's complement, least significant first; and back; false for other text.
std::string HexFromWords(std::string_view words);
bool WordsFromHex(std::string_view text, std::string* words);

// The shortest decimal that reads back as the same double, by C's library: std::to_chars would add 110 KB to the server
// without Python.
std::string ShortestDouble(double value);

// The same for JSON, and back: numbers.cc has std::to_chars, core/web, whose toolchain lacks it for doubles, C's library.
// Reading takes text in JSON's form; false when no double is so large.
void AppendDouble(double value, std::string* out);
bool ReadDouble(std::string_view text, double* out);

}  // namespace portcall::ir
#endif  // PORTCALL_IR_TEXT_H_
