// SPDX-License-Identifier: Apache-2.0
// Object: what is shared is reference-counted, starts with the same 24-byte header, and knows its type.
//
// A node (`struct FooObj : Object`) holds the data; a reference (`class Foo : ObjectRef`) is what code passes around.
// Counts are changed in place by the holders of references; an object is always freed by its own deleter, so objects of
// any library and allocator live side by side.
#ifndef PORTCALL_OBJECT_H_
#define PORTCALL_OBJECT_H_

#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "runtime.h"

namespace portcall {

constexpr uint64_t kStrongOne = 1;
constexpr uint64_t kWeakOne = uint64_t{1} << 32;
constexpr uint64_t kStrongMask = kWeakOne - 1;
constexpr int kDestroy = 1;  // deleter flags
constexpr int kFree = 2;

inline void Retain(TVMFFIObject* obj) noexcept {
  __atomic_fetch_add(&obj->combined_ref_count, kStrongOne, __ATOMIC_RELAXED);
}

inline void ReleaseWeak(TVMFFIObject* obj) noexcept {
  if (__atomic_fetch_sub(&obj->combined_ref_count, kWeakOne, __ATOMIC_ACQ_REL) == kWeakOne && obj->deleter) {
    obj->deleter(obj, kFree);
  }
}

inline void Release(TVMFFIObject* obj) noexcept {
  uint64_t old = __atomic_fetch_sub(&obj->combined_ref_count, kStrongOne, __ATOMIC_ACQ_REL);
  if (old == (kWeakOne | kStrongOne)) {
    if (obj->deleter) obj->deleter(obj, kDestroy | kFree);
  } else if ((old & kStrongMask) == 1) {
    if (obj->deleter) obj->deleter(obj, kDestroy);
    ReleaseWeak(obj);
  }
}

inline bool IsObject(const TVMFFIAny& value) noexcept { return value.type_index >= kTVMFFIStaticObjectBegin; }
inline bool IsObjectIndex(int32_t type_index) noexcept { return type_index >= kTVMFFIStaticObjectBegin; }

inline TVMFFIByteArray ToByteArray(std::string_view text) noexcept { return {text.data(), text.size()}; }
inline std::string_view ToView(const TVMFFIByteArray& bytes) noexcept { return {bytes.data, bytes.size}; }

// The key of a type, "object(<index>)" when this process has never heard of it.
inline std::string TypeKeyOf(int32_t type_index) {
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(type_index);
  return info ? std::string(ToView(info->type_key)) : "object(" + std::to_string(type_index) + ")";
}

// Whether an object of type `index` is a `base`, by the table of ancestors.
inline bool IsInstance(int32_t index, int32_t base) noexcept {
  if (index == base) return true;
  if (base == kTVMFFIObject) return IsObjectIndex(index);
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(index);
  const TVMFFITypeInfo* base_info = TVMFFIGetTypeInfo(base);
  return info && base_info && info->type_depth > base_info->type_depth &&
         info->type_ancestors[base_info->type_depth]->type_index == base;
}

// Base of every node. A node class states `static constexpr const char* kTypeKey` and, unless its parent is Object,
// `using ParentClass = ...`; its index is given by the table at first use. The nodes of the ABI state kTypeIndex and are final.
struct Object : TVMFFIObject {
  static constexpr const char* kTypeKey = "ffi.Object";
};

namespace detail {
template <typename T, typename = void>
struct StaticIndex
    : std::integral_constant<int32_t, std::is_same_v<T, Object> ? static_cast<int32_t>(kTVMFFIObject) : -1> {};
template <typename T>
struct StaticIndex<T, std::void_t<decltype(T::kTypeIndex)>> : std::integral_constant<int32_t, T::kTypeIndex> {
  static_assert(std::is_final_v<T>, "only the nodes of the ABI have a fixed index, and nothing derives from them");
};
template <typename T, typename = void> struct ParentOf {
  using type = Object;
};
template <typename T> struct ParentOf<T, std::void_t<typename T::ParentClass>> {
  using type = typename T::ParentClass;
};
}  // namespace detail

template <typename T> int32_t TypeIndexOf();

template <typename T> int32_t TypeDepthOf() {
  if constexpr (std::is_same_v<T, Object>) {
    return 0;
  } else {
    return TypeDepthOf<typename detail::ParentOf<T>::type>() + 1;
  }
}

template <typename T> int32_t TypeIndexOf() {
  if constexpr (detail::StaticIndex<T>::value >= 0) {
    return detail::StaticIndex<T>::value;
  } else {
    static const int32_t index = [] {
      TVMFFIByteArray key = ToByteArray(T::kTypeKey);
      return TVMFFITypeGetOrAllocIndex(&key, -1, TypeDepthOf<T>(), 0, 1,
                                       TypeIndexOf<typename detail::ParentOf<T>::type>());
    }();
    return index;
  }
}

namespace detail {
// Whether objects of this type may form long chains, which one release then takes down: a node states
// `static constexpr bool kHoldsObjects = true`.
template <typename T, typename = void> struct HoldsObjects : std::false_type {};
template <typename T> struct HoldsObjects<T, std::void_t<decltype(T::kHoldsObjects)>> : std::true_type {};

struct Nothing {
  void operator()() const noexcept {}
};

// Before() runs before the node is destroyed.
template <typename T, typename Before = Nothing> void DeleteNode(void* self, int flags) {
  // Through the header: TVMFFIObject is the first base of every node.
  T* node = static_cast<T*>(static_cast<TVMFFIObject*>(self));
  // A weak reference that is still there may free the memory at any time: then nothing can wait.
  const bool guarded = HoldsObjects<T>::value && flags == (kDestroy | kFree);
  if (guarded && !runtime::EnterDelete(node)) return;
  if (flags & kDestroy) {
    Before()();
    node->~T();
  }
  if (flags & kFree) ::operator delete(static_cast<void*>(node), std::align_val_t(alignof(T)));
  if (guarded) runtime::LeaveDelete();
}
}  // namespace detail

// A new node with one strong reference, which the caller owns. `extra` bytes follow the node.
template <typename T, typename... A> T* NewNodeWithSpace(size_t extra, A&&... args) {
  static_assert(std::is_base_of_v<TVMFFIObject, T>, "nodes derive from portcall::Object");
  static_assert(!std::is_polymorphic_v<T>, "a node has no virtual functions: its header comes first");
  void* space = ::operator new(sizeof(T) + extra, std::align_val_t(alignof(T)));
  T* node;
  try {
    node = new (space) T(std::forward<A>(args)...);
  } catch (...) {
    ::operator delete(space, std::align_val_t(alignof(T)));
    throw;
  }
  node->combined_ref_count = kWeakOne | kStrongOne;
  node->type_index = TypeIndexOf<T>();
  node->padding = 0;
  node->deleter = detail::DeleteNode<T>;
  return node;
}

template <typename T, typename... A> T* NewNode(A&&... args) {
  return NewNodeWithSpace<T>(0, std::forward<A>(args)...);
}

// A reference to any object, or null.
class ObjectRef {
 public:
  using NodeClass = Object;

  ObjectRef() noexcept = default;
  ObjectRef(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor)
  ObjectRef(const ObjectRef& other) noexcept : ptr_(other.ptr_) {
    if (ptr_) Retain(ptr_);
  }
  ObjectRef(ObjectRef&& other) noexcept : ptr_(std::exchange(other.ptr_, nullptr)) {}
  ObjectRef& operator=(ObjectRef other) noexcept {
    std::swap(ptr_, other.ptr_);
    return *this;
  }
  ~ObjectRef() {
    if (ptr_) Release(ptr_);
  }

  // Takes over one reference that the caller owns.
  template <typename Ref = ObjectRef> static Ref Steal(void* handle) noexcept {
    Ref ref(nullptr);
    ref.ptr_ = static_cast<TVMFFIObject*>(handle);
    return ref;
  }
  // Adds a reference.
  template <typename Ref = ObjectRef> static Ref Borrow(void* handle) noexcept {
    if (handle) Retain(static_cast<TVMFFIObject*>(handle));
    return Steal<Ref>(handle);
  }

  bool defined() const noexcept { return ptr_ != nullptr; }
  explicit operator bool() const noexcept { return defined(); }
  bool same_as(const ObjectRef& other) const noexcept { return ptr_ == other.ptr_; }
  bool operator==(std::nullptr_t) const noexcept { return !defined(); }
  bool operator!=(std::nullptr_t) const noexcept { return defined(); }

  int32_t type_index() const noexcept { return ptr_ ? ptr_->type_index : static_cast<int32_t>(kTVMFFINone); }
  std::string type_key() const { return TypeKeyOf(type_index()); }
  uint32_t use_count() const noexcept {
    return ptr_ ? static_cast<uint32_t>(__atomic_load_n(&ptr_->combined_ref_count, __ATOMIC_ACQUIRE) & kStrongMask) : 0;
  }
  // Whether there is no other reference, not even a weak one that could become strong.
  bool unique() const noexcept {
    return ptr_ && __atomic_load_n(&ptr_->combined_ref_count, __ATOMIC_ACQUIRE) == (kWeakOne | kStrongOne);
  }

  // The node if this is a T (or derived from it), else null.
  template <typename T> T* as() const noexcept {
    return ptr_ && IsInstance(ptr_->type_index, TypeIndexOf<T>()) ? static_cast<T*>(ptr_) : nullptr;
  }

  TVMFFIObject* get() const noexcept { return ptr_; }
  // Gives up the reference without releasing it: the caller owns it now.
  TVMFFIObject* release() noexcept { return std::exchange(ptr_, nullptr); }

 protected:
  TVMFFIObject* ptr_ = nullptr;
};

// Does not keep the object alive; lock() gives a reference, null once it is gone.
class WeakRef {
 public:
  WeakRef() noexcept = default;
  explicit WeakRef(const ObjectRef& ref) noexcept : ptr_(ref.get()) {
    if (ptr_) __atomic_fetch_add(&ptr_->combined_ref_count, kWeakOne, __ATOMIC_RELAXED);
  }
  WeakRef(const WeakRef& other) noexcept : ptr_(other.ptr_) {
    if (ptr_) __atomic_fetch_add(&ptr_->combined_ref_count, kWeakOne, __ATOMIC_RELAXED);
  }
  WeakRef(WeakRef&& other) noexcept : ptr_(std::exchange(other.ptr_, nullptr)) {}
  WeakRef& operator=(WeakRef other) noexcept {
    std::swap(ptr_, other.ptr_);
    return *this;
  }
  ~WeakRef() {
    if (ptr_) ReleaseWeak(ptr_);
  }

  ObjectRef lock() const noexcept {
    if (!ptr_) return nullptr;
    uint64_t count = __atomic_load_n(&ptr_->combined_ref_count, __ATOMIC_RELAXED);
    while (count & kStrongMask) {
      if (__atomic_compare_exchange_n(&ptr_->combined_ref_count, &count, count + kStrongOne, true, __ATOMIC_ACQUIRE,
                                      __ATOMIC_RELAXED)) {
        return ObjectRef::Steal(ptr_);
      }
    }
    return nullptr;
  }

 private:
  TVMFFIObject* ptr_ = nullptr;
};

// A user's reference class: `class Foo : public ObjectRef { PORTCALL_OBJECT_REF(Foo, FooObj) };`
#define PORTCALL_OBJECT_REF(RefType, NodeType)                                  \
 public:                                                                        \
  using NodeClass = NodeType;                                                   \
  RefType() noexcept = default;                                                 \
  RefType(std::nullptr_t) noexcept {} /* NOLINT(google-explicit-constructor) */ \
  NodeType* node() const noexcept { return static_cast<NodeType*>(ptr_); }      \
  NodeType* operator->() const noexcept { return node(); }

template <typename Ref, typename... A> Ref Make(A&&... args) {
  return ObjectRef::Steal<Ref>(NewNode<typename Ref::NodeClass>(std::forward<A>(args)...));
}

}  // namespace portcall
#endif  // PORTCALL_OBJECT_H_
