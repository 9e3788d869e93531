// SPDX-License-Identifier: Apache-2.0
#include "ir/text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace portcall::ir {
namespace {

constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr char kHex[] = "0123456789abcdef";

constexpr std::array<uint8_t, 256> kBase64Values = [] {
  std::array<uint8_t, 256> values{};
  for (auto& value : values) value = 0xff;
  for (uint8_t i = 0; i < 64; ++i) values[static_cast<uint8_t>(kBase64[i])] = i;
  return values;
}();

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

void Negate(std::vector<uint64_t>* words) {
  bool carry = true;
  for (uint64_t& word : *words) {
    word = ~word + (carry ? 1 : 0);
    carry = carry && word == 0;
  }
}

}  // namespace

void AppendUtf8(uint32_t code, std::string* out) {
  auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

void AppendBase64(std::string_view bytes, std::string* out) {
  const auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size(), start = out->size();
  out->resize(start + (left + 2) / 3 * 4);
  char* to = out->data() + start;
  for (; left > 0; at += 3) {
    uint32_t group = uint32_t{at[0]} << 16 | (left > 1 ? uint32_t{at[1]} << 8 : 0) | (left > 2 ? uint32_t{at[2]} : 0);
    *to++ = kBase64[group >> 18];
    *to++ = kBase64[group >> 12 & 63];
    *to++ = left > 1 ? kBase64[group >> 6 & 63] : '=';
    *to++ = left > 2 ? kBase64[group & 63] : '=';
    left -= left < 3 ? left : 3;
  }
}

int64_t Base64Size(std::string_view text) {
  if (text.size() % 4 != 0) return -1;
  auto size = static_cast<int64_t>(text.size() / 4 * 3);
  if (!text.empty() && text.back() == '=') --size;
  if (text.size() > 1 && text[text.size() - 2] == '=' && text.back() == '=') --size;
  return size;
}

bool DecodeBase64(std::string_view text, char* out) {
  auto left = static_cast<size_t>(Base64Size(text));
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  for (; left > 0; at += 4) {
    size_t n = left < 3 ? left : 3;
    uint32_t group = 0;
    for (size_t i = 0; i < 4; ++i) {
      uint8_t value = i <= n ? kBase64Values[at[i]] : 0;
      if (value == 0xff) return false;
      group = group << 6 | value;
    }
    if (group & ((1u << (24 - 8 * n)) - 1)) return false;  // bits that would not be read
    for (size_t i = 0; i < n; ++i) *out++ = static_cast<char>(group >> (16 - 8 * i));
    left -= n;
  }
  return true;
}

std::string HexFromWords(std::string_view content) {
  std::vector<uint64_t> words(content.size() / 8);
  std::memcpy(words.data(), content.data(), words.size() * 8);
  const bool negative = static_cast<int64_t>(words.back()) < 0;
  if (negative) Negate(&words);
  std::string digits;
  for (size_t i = words.size(); i-- > 0;) {
    for (int shift = 60; shift >= 0; shift -= 4) digits += kHex[words[i] >> shift & 15];
  }
  return (negative ? "-0x" : "0x") + digits.substr(std::min(digits.find_first_not_of('0'), digits.size() - 1));
}

bool WordsFromHex(std::string_view text, std::string* out) {
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  if (text.size() < 3 || text.substr(0, 2) != "0x") return false;
  text.remove_prefix(2);
  std::vector<uint64_t> words(text.size() / 16 + 2);  // one more than the digits need, for the sign
  for (size_t i = 0; i < text.size(); ++i) {
    int digit = HexDigit(text[text.size() - 1 - i]);
    if (digit < 0) return false;
    words[i / 16] |= static_cast<uint64_t>(digit) << (i % 16 * 4);
  }
  if (negative) Negate(&words);
  out->assign(reinterpret_cast<const char*>(words.data()), words.size() * 8);
  return true;
}

std::string ShortestDouble(double value) {
  char shortest[32];
  int digits = 15;
  do snprintf(shortest, sizeof shortest, "%.*g", digits, value);
  while (++digits <= 17 && std::strtod(shortest, nullptr) != value);
  return shortest;
}

}  // namespace portcall::ir
