// SPDX-License-Identifier: Apache-2.0
// The same as global functions, for every language. Types are given by key, "" meaning all.
#include <set>

#include "portcall/ir.h"

// Libraries without a function are refused: they are loaded by mistake, as a rule.
PORTCALL_EXPORT_TYPED(version, [] { return std::string(PORTCALL_VERSION); })

namespace portcall::ir {
namespace {

int32_t IndexOf(std::string_view type_key) {
  if (type_key.empty()) return kTVMFFIObject;
  TVMFFIByteArray key = ToByteArray(type_key);
  int32_t index = -1;
  Check(TVMFFITypeKeyToIndex(&key, &index));
  return index;
}

int32_t FlagsOf(bool map_free_variables) { return map_free_variables ? kPortcallMapFreeVariables : 0; }

// Signed, as integers of the ABI are.
PORTCALL_REGISTER_GLOBAL("portcall.ir.StructuralHash").set_body_typed([](Any value, bool map_free_variables) {
  return static_cast<int64_t>(StructuralHash(value, FlagsOf(map_free_variables)));
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.StructuralEqual")
    .set_body_typed([](Any left, Any right, bool map_free_variables) {
      return StructuralEqual(left, right, FlagsOf(map_free_variables));
    });
PORTCALL_REGISTER_GLOBAL("portcall.ir.FirstMismatch").set_body_typed([](Any left, Any right, bool map_free_variables) {
  Any out;
  Check(PortcallFirstMismatch(&left.cell(), &right.cell(), FlagsOf(map_free_variables), out.out()));
  return out;
});

// indent: None for one line.
PORTCALL_REGISTER_GLOBAL("portcall.ir.SaveJson").set_body_typed([](Any value, std::optional<int32_t> indent) {
  Any text;
  Check(PortcallSaveJson(&value.cell(), indent.value_or(-1), text.out()));
  return text;
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.LoadJson")
    .set_body_typed([](String text, uint64_t max_nodes, uint64_t max_depth) {
      return LoadJson(text, {max_nodes, max_depth});
    });
PORTCALL_REGISTER_GLOBAL("portcall.ir.ToBytes").set_body_typed([](Any value) { return ToBytes(value); });
PORTCALL_REGISTER_GLOBAL("portcall.ir.FromBytes")
    .set_body_typed([](Bytes bytes, uint64_t max_nodes, uint64_t max_depth) {
      return FromBytes(bytes, {max_nodes, max_depth});
    });

PORTCALL_REGISTER_GLOBAL("portcall.ir.Walk")
    .set_body_typed([](Any value, String type_key, bool post_order, PackedFunc visit) {
      Check(PortcallWalk(&value.cell(), IndexOf(type_key), post_order, visit.get()));
    });
PORTCALL_REGISTER_GLOBAL("portcall.ir.Collect").set_body_typed([](Any value, String type_key, bool post_order) {
  std::vector<Any> found;
  PackedFunc visit([&found](Args args, RetValue*) { found.emplace_back(Any::Copy(args[0].cell())); });
  Check(PortcallWalk(&value.cell(), IndexOf(type_key), post_order, visit.get()));
  return Array<Any>(found);
});
// The keys of the types that occur in a graph, each once.
PORTCALL_REGISTER_GLOBAL("portcall.ir.TypeKeys").set_body_typed([](Any value) {
  std::set<int32_t> found;
  PackedFunc visit([&found](Args args, RetValue*) { found.insert(args[0].cell().type_index); });
  Check(PortcallWalk(&value.cell(), kTVMFFIObject, 0, visit.get()));
  std::vector<std::string> keys;
  for (int32_t index : found) keys.emplace_back(TypeKeyOf(index));
  return keys;
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.Rewrite").set_body_typed([](Any value, String type_key, PackedFunc change) {
  Any out;
  Check(PortcallRewrite(&value.cell(), IndexOf(type_key), change.get(), out.out()));
  return out;
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.MapChildren").set_body_typed([](Any value, PackedFunc change) {
  Any out;
  Check(PortcallMapChildren(&value.cell(), change.get(), out.out()));
  return out;
});

}  // namespace
}  // namespace portcall::ir
