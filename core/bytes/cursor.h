// SPDX-License-Identifier: Apache-2.0
// Reads bytes of unknown origin from the front. Each format has its own errors, so each reader derives from Cursor.
#ifndef PORTCALL_BYTES_CURSOR_H_
#define PORTCALL_BYTES_CURSOR_H_

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "bytes/byte_order.h"

namespace portcall::bytes {

// Reader derives from Cursor<Reader> and has
//   [[noreturn]] void FailShort(const char* what, uint64_t wanted) const;
// which throws because fewer than `wanted` bytes are left. `what` names the value that was read.
template <typename Reader> class Cursor {
 public:
  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }

  std::string_view Bytes(uint64_t n, const char* what = "") {
    if (n > left()) static_cast<const Reader*>(this)->FailShort(what, n);
    const char* start = bytes_.data() + at_;
    at_ += n;
    return {start, static_cast<size_t>(n)};
  }
  // A number, data type or device, little-endian.
  template <typename T> T Take(const char* what = "") {
    static_assert(std::is_trivially_copyable_v<T>);
    return NumberAt<T>(Bytes(sizeof(T), what).data());
  }
  // Whether the bytes that are left can hold so many things of at least `least` bytes. Check it before you allocate.
  bool CanHold(uint64_t count, size_t least) const { return count <= left() / least; }

 protected:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace portcall::bytes
#endif  // PORTCALL_BYTES_CURSOR_H_
