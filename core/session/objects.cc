// SPDX-License-Identifier: Apache-2.0
// What a client may ask of an object that stays here: only what its description lists, and no name that begins with an
// underscore. portcall/rpc/server/_objects.py adds what only Python has: iterators, names of arguments, methods in Python.
#include "portcall/reflection.h"
#include "session/files.h"

namespace portcall::session {
namespace {

constexpr int64_t kNoLength = -1;

bool IsSequence(const Any& value) {
  const int32_t kind = value.cell().type_index;
  return kind == kTVMFFIArray || kind == kTVMFFIList || kind == kTVMFFIShape;
}
bool IsMapping(const Any& value) {
  return value.cell().type_index == kTVMFFIMap || value.cell().type_index == kTVMFFIDict;
}

int64_t LengthOf(const Any& value) {
  const TVMFFIAny& cell = value.cell();
  if (cell.type_index == kTVMFFIShape) return static_cast<int64_t>(value.cast<Shape>().size());
  if (IsSequence(value)) return static_cast<int64_t>(reinterpret_cast<const TVMFFISeqCell*>(cell.v_obj + 1)->size);
  return IsMapping(value) ? static_cast<int64_t>(static_cast<const MapObj*>(cell.v_obj)->cell.size) : kNoLength;
}

// Calls use(method) for the methods of a type, its ancestors' first.
template <typename F> void ForEachMethod(int32_t type_index, F use) {
  const TVMFFITypeInfo* type = TVMFFIGetTypeInfo(type_index);
  for (int32_t depth = 0; type && depth <= type->type_depth; ++depth) {
    const TVMFFITypeInfo& owner = depth < type->type_depth ? *type->type_ancestors[depth] : *type;
    for (int32_t i = 0; i < owner.num_methods; ++i) use(owner.methods[i]);
  }
}

bool IsShown(const TVMFFIByteArray& name) { return name.size && *name.data != '_'; }

Map<String, Any> Describe(Any value) {
  const int32_t kind = value.cell().type_index;
  std::vector<Any> fields, methods;
  for (const TVMFFIFieldInfo* field : FieldsOf(kind)) {
    if (IsShown(field->name)) fields.emplace_back(String(ToView(field->name)));
  }
  ForEachMethod(kind, [&](const TVMFFIMethodInfo& method) {
    if (IsShown(method.name)) methods.emplace_back(String(ToView(method.name)));
  });
  return {{"type", DescribeType(kind)},
          {"fields", Array<Any>(fields)},
          {"methods", Array<Any>(methods)},
          {"length", LengthOf(value)}};
}

Any Field(Any value, std::string name) {
  const TVMFFIFieldInfo* field = FindField(value.cell().type_index, name);
  PORTCALL_CHECK(field && IsShown(field->name), AttributeError)
      << DescribeType(value.cell().type_index) << " has no field '" << name << "'";
  return GetField(value.cell().v_obj, *field);
}

Any Item(Any value, Any key) {
  const TVMFFIAny& cell = value.cell();
  if (IsSequence(value)) {
    const int64_t size = LengthOf(value), given = key.cast<int64_t>(), index = given < 0 ? given + size : given;
    PORTCALL_CHECK(index >= 0 && index < size, IndexError) << "index " << given << " is out of bounds (" << size << ")";
    if (cell.type_index == kTVMFFIShape) return value.cast<Shape>()[static_cast<size_t>(index)];
    return Any::Copy(
        static_cast<const TVMFFIAny*>(reinterpret_cast<const TVMFFISeqCell*>(cell.v_obj + 1)->data)[index]);
  }
  PORTCALL_CHECK(IsMapping(value), TypeError) << DescribeType(cell.type_index) << " has no items";
  if (cell.type_index == kTVMFFIDict) return value.cast<Dict<Any, Any>>().at(key);
  return value.cast<Map<Any, Any>>().at(key);
}

void CallMethod(Args args, RetValue* rv) {
  const auto name = args[1].cast<std::string>();
  const int32_t kind = args[0].cell().type_index;
  Any found;
  ForEachMethod(kind, [&](const TVMFFIMethodInfo& method) {
    if (IsShown(method.name) && ToView(method.name) == name) found = Any::Copy(method.method);
  });
  PORTCALL_CHECK(found != nullptr, AttributeError) << DescribeType(kind) << " has no method '" << name << "'";
  std::vector<Any> given = {args[0].cast<Any>()};
  for (int i = 2; i < args.size(); ++i) given.push_back(args[i].cast<Any>());
  *rv = found.cast<PackedFunc>().CallPacked(reinterpret_cast<const TVMFFIAny*>(given.data()),
                                            static_cast<int32_t>(given.size()));
}

Any Next(Any value, int64_t) {
  PORTCALL_THROW(TypeError) << DescribeType(value.cell().type_index) << " cannot be iterated over";
}

void CallWithNames(Args, RetValue*) {
  PORTCALL_THROW(TypeError) << "unexpected keyword argument: functions of this server have no names of arguments";
}

}  // namespace

Functions ObjectFunctions() {
  Functions functions;
  const auto offer = [&](const char* name, auto body) {
    functions.emplace_back(name, PackedFunc(std::move(body), name));
  };
  offer("portcall.rpc.object_describe", detail::Unpack(Describe));
  offer("portcall.rpc.object_field", detail::Unpack(Field));
  offer("portcall.rpc.object_item", detail::Unpack(Item));
  offer("portcall.rpc.object_next", detail::Unpack(Next));
  offer("portcall.rpc.object_call", CallMethod);
  offer("portcall.rpc.call_with_names", CallWithNames);
  return functions;
}

}  // namespace portcall::session
