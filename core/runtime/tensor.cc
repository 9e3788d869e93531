// SPDX-License-Identifier: Apache-2.0
// Tensors: a DLTensor with its shape and strides after the node, and an owner, which hears when the last reference goes.
// And the allocator that array libraries may bring.
#include "portcall/tensor.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "portcall/container.h"
#include "portcall/function.h"
#include "runtime/device_table.h"
#include "runtime/node.h"

namespace portcall {
namespace {

struct TensorImpl final : Object {  // ndim extents and ndim strides follow
  static constexpr int32_t kTypeIndex = kTVMFFITensor;

  DLTensor dl{};
  uint64_t flags = 0;
  void* owner = nullptr;
  void (*release)(void*) = nullptr;

  ~TensorImpl() {
    if (release) release(owner);
  }
};

TensorImpl* ImplOf(TVMFFIObjectHandle tensor) {
  auto* obj = static_cast<TVMFFIObject*>(tensor);
  return obj && obj->deleter == DeleteCountedNode<TensorImpl> ? static_cast<TensorImpl*>(obj) : nullptr;
}

DLTensor* DescriptionOf(TVMFFIObjectHandle tensor) {
  PORTCALL_CHECK(tensor, ValueError) << "the tensor is None";
  return &static_cast<TensorObj*>(static_cast<TVMFFIObject*>(tensor))->dl;
}

void CheckDescription(const DLTensor& tensor) {
  PORTCALL_CHECK(tensor.ndim >= 0 && tensor.ndim <= 1024, ValueError)
      << "a tensor with " << tensor.ndim << " dimensions";
  PORTCALL_CHECK(tensor.ndim == 0 || tensor.shape, ValueError)
      << "a tensor of " << tensor.ndim << " dimensions without a shape";
  PORTCALL_CHECK(tensor.dtype.bits > 0 && static_cast<int16_t>(tensor.dtype.lanes) > 0, ValueError)
      << "a tensor of data type '" << (tensor.dtype.bits ? ToString(tensor.dtype) : "void") << "'";
  // Sizes in bits stay below this, so that no product here or later overflows.
  constexpr uint64_t kMostBits = sizeof(size_t) < 8 ? uint64_t{SIZE_MAX / 2} * 8 : uint64_t{1} << 62;
  uint64_t limit = kMostBits / (uint64_t{tensor.dtype.bits} * tensor.dtype.lanes);
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    PORTCALL_CHECK(tensor.shape[i] >= 0, ValueError)
        << "extent " << tensor.shape[i] << " of axis " << i << " is negative";
    if (tensor.shape[i] == 0) continue;  // the strides of an empty tensor are products of the other extents
    PORTCALL_CHECK(static_cast<uint64_t>(tensor.shape[i]) <= limit, ValueError)
        << "the tensor is too large (axis " << i << " has extent " << tensor.shape[i] << ")";
    limit /= static_cast<uint64_t>(tensor.shape[i]);
  }
}

// The description is copied; strides that are NULL, or of a tensor without elements, become those of a compact one.
TensorImpl* NewTensor(const DLTensor& description) {
  CheckDescription(description);
  auto ndim = static_cast<size_t>(description.ndim);
  auto* impl = NewCountedNode<TensorImpl>(2 * ndim * sizeof(int64_t));
  impl->dl = description;
  impl->dl.shape = reinterpret_cast<int64_t*>(impl + 1);
  impl->dl.strides = impl->dl.shape + ndim;
  if (ndim) std::memcpy(impl->dl.shape, description.shape, ndim * sizeof(int64_t));
  if (description.strides && NumElements(description) > 0) {
    if (ndim) std::memcpy(impl->dl.strides, description.strides, ndim * sizeof(int64_t));
  } else {
    int64_t stride = 1;
    for (size_t i = ndim; i-- > 0;) {
      impl->dl.strides[i] = stride;
      stride *= impl->dl.shape[i];  // 0 from an axis without elements on, as tvm-ffi has it and compiled code asks for
    }
  }
  return impl;
}

// ---- Copies -------------------------------------------------------------------------------------------------------

// Memory that a device made of a part of a tensor's.
struct DevicePart {
  const PortcallDeviceAPI* api = nullptr;
  DLDevice device{};
  void* data = nullptr;
  TVMFFIObjectHandle source = nullptr;

  ~DevicePart() {
    if (data) api->free(api->ctx, device, data);
    if (source) TVMFFIObjectDecRef(source);
  }
};

// Returns the view's own memory, if it has any now.
std::unique_ptr<DevicePart> FoldOffset(DLTensor* view) {
  const PortcallDeviceAPI* api = FindDeviceApi(view->device.device_type);
  if (!api) return nullptr;
  if (api->flags & kPortcallDevicePlainAddresses) {
    view->data = static_cast<char*>(view->data) + std::exchange(view->byte_offset, 0);
    return nullptr;
  }
  if (!api->view) return nullptr;
  uint64_t elements = view->strides ? 1 : NumElements(*view);
  for (int32_t i = 0; view->strides && i < view->ndim; ++i) {
    elements += static_cast<uint64_t>((view->shape[i] - 1) * view->strides[i]);
  }
  auto part = std::make_unique<DevicePart>();
  part->api = api;
  part->device = view->device;
  Check(api->view(api->ctx, view->device, view->data, std::exchange(view->byte_offset, 0),
                  NumBytes(view->dtype, elements), &part->data));
  view->data = part->data;
  return part;
}

// Pinned memory, too: that is the host's by DLPack's definition.
bool IsHost(const DLTensor& tensor) {
  const int type = tensor.device.device_type;
  return type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost;
}

char* DataOf(const DLTensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }

// Between two host tensors of one shape, of any strides (in elements of whole bytes).
void CopyStrided(const DLTensor& from, const DLTensor& to, size_t item, int32_t axis, const char* source, char* target,
                 const int64_t* from_strides, const int64_t* to_strides) {
  if (axis == from.ndim) {
    std::memcpy(target, source, item);
    return;
  }
  auto step = static_cast<int64_t>(item);
  int64_t extent = from.shape[axis];
  if (axis == from.ndim - 1 && from_strides[axis] == 1 && to_strides[axis] == 1) {
    std::memcpy(target, source, static_cast<size_t>(extent) * item);
    return;
  }
  for (int64_t i = 0; i < extent; ++i) {
    CopyStrided(from, to, item, axis + 1, source + i * from_strides[axis] * step, target + i * to_strides[axis] * step,
                from_strides, to_strides);
  }
}

std::vector<int64_t> StridesOf(const DLTensor& tensor) {
  std::vector<int64_t> strides(static_cast<size_t>(tensor.ndim));
  int64_t compact = 1;
  for (int32_t i = tensor.ndim; i-- > 0;) {
    strides[static_cast<size_t>(i)] = tensor.strides ? tensor.strides[i] : compact;
    compact *= tensor.shape[i];
  }
  return strides;
}

Tensor HostLike(const DLTensor& like) {
  return Tensor::Empty(std::vector<int64_t>(like.shape, like.shape + like.ndim), like.dtype);
}

// Where a tensor's first and last bytes lie, whichever way its strides go.
std::pair<const char*, const char*> RangeOf(const DLTensor& tensor, size_t item) {
  std::pair<const char*, const char*> range{DataOf(tensor), DataOf(tensor) + item - 1};
  std::vector<int64_t> strides = StridesOf(tensor);
  for (size_t i = 0; i < strides.size(); ++i) {
    int64_t reach = (tensor.shape[i] - 1) * strides[i] * static_cast<int64_t>(item);
    (reach < 0 ? range.first : range.second) += reach;
  }
  return range;
}

void CopyOnHost(const DLTensor& from, const DLTensor& to) {
  if (IsContiguous(from) && IsContiguous(to)) {
    std::memmove(DataOf(to), DataOf(from), NumBytes(from));
    return;
  }
  size_t bits = size_t{from.dtype.bits} * from.dtype.lanes;
  PORTCALL_CHECK(bits % 8 == 0, ValueError)
      << "a strided copy of " << ToString(from.dtype) << " is not possible: elements share bytes";
  auto [source_first, source_last] = RangeOf(from, bits / 8);
  auto [target_first, target_last] = RangeOf(to, bits / 8);
  if (source_first <= target_last && target_first <= source_last) {  // element by element would read what it wrote
    Tensor stage = HostLike(from);
    CopyOnHost(from, *stage.dl_tensor());
    return CopyOnHost(*stage.dl_tensor(), to);
  }
  CopyStrided(from, to, bits / 8, 0, DataOf(from), DataOf(to), StridesOf(from).data(), StridesOf(to).data());
}

void CopyCompact(const DLTensor& from, const DLTensor& to) {
  Device device = IsHost(from) ? to.device : from.device;
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  void* stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
  Check(api.copy(api.ctx, from.data, from.byte_offset, from.device, to.data, to.byte_offset, to.device, NumBytes(from),
                 stream));
  if (IsHost(to) || IsHost(from)) Check(PortcallDeviceSync(device, stream));
}

void CopyTensor(const DLTensor& from, const DLTensor& to) {
  PORTCALL_CHECK(from.ndim == to.ndim && std::equal(from.shape, from.shape + from.ndim, to.shape), ValueError)
      << "a copy needs equal shapes: " << ToString(Shape(from.shape, static_cast<size_t>(from.ndim))) << " to "
      << ToString(Shape(to.shape, static_cast<size_t>(to.ndim)));
  PORTCALL_CHECK(from.dtype == to.dtype, TypeError)
      << "a copy needs equal data types: " << ToString(from.dtype) << " to " << ToString(to.dtype);
  if (NumBytes(from) == 0) return;
  if (IsHost(from) && IsHost(to)) return CopyOnHost(from, to);
  bool direct = IsHost(from) || IsHost(to) || from.device.device_type == to.device.device_type;
  if (direct && IsContiguous(from) && IsContiguous(to)) return CopyCompact(from, to);
  // Through a compact host tensor: two kinds of devices, or strides on one side.
  Tensor stage = HostLike(from);
  if (IsHost(from)) {
    CopyOnHost(from, *stage.dl_tensor());
    PORTCALL_CHECK(IsContiguous(to), ValueError)
        << "a copy into a strided tensor on " << ToString(to.device) << " is not possible";
    return CopyCompact(*stage.dl_tensor(), to);
  }
  PORTCALL_CHECK(IsContiguous(from), ValueError)
      << "a copy from a strided tensor on " << ToString(from.device) << " is not possible";
  CopyCompact(from, *stage.dl_tensor());
  CopyTensor(*stage.dl_tensor(), to);
}

// ---- DLPack -------------------------------------------------------------------------------------------------------

template <typename Managed>
int FromDLPack(Managed* from, uint64_t flags, int32_t require_alignment, int32_t require_contiguous,
               TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(from, ValueError) << "there is no tensor to take over";
    const DLTensor& dl = from->dl_tensor;
    CheckDescription(dl);
    auto address = reinterpret_cast<uintptr_t>(dl.data) + dl.byte_offset;
    PORTCALL_CHECK(require_alignment <= 0 || address % static_cast<uintptr_t>(require_alignment) == 0, ValueError)
        << "the tensor's data is not aligned to " << require_alignment << " bytes";
    PORTCALL_CHECK(!require_contiguous || IsContiguous(dl), ValueError) << "the tensor is not contiguous";
    TensorImpl* impl = NewTensor(dl);
    impl->flags = flags;
    impl->owner = from;
    impl->release = [](void* owner) {
      auto* managed = static_cast<Managed*>(owner);
      if (managed->deleter) managed->deleter(managed);
    };
    *out = impl;
  });
}

template <typename Managed> Managed* ToManaged(TVMFFIObjectHandle from) {
  auto managed = std::make_unique<Managed>();
  managed->dl_tensor = *DescriptionOf(from);
  managed->manager_ctx = from;
  managed->deleter = [](Managed* self) {
    TVMFFIObjectDecRef(self->manager_ctx);
    delete self;
  };
  TVMFFIObjectIncRef(from);
  return managed.release();
}

// ---- Allocation ---------------------------------------------------------------------------------------------------

// In memory of a scope, such as "global.texture"; "" and "global" are the device's own.
Tensor AllocTensor(const DLTensor& prototype, const std::string& scope) {
  DLTensor description{};
  description.device = prototype.device;
  description.ndim = prototype.ndim;
  description.dtype = prototype.dtype;
  description.shape = prototype.shape;
  TensorImpl* impl = NewTensor(description);
  Tensor made = ObjectRef::Steal<Tensor>(impl);
  const PortcallDeviceAPI& api = DeviceApiOf(description.device);
  if (scope.empty() || scope == "global") {
    Check(api.alloc(api.ctx, description.device, std::max<size_t>(NumBytes(impl->dl), 1), kTensorAlignment,
                    description.dtype, &impl->dl.data));
  } else {
    PORTCALL_CHECK(api.alloc_scope, ValueError)
        << "memory scope '" << scope << "' does not exist on " << ToString(description.device);
    Check(api.alloc_scope(api.ctx, description.device, &impl->dl, scope.c_str(), &impl->dl.data));
  }
  impl->owner = impl;
  impl->release = [](void* owner) {
    const DLTensor& dl = static_cast<TensorImpl*>(owner)->dl;
    const PortcallDeviceAPI& table = DeviceApiOf(dl.device);  // kinds are never unregistered
    table.free(table.ctx, dl.device, dl.data);
  };
  return made;
}

PORTCALL_REGISTER_GLOBAL("runtime.TVMTensorAllocWithScope")
    .set_body_typed([](Shape shape, DLDataType dtype, DLDevice device, Any scope) {
      DLTensor like{};
      like.device = device;
      like.dtype = dtype;
      like.ndim = static_cast<int32_t>(shape.size());
      like.shape = const_cast<int64_t*>(shape.begin());
      return AllocTensor(like, scope == nullptr ? std::string() : scope.cast<std::string>());
    });

std::atomic<DLPackManagedTensorAllocator> global_allocator{nullptr};
thread_local DLPackManagedTensorAllocator thread_allocator = nullptr;

void ReportAllocatorError(void* context, const char* kind, const char* message) {
  auto* text = static_cast<std::pair<std::string, std::string>*>(context);
  *text = {kind ? kind : "RuntimeError", message ? message : "the tensor allocator failed without saying why"};
}

}  // namespace

}  // namespace portcall

using namespace portcall;

int TVMFFITensorFromDLPack(DLManagedTensor* from, int32_t require_alignment, int32_t require_contiguous,
                           TVMFFIObjectHandle* out) {
  return FromDLPack(from, 0, require_alignment, require_contiguous, out);
}

int TVMFFITensorFromDLPackVersioned(DLManagedTensorVersioned* from, int32_t require_alignment,
                                    int32_t require_contiguous, TVMFFIObjectHandle* out) {
  if (from && from->version.major != DLPACK_MAJOR_VERSION) {
    return Guard([&] {
      PORTCALL_THROW(BufferError) << "the tensor uses DLPack" << from->version.major << "." << from->version.minor
                                  << ", this runtime " << DLPACK_MAJOR_VERSION << "." << DLPACK_MINOR_VERSION;
    });
  }
  return FromDLPack(from, from ? from->flags : 0, require_alignment, require_contiguous, out);
}

int TVMFFITensorToDLPack(TVMFFIObjectHandle from, DLManagedTensor** out) {
  return Guard([&] {
    PORTCALL_CHECK(!(PortcallTensorGetFlags(from) & DLPACK_FLAG_BITMASK_READ_ONLY), BufferError)
        << "a read-only tensor cannot be exported without a version: ask for max_version=(1, 0) or later";
    *out = ToManaged<DLManagedTensor>(from);
  });
}

int TVMFFITensorToDLPackVersioned(TVMFFIObjectHandle from, DLManagedTensorVersioned** out) {
  return Guard([&] {
    auto* managed = ToManaged<DLManagedTensorVersioned>(from);
    managed->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed->flags = PortcallTensorGetFlags(from) & DLPACK_FLAG_BITMASK_READ_ONLY;
    *out = managed;
  });
}

// Compiled code takes no offsets: where the device has a way, the offset becomes part of the view's address.
int TVMFFITensorCreateUnsafeView(TVMFFIObjectHandle source, const DLTensor* prototype, TVMFFIObjectHandle* out) {
  return Guard([&] {
    DLTensor view = *prototype;
    std::unique_ptr<DevicePart> part;
    if (view.byte_offset && view.data) part = FoldOffset(&view);
    TensorImpl* impl = NewTensor(view);
    impl->flags = PortcallTensorGetFlags(source);
    impl->owner = source;
    impl->release = [](void* owner) { TVMFFIObjectDecRef(owner); };
    if (part) {
      part->source = source;
      impl->owner = part.release();
      impl->release = [](void* owner) { delete static_cast<DevicePart*>(owner); };
    }
    TVMFFIObjectIncRef(source);
    *out = impl;
  });
}

int PortcallTensorFromMemory(const DLTensor* description, uint64_t flags, void* owner, void (*release)(void* owner),
                             TVMFFIObjectHandle* out) {
  return Guard([&] {
    TensorImpl* impl = NewTensor(*description);
    impl->flags = flags;
    impl->owner = owner;
    impl->release = release;
    *out = impl;
  });
}

int PortcallTensorAlloc(const DLTensor* prototype, TVMFFIObjectHandle* out) {
  return Guard([&] { *out = AllocTensor(*prototype, "").release(); });
}

uint64_t PortcallTensorGetFlags(TVMFFIObjectHandle tensor) {
  TensorImpl* impl = ImplOf(tensor);
  return impl ? impl->flags : 0;
}

int PortcallTensorCopy(const DLTensor* from, const DLTensor* to) {
  return Guard([&] {
    for (const DLTensor* tensor : {from, to}) {
      PORTCALL_CHECK(tensor, ValueError) << "a copy needs two tensors";
      CheckDescription(*tensor);
      PORTCALL_CHECK(tensor->data || NumElements(*tensor) == 0, ValueError) << "a tensor without memory";
    }
    CopyTensor(*from, *to);
  });
}

int TVMFFIEnvSetDLPackManagedTensorAllocator(DLPackManagedTensorAllocator allocator, int write_to_global_context,
                                             DLPackManagedTensorAllocator* opt_out_original) {
  if (opt_out_original) *opt_out_original = thread_allocator;
  thread_allocator = allocator;
  if (write_to_global_context) global_allocator.store(allocator);
  return 0;
}

DLPackManagedTensorAllocator TVMFFIEnvGetDLPackManagedTensorAllocator() {
  return thread_allocator ? thread_allocator : global_allocator.load();
}

int TVMFFIEnvTensorAlloc(DLTensor* prototype, TVMFFIObjectHandle* out) {
  DLPackManagedTensorAllocator allocator = TVMFFIEnvGetDLPackManagedTensorAllocator();
  if (!allocator) return PortcallTensorAlloc(prototype, out);  // the devices' own memory
  return Guard([&] {
    std::pair<std::string, std::string> error;
    ReportAllocatorError(&error, nullptr, nullptr);
    DLManagedTensorVersioned* managed = nullptr;
    if (allocator(prototype, &managed, &error, ReportAllocatorError) != 0) throw Error(error.first, error.second);
    PORTCALL_CHECK(managed, RuntimeError) << "the tensor allocator returned no tensor";
    if (TVMFFITensorFromDLPackVersioned(managed, 0, 0, out) != 0) {
      if (managed->deleter) managed->deleter(managed);
      ThrowRaised();
    }
  });
}
