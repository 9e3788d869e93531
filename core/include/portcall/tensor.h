// SPDX-License-Identifier: Apache-2.0
// Tensor: shared, owned memory with a shape. TensorView: the same description, borrowed for the time of a call.
#ifndef PORTCALL_TENSOR_H_
#define PORTCALL_TENSOR_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "container.h"
#include "device.h"
#include "value.h"

inline bool operator==(const DLDataType& a, const DLDataType& b) noexcept {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline bool operator!=(const DLDataType& a, const DLDataType& b) noexcept { return !(a == b); }

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

// Bytes of n elements; elements below a byte are packed.
inline size_t NumBytes(DLDataType dtype, size_t n) noexcept {
  return static_cast<size_t>((uint64_t{n} * dtype.bits * dtype.lanes + 7) / 8);
}

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

// Of each axis, in elements, also where the description leaves them out because the tensor is compact.
inline std::vector<int64_t> StridesOf(const DLTensor& tensor) {
  std::vector<int64_t> strides(static_cast<size_t>(tensor.ndim));
  int64_t compact = 1;
  for (int32_t i = tensor.ndim; i-- > 0; compact *= tensor.shape[i]) {
    strides[static_cast<size_t>(i)] = tensor.strides ? tensor.strides[i] : compact;
  }
  return strides;
}

// The DLPack type of a C++ element type. Specialise it for one of yours, a half float for example.
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
  std::vector<int64_t> shape() const { return {dl().shape, dl().shape + dl().ndim}; }
  std::vector<int64_t> strides() const { return StridesOf(dl()); }  // in elements
  size_t numel() const { return NumElements(dl()); }
  size_t nbytes() const { return NumBytes(dl()); }  // of the elements, without gaps
  DLDataType dtype() const { return dl().dtype; }
  Device device() const { return dl().device; }
  bool is_contiguous() const { return IsContiguous(dl()); }
  void* raw_data() const { return static_cast<char*>(dl().data) + dl().byte_offset; }
  // The elements, checked: the tensor is of this type, compact and in the host's memory.
  template <typename T> T* data() const {
    if (dtype() != DataTypeOf<T>() || device().device_type != kDLCPU || !is_contiguous()) Refuse(DataTypeOf<T>());
    return static_cast<T*>(raw_data());
  }

 private:
  const DLTensor& dl() const { return *static_cast<const Derived*>(this)->dl_tensor(); }
  [[noreturn, gnu::noinline, gnu::cold]] void Refuse(DLDataType wanted) const {
    if (dtype() != wanted) throw TensorError("TypeError", &dl(), "a tensor of " + ToString(wanted), ToString(dtype()));
    if (device().device_type != kDLCPU) {
      throw TensorError("ValueError", &dl(), "a tensor in the host's memory", "one on " + ToString(device()));
    }
    throw TensorError("ValueError", &dl(), "a compact tensor", "strides");
  }
};
}  // namespace detail

struct TensorObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Tensor";
  static constexpr int32_t kTypeIndex = kTVMFFITensor;
  DLTensor dl;
};

namespace runtime {
inline int TensorFromMemory(const DLTensor& description, void* owner, void (*release)(void*), TVMFFIObjectHandle* out) {
  if (PORTCALL_HAS(PortcallTensorFromMemory)) return PortcallTensorFromMemory(&description, 0, owner, release, out);
  struct Managed : DLManagedTensorVersioned {
    std::vector<int64_t> extents, steps;
    void* owner;
    void (*release)(void*);
  };
  auto managed = std::make_unique<Managed>();
  static_cast<DLManagedTensorVersioned&>(*managed) = {{1, 1}, nullptr, nullptr, 0, description};
  managed->extents.assign(description.shape, description.shape + description.ndim);
  managed->steps = StridesOf(description);
  managed->dl_tensor.shape = managed->extents.data();
  managed->dl_tensor.strides = managed->steps.data();
  managed->owner = owner;
  managed->release = release;
  managed->deleter = [](DLManagedTensorVersioned* self) {
    std::unique_ptr<Managed> last(static_cast<Managed*>(self));
    last->release(last->owner);
  };
  if (TVMFFITensorFromDLPackVersioned(managed.get(), 0, 0, out) != 0) return -1;
  (void)managed.release();
  return 0;
}
inline int TensorAlloc(const DLTensor& prototype, TVMFFIObjectHandle* out) {
  if (PORTCALL_HAS(PortcallTensorAlloc)) return PortcallTensorAlloc(&prototype, out);
  DLTensor description = prototype;
  if (description.device.device_type != kDLCPU) return TVMFFIEnvTensorAlloc(&description, out);
  description.data = std::aligned_alloc(64, (NumBytes(prototype) / 64 + 1) * 64);
  if (!description.data) throw std::bad_alloc();
  if (TensorFromMemory(description, description.data, std::free, out) == 0) return 0;
  std::free(description.data);
  return -1;
}
inline int TensorCopy(const DLTensor& from, const DLTensor& to) {
  if (PORTCALL_HAS(PortcallTensorCopy)) return PortcallTensorCopy(&from, &to);
  const bool plain = from.device.device_type == kDLCPU && to.device.device_type == kDLCPU && IsContiguous(from) &&
                     IsContiguous(to) && from.dtype == to.dtype && from.ndim == to.ndim &&
                     std::equal(from.shape, from.shape + from.ndim, to.shape);
  if (!plain) return Missing("PortcallTensorCopy");
  std::memcpy(static_cast<char*>(to.data) + to.byte_offset, static_cast<char*>(from.data) + from.byte_offset,
              NumBytes(from));
  return 0;
}
}  // namespace runtime

// Copies go between any two devices and strides; shapes and data types must agree (ValueError). They are finished when
// the call returns, but for those within one device, which wait in its stream.
class Tensor : public ObjectRef, public detail::TensorAccess<Tensor> {
  PORTCALL_OBJECT_REF(Tensor, TensorObj)

  // Uninitialised memory, 64-byte aligned.
  static Tensor Empty(const std::vector<int64_t>& shape, DLDataType dtype, Device device = Cpu()) {
    DLTensor prototype = Describe(nullptr, shape, dtype, device);
    TVMFFIObjectHandle handle = nullptr;
    Check(runtime::TensorAlloc(prototype, &handle));
    return Steal<Tensor>(handle);
  }

  // A tensor over compact memory that is somebody else's, of which nothing is copied; release() runs with the last
  // reference. So `[keep = std::move(vector)] {}` hands a vector's memory over.
  template <typename Release>
  static Tensor FromMemory(void* data, const std::vector<int64_t>& shape, DLDataType dtype, Release release,
                           Device device = Cpu()) {
    DLTensor description = Describe(data, shape, dtype, device);
    auto owner = std::make_unique<Release>(std::move(release));
    TVMFFIObjectHandle handle = nullptr;
    Check(runtime::TensorFromMemory(
        description, owner.get(),
        [](void* self) {
          std::unique_ptr<Release> last(static_cast<Release*>(self));
          (*last)();
        },
        &handle));
    (void)owner.release();
    return Steal<Tensor>(handle);
  }

  // Takes over what another library exported, which stays with the caller when this throws.
  static Tensor FromDLPack(DLManagedTensorVersioned* managed) {
    TVMFFIObjectHandle handle = nullptr;
    Check(TVMFFITensorFromDLPackVersioned(managed, 0, 0, &handle));
    return Steal<Tensor>(handle);
  }
  static Tensor FromDLPack(DLManagedTensor* managed) {
    TVMFFIObjectHandle handle = nullptr;
    Check(TVMFFITensorFromDLPack(managed, 0, 0, &handle));
    return Steal<Tensor>(handle);
  }
  // This tensor for another library, which calls the deleter in it once. The form without a version is that of DLPack
  // before 1.0, and refuses a read-only tensor (BufferError).
  DLManagedTensorVersioned* ToDLPackVersioned() const {
    DLManagedTensorVersioned* managed = nullptr;
    Check(TVMFFITensorToDLPackVersioned(ptr_, &managed));
    return managed;
  }
  DLManagedTensor* ToDLPack() const {
    DLManagedTensor* managed = nullptr;
    Check(TVMFFITensorToDLPack(ptr_, &managed));
    return managed;
  }

  const DLTensor* dl_tensor() const {
    PORTCALL_CHECK(defined(), ValueError) << "the tensor is None";
    return &node()->dl;
  }
  bool is_read_only() const {
    return PORTCALL_HAS(PortcallTensorGetFlags) && (PortcallTensorGetFlags(ptr_) & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  }
  void CopyFrom(const DLTensor& from) const {
    PORTCALL_CHECK(!is_read_only(), ValueError) << "the tensor is read-only";
    Check(runtime::TensorCopy(from, *dl_tensor()));
  }
  void CopyFrom(const Tensor& from) const { CopyFrom(*from.dl_tensor()); }
  void CopyTo(const Tensor& to) const { to.CopyFrom(*this); }
  // A compact copy on that device.
  Tensor CopyTo(Device device) const {
    Tensor copy = Empty(shape(), dtype(), device);
    CopyTo(copy);
    return copy;
  }
  // From and to compact memory of the host, of nbytes() bytes.
  void CopyFromBytes(const void* data, size_t nbytes) const { CopyFrom(OnHost(const_cast<void*>(data), nbytes)); }
  void CopyToBytes(void* data, size_t nbytes) const {
    DLTensor to = OnHost(data, nbytes);
    Check(runtime::TensorCopy(*dl_tensor(), to));
  }

 private:
  static DLTensor Describe(void* data, const std::vector<int64_t>& shape, DLDataType dtype, Device device) {
    DLTensor description{};
    description.data = data;
    description.device = device;
    description.ndim = static_cast<int32_t>(shape.size());
    description.dtype = dtype;
    description.shape = const_cast<int64_t*>(shape.data());
    return description;
  }
  DLTensor OnHost(void* data, size_t nbytes) const {
    DLTensor memory = *dl_tensor();
    PORTCALL_CHECK(nbytes == NumBytes(memory), ValueError)
        << "the elements of this tensor are " << NumBytes(memory) << " bytes, the memory given is " << nbytes;
    memory.data = data;
    memory.byte_offset = 0;
    memory.strides = nullptr;
    memory.device = Cpu();
    return memory;
  }
};

// A borrowed tensor argument: whatever form the caller used. Valid during the call.
class TensorView : public detail::TensorAccess<TensorView> {
 public:
  explicit TensorView(DLTensor* tensor) noexcept : tensor_(tensor) {}
  const DLTensor* dl_tensor() const noexcept { return tensor_; }

 private:
  DLTensor* tensor_;
};

template <> struct detail::Borrows<TensorView> : std::true_type {};
template <> struct TypeTraits<TensorView> {
  static std::string Name() { return "Tensor"; }
  static std::optional<TensorView> TryFrom(const TVMFFIAny& value) {
    if (DLTensor* tensor = TryDLTensor(value)) return TensorView(tensor);
    return std::nullopt;
  }
};

namespace detail {
inline ErrorText& operator<<(ErrorText& out, const DLDataType& dtype) { return out << ToString(dtype); }
}  // namespace detail
}  // namespace portcall

template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const DLDataType& dtype) {
  return out << portcall::ToString(dtype);
}

#endif  // PORTCALL_TENSOR_H_
