// SPDX-License-Identifier: Apache-2.0
// Nodes that the core makes are counted by type, so that a test can say what was left behind.
#ifndef PORTCALL_SRC_NODE_H_
#define PORTCALL_SRC_NODE_H_

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

}  // namespace portcall
#endif  // PORTCALL_SRC_NODE_H_
