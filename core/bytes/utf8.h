// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_BYTES_UTF8_H_
#define PORTCALL_BYTES_UTF8_H_

#include <cstdint>
#include <string_view>

namespace portcall::bytes {

// Whether the bytes are UTF-8 (RFC 3629): shortest forms only, no surrogates, nothing beyond U+10FFFF.
inline bool IsUtf8(std::string_view text) {
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* end = at + text.size();
  while (at < end) {
    const uint8_t lead = *at++;
    if (lead < 0x80) continue;
    const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || end - at < more) return false;
    uint32_t code = lead & (0x3f >> more);
    for (int i = 0; i < more; ++i, ++at) {
      if ((*at & 0xc0) != 0x80) return false;
      code = code << 6 | (*at & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  }
  return true;
}

}  // namespace portcall::bytes
#endif  // PORTCALL_BYTES_UTF8_H_
