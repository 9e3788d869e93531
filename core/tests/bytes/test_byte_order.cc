// SPDX-License-Identifier: Apache-2.0
// The order of bytes: elements by their type, and what a machine of the other order can make of our messages.
#include "tests/check.h"
#include "tests/rpc/peer.h"

using namespace rpc_test;

namespace {

std::string Swapped(std::string bytes, DLDataType type) {
  portcall::bytes::SwapElements(bytes.data(), bytes.size(), type);
  return bytes;
}

}  // namespace

TEST("elements are swapped by their type: number by number, parts and lanes apart") {
  const std::string bytes = "0123456789abcdef";
  CHECK_EQ(Swapped(bytes, {kDLInt, 16, 1}), "1032547698badcfe");
  CHECK_EQ(Swapped(bytes, {kDLBfloat, 16, 1}), "1032547698badcfe");
  CHECK_EQ(Swapped(bytes, {kDLFloat, 32, 1}), "32107654ba98fedc");
  CHECK_EQ(Swapped(bytes, {kDLFloat, 64, 1}), "76543210fedcba98");
  CHECK_EQ(Swapped(bytes, {kDLUInt, 16, 4}), "1032547698badcfe");
  CHECK_EQ(Swapped(bytes, {kDLComplex, 64, 1}), "32107654ba98fedc");
  CHECK_EQ(Swapped(bytes, {kDLComplex, 128, 1}), "76543210fedcba98");
  CHECK_EQ(Swapped(bytes, {kDLInt, 128, 1}), "fedcba9876543210");
  CHECK_EQ(Swapped("012345", {kDLInt, 24, 1}), "210543");
}

TEST("bools, small elements and what shares bytes keep their order") {
  const std::string bytes = "01234567";
  for (DLDataType type : {DLDataType{kDLBool, 8, 1}, DLDataType{kDLInt, 8, 4}, DLDataType{kDLInt, 4, 1},
                          DLDataType{kDLUInt, 1, 8}, DLDataType{kDLFloat8_e4m3fn, 8, 1}, DLDataType{kDLInt, 12, 1},
                          DLDataType{kDLComplex, 16, 1}, DLDataType{kDLInt, 0, 1}}) {
    CHECK_EQ(Swapped(bytes, type), bytes);
  }
}

TEST("bytes that are not a whole element stay as they are") {
  CHECK_EQ(Swapped("", {kDLFloat, 32, 1}), "");
  CHECK_EQ(Swapped("012", {kDLFloat, 32, 1}), "012");
  CHECK_EQ(Swapped("0123456", {kDLFloat, 32, 1}), "3210456");
}

TEST("swapping twice is nothing") {
  std::string bytes(64, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  for (uint8_t code : {kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBfloat}) {
    for (int bits = 0; bits <= 128; bits += 4) {
      DLDataType type{code, static_cast<uint8_t>(bits), 3};
      CHECK_EQ(Swapped(Swapped(bytes, type), type), bytes);
    }
  }
}

// On any machine: these bytes are the wire's.
TEST("numbers, data types and devices are little-endian on the wire") {
  CHECK_EQ(portcall::bytes::BytesOf<int32_t>(0x01020304), "\x04\x03\x02\x01");
  CHECK_EQ(portcall::bytes::BytesOf<int64_t>(-2), "\xfe\xff\xff\xff\xff\xff\xff\xff");
  std::string bytes;
  Writer out(&bytes);
  out.Put<int32_t>(0x01020304);
  out.Put<double>(1.0);
  out.Put(DLDataType{kDLFloat, 32, 0x0102});
  out.Put(DLDevice{kDLCUDA, 3});
  CHECK_EQ(bytes, std::string("\4\3\2\1\0\0\0\0\0\0\xf0\x3f\2\x20\2\1\2\0\0\0\3\0\0\0", 24));
  Reader in(bytes);
  CHECK_EQ(in.Take<int32_t>(), 0x01020304);
  CHECK_EQ(in.Take<double>(), 1.0);
  CHECK_EQ(static_cast<int>(in.Take<DLDataType>().lanes), 0x0102);
  CHECK_EQ(in.Take<DLDevice>().device_id, 3);
}

TEST("elements are little-endian on the wire, and in this machine's order at their ends") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(8);
  WireTensor numbers = Describe(memory, {2}, {kDLInt, 32, 1});
  CHECK(peer.Ask(CopyToOf(numbers, 8, std::string_view("\1\2\3\4\5\0\0\0", 8))).ok());
  WireTensor bytes = Describe(memory, {8});  // of which the order is the memory's own
  std::string there = peer.Ask(CopyFromOf(bytes, 8)).body;
  int32_t values[2];
  std::memcpy(values, there.data(), sizeof(values));
  CHECK_EQ(values[0], 0x04030201);
  CHECK_EQ(values[1], 5);
  CHECK_EQ(peer.Ask(CopyFromOf(numbers, 8)).body, std::string("\1\2\3\4\5\0\0\0", 8));
}
