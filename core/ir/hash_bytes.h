// SPDX-License-Identifier: Apache-2.0
// The hash of bytes, which the structural hash and the binary form's checksum are made of. Its values are promised.
#ifndef PORTCALL_IR_HASH_BYTES_H_
#define PORTCALL_IR_HASH_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string_view>

namespace portcall::ir {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  const uint64_t x = a ^ 0x9e3779b97f4a7c15u, y = b ^ 0xd1b54a32d192ed03u;
#ifdef __SIZEOF_INT128__
  const auto product = static_cast<unsigned __int128>(x) * y;
  const auto low = static_cast<uint64_t>(product), high = static_cast<uint64_t>(product >> 64);
#else
  const uint64_t x0 = x & 0xffffffff, x1 = x >> 32, y0 = y & 0xffffffff, y1 = y >> 32;
  const uint64_t middle = x1 * y0 + (x0 * y0 >> 32), other = x0 * y1 + (middle & 0xffffffff);
  const uint64_t low = x * y, high = x1 * y1 + (middle >> 32) + (other >> 32);
#endif
  return (low ^ high) + b;
}

inline uint64_t HashBytes(std::string_view bytes) {
  uint64_t hash = bytes.size(), word = 0;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::memcpy(&word, at, 8);
    hash = Mix(hash, word);
  }
  word = 0;
  if (left) std::memcpy(&word, at, left);
  return Mix(hash, word);
}

}  // namespace portcall::ir
#endif  // PORTCALL_IR_HASH_BYTES_H_
