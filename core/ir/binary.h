// SPDX-License-Identifier: Apache-2.0
// The binary form: the same nodes as in JSON, little-endian. Numbers are varints (seven bits a byte, least significant
// first), signed ones zigzag; a text is its size and its bytes.
//
//   "\x89pcg" version:byte
//   types:  number, each: key:text, fields: number, each: name:text
//   nodes:  number, each: type:number (a place in the list of types, plus kFirstType; below that a container), then
//           an object's values, in the order of the names; items: number, values; pairs: number, keys and values;
//           the contents of an empty List or Dict: how many nodes back that is, items or pairs as above;
//           a tensor: code:byte bits:byte lanes:2 bytes, dimensions: number, extents: signed, content: text
//   root:   value
//   checksum: 8 bytes, HashBytes of all before it
//
// A value is a tag and what belongs to it.
#ifndef PORTCALL_IR_BINARY_H_
#define PORTCALL_IR_BINARY_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace portcall::ir {

constexpr std::string_view kMagic = "\x89pcg";
constexpr uint8_t kBinaryVersion = 1;
constexpr size_t kChecksumSize = 8;

enum NodeKind : uint64_t { kArrayNode, kListNode, kMapNode, kDictNode, kTensorNode, kContents, kFirstType = 8 };

enum class Tag : uint8_t {
  kNone,
  kFalse,
  kTrue,
  kInt,       // signed
  kFloat,     // 8 bytes
  kText,      // text
  kBytes,     // text
  kNode,      // how many nodes back: 1 is the one before
  kWideInt,   // text: words of 64 bits, two's complement, least significant first
  kDataType,  // code, bits: bytes; lanes: 2 bytes
  kDevice,    // kind, number: signed
  kShape,     // number, each: signed
};

inline uint64_t Zigzag(int64_t value) { return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63); }
inline int64_t Unzigzag(uint64_t value) { return static_cast<int64_t>(value >> 1 ^ (0 - (value & 1))); }

}  // namespace portcall::ir
#endif  // PORTCALL_IR_BINARY_H_
