// SPDX-License-Identifier: Apache-2.0
// The hash of bytes, which the structural hash and the binary form's checksum are made of. Its values are promised.
#ifndef PORTCALL_IR_HASH_BYTES_H_
#define PORTCALL_IR_HASH_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string_view>

namespace portcall::ir {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  auto product = static_cast<unsigned __int128>(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xd1b54a32d192ed03u);
  return (static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64)) + b;
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
