// SPDX-License-Identifier: Apache-2.0
// Attributes of types that libraries on tvm-ffi's headers count on: how their visitors and mutators get into containers,
// and how the constructor of a described type is asked for.
#include <vector>

#include "portcall/container.h"
#include "portcall/function.h"
#include "portcall/reflection.h"

namespace portcall {
namespace {

// The start of a visitor or mutator of such a library. It is called for each part of a value: a visitor returns None
// when it is to go on, a mutator what stands in the place of the part or kTVMFFIUnchanged, and both an error.
struct Descent : TVMFFIObject {
  TVMFFIAny (*const* into)(Descent* self, TVMFFIAny part);
};

bool HasPairs(const TVMFFIObject* obj) { return obj->type_index == kTVMFFIMap || obj->type_index == kTVMFFIDict; }

// What a container holds, keys and values in turn: whatever is called may change a List or a Dict.
std::vector<Any> CopyItems(TVMFFIObject* obj) {
  std::vector<Any> cells;
  const bool pairs = HasPairs(obj);
  const TVMFFIAny* pair = nullptr;
  const auto* items = reinterpret_cast<TVMFFISeqCell*>(obj + 1);
  const int64_t n = pairs ? 2 * PortcallMapSize(obj) : items->size;
  for (int64_t i = 0; i < n; ++i) {
    if (pairs && i % 2 == 0) pair = PortcallMapNext(obj, pair);
    cells.push_back(Any::Copy(pairs ? pair[i % 2] : static_cast<const TVMFFIAny*>(items->data)[i]));
  }
  return cells;
}

TVMFFIAny CellOf(int32_t type_index) {
  TVMFFIAny cell{};
  cell.type_index = type_index;
  return cell;
}

TVMFFIAny Raised() {
  TVMFFIAny cell = CellOf(kTVMFFIError);
  TVMFFIErrorMoveFromRaised(reinterpret_cast<TVMFFIObjectHandle*>(&cell.v_obj));
  return cell;
}

// A mutator leaves the keys of a map as they are. A visitor's results are None, as long as it is to go on.
TVMFFIAny GoInto(Descent* self, TVMFFIAny container, bool mutate) noexcept {
  TVMFFIObject* obj = container.v_obj;
  std::vector<Any> cells = CopyItems(obj);
  const size_t each = HasPairs(obj) ? 2 : 1;
  bool changed = false;
  for (size_t i = mutate ? each - 1 : 0; i < cells.size(); i += mutate ? each : 1) {
    Any after = Any::Steal((*self->into)(self, cells[i].cell()));
    if (after.type_index() == kTVMFFIError || (!mutate && after.type_index() != kTVMFFINone)) return after.release();
    if (!mutate || after.type_index() == kTVMFFIUnchanged) continue;
    changed |= after.type_index() != cells[i].type_index() || after.cell().v_uint64 != cells[i].cell().v_uint64;
    cells[i] = std::move(after);
  }
  if (!changed) return CellOf(mutate ? kTVMFFIUnchanged : kTVMFFINone);
  auto create = obj->type_index == kTVMFFIArray  ? PortcallArrayCreate
                : obj->type_index == kTVMFFIList ? PortcallListCreate
                : obj->type_index == kTVMFFIMap  ? PortcallMapCreate
                                                 : PortcallDictCreate;
  TVMFFIAny made = CellOf(obj->type_index);
  const auto size = static_cast<int64_t>(cells.size() / each);
  int status = create(reinterpret_cast<const TVMFFIAny*>(cells.data()), size,
                      reinterpret_cast<TVMFFIObjectHandle*>(&made.v_obj));
  return status == 0 ? made : Raised();
}

TVMFFIAny VisitItems(Descent* visitor, TVMFFIAny container) noexcept { return GoInto(visitor, container, false); }
TVMFFIAny MutateItems(Descent* mutator, TVMFFIAny container) noexcept { return GoInto(mutator, container, true); }

TVMFFIAny KeepLeaf(Descent*, TVMFFIAny) noexcept { return CellOf(kTVMFFIUnchanged); }

void Set(int32_t type_index, std::string_view name, Any value) {
  TVMFFIByteArray text = ToByteArray(name);
  Check(TVMFFITypeRegisterAttr(type_index, &text, &value.cell()));
}

Any Hook(TVMFFIAny (*hook)(Descent*, TVMFFIAny) noexcept) { return reinterpret_cast<void*>(hook); }

[[maybe_unused]] const bool attributes_registered = [] {
  for (int32_t container : {kTVMFFIArray, kTVMFFIList, kTVMFFIMap, kTVMFFIDict}) {
    Set(container, "__s_visit__", Hook(VisitItems));
    Set(container, "__s_mutate__", Hook(MutateItems));
  }
  for (int32_t leaf : {kTVMFFIStr, kTVMFFIBytes, kTVMFFIBigInt}) Set(leaf, "__s_mutate__", Hook(KeepLeaf));
  return true;
}();

// Makes an object from the values of its fields, in order; those with defaults come last and may be left out.
Any MakeOfFields(int32_t type_index, Args args) {
  const std::vector<const TVMFFIFieldInfo*> fields = FieldsOf(type_index);
  std::vector<TVMFFIAny> values(fields.size(), CellOf(kTVMFFIUnchanged));
  int next = 0;
  for (int64_t given : {0, +kTVMFFIFieldFlagBitMaskHasDefault}) {
    for (size_t i = 0; i < fields.size() && next < args.size(); ++i) {
      const int64_t which =
          kTVMFFIFieldFlagBitMaskInitOff | kTVMFFIFieldFlagBitMaskKwOnly | kTVMFFIFieldFlagBitMaskHasDefault;
      if ((fields[i]->flags & which) == given) values[i] = args[next++].cell();
    }
  }
  PORTCALL_CHECK(next == args.size(), TypeError)
      << DescribeType(type_index) << " takes " << next << " values, got " << args.size();
  TVMFFIObjectHandle made;
  Check(PortcallObjectCreate(type_index, values.data(), static_cast<int32_t>(values.size()), &made));
  return ObjectRef::Steal(made);
}

// Called for a type that has no constructor itself and is not to do without one: it is made from its fields.
PORTCALL_REGISTER_GLOBAL("ffi._RegisterFFIInit").set_body_typed([](int32_t type_index) {
  Set(type_index, "__portcall_init__", true);
  Set(type_index, "__ffi_init__",
      PackedFunc([type_index](Args args, RetValue* rv) { *rv = MakeOfFields(type_index, args); }));
});

}  // namespace
}  // namespace portcall
