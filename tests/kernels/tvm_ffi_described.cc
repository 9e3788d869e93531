// SPDX-License-Identifier: Apache-2.0
// Types on the apache-tvm-ffi headers, of any release since 0.1.9: constructors and copies that go wrong when such types
// are taken for those of portcall's own headers. It exports no function: what it registers is all of it.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/overload.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <cstdint>

namespace portcall_test {

namespace ffi = tvm::ffi;

// The field with a default stands first; `hidden` is what the fields do not tell.
class MixedObj : public ffi::Object {
 public:
  int64_t scale = 7;
  int64_t value = 0;
  int64_t hidden = 0;

  int64_t Hidden() const { return hidden; }
  void Hide(int64_t what) { hidden = what; }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO("described.Mixed", MixedObj, ffi::Object);
};

class DerivedObj : public MixedObj {
 public:
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("described.Derived", DerivedObj, MixedObj);
};

// Without a default constructor, and made by a constructor of two numbers.
class RangeObj : public ffi::Object {
 public:
  int64_t low, high, width;

  RangeObj(int64_t one, int64_t other)
      : low(one < other ? one : other), high(one < other ? other : one), width(high - low) {}

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("described.Range", RangeObj, ffi::Object);
};

// Made here only, without a field, and copied all the same.
class OpaqueObj : public ffi::Object {
 public:
  int64_t number;
  explicit OpaqueObj(int64_t number) : number(number) {}
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("described.Opaque", OpaqueObj, ffi::Object);
};

// Its constructor does not take its fields in their order.
class SwappedObj : public ffi::Object {
 public:
  int64_t width, low;
  SwappedObj(int64_t low, int64_t high) : width(high - low), low(low) {}
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("described.Swapped", SwappedObj, ffi::Object);
};

class ScalerObj : public ffi::Object {
 public:
  int64_t Whole(int64_t by) const { return 2 * by; }
  ffi::String Text(ffi::String by) const { return by + by; }
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("described.Scaler", ScalerObj, ffi::Object);
};

// Cannot be copied.
class HandleObj : public ffi::Object {
 public:
  int64_t number = 0;
  HandleObj() = default;
  HandleObj(const HandleObj&) = delete;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("described.Handle", HandleObj, ffi::Object);
};

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::ObjectDef<MixedObj>()
      .def_rw("scale", &MixedObj::scale, refl::DefaultValue(7))
      .def_rw("value", &MixedObj::value)
      .def("hidden", &MixedObj::Hidden)
      .def("hide", [](MixedObj* self, int64_t what) { self->Hide(what); });
  refl::ObjectDef<DerivedObj>();
  refl::ObjectDef<RangeObj>()
      .def(refl::init<int64_t, int64_t>())
      .def_rw("low", &RangeObj::low)
      .def_rw("high", &RangeObj::high)
      .def_rw("width", &RangeObj::width);
  refl::ObjectDef<SwappedObj>()
      .def(refl::init<int64_t, int64_t>())
      .def_ro("width", &SwappedObj::width)
      .def_ro("low", &SwappedObj::low);
  refl::OverloadObjectDef<ScalerObj>()
      .def("twice", &ScalerObj::Whole)
      .def("twice", &ScalerObj::Text)
      .def_static("same", [](int64_t what) { return what; })
      .def_static("same", [](ffi::String what) { return what; });
  refl::ObjectDef<OpaqueObj>();
  refl::ObjectDef<HandleObj>().def_ro("number", &HandleObj::number);
  refl::GlobalDef()
      .def("described.make_opaque", [](int64_t number) { return ffi::ObjectRef(ffi::make_object<OpaqueObj>(number)); })
      .def("described.number_of", [](ffi::ObjectRef obj) { return obj.as<OpaqueObj>()->number; })
      .def("described.make_scaler", []() { return ffi::ObjectRef(ffi::make_object<ScalerObj>()); })
      .def("described.make_handle", []() { return ffi::ObjectRef(ffi::make_object<HandleObj>()); });
}

}  // namespace portcall_test
