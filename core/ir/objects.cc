// SPDX-License-Identifier: Apache-2.0
// Objects of described types for languages that reach the core by its functions alone, such as JavaScript: the
// description of a type, with functions that read and write its fields, and the Lists and Dicts that fields hold.
// Bodies take cells as they are: conversions of arguments to C++ types would double the size.
#include "ir/containers.h"
#include "portcall/reflection.h"

namespace portcall::ir {
namespace {

Any MakeArray(const std::vector<Any>& items) { return MakeContainer(kTVMFFIArray, items.data(), items.size()); }
Any TextOf(const TVMFFIByteArray& text) { return String(ToView(text)); }

const TVMFFITypeInfo& InfoOf(int32_t index) {
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(index);
  PORTCALL_CHECK(info, ValueError) << "no type has the index " << index;
  return *info;
}

// Argument `i`, an object of a type.
TVMFFIObject* ObjectAt(Args args, int i, int32_t type) {
  const TVMFFIAny& cell = args.cells()[i];
  PORTCALL_CHECK(i < args.size() && IsObject(cell) && IsInstance(cell.type_index, type), TypeError)
      << "expected " << DescribeType(type) << ", got " << (i < args.size() ? DescribeValue(cell) : "nothing");
  return cell.v_obj;
}

// ---- Types --------------------------------------------------------------------------------------------------------

// Functions of a field, which take an object. Descriptions live as long as the process.
Any Getter(const TVMFFITypeInfo& type, const TVMFFIFieldInfo& field) {
  return PackedFunc(
      [&type, field](Args args, RetValue* rv) { *rv = GetField(ObjectAt(args, 0, type.type_index), field); });
}
Any Setter(const TVMFFITypeInfo& type, const TVMFFIFieldInfo& field) {
  if (!(field.flags & kTVMFFIFieldFlagBitMaskWritable)) return {};
  return PackedFunc([&type, field](Args args, RetValue*) {
    PORTCALL_CHECK(args.size() == 2, TypeError) << "'" << ToView(field.name) << "' takes one value";
    Check(PortcallObjectSetField(ObjectAt(args, 0, type.type_index), &field, args.cells() + 1));
  });
}

PORTCALL_REGISTER_GLOBAL("portcall.ir.TypeIndex").set_body([](Args args, RetValue* rv) {
  const String key = args[0];
  const TVMFFIByteArray text = ToByteArray(key);
  int32_t index = -1;
  Check(TVMFFITypeKeyToIndex(&text, &index));
  *rv = index;
});

// Of the type with an index: [key, index of the parent or -1, documentation, whether objects can be made from fields,
// constructor or None, fields, methods], without those of ancestors. A field is [name, documentation, flags, type as JSON,
// getter, setter or None], a method [name, documentation, flags, function].
PORTCALL_REGISTER_GLOBAL("portcall.ir.DescribeType").set_body([](Args args, RetValue* rv) {
  static const TVMFFITypeAttrColumn* const constructors = AttributeColumn("__ffi_init__");
  const TVMFFITypeInfo& type = InfoOf(args[0]);
  std::vector<Any> fields, methods;
  for (int32_t i = 0; i < type.num_fields; ++i) {
    const TVMFFIFieldInfo& field = type.fields[i];
    fields.push_back(MakeArray({TextOf(field.name), TextOf(field.doc), field.flags, TextOf(field.metadata),
                                Getter(type, field), Setter(type, field)}));
  }
  for (int32_t i = 0; i < type.num_methods; ++i) {
    const TVMFFIMethodInfo& method = type.methods[i];
    methods.push_back(MakeArray({TextOf(method.name), TextOf(method.doc), method.flags, Any::Copy(method.method)}));
  }
  const int32_t parent = type.type_depth > 0 ? type.type_ancestors[type.type_depth - 1]->type_index : -1;
  const TVMFFITypeMetadata* metadata = type.metadata;
  const TVMFFIByteArray no_doc = {"", 0};
  *rv = MakeArray({TextOf(type.type_key), parent, TextOf(metadata ? metadata->doc : no_doc),
                   metadata && metadata->creator, FindHook(type.type_index, constructors), MakeArray(fields),
                   MakeArray(methods)});
});

// A new object of the type with an index from a Map of its fields by name; defaults for the others.
PORTCALL_REGISTER_GLOBAL("portcall.ir.CreateObject").set_body([](Args args, RetValue* rv) {
  const int32_t index = args[0];
  const TVMFFITypeInfo& type = InfoOf(index);
  TVMFFIObject* values = ObjectAt(args, 1, kTVMFFIMap);
  std::vector<TVMFFIAny> cells;
  int64_t used = 0;
  ForEachField(type, [&](const TVMFFIFieldInfo& field) {
    TVMFFIAny& cell = cells.emplace_back();
    cell.type_index = kTVMFFIUnchanged;
    const Any name = TextOf(field.name);
    const TVMFFIAny* given = nullptr;
    Check(PortcallMapFind(values, &name.cell(), &given));
    if (given) cell = *given;
    used += given != nullptr;
  });
  const bool unknown = used < PortcallMapSize(values);
  for (const TVMFFIAny* pair = nullptr; unknown && (pair = PortcallMapNext(values, pair)) != nullptr;) {
    const auto name = TryString(*pair);
    PORTCALL_CHECK(name && FindField(index, *name), TypeError)
        << ToView(type.type_key) << " has no field " << (name ? "'" + std::string(*name) + "'" : DescribeValue(*pair));
  }
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallObjectCreate(index, cells.data(), static_cast<int32_t>(cells.size()), &handle));
  *rv = ObjectRef::Steal(handle);
});

// Adds a method to a type: its index, the name, the text about it, metadata, whether it is static, and the function.
PORTCALL_REGISTER_GLOBAL("portcall.ir.AddMethod")
    .set_body_typed([](int32_t index, String name, String doc, String metadata, bool is_static, PackedFunc function) {
      const Any method = function;
      const int64_t flags = is_static ? kTVMFFIFieldFlagBitMaskIsStaticMethod : 0;
      const TVMFFIMethodInfo info = {ToByteArray(name), ToByteArray(doc), ToByteArray(metadata), flags, method.cell()};
      Check(TVMFFITypeRegisterMethod(index, &info));
    });

// ---- Lists, Dicts and Shapes --------------------------------------------------------------------------------------

// Their size, and the items at a place or of a key, are those of ffi.ArraySize, ffi.MapGetItem and so on.

// A container of another type with the same contents: of a List an Array, of a Dict a Map, of a Shape an Array of numbers; of an
// Array a List, of a Map a Dict.
PORTCALL_REGISTER_GLOBAL("portcall.ir.Convert").set_body([](Args args, RetValue* rv) {
  TVMFFIObject* container = ObjectAt(args, 0, kTVMFFIObject);
  const int32_t type = container->type_index;
  std::vector<Any> cells;
  if (type == kTVMFFIShape) {
    const Shape shape = args[0];
    cells.assign(shape.begin(), shape.end());
    *rv = MakeArray(cells);
  } else if (type == kTVMFFIList || type == kTVMFFIArray) {
    const auto& items = *reinterpret_cast<const TVMFFISeqCell*>(container + 1);
    *rv = MakeContainer(type == kTVMFFIList ? kTVMFFIArray : kTVMFFIList, static_cast<const Any*>(items.data),
                        static_cast<size_t>(items.size));
  } else {
    const bool is_dict = type == kTVMFFIDict;
    if (!is_dict) ObjectAt(args, 0, kTVMFFIMap);
    for (const TVMFFIAny* pair = nullptr; (pair = PortcallMapNext(container, pair));) {
      cells.push_back(Any::Copy(pair[0]));
      cells.push_back(Any::Copy(pair[1]));
    }
    *rv = MakeContainer(is_dict ? kTVMFFIMap : kTVMFFIDict, cells.data(), cells.size());
  }
});

// list, start, count, items: puts the items of an Array in the place of `count` others.
PORTCALL_REGISTER_GLOBAL("portcall.ir.ListSplice").set_body([](Args args, RetValue*) {
  TVMFFIObjectHandle list = ObjectAt(args, 0, kTVMFFIList);
  const auto& items = *reinterpret_cast<const TVMFFISeqCell*>(ObjectAt(args, 3, kTVMFFIArray) + 1);
  Check(PortcallArraySplice(&list, args[1], args[2], static_cast<const TVMFFIAny*>(items.data), items.size));
});
// dict, key, value
PORTCALL_REGISTER_GLOBAL("portcall.ir.DictSet").set_body([](Args args, RetValue*) {
  TVMFFIObjectHandle dict = ObjectAt(args, 0, kTVMFFIDict);
  PORTCALL_CHECK(args.size() == 3, TypeError) << "a Dict takes a key and a value";
  Check(PortcallMapSet(&dict, args.cells() + 1, args.cells() + 2));
});
// dict, key: whether it was there.
PORTCALL_REGISTER_GLOBAL("portcall.ir.DictErase").set_body([](Args args, RetValue* rv) {
  TVMFFIObjectHandle dict = ObjectAt(args, 0, kTVMFFIDict);
  PORTCALL_CHECK(args.size() == 2, TypeError) << "a Dict takes a key";
  int erased = 0;
  Check(PortcallMapErase(&dict, args.cells() + 1, &erased));
  *rv = erased != 0;
});

}  // namespace
}  // namespace portcall::ir
