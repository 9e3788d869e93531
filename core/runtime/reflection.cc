// SPDX-License-Identifier: Apache-2.0
// Types that are defined at run time: their objects are a row of cells. And making objects of any described type.
#include "portcall/reflection.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "runtime/node.h"

namespace portcall {

int CreateRow(TVMFFIObjectHandle*) {
  return Guard(
      [] { PORTCALL_THROW(TypeError) << "objects of types defined at run time are made by PortcallObjectCreate"; });
}

int ReadCell(void* field, TVMFFIAny* result) { return TVMFFIAnyViewToOwnedAny(static_cast<TVMFFIAny*>(field), result); }

namespace {

size_t NumCells(const TVMFFITypeInfo& info) {
  return (static_cast<size_t>(MetadataOf(info)->total_size) - sizeof(TVMFFIObject)) / sizeof(TVMFFIAny);
}

// The cells follow it. It is made and deleted by hand: NewNode and DeleteNode take 17 ns more, of 250 in Python.
struct RowImpl final : Object {
  Any* cells() { return reinterpret_cast<Any*>(this + 1); }
};
static_assert(sizeof(RowImpl) == sizeof(TVMFFIObject) && sizeof(RowImpl) % alignof(TVMFFIAny) == 0);

// Counted as an ffi.Object.
void DeleteRow(void* self, int flags) {
  auto* row = static_cast<RowImpl*>(self);
  const bool guarded = flags == (kDestroy | kFree);
  if (guarded && !PortcallObjectEnterDelete(row)) return;
  if (flags & kDestroy) {
    live_nodes[kTVMFFIObject].fetch_sub(1, std::memory_order_relaxed);
    std::destroy_n(row->cells(), NumCells(*TVMFFIGetTypeInfo(row->type_index)));
  }
  if (flags & kFree) ::operator delete(self);
  if (guarded) PortcallObjectLeaveDelete();
}

RowImpl* NewRow(int32_t type_index, size_t num_cells) {
  auto* row = static_cast<RowImpl*>(::operator new(sizeof(RowImpl) + num_cells * sizeof(TVMFFIAny)));
  row->combined_ref_count = kWeakOne | kStrongOne;
  row->type_index = type_index;
  row->padding = 0;
  row->deleter = DeleteRow;
  std::uninitialized_value_construct_n(row->cells(), num_cells);
  live_nodes[kTVMFFIObject].fetch_add(1, std::memory_order_relaxed);
  return row;
}

const TVMFFITypeInfo& InfoOf(int32_t type_index) {
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(type_index);
  PORTCALL_CHECK(info, ValueError) << "no type has the index " << type_index;
  return *info;
}

// What a type makes of a value that is not of it, with its hook. False: nothing.
bool Convert(int32_t declared, const TVMFFIAny& value, Any* out) {
  static const TVMFFITypeAttrColumn* const column = AttributeColumn("__ffi_convert__");
  PackedFunc hook = FindHook(declared, column);
  if (!hook.defined()) return false;
  try {
    *out = hook(Any::Copy(value));
  } catch (const Error& error) {
    if (error.kind() != "TypeError") throw;
    return false;
  }
  return IsObjectIndex(out->type_index()) && IsInstance(out->type_index(), declared);
}

// A value as a field of that declared type keeps it. False: it does not fit.
bool Fit(const TVMFFIFieldInfo& field, const TVMFFIAny& value, Any* out) {
  const int32_t declared = field.field_static_type_index;
  const int32_t given = value.type_index;
  bool fits = declared == kTVMFFIAny
                  ? given != kTVMFFIDLTensorPtr  // a borrowed one is only lent
                  : given == declared || (given == kTVMFFINone && (field.flags & kPortcallFieldFlagOptional));
  if (!fits) {
    switch (declared) {
      case kTVMFFIFloat:
        if (given != kTVMFFIInt) return false;
        *out = static_cast<double>(value.v_int64);
        return true;
      case kTVMFFIInt:
        if (given == kTVMFFIBool) {
          *out = value.v_int64;
          return true;
        }
        fits = given == kTVMFFIBigInt;
        break;
      case kTVMFFIStr:
        fits = given == kTVMFFISmallStr || given == kTVMFFIRawStr;
        break;
      case kTVMFFIBytes:
        fits = given == kTVMFFISmallBytes || given == kTVMFFIByteArrayPtr;
        break;
      case kTVMFFIArray:
        fits = given == kTVMFFIList;
        break;
      default:
        if (!IsObjectIndex(declared)) return false;
        fits = IsObjectIndex(given) && IsInstance(given, declared);
        if (!fits) return Convert(declared, value, out);
    }
  }
  if (fits) Check(TVMFFIAnyViewToOwnedAny(&value, out->out()));
  return fits;
}

[[noreturn]] void ThrowMisfit(const TVMFFITypeInfo& type, const TVMFFIFieldInfo& field, const TVMFFIAny& value) {
  std::string expected =
      field.field_static_type_index == kTVMFFIAny ? "a value" : DescribeType(field.field_static_type_index);
  if (field.flags & kPortcallFieldFlagOptional) expected += " or None";
  std::string got = DescribeValue(value);
  if (const auto text = TryString(value); text && text->size() <= 40) got.append(" '").append(*text).append("'");
  PORTCALL_THROW(TypeError) << ToView(type.type_key) << "." << ToView(field.name) << ": expected " << expected
                            << ", got " << got;
}

Any DefaultOf(const TVMFFITypeInfo& type, const TVMFFIFieldInfo& field) {
  PORTCALL_CHECK(field.flags & kTVMFFIFieldFlagBitMaskHasDefault, TypeError)
      << ToView(type.type_key) << " needs a value for '" << ToView(field.name) << "'";
  Any value = Any::Copy(field.default_value_or_factory);
  if (field.flags & kTVMFFIFieldFlagBitMaskDefaultFromFactory) return value.cast<PackedFunc>()();
  return value;
}

// As the attribute of every type of rows, for libraries that copy objects.
Any CopyRow(const ObjectRef& from) {
  const size_t n = NumCells(InfoOf(from.type_index()));
  RowImpl* row = NewRow(from.type_index(), n);
  std::copy_n(static_cast<RowImpl*>(from.get())->cells(), n, row->cells());
  return ObjectRef::Steal(row);
}

TVMFFIObject* CreateOfCells(const TVMFFITypeInfo& type, const TVMFFIAny* values, int32_t num_values) {
  size_t n = NumCells(type);
  PORTCALL_CHECK(!values || static_cast<size_t>(num_values) == n, TypeError)
      << ToView(type.type_key) << " has " << n << " fields, got " << num_values << " values";
  RowImpl* row = NewRow(type.type_index, n);
  ObjectRef owner = ObjectRef::Steal(row);
  size_t i = 0;
  ForEachField(type, [&](const TVMFFIFieldInfo& field) {
    const TVMFFIAny* value = values && values[i].type_index != kTVMFFIUnchanged ? &values[i] : nullptr;
    Any* cell = row->cells() + i++;
    if (value) {
      if (!Fit(field, *value, cell)) ThrowMisfit(type, field, *value);
    } else if (field.flags & kTVMFFIFieldFlagBitMaskHasDefault ||
               (values && !(field.flags & kTVMFFIFieldFlagBitMaskInitOff))) {
      Any made = DefaultOf(type, field);
      if (!Fit(field, made.cell(), cell)) ThrowMisfit(type, field, made.cell());
    }
  });
  return owner.release();
}

// The type of objects that libraries on tvm-ffi's headers name in a field's metadata; -1 when they do not.
int32_t SchemaType(const TVMFFIFieldInfo& field) {
  constexpr std::string_view kBefore = R"("type_schema":"{\"type\":\")";
  const std::string_view text = ToView(field.metadata);
  const size_t at = text.find(kBefore);
  if (at == text.npos) return -1;
  const std::string_view key = text.substr(at + kBefore.size());
  const TVMFFIByteArray name = ToByteArray(key.substr(0, key.find('\\')));
  return TVMFFITypeGetOrAllocIndex(&name, -1, 0, 0, 1, -2);  // of a known type alone
}

void SetField(TVMFFIObject* obj, const TVMFFITypeInfo& type, const TVMFFIFieldInfo& field, const TVMFFIAny& value) {
  void* place = reinterpret_cast<char*>(obj) + field.offset;
  int status;
  if (field.flags & kTVMFFIFieldFlagBitSetterIsFunctionObj) {
    TVMFFIAny args[2] = {}, result = {};
    args[0].type_index = kTVMFFIOpaquePtr;
    args[0].v_ptr = place;
    args[1] = value;
    status = TVMFFIFunctionCall(field.setter, args, 2, &result);
    if (status == 0) Any::Steal(result);
  } else {
    status = reinterpret_cast<TVMFFIFieldSetter>(field.setter)(place, &value);
  }
  if (status == 0) return;
  try {
    ThrowRaised();
  } catch (const Error& error) {
    const int32_t declared = SchemaType(field);
    const bool other = declared >= 0 && !(IsObjectIndex(value.type_index) && IsInstance(value.type_index, declared));
    if (Any made; error.kind() == "TypeError" && other && Convert(declared, value, &made)) {
      return SetField(obj, type, field, made.cell());
    }
    throw Error(
        error.kind(),
        std::string(ToView(type.type_key)).append(".").append(ToView(field.name)).append(": ").append(error.message()));
  }
}

TVMFFIObject* CreateByCreator(const TVMFFITypeInfo& type, const TVMFFIAny* values, int32_t num_values) {
  const TVMFFITypeMetadata* metadata = MetadataOf(type);
  PORTCALL_CHECK(metadata && metadata->creator, TypeError)
      << "objects of type '" << ToView(type.type_key) << "' cannot be made from fields: "
      << (metadata ? "its C++ type has no default constructor" : "nobody described it");
  TVMFFIObjectHandle handle = nullptr;
  Check(metadata->creator(&handle));
  ObjectRef owner = ObjectRef::Steal(handle);
  if (!values) return owner.release();
  int32_t i = 0;
  ForEachField(type, [&](const TVMFFIFieldInfo& field) {
    PORTCALL_CHECK(i < num_values, TypeError) << ToView(type.type_key) << " has more than " << num_values << " fields";
    const TVMFFIAny& value = values[i++];
    if (value.type_index != kTVMFFIUnchanged) return SetField(owner.get(), type, field, value);
    const int64_t flags = field.flags & (kTVMFFIFieldFlagBitMaskHasDefault | kTVMFFIFieldFlagBitMaskInitOff);
    if (flags == kTVMFFIFieldFlagBitMaskInitOff) return;  // it is as the creator left it
    SetField(owner.get(), type, field, DefaultOf(type, field).cell());
  });
  PORTCALL_CHECK(i == num_values, TypeError)
      << ToView(type.type_key) << " has " << i << " fields, got " << num_values << " values";
  return owner.release();
}

void SetCell(TVMFFIObject* obj, const TVMFFITypeInfo& type, const TVMFFIFieldInfo& field, const TVMFFIAny& value) {
  Any kept;
  if (!Fit(field, value, &kept)) ThrowMisfit(type, field, value);
  std::swap(*reinterpret_cast<Any*>(reinterpret_cast<char*>(obj) + field.offset), kept);
}

// Compiled code sets a field by its address alone. The object starts where there is a row's type beside a row's deleter:
// a cell with such a type holds an object, which does not lie at the address of a function.
int WriteCell(void* field, const TVMFFIAny* value) {
  return Guard([&] {
    auto* row = static_cast<TVMFFIObject*>(field) - 1;
    while (row->deleter != DeleteRow || row->type_index < kTVMFFIDynObjectBegin) {
      row = reinterpret_cast<TVMFFIObject*>(reinterpret_cast<char*>(row) - sizeof(TVMFFIAny));
    }
    const TVMFFITypeInfo& type = InfoOf(row->type_index);
    ForEachField(type, [&](const TVMFFIFieldInfo& info) {
      if (reinterpret_cast<char*>(row) + info.offset == field) SetCell(row, type, info, *value);
    });
  });
}

bool SameFields(const TVMFFITypeInfo& info, const PortcallFieldSpec* fields, int32_t n) {
  if (info.num_fields != n) return false;
  for (int32_t i = 0; i < n; ++i) {
    const TVMFFIFieldInfo& old = info.fields[i];
    int32_t declared = fields[i].type_index == kPortcallTypeSelf ? info.type_index : fields[i].type_index;
    if (ToView(old.name) != ToView(fields[i].name) || old.field_static_type_index != declared) return false;
  }
  return true;
}

void DefineType(const TVMFFIByteArray* key, int32_t parent, const TVMFFITypeMetadata* metadata,
                const PortcallFieldSpec* fields, int32_t n, int32_t* out) {
  const TVMFFITypeInfo& up = InfoOf(parent);
  PORTCALL_CHECK(IsObjectIndex(parent) && (parent == kTVMFFIObject || parent >= kTVMFFIDynObjectBegin), TypeError)
      << "nothing can derive from " << DescribeType(parent);
  size_t inherited = FieldsOf(parent).size();
  // Cells start after the header: compiled code must not keep anything there.
  const TVMFFITypeMetadata* known = MetadataOf(up);
  const bool bare = inherited == 0 && (parent == kTVMFFIObject ||
                                       (known && known->total_size == static_cast<int32_t>(sizeof(TVMFFIObject))));
  PORTCALL_CHECK(bare || IsRow(up), TypeError)
      << "'" << ToView(*key) << "' cannot derive from '" << ToView(up.type_key)
      << "', whose objects may have members that only compiled code knows; hold one in a field";
  for (int32_t i = 0; i < n; ++i) {
    bool taken = FindField(parent, ToView(fields[i].name));
    for (int32_t k = 0; k < i; ++k) taken |= ToView(fields[k].name) == ToView(fields[i].name);
    PORTCALL_CHECK(!taken, TypeError) << "'" << ToView(*key) << "' has the field '" << ToView(fields[i].name)
                                      << "' already; give this one another name";
  }
  int32_t index = TVMFFITypeGetOrAllocIndex(key, -1, 0, 0, 1, -2);
  if (index >= 0) {
    const TVMFFITypeInfo& old = InfoOf(index);
    bool same =
        IsRow(old) && old.type_depth > 0 && old.type_ancestors[old.type_depth - 1] == &up && SameFields(old, fields, n);
    PORTCALL_CHECK(same, ValueError)
        << "type '" << ToView(*key) << "' exists already, with other fields or another base; give this one another key";
  } else {
    index = TVMFFITypeGetOrAllocIndex(key, -1, 0, 0, 1, parent);
    if (index < 0) ThrowRaised();
  }
  for (int32_t i = 0; i < n; ++i) {
    TVMFFIFieldInfo field{};
    field.name = fields[i].name;
    field.doc = fields[i].doc;
    field.metadata = fields[i].metadata;
    field.flags = fields[i].flags | kPortcallFieldFlagCell;
    field.size = sizeof(TVMFFIAny);
    field.alignment = alignof(TVMFFIAny);
    field.offset =
        static_cast<int64_t>(sizeof(TVMFFIObject) + (inherited + static_cast<size_t>(i)) * sizeof(TVMFFIAny));
    field.getter = ReadCell;
    field.setter = reinterpret_cast<void*>(WriteCell);
    field.default_value_or_factory = fields[i].default_value;
    field.field_static_type_index = fields[i].type_index == kPortcallTypeSelf ? index : fields[i].type_index;
    Check(TVMFFITypeRegisterField(index, &field));
  }
  TVMFFITypeMetadata own = *metadata;
  own.creator = CreateRow;
  own.total_size =
      static_cast<int32_t>(sizeof(TVMFFIObject) + (inherited + static_cast<size_t>(n)) * sizeof(TVMFFIAny));
  Check(TVMFFITypeRegisterMetadata(index, &own));
  static const Any copy = PackedFunc(detail::Unpack(CopyRow));
  const TVMFFIByteArray name = ToByteArray("__ffi_shallow_copy__");
  Check(TVMFFITypeRegisterAttr(index, &name, &copy.cell()));
  *out = index;
}

}  // namespace
}  // namespace portcall

using namespace portcall;

int PortcallTypeDefine(const TVMFFIByteArray* type_key, int32_t parent_type_index, const TVMFFITypeMetadata* metadata,
                       const PortcallFieldSpec* fields, int32_t num_fields, int32_t* type_index) {
  return Guard([&] { DefineType(type_key, parent_type_index, metadata, fields, num_fields, type_index); });
}

int PortcallObjectSetField(TVMFFIObjectHandle obj, const TVMFFIFieldInfo* field, const TVMFFIAny* value) {
  return Guard([&] {
    auto* node = static_cast<TVMFFIObject*>(obj);
    const TVMFFITypeInfo& type = InfoOf(node->type_index);
    if (!(field->flags & kPortcallFieldFlagCell && IsRow(type))) return SetField(node, type, *field, *value);
    SetCell(node, type, *field, *value);
  });
}

int PortcallObjectCreate(int32_t type_index, const TVMFFIAny* values, int32_t num_values, TVMFFIObjectHandle* out) {
  return Guard([&] {
    const TVMFFITypeInfo& type = InfoOf(type_index);
    *out = IsRow(type) ? CreateOfCells(type, values, num_values) : CreateByCreator(type, values, num_values);
  });
}
