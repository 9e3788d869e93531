// SPDX-License-Identifier: Apache-2.0
// An Object subclass on the apache-tvm-ffi headers. Its type index is allocated by a constructor of the library,
// so the runtime is called while dlopen is still at work.

#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/object.h>

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

TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_point, MakePoint);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(point_sum, PointSum);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(live_points, LivePoints);

}  // namespace portcall_test
