// SPDX-License-Identifier: Apache-2.0
// Tensor: shared, owned memory with a shape. TensorView: the same description, borrowed for the time of a call.
#ifndef PORTCALL_TENSOR_H_
#define PORTCALL_TENSOR_H_

#include <cstring>
#include <string>
#include <vector>

#include "container.h"
#include "device.h"
#include "value.h"

namespace portcall {

constexpr size_t kTensorAlignment = 64;  // what compiled kernels assume

inline DLDataType DataTypeFromString(std::string_view text) {
  DLDataType dtype;
  TVMFFIByteArray bytes = ToByteArray(text);
  Check(TVMFFIDataTypeFromString(&bytes, &dtype));
  return dtype;
}

inline std::string ToString(DLDataType dtype) {
  Any text;
  Check(TVMFFIDataTypeToString(&dtype, text.out()));
  return text.cast<std::string>();
}

inline bool operator==(const DLDataType& a, const DLDataType& b) noexcept {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline bool operator!=(const DLDataType& a, const DLDataType& b) noexcept { return !(a == b); }

// Bytes of n elements; elements below a byte are packed.
inline size_t NumBytes(DLDataType dtype, size_t n) noexcept { return (n * dtype.bits * dtype.lanes + 7) / 8; }

inline size_t NumElements(const DLTensor& tensor) noexcept {
  size_t n = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) n *= static_cast<size_t>(tensor.shape[i]);
  return n;
}
inline size_t NumBytes(const DLTensor& tensor) noexcept { return NumBytes(tensor.dtype, NumElements(tensor)); }

inline bool IsContiguous(const DLTensor& tensor) noexcept {
  if (!tensor.strides || NumElements(tensor) == 0) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

// The DLPack type of a C++ element type.
template <typename T> constexpr DLDataType DataTypeOf() {
  if constexpr (std::is_same_v<T, bool>) {
    return {kDLBool, 8, 1};
  } else if constexpr (std::is_floating_point_v<T>) {
    return {kDLFloat, sizeof(T) * 8, 1};
  } else {
    static_assert(std::is_integral_v<T>, "no data type for this element");
    return {std::is_signed_v<T> ? kDLInt : kDLUInt, sizeof(T) * 8, 1};
  }
}

namespace detail {
// What Tensor and TensorView share. Derived::dl() gives the description.
template <typename Derived> class TensorAccess {
 public:
  int32_t ndim() const { return dl().ndim; }
  int64_t shape(int32_t axis) const {
    PORTCALL_CHECK(axis >= 0 && axis < dl().ndim, IndexError)
        << "axis " << axis << " of a tensor with " << dl().ndim << " dimensions";
    return dl().shape[axis];
  }
  size_t numel() const { return NumElements(dl()); }
  DLDataType dtype() const { return dl().dtype; }
  Device device() const { return dl().device; }
  bool is_contiguous() const { return IsContiguous(dl()); }
  void* raw_data() const { return static_cast<char*>(dl().data) + dl().byte_offset; }
  // The elements, checked: the tensor is of this type, compact and in the host's memory.
  template <typename T> T* data() const {
    PORTCALL_CHECK(dtype() == DataTypeOf<T>(), TypeError)
        << "expected a tensor of " << ToString(DataTypeOf<T>()) << ", got " << ToString(dtype());
    PORTCALL_CHECK(device().device_type == kDLCPU, ValueError)
        << "expected a tensor in the host's memory, got one on " << ToString(device());
    PORTCALL_CHECK(is_contiguous(), ValueError) << "expected a compact tensor, got strides";
    return static_cast<T*>(raw_data());
  }

 private:
  const DLTensor& dl() const { return *static_cast<const Derived*>(this)->dl_tensor(); }
};
}  // namespace detail

struct TensorObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Tensor";
  static constexpr int32_t kTypeIndex = kTVMFFITensor;
  DLTensor dl;
};

class Tensor : public ObjectRef, public detail::TensorAccess<Tensor> {
  PORTCALL_OBJECT_REF(Tensor, TensorObj)

  // Uninitialised memory, 64-byte aligned.
  static Tensor Empty(const std::vector<int64_t>& shape, DLDataType dtype, Device device = Cpu()) {
    DLTensor prototype{};
    prototype.device = device;
    prototype.ndim = static_cast<int32_t>(shape.size());
    prototype.dtype = dtype;
    prototype.shape = const_cast<int64_t*>(shape.data());
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallTensorAlloc(&prototype, &handle));
    return Steal<Tensor>(handle);
  }

  const DLTensor* dl_tensor() const {
    PORTCALL_CHECK(defined(), ValueError) << "the tensor is None";
    return &node()->dl;
  }
  bool is_read_only() const { return (PortcallTensorGetFlags(ptr_) & DLPACK_FLAG_BITMASK_READ_ONLY) != 0; }
  void CopyFrom(const DLTensor& from) const {
    PORTCALL_CHECK(!is_read_only(), ValueError) << "the tensor is read-only";
    Check(PortcallTensorCopy(&from, dl_tensor()));
  }
  void CopyFrom(const Tensor& from) const { CopyFrom(*from.dl_tensor()); }
};

// A borrowed tensor argument: whatever form the caller used. Valid during the call.
class TensorView : public detail::TensorAccess<TensorView> {
 public:
  explicit TensorView(DLTensor* tensor) noexcept : tensor_(tensor) {}
  const DLTensor* dl_tensor() const noexcept { return tensor_; }

 private:
  DLTensor* tensor_;
};

template <> struct TypeTraits<TensorView> {
  static std::string Name() { return "Tensor"; }
  static std::optional<TensorView> TryFrom(const TVMFFIAny& value) {
    if (DLTensor* tensor = TryDLTensor(value)) return TensorView(tensor);
    return std::nullopt;
  }
};

}  // namespace portcall
#endif  // PORTCALL_TENSOR_H_
