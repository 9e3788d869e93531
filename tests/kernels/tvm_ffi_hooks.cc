// SPDX-License-Identifier: Apache-2.0
// Types on the apache-tvm-ffi headers whose behaviour C++ decides: constructors, equality, hash, text, copies, what is
// saved, conversions; enums; and visitors and mutators that go over graphs of any described objects.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/list.h>
#include <tvm/ffi/enum.h>
#include <tvm/ffi/extra/dataclass.h>
#include <tvm/ffi/extra/serialization.h>
#include <tvm/ffi/extra/structural_equal.h>
#include <tvm/ffi/extra/structural_hash.h>
#include <tvm/ffi/extra/structural_mutate.h>
#include <tvm/ffi/extra/structural_visit.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/enum_def.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>
#include <vector>

namespace portcall_hooks {

namespace ffi = tvm::ffi;
namespace refl = tvm::ffi::reflection;

// Made by its constructor alone, which orders its ends and computes a third field.
class RangeObj : public ffi::Object {
 public:
  int64_t low, high, width;
  RangeObj(int64_t a, int64_t b) : low(std::min(a, b)), high(std::max(a, b)), width(high - low) {}
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO("hooks.Range", RangeObj, ffi::Object);
};

class NamedRangeObj : public RangeObj {
 public:
  ffi::String name;
  NamedRangeObj(int64_t a, int64_t b, ffi::String name) : RangeObj(a, b), name(std::move(name)) {}
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.NamedRange", NamedRangeObj, RangeObj);
};

// Has a default constructor, but says that another one is to be used.
class CounterObj : public ffi::Object {
 public:
  int64_t count = 0;
  int64_t twice = 0;  // not described
  CounterObj() = default;
  explicit CounterObj(int64_t n) : count(n), twice(2 * n) {
    if (n < 0) TVM_FFI_THROW(ValueError) << "a counter starts at zero or above, got " << n;
  }
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Counter", CounterObj, ffi::Object);
};

// Made by C++ only.
class SecretObj : public ffi::Object {
 public:
  int64_t value = 42;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Secret", SecretObj, ffi::Object);
};

// A field with a default before one without, one by name only, and one that no constructor takes.
class MixedObj : public ffi::Object {
 public:
  int64_t scale = 1;
  int64_t value = 0;
  int64_t flag = 0;
  int64_t cache = 5;
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Mixed", MixedObj, ffi::Object);
};

// Not to be copied.
class HandleObj : public ffi::Object {
 public:
  int64_t number = 0;
  HandleObj() = default;
  HandleObj(const HandleObj&) = delete;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Handle", HandleObj, ffi::Object);
};

// A name whose case does not matter, with an item that is compared as a structure.
class NameObj : public ffi::Object {
 public:
  ffi::String text;
  ffi::Any item;

  static std::string Lower(const ffi::String& text) {
    std::string lower(text.data(), text.size());
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return lower;
  }
  bool Equal(const NameObj* other,
             ffi::TypedFunction<bool(ffi::AnyView, ffi::AnyView, int, ffi::AnyView)> equal) const {
    return Lower(text) == Lower(other->text) && equal(item, other->item, 0, "item");
  }
  int64_t Hash(int64_t start, ffi::TypedFunction<int64_t(ffi::AnyView, int64_t, int)> hash) const {
    return hash(item, hash(ffi::String(Lower(text)), start, 0), 0);
  }
  static constexpr TVMFFISEqHashKind _type_s_eq_hash_kind = kTVMFFISEqHashKindTreeNode;
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Name", NameObj, ffi::Object);
};

// An amount of money in cents, which no field shows: its text, value and saved form are those of the hooks.
class MoneyObj : public ffi::Object {
 public:
  int64_t cents = 0;
  ffi::Any note;
  MoneyObj() = default;
  explicit MoneyObj(int64_t cents) : cents(cents) {}
  static constexpr TVMFFISEqHashKind _type_s_eq_hash_kind = kTVMFFISEqHashKindTreeNode;
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Money", MoneyObj, ffi::Object);
};

class Money : public ffi::ObjectRef {
 public:
  explicit Money(int64_t cents) { data_ = ffi::make_object<MoneyObj>(cents); }
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Money, ffi::ObjectRef, MoneyObj);
};

class PurseObj : public ffi::Object {
 public:
  Money money{0};
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Purse", PurseObj, ffi::Object);
};

class ColorObj : public ffi::EnumObj {
 public:
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Color", ColorObj, ffi::EnumObj);
};

class LevelObj : public ffi::IntEnumObj {
 public:
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Level", LevelObj, ffi::IntEnumObj);
};

// A node whose only child no field shows: the visitor's hook does.
class BoxObj : public ffi::Object {
 public:
  ffi::Any hidden;
  BoxObj() = default;
  explicit BoxObj(ffi::Any hidden) : hidden(std::move(hidden)) {}
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Box", BoxObj, ffi::Object);
};

// Its code relies on what is in the list.
class TotalsObj : public ffi::Object {
 public:
  ffi::List<int64_t> values;
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("hooks.Totals", TotalsObj, ffi::Object);
};

ffi::Optional<ffi::VisitInterrupt> VisitBox(ffi::StructuralVisitorObj* visitor, ffi::AnyView value) {
  return visitor->Visit(value.cast<const BoxObj*>()->hidden);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<RangeObj>()
      .def(refl::init<int64_t, int64_t>(), "From both ends, in any order.")
      .def_rw("low", &RangeObj::low)
      .def_rw("high", &RangeObj::high)
      .def_ro("width", &RangeObj::width);
  refl::ObjectDef<NamedRangeObj>()
      .def(refl::init<int64_t, int64_t, ffi::String>())
      .def_ro("name", &NamedRangeObj::name);
  refl::ObjectDef<CounterObj>()
      .def(refl::init<int64_t>())
      .def_rw("count", &CounterObj::count)
      .def("twice", [](const CounterObj* self) { return self->twice; });
  refl::ObjectDef<SecretObj>(refl::init(false)).def_ro("value", &SecretObj::value);
  refl::ObjectDef<MixedObj>()
      .def_rw("scale", &MixedObj::scale, refl::default_value(1))
      .def_rw("value", &MixedObj::value)
      .def_rw("flag", &MixedObj::flag, refl::kw_only(true))
      .def_ro("cache", &MixedObj::cache, refl::init(false));
  refl::ObjectDef<HandleObj>().def_ro("number", &HandleObj::number);
  refl::ObjectDef<NameObj>()
      .def_rw("text", &NameObj::text)
      .def_rw("item", &NameObj::item, refl::default_value(nullptr));
  refl::TypeAttrDef<NameObj>().def("__s_equal__", &NameObj::Equal).def("__s_hash__", &NameObj::Hash);
  refl::ObjectDef<MoneyObj>()
      .def(refl::init<int64_t>())
      .def_ro("note", &MoneyObj::note)
      .def("cents", [](const MoneyObj* self) { return self->cents; })
      .def("annotated", [](const MoneyObj* self, ffi::Any note) {
        auto copy = ffi::make_object<MoneyObj>(*self);
        copy->note = std::move(note);
        return ffi::ObjectRef(copy);
      });
  refl::TypeAttrDef<MoneyObj>()
      .def("__ffi_repr__",
           [](const MoneyObj* self, ffi::TypedFunction<ffi::String(ffi::AnyView)> repr) {
             std::string text = std::to_string(self->cents) + " cents";
             if (self->note != nullptr) text += " for " + std::string(repr(self->note));
             return ffi::String(text);
           })
      .def("__ffi_eq__", [](const MoneyObj* a, const MoneyObj* b,
                            ffi::TypedFunction<bool(ffi::AnyView, ffi::AnyView)>) { return a->cents == b->cents; })
      .def("__ffi_hash__", [](const MoneyObj* self, ffi::TypedFunction<int64_t(ffi::AnyView)>) { return self->cents; })
      .def(
          "__ffi_compare__",
          [](const MoneyObj* a, const MoneyObj* b, ffi::TypedFunction<int32_t(ffi::AnyView, ffi::AnyView)>) -> int32_t {
            return a->cents < b->cents ? -1 : a->cents > b->cents;
          })
      .def("__data_to_json__", [](ffi::AnyView self) { return ffi::Any(self.cast<const MoneyObj*>()->cents); })
      .def("__data_from_json__", [](ffi::AnyView data) { return ffi::Any(Money(data.cast<int64_t>())); })
      .def("__ffi_convert__", [](ffi::AnyView value) -> ffi::Any {
        if (auto cents = value.as<int64_t>()) return Money(*cents);
        if (auto money = value.as<Money>()) return *money;
        TVM_FFI_THROW(TypeError) << "money is a number of cents, got " << value.GetTypeKey();
        TVM_FFI_UNREACHABLE();
      });
  refl::ObjectDef<PurseObj>().def_rw("money", &PurseObj::money);
  refl::ObjectDef<ColorObj>(refl::init(false));
  refl::EnumDef<ColorObj>("red").set_attr("hex", ffi::String("#ff0000"));
  refl::EnumDef<ColorObj>("green").set_attr("hex", ffi::String("#00ff00"));
  refl::ObjectDef<LevelObj>(refl::init(false));
  refl::EnumDef<LevelObj>("low", 10);
  refl::EnumDef<LevelObj>("high", 20);
  refl::ObjectDef<TotalsObj>().def_rw("values", &TotalsObj::values);
  refl::ObjectDef<BoxObj>().def(refl::init<ffi::Any>());
  refl::TypeAttrDef<BoxObj>().def("__s_visit__", &VisitBox);
}

// The sum of the integers in a graph, stopped at the first negative one.
ffi::Any SumIntegers(ffi::Any root) {
  int64_t sum = 0;
  auto stopped = ffi::StructuralWalk<ffi::WalkOrder::kPreOrder>(root, [&](int64_t n) -> ffi::WalkResult {
    sum += n;
    return n < 0 ? ffi::WalkResult::Interrupt() : ffi::WalkResult::Advance();
  });
  return stopped.has_value() ? ffi::Any("stopped") : ffi::Any(sum);
}

// The graph with every integer one larger.
ffi::Any Increment(ffi::Any root) {
  return ffi::StructuralMap<ffi::WalkOrder::kPostOrder>(std::move(root), [](int64_t n) { return ffi::Any(n + 1); });
}

ffi::ObjectRef MakeSecret() { return ffi::ObjectRef(ffi::make_object<SecretObj>()); }
ffi::ObjectRef MakeHandle() { return ffi::ObjectRef(ffi::make_object<HandleObj>()); }
ffi::ObjectRef ColorOf(ffi::String name) { return ffi::EnumObj::_GetByStrIndex<ColorObj>(name); }
ffi::ObjectRef LevelOf(int64_t number) { return ffi::EnumObj::_GetByIntIndex<LevelObj>(number); }
// Of an enum that may have been defined anywhere: its number and its name.
ffi::Array<ffi::Any> ReadEnum(ffi::Enum entry) { return {entry->_int_index, entry->_str_index}; }

void WriteField(ffi::ObjectRef object, ffi::String name, ffi::Any value) {
  refl::ForEachFieldInfo(TVMFFIGetTypeInfo(object->type_index()), [&](const TVMFFIFieldInfo* field) {
    if (std::string_view(field->name.data, field->name.size) == std::string_view(name.data(), name.size())) {
      refl::FieldSetter{field}(object.get(), value);
    }
  });
}

// As C++ that knows a type's key alone makes an object.
ffi::Any MakeByKey(ffi::String key, ffi::Array<ffi::Any> values) {
  static refl::TypeAttrColumn constructors("__ffi_init__");
  TVMFFIByteArray name{key.data(), key.size()};
  int32_t index;
  TVM_FFI_CHECK_SAFE_CALL(TVMFFITypeKeyToIndex(&name, &index));
  std::vector<ffi::AnyView> packed(values.begin(), values.end());
  ffi::Any made;
  constructors[index].cast<ffi::Function>().CallPacked(packed.data(), static_cast<int32_t>(packed.size()), &made);
  return made;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_by_key, MakeByKey);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(write_field, WriteField);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sum_integers, SumIntegers);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(increment, Increment);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_secret, MakeSecret);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_handle, MakeHandle);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(color_of, ColorOf);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(level_of, LevelOf);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(read_enum, ReadEnum);

}  // namespace portcall_hooks
