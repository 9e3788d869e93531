// SPDX-License-Identifier: Apache-2.0
// Memory of the machines: blocks of devices, and tensors in them.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "vm/builtin.h"

namespace portcall::vm {

// Blocks of one device that were freed, kept for the whole process until they are taken again or Clear is called.
class Pool {
 public:
  static Pool* Of(Device device);
  static void ClearAll();

  // A block of at least that size, of which no more than half is wasted.
  Tensor Take(size_t nbytes);
  void Give(Tensor block);

 private:
  explicit Pool(Device device) : device_(device) {}
  void Clear();
  static std::vector<Pool*>& All();
  static std::mutex& AllMutex();

  Device device_;
  std::mutex mutex_;
  std::multimap<size_t, Tensor> free_;
};

// A block that tensors lie in, which keep it alive.
struct StorageObj : Object {
  static constexpr const char* kTypeKey = "vm.Storage";
  Pool* pool;  // takes the block back; null: freed at once
  Tensor block;
  StorageObj(Pool* p, Tensor b) : pool(p), block(std::move(b)) {}
  ~StorageObj() {
    if (pool) pool->Give(std::move(block));
  }
};

// The bytes of a tensor of that shape; ValueError for shapes that no memory holds.
size_t BytesOf(const char* function, const int64_t* extents, int64_t ndim, DLDataType dtype);

// New storage, with a size rounded up to whole pages.
StorageObj* NewStorage(Pool* pool, Device device, size_t nbytes);

// A compact tensor over memory of `owner`, which it keeps alive. The caller owns the result.
TVMFFIObject* NewView(TVMFFIObject* owner, void* data, const int64_t* extents, int32_t ndim, DLDataType dtype,
                      Device device);

}  // namespace portcall::vm
