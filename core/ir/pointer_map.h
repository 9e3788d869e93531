// SPDX-License-Identifier: Apache-2.0
// A table from addresses to numbers, which only grows.
#ifndef PORTCALL_IR_POINTER_MAP_H_
#define PORTCALL_IR_POINTER_MAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace portcall::ir {

class PointerMap {
 public:
  // The number of `key`, and whether it is new there (with the number 0). Valid until the next call.
  std::pair<uint64_t*, bool> Insert(const void* key) {
    if (2 * (size_ + 1) > slots_.size()) Grow();
    Slot* slot = Locate(reinterpret_cast<uintptr_t>(key));
    bool added = slot->key == 0;
    if (added) {
      slot->key = reinterpret_cast<uintptr_t>(key);
      ++size_;
    }
    return {&slot->value, added};
  }
  // Null when it is not there.
  uint64_t* Find(const void* key) {
    if (size_ == 0) return nullptr;
    Slot* slot = Locate(reinterpret_cast<uintptr_t>(key));
    return slot->key ? &slot->value : nullptr;
  }

 private:
  struct Slot {
    uintptr_t key = 0;
    uint64_t value = 0;
  };

  Slot* Locate(uintptr_t key) {
    size_t mask = slots_.size() - 1;
    for (size_t i = (static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15u >> 20) & mask;; i = (i + 1) & mask) {
      if (slots_[i].key == key || slots_[i].key == 0) return &slots_[i];
    }
  }
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key) *Locate(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace portcall::ir
#endif  // PORTCALL_IR_POINTER_MAP_H_
