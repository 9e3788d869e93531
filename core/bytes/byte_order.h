// SPDX-License-Identifier: Apache-2.0
// Byte order: every format here is little-endian. A big-endian machine swaps numbers as they are written and read, and the
// elements of tensors as they are copied. A little-endian machine does nothing.
#ifndef PORTCALL_BYTES_BYTE_ORDER_H_
#define PORTCALL_BYTES_BYTE_ORDER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "portcall/dlpack.h"

namespace portcall::bytes {

constexpr bool kBigEndian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

// Reverses the bytes of each number in a tensor's memory. Lanes are numbers, and so are the two parts of a complex one;
// of bools, of other elements of 8 bits, and of those that share bytes the order stays as it is, and so do bytes at the
// end that are not a whole number.
inline void SwapElements(void* data, uint64_t nbytes, DLDataType type) {
  unsigned bits = type.code == kDLComplex ? type.bits / 2u : type.bits;
  uint64_t size = bits / 8;
  if (size < 2 || bits % 8 != 0) return;
  for (auto* at = static_cast<char*>(data); nbytes >= size; at += size, nbytes -= size) std::reverse(at, at + size);
}

// The same on a big-endian machine only: before elements are sent, and after they arrived.
inline void OrderElements(void* data, uint64_t nbytes, DLDataType type) {
  if constexpr (kBigEndian) SwapElements(data, nbytes, type);
}

// A number, data type or device in little-endian order, or back.
template <typename T> T Ordered(T value) {
  if constexpr (kBigEndian) {
    auto* bytes = reinterpret_cast<char*>(&value);
    std::reverse(bytes, bytes + sizeof(T));
  }
  return value;
}
inline DLDataType Ordered(DLDataType value) {
  value.lanes = Ordered(value.lanes);
  return value;
}
inline DLDevice Ordered(DLDevice value) {
  return {static_cast<DLDeviceType>(Ordered(static_cast<int32_t>(value.device_type))), Ordered(value.device_id)};
}

// The little-endian number that begins at `bytes`.
template <typename T> T NumberAt(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return Ordered(value);
}

// The bytes of a number, which NumberAt reads.
template <typename T> std::string BytesOf(T value) {
  value = Ordered(value);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace portcall::bytes
#endif  // PORTCALL_BYTES_BYTE_ORDER_H_
