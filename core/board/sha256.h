// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104): for proofs of a token and digests of files.
#ifndef PORTCALL_BOARD_SHA256_H_
#define PORTCALL_BOARD_SHA256_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace portcall::board {

using Digest = std::array<uint8_t, 32>;

// Overwrites memory that held a secret.
void Wipe(void* memory, size_t size) noexcept;

class Sha256 {
 public:
  ~Sha256() { Wipe(this, sizeof(*this)); }
  void Update(std::string_view data);
  Digest Finish();

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t size_ = 0;
  std::array<uint8_t, 64> rest_{};
};

// What is left of a key once it has been mixed in: the key itself need not be kept.
class HmacKey {
 public:
  explicit HmacKey(std::string_view key);
  Digest Sign(std::string_view text) const;

 private:
  Sha256 inner_, outer_;
};

std::string Hex(const Digest& digest, size_t bytes = sizeof(Digest));
bool SameInConstantTime(std::string_view a, std::string_view b) noexcept;
inline std::string_view AsText(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_SHA256_H_
