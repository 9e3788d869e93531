// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104): for proofs of a token and digests of files.
#ifndef PORTCALL_SHA256_H_
#define PORTCALL_SHA256_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace portcall::sha256 {

using Digest = std::array<uint8_t, 32>;

// Overwrites memory that held a secret.
inline void Wipe(void* memory, size_t size) noexcept;

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

inline std::string_view AsText(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

inline uint32_t Rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }
inline uint32_t BigEndian(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | uint32_t{at[3]};
}

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
inline constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

inline void Wipe(void* memory, size_t size) noexcept {
  auto* at = static_cast<volatile uint8_t*>(memory);
  while (size--) *at++ = 0;
}

inline void Sha256::Compress(const uint8_t* block) {
  uint32_t w[64];
  for (size_t i = 0; i < 16; ++i) w[i] = BigEndian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = Rotate(w[i - 15], 7) ^ Rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t b = Rotate(w[i - 2], 17) ^ Rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  std::array<uint32_t, 8> s = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]), majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const uint32_t one = Rotate(s[4], 6) ^ Rotate(s[4], 11) ^ Rotate(s[4], 25);
    const uint32_t zero = Rotate(s[0], 2) ^ Rotate(s[0], 13) ^ Rotate(s[0], 22);
    const uint32_t t = s[7] + one + choice + kRound[i] + w[i];
    std::copy_backward(s.begin(), s.end() - 1, s.end());
    s[4] += t;
    s[0] = t + zero + majority;
  }
  for (size_t i = 0; i < 8; ++i) state_[i] += s[i];
  Wipe(w, sizeof(w));
  Wipe(s.data(), sizeof(s));
}

inline void Sha256::Update(std::string_view data) {
  while (!data.empty()) {
    const size_t used = size_ % rest_.size(), n = std::min(data.size(), rest_.size() - used);
    std::memcpy(rest_.data() + used, data.data(), n);
    data.remove_prefix(n);
    size_ += n;
    if (used + n == rest_.size()) Compress(rest_.data());
  }
}

inline Digest Sha256::Finish() {
  const uint64_t bits = size_ * 8;
  Update(std::string_view("\x80", 1));
  while (size_ % 64 != 56) Update(std::string_view("\0", 1));
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(bits >> (56 - 8 * i));
  Update(std::string_view(length, sizeof(length)));
  Digest digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

inline HmacKey::HmacKey(std::string_view key) {
  std::array<char, 64> block{};
  if (key.size() > block.size()) {
    Sha256 hash;
    hash.Update(key);
    Digest digest = hash.Finish();
    std::memcpy(block.data(), digest.data(), digest.size());
    Wipe(digest.data(), digest.size());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  for (char& c : block) c = static_cast<char>(c ^ 0x36);
  inner_.Update({block.data(), block.size()});
  for (char& c : block) c = static_cast<char>(c ^ 0x36 ^ 0x5c);
  outer_.Update({block.data(), block.size()});
  Wipe(block.data(), block.size());
}

inline Digest HmacKey::Sign(std::string_view text) const {
  Sha256 inner = inner_, outer = outer_;
  inner.Update(text);
  Digest digest = inner.Finish();
  outer.Update(AsText(digest));
  return outer.Finish();
}

inline std::string Hex(const Digest& digest, size_t bytes = sizeof(Digest)) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text += "0123456789abcdef"[digest[i] >> 4];
    text += "0123456789abcdef"[digest[i] & 15];
  }
  return text;
}

inline bool SameInConstantTime(std::string_view a, std::string_view b) noexcept {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace portcall::sha256
#endif  // PORTCALL_SHA256_H_
