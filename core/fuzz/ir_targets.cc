// SPDX-License-Identifier: Apache-2.0
#include "fuzz/promises.h"
#include "fuzz/targets.h"
#include "ir/hash_bytes.h"
#include "portcall/ir.h"

using namespace portcall;

namespace {

struct PairObj : Object {
  Any first;
  ObjectRef second;
  String name;
  int64_t number = 0;
  PORTCALL_OBJECT(PairObj, Object, "fuzz.Pair")
  static void Describe(Description<PairObj>* type) {
    type->field("first", &PairObj::first);
    type->field("second", &PairObj::second).set_default(nullptr);
    type->field("name", &PairObj::name).set_default("");
    type->field("number", &PairObj::number).set_default(0);
  }
};
PORTCALL_REGISTER_OBJECT(PairObj);

// Any bytes give a value or ValueError; a value goes through the other form and back and stays what it is.
template <typename Read> void Check(Read read) {
  Any value;
  try {
    value = read();
  } catch (const Error& error) {
    Promise(error.kind() == "ValueError");
    return;
  }
  Any again = ir::FromBytes(ir::ToBytes(ir::LoadJson(ir::SaveJson(value))));
  Promise(ir::StructuralEqual(value, again));
  Promise(ir::StructuralHash(value) == ir::StructuralHash(again));
}

}  // namespace

void FuzzIrJson(const uint8_t* data, size_t size) {
  Check([&] { return ir::LoadJson({reinterpret_cast<const char*>(data), size}, {1000, 1000}); });
}

void FuzzIrBinary(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  uint64_t checksum = ir::HashBytes(bytes);
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  Check([&] { return ir::FromBytes(bytes, {1000, 1000}); });
}
