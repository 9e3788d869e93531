// SPDX-License-Identifier: Apache-2.0
#include "ir/types.h"

#include "ir/enum.h"
#include "ir/hash_bytes.h"
#include "ir/text.h"

namespace portcall::ir {
namespace {

constexpr size_t kShown = 40;

Form FormOf(int32_t index) {
  switch (index) {
    case kTVMFFIStr:
    case kTVMFFIBytes:
    case kTVMFFIShape:
    case kTVMFFIBigInt:
      return Form::kValue;
    case kTVMFFIArray:
    case kTVMFFIList:
      return Form::kItems;
    case kTVMFFIMap:
    case kTVMFFIDict:
      return Form::kPairs;
    case kTVMFFITensor:
      return Form::kTensor;
    default:
      return IsObjectIndex(index) ? Form::kOpaque : Form::kValue;
  }
}

Field Describe(const TVMFFIFieldInfo& info) {
  Field field{};
  field.info = &info;
  field.name = ToView(info.name);
  field.offset = info.offset;
  field.access = info.flags & kPortcallFieldFlagCell        ? Field::Access::kCell
                 : info.flags & kPortcallFieldFlagReference ? Field::Access::kReference
                                                            : Field::Access::kGetter;
  field.ignored = info.flags & kTVMFFIFieldFlagBitMaskSEqHashIgnore;
  field.by_identity = info.flags & kPortcallFieldFlagIdentity;
  field.defines = info.flags & kTVMFFIFieldFlagBitMaskSEqHashDefSimple;
  field.defines_below = info.flags & kTVMFFIFieldFlagBitMaskSEqHashDefPattern;
  return field;
}

bool IsOf(const TVMFFITypeInfo& info, int32_t depth, std::string_view key) {
  return info.type_depth > depth && ToView(info.type_ancestors[depth]->type_key) == key;
}
bool IsEnum(const TVMFFITypeInfo& info) { return IsOf(info, 1, "ffi.Enum"); }

Any SavedEntry(const TVMFFIObject* obj) {
  const auto* entry = static_cast<const EnumObj*>(obj);
  return IsOf(*TVMFFIGetTypeInfo(obj->type_index), 2, "ffi.IntEnum") ? Any(entry->number) : Any(entry->name);
}

void ReadHooks(int32_t index, bool saving, Type* type) {
  static const TVMFFITypeAttrColumn* const equal = AttributeColumn("__s_equal__");
  static const TVMFFITypeAttrColumn* const hash = AttributeColumn("__s_hash__");
  static const TVMFFITypeAttrColumn* const to_data = AttributeColumn("__data_to_json__");
  static const TVMFFITypeAttrColumn* const from_data = AttributeColumn("__data_from_json__");
  static const TVMFFITypeAttrColumn* const init = AttributeColumn("__ffi_init__");
  type->equal = FindHook(index, equal);
  type->hash = FindHook(index, hash);
  if (type->equal.defined()) type->form = Form::kFields;
  type->from_data = FindHook(index, from_data);
  if (type->from_data.defined()) type->to_data = FindHook(index, to_data);
  if (saving && type->form == Form::kFields && !type->creatable) type->init = FindHook(index, init);
  if (!saving || !(type->is_enum || type->to_data.defined())) return;
  Field data{};
  data.access = Field::Access::kData;
  type->fields = {data};
  type->form = Form::kFields;
  type->creatable = true;
  type->init = nullptr;
}

bool IsSameValue(const TVMFFIAny& a, const TVMFFIAny& b) {
  if (auto text = TryString(a)) return text == TryString(b);
  return a.type_index == b.type_index && a.v_uint64 == b.v_uint64;
}

// Its type, with those fields that are values, or the name of an enum's entry.
std::string ShowObject(const TVMFFIAny& value) {
  std::string type = DescribeType(value.type_index);
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(value.type_index);
  if (!info || value.type_index < kTVMFFIDynObjectBegin) return type;
  if (IsEnum(*info)) return type + "." + std::string(static_cast<EnumObj*>(value.v_obj)->name.view());
  std::string fields;
  size_t left = 4;
  ForEachField(*info, [&](const TVMFFIFieldInfo& field) {
    if (left == 0 || (field.flags & kTVMFFIFieldFlagBitMaskReprOff)) return;
    const Any part = GetField(value.v_obj, field);
    if (part == nullptr || !Types::IsValue(part.cell())) return;
    fields += (fields.empty() ? "" : ", ") + std::string(ToView(field.name)) + "=" + Show(part.cell());
    --left;
  });
  return fields.empty() ? type : type + "(" + fields + ")";
}

}  // namespace

Any FindEnumEntry(int32_t type_index, const TVMFFIAny& saved) {
  static const TVMFFITypeAttrColumn* const states = AttributeColumn("__ffi_enum__");
  const TVMFFIAny* state = FindAttribute(type_index, states);
  if (!state || TypeKeyOf(state->type_index) != "ffi.EnumState") return {};
  const ObjectRef& list = static_cast<EnumStateObj*>(state->v_obj)->entries;
  if (list.type_index() != kTVMFFIList) return {};
  const auto* entries = reinterpret_cast<const TVMFFISeqCell*>(list.get() + 1);
  for (int64_t i = 0; i < entries->size; ++i) {
    const TVMFFIAny& entry = static_cast<const TVMFFIAny*>(entries->data)[i];
    Any known = SavedEntry(entry.v_obj);
    auto name = TryString(known.cell()), wanted = TryString(saved);
    const bool same =
        name ? wanted && *name == *wanted : saved.type_index == kTVMFFIInt && saved.v_int64 == known.cell().v_int64;
    if (same) return Any::Copy(entry);
  }
  return {};
}

// How many fields the constructor takes, nobody says. That it takes them, the object shows: they are what it was given.
ObjectRef MakeByInit(const Type& type, const TVMFFIAny* parts) {
  size_t n = 0;
  while (n < type.fields.size() && parts[n].type_index != kTVMFFIUnchanged) ++n;
  for (; n > 0; --n) {
    Any made;
    if (TVMFFIFunctionCall(type.init.get(), parts, static_cast<int32_t>(n), made.out()) != 0) {
      TVMFFIObjectHandle error = nullptr;
      TVMFFIErrorMoveFromRaised(&error);
      ObjectRef::Steal(error);
      continue;
    }
    if (made.type_index() != type.index) continue;
    TVMFFIObject* obj = made.cell().v_obj;
    auto shows = [&](size_t i) { return IsSameValue(GetField(obj, *type.fields[i].info).cell(), parts[i]); };
    size_t i = 0;
    while (i < n && shows(i)) ++i;
    if (i < n) continue;
    for (; i < type.fields.size(); ++i) {
      if (parts[i].type_index == kTVMFFIUnchanged || shows(i)) continue;
      Check(PortcallObjectSetField(obj, type.fields[i].info, &parts[i]));
    }
    return ObjectRef::Steal(made.release().v_obj);
  }
  PORTCALL_THROW(TypeError) << "the constructor of type '" << type.key << "' does not take its first fields";
}

const Any& Types::DataOf(const TVMFFIObject* obj) {
  auto [it, added] = data_.try_emplace(obj);
  if (!added) return it->second;
  const Type& type = Of(obj);
  ObjectRef ref = ObjectRef::Borrow(const_cast<TVMFFIObject*>(obj));
  it->second = type.is_enum ? SavedEntry(obj) : type.to_data(ref);
  return it->second;
}

const Type& Types::Read(int32_t index) {
  auto type = std::make_unique<Type>();
  type->index = index;
  type->form = FormOf(index);
  type->kind = kTVMFFISEqHashKindTreeNode;
  type->is_enum = false;
  if (const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(index)) {
    type->key = ToView(info->type_key);
    type->key_hash = HashBytes(type->key);
    ForEachField(*info, [&](const TVMFFIFieldInfo& field) { type->fields.push_back(Describe(field)); });
    const TVMFFITypeMetadata* metadata = __atomic_load_n(&info->metadata, __ATOMIC_ACQUIRE);
    type->creatable = metadata && metadata->creator;
    if (index >= kTVMFFIDynObjectBegin && (type->creatable || !type->fields.empty())) {
      type->form = Form::kFields;
      type->kind = metadata ? metadata->structural_eq_hash_kind : static_cast<int32_t>(kTVMFFISEqHashKindUnsupported);
    }
    type->is_enum = IsEnum(*info);
    if (index >= kTVMFFIDynObjectBegin) ReadHooks(index, saving_, type.get());
  }
  type->number = num_read_++;
  const size_t i = PlaceOf(index);
  if (i >= table_.size()) table_.resize(i + 64);
  table_[i] = std::move(type);
  return *table_[i];
}

size_t Types::NumParts(const TVMFFIObject* obj, const Type& type) const {
  switch (type.form) {
    case Form::kFields:
      return type.fields.size();
    case Form::kItems:
      return static_cast<size_t>(reinterpret_cast<const TVMFFISeqCell*>(obj + 1)->size);
    case Form::kPairs:
      return 2 * static_cast<size_t>(MapOf(obj).size);
    default:
      return 0;
  }
}

const TVMFFIAny* Types::Get(const TVMFFIObject* obj, const Field& field, TVMFFIAny* space) {
  if (field.access == Field::Access::kData) return &DataOf(obj).cell();
  Any value = GetField(obj, *field.info);
  *space = value.cell();
  if (IsObject(*space)) kept_.push_back(std::move(value));
  return space;
}

std::string Types::PathOf(const std::vector<Step>& steps, bool whole) {
  const size_t kEnd = whole ? steps.size() : 50;  // steps that stay on either side
  std::string path = "<root>";
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i == kEnd && steps.size() > 2 * kEnd) {
      path += " … (" + std::to_string(steps.size() - 2 * kEnd) + " steps) … ";
      i = steps.size() - kEnd;
    }
    const auto& [obj, part] = steps[i];
    const Type& type = Of(obj);
    if (type.form == Form::kFields) {
      path.append(".").append(type.fields[part].name);
    } else if (type.form == Form::kItems) {
      path += "[" + std::to_string(part) + "]";
    } else {
      const TVMFFIAny* pair = detail::NextPair(MapOf(obj), nullptr);
      for (size_t n = part / 2; pair && n > 0; --n) pair = detail::NextPair(MapOf(obj), pair);
      std::string key = pair ? Show(*pair) : "…";
      path += part % 2 ? "[" + key + "]" : " key " + key;
    }
  }
  return path;
}

void Types::ThrowCycle(const std::vector<Step>& steps, size_t start, const char* cannot) {
  const std::vector<Step> before(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(start));
  PORTCALL_THROW(ValueError) << PathOf(steps) << ": is " << PathOf(before) << " again: an object that contains itself "
                             << cannot;
}

std::string Quote(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text.substr(0, kShown)) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') quoted += "\\n";
    else quoted += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  }
  // Not in the middle of a character.
  while (text.size() > kShown && (static_cast<unsigned char>(quoted.back()) & 0xC0) == 0x80) quoted.pop_back();
  if (text.size() > kShown && static_cast<unsigned char>(quoted.back()) >= 0xC0) quoted.pop_back();
  return quoted + (text.size() > kShown ? "…\"" : "\"");
}

std::string Show(const TVMFFIAny& value) {
  if (auto text = TryString(value)) return Quote(*text);
  if (auto bytes = TryBytes(value)) return std::to_string(bytes->size()) + " bytes";
  switch (value.type_index) {
    case kTVMFFIInt:
      return std::to_string(value.v_int64);
    case kTVMFFIBool:
      return value.v_int64 ? "True" : "False";
    case kTVMFFIFloat: {
      const std::string text = ShortestDouble(value.v_float64);
      return text.find_first_of(".einf") == std::string::npos ? text + ".0" : text;
    }
    case kTVMFFIDataType:
      return ToString(value.v_dtype);
    case kTVMFFIDevice:
      return ToString(Device(value.v_device));
    case kTVMFFIShape:
      return ToString(ObjectRef::Borrow<Shape>(value.v_obj));
    case kTVMFFITensor: {
      const DLTensor& tensor = *TryDLTensor(value);
      return "Tensor(" + ToString(Shape(tensor.shape, static_cast<size_t>(tensor.ndim))) + ", " +
             ToString(tensor.dtype) + ")";
    }
    default:
      return ShowObject(value);
  }
}

std::string_view BytesOf(const DLTensor& tensor, Tensor* space) {
  const DLTensor* dl = &tensor;
  if (NumBytes(tensor) == 0) return {};
  if (tensor.device.device_type != kDLCPU || !IsContiguous(tensor)) {
    *space = Tensor::Empty(std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim), tensor.dtype);
    dl = space->dl_tensor();
    Check(PortcallTensorCopy(&tensor, dl));
  }
  return {static_cast<const char*>(dl->data) + dl->byte_offset, NumBytes(*dl)};
}

}  // namespace portcall::ir
