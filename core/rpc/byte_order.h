// SPDX-License-Identifier: Apache-2.0
// Byte order: the wire is little-endian. A big-endian machine swaps numbers as they are written and read, and the
// elements of tensors as they are copied; all of this is nothing on a little-endian one.
#ifndef PORTCALL_RPC_BYTE_ORDER_H_
#define PORTCALL_RPC_BYTE_ORDER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "portcall/dlpack.h"

namespace portcall::rpc {

constexpr bool kBigEndian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

// Reverses the bytes of each number in a tensor's memory. Lanes are numbers, and so are the two parts of a complex one;
// of bools, of other elements of 8 bits, and of those that share bytes the order stays as it is, and so do bytes at the
// end that are no whole number.
inline void SwapElements(void* data, uint64_t nbytes, DLDataType type) {
  unsigned bits = type.code == kDLComplex ? type.bits / 2u : type.bits;
  uint64_t size = bits / 8;
  if (size < 2 || bits % 8 != 0) return;
  for (auto* at = static_cast<char*>(data); nbytes >= size; at += size, nbytes -= size) std::reverse(at, at + size);
}

// The same where the machine's order is not the wire's: before elements are sent, and after they have come.
inline void OrderElements(void* data, uint64_t nbytes, DLDataType type) {
  if constexpr (kBigEndian) SwapElements(data, nbytes, type);
}

// A number, data type or device in the wire's order, or back.
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

// A number of the wire that begins at `bytes`.
template <typename T> T NumberAt(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return Ordered(value);
}

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_BYTE_ORDER_H_
