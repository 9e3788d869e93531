// SPDX-License-Identifier: Apache-2.0
// Nodes that the core makes are counted by type, so that a test can say what was left behind. And how objects of types
// that are defined at run time are recognised.
#ifndef PORTCALL_RUNTIME_NODE_H_
#define PORTCALL_RUNTIME_NODE_H_

#include <atomic>
#include <cstdint>

#include "portcall/object.h"

namespace portcall {

inline std::atomic<int64_t> live_nodes[kTVMFFIStaticObjectEnd + 1];

template <typename T> struct CountDestroyed {
  void operator()() const noexcept { live_nodes[TypeIndexOf<T>()].fetch_sub(1, std::memory_order_relaxed); }
};
template <typename T> constexpr auto DeleteCountedNode = detail::DeleteNode<T, CountDestroyed<T>>;

// As NewNodeWithSpace, for nodes of the ABI.
template <typename T, typename... A> T* NewCountedNode(size_t extra, A&&... args) {
  T* node = NewNodeWithSpace<T>(extra, std::forward<A>(args)...);
  node->deleter = DeleteCountedNode<T>;
  live_nodes[TypeIndexOf<T>()].fetch_add(1, std::memory_order_relaxed);
  return node;
}

// The creator of such types, and the reader of their fields. CreateRow makes nothing, because it does not know the type; use
// PortcallObjectCreate.
int CreateRow(TVMFFIObjectHandle* out);
int ReadCell(void* field, TVMFFIAny* result);
// A type may be described again while others read the old description.
inline const TVMFFITypeMetadata* MetadataOf(const TVMFFITypeInfo& info) noexcept {
  return __atomic_load_n(&info.metadata, __ATOMIC_ACQUIRE);
}
inline bool IsRow(const TVMFFITypeInfo& info) noexcept {
  const TVMFFITypeMetadata* metadata = MetadataOf(info);
  return metadata && metadata->creator == CreateRow;
}

}  // namespace portcall
#endif  // PORTCALL_RUNTIME_NODE_H_
