// SPDX-License-Identifier: Apache-2.0
// Object subclasses on the apache-tvm-ffi headers, and a function that reads any described object. Their type
// indices are allocated by constructors of the library, so the runtime is called while dlopen is still at work.

#define TVM_FFI_DLL_EXPORT_INCLUDE_METADATA 1
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/accessor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <cstdint>

namespace portcall_test {

namespace ffi = tvm::ffi;

class PointObj : public ffi::Object {
 public:
  int64_t x;
  int64_t y;

  PointObj(int64_t x, int64_t y) : x(x), y(y) { ++live; }
  ~PointObj() { --live; }

  static inline int64_t live = 0;

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("portcall_test.Point", PointObj, ffi::Object);
};

class Point : public ffi::ObjectRef {
 public:
  Point(int64_t x, int64_t y) { data_ = ffi::make_object<PointObj>(x, y); }

  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Point, ffi::ObjectRef, PointObj);
};

Point MakePoint(int64_t x, int64_t y) { return Point(x, y); }

int64_t PointSum(Point point) { return point->x + point->y; }

int64_t LivePoints() { return PointObj::live; }

// A type that describes itself: the registration calls TVMFFITypeRegisterField and its kin.
class ShapeObj : public ffi::Object {
 public:
  int64_t sides = 0;
  double area = 0;
  bool closed = true;
  ffi::String label;
  ffi::Array<int64_t> extents;
  ffi::ObjectRef inner;
  ffi::Any extra;

  int64_t Twice(int64_t plus) const { return 2 * sides + plus; }

  static constexpr bool _type_mutable = true;
  static constexpr TVMFFISEqHashKind _type_s_eq_hash_kind = kTVMFFISEqHashKindTreeNode;
  TVM_FFI_DECLARE_OBJECT_INFO("portcall_test.Shape", ShapeObj, ffi::Object);
};

class SquareObj : public ShapeObj {
 public:
  double edge = 1;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("portcall_test.Square", SquareObj, ShapeObj);
};

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::ObjectDef<ShapeObj>()
      .def_rw("sides", &ShapeObj::sides, "how many")
      .def_ro("area", &ShapeObj::area, refl::default_value(0.5))
      .def_ro("closed", &ShapeObj::closed, refl::default_value(true))
      .def_ro("label", &ShapeObj::label, refl::default_value(ffi::String("plain")))
      .def_ro("extents", &ShapeObj::extents, refl::default_value(ffi::Array<int64_t>()))
      .def_ro("inner", &ShapeObj::inner, refl::default_value(ffi::ObjectRef()))
      .def_ro("extra", &ShapeObj::extra, refl::default_value(ffi::Any()))
      .def("twice", &ShapeObj::Twice, "twice the sides");
  refl::ObjectDef<SquareObj>().def_ro("edge", &SquareObj::edge, refl::default_value(1.0));
}

// Key, then name and value of each field: what these headers see of a type that somebody else described.
ffi::Array<ffi::Any> ReadFields(ffi::ObjectRef obj) {
  namespace refl = ffi::reflection;
  const TVMFFITypeInfo* type = TVMFFIGetTypeInfo(obj->type_index());
  ffi::Array<ffi::Any> found{ffi::String(obj->GetTypeKey())};
  refl::ForEachFieldInfo(type, [&](const TVMFFIFieldInfo* field) {
    found.push_back(ffi::String(field->name));
    found.push_back(refl::FieldGetter(field)(obj));
  });
  return found;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(read_fields, ReadFields);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_point, MakePoint);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(point_sum, PointSum);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(live_points, LivePoints);

}  // namespace portcall_test
