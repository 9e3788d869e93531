// SPDX-License-Identifier: Apache-2.0
// Reference counts as functions, and the list of objects that wait to be destroyed. Nothing here raises: errors are objects.
#include "portcall/object.h"

namespace portcall {
namespace {

// Releases that wait for those further out. The waiting form a list through their own headers, whose counts are not needed
// any more.
class Deletions {
 public:
  static int Enter(TVMFFIObject* obj) noexcept {
    if (depth_ == kMaxDepth) {
      obj->combined_ref_count = reinterpret_cast<uintptr_t>(waiting_);
      waiting_ = obj;
      return 0;
    }
    ++depth_;
    return 1;
  }
  static void Leave() noexcept {
    while (depth_ == 1 && waiting_) {
      TVMFFIObject* next = waiting_;
      waiting_ = reinterpret_cast<TVMFFIObject*>(static_cast<uintptr_t>(next->combined_ref_count));
      next->deleter(next, kDestroy | kFree);
    }
    --depth_;
  }

 private:
  static constexpr int kMaxDepth = 64;
  static thread_local int depth_;
  static thread_local TVMFFIObject* waiting_;
};
thread_local int Deletions::depth_ = 0;
thread_local TVMFFIObject* Deletions::waiting_ = nullptr;

}  // namespace
}  // namespace portcall

using namespace portcall;

int TVMFFIObjectIncRef(TVMFFIObjectHandle obj) {
  if (obj) Retain(static_cast<TVMFFIObject*>(obj));
  return 0;
}

int TVMFFIObjectDecRef(TVMFFIObjectHandle handle) {
  auto* obj = static_cast<TVMFFIObject*>(handle);
  if (!obj) return 0;
  // There is no other reference, so none can be taken: a load does, where an atomic subtraction costs five times as much.
  if (__atomic_load_n(&obj->combined_ref_count, __ATOMIC_ACQUIRE) == (kWeakOne | kStrongOne)) {
    if (obj->deleter) obj->deleter(obj, kDestroy | kFree);
  } else {
    Release(obj);
  }
  return 0;
}

int PortcallObjectEnterDelete(TVMFFIObjectHandle obj) { return Deletions::Enter(static_cast<TVMFFIObject*>(obj)); }
void PortcallObjectLeaveDelete() { Deletions::Leave(); }
