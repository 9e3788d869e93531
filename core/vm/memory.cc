// SPDX-License-Identifier: Apache-2.0
#include "vm/memory.h"

#include <algorithm>

namespace portcall::vm {
namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kMostBytes = uint64_t{1} << 48;

Tensor NewBlock(Device device, size_t nbytes) {
  return Tensor::Empty({static_cast<int64_t>(nbytes)}, {kDLUInt, 8, 1}, device);
}

}  // namespace

std::vector<Pool*>& Pool::All() {
  static auto* all = new std::vector<Pool*>();  // storage may outlive everything else
  return *all;
}

std::mutex& Pool::AllMutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

Pool* Pool::Of(Device device) {
  std::lock_guard<std::mutex> lock(AllMutex());
  for (Pool* pool : All()) {
    if (pool->device_ == device) return pool;
  }
  return All().emplace_back(new Pool(device));
}

void Pool::ClearAll() {
  std::lock_guard<std::mutex> lock(AllMutex());
  for (Pool* pool : All()) pool->Clear();
}

void Pool::Clear() {
  std::multimap<size_t, Tensor> gone;
  std::lock_guard<std::mutex> lock(mutex_);
  gone.swap(free_);
}

Tensor Pool::Take(size_t nbytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = free_.lower_bound(nbytes);
    if (it != free_.end() && it->first / 2 <= nbytes) {
      Tensor block = std::move(it->second);
      free_.erase(it);
      return block;
    }
  }
  try {
    return NewBlock(device_, nbytes);
  } catch (const Error& error) {
    if (error.kind() != "MemoryError") throw;
    Clear();
    return NewBlock(device_, nbytes);
  }
}

void Pool::Give(Tensor block) {
  try {
    size_t nbytes = block.nbytes();
    std::lock_guard<std::mutex> lock(mutex_);
    free_.emplace(nbytes, std::move(block));
  } catch (const std::bad_alloc&) {
    // Then the block is freed.
  }
}

size_t BytesOf(const char* function, const int64_t* extents, int64_t ndim, DLDataType dtype) {
  uint64_t bits = uint64_t{dtype.bits} * dtype.lanes;
  bool fits = bits > 0;
  for (int64_t i = 0; i < ndim && fits; ++i) {
    fits = extents[i] >= 0 && !__builtin_mul_overflow(bits, static_cast<uint64_t>(extents[i]), &bits);
  }
  // Generated code computes with extents; an empty tensor has none that are senseless either.
  for (int64_t i = 0; i < ndim && fits; ++i) fits = extents[i] >= 0 && static_cast<uint64_t>(extents[i]) < kMostBytes;
  if (!fits || bits / 8 >= kMostBytes) {
    std::string shape = ExtentsText({extents, ndim}), type = ToString(dtype);
    if (std::any_of(extents, extents + ndim, [](int64_t extent) { return extent < 0; })) {
      Throw("ValueError", {function, "(): an extent of ", type, shape, " is negative: an input may be too small"});
    }
    Throw("ValueError", {function, "(): no memory holds a ", type, " tensor of shape ", shape});
  }
  return (bits + 7) / 8;
}

StorageObj* NewStorage(Pool* pool, Device device, size_t nbytes) {
  nbytes = (std::max<size_t>(nbytes, 1) + kPage - 1) / kPage * kPage;
  Tensor block = pool ? pool->Take(nbytes) : NewBlock(device, nbytes);
  return NewNode<StorageObj>(pool, std::move(block));
}

TVMFFIObject* NewView(TVMFFIObject* owner, void* data, const int64_t* extents, int32_t ndim, DLDataType dtype,
                      Device device) {
  DLTensor description{};
  description.data = data;
  description.device = device;
  description.ndim = ndim;
  description.dtype = dtype;
  description.shape = const_cast<int64_t*>(extents);
  TVMFFIObjectHandle handle = nullptr;
  auto release = [](void* self) { Release(static_cast<TVMFFIObject*>(self)); };
  Check(PortcallTensorFromMemory(&description, 0, owner, release, &handle));
  Retain(owner);
  return static_cast<TVMFFIObject*>(handle);
}

}  // namespace portcall::vm
