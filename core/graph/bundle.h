// SPDX-License-Identifier: Apache-2.0
// Bundles: a library of kernels, followed in one file by parameters and the index of both (docs/graph.md). The footer is
// read with the library (src/elf_file.h).
#ifndef PORTCALL_GRAPH_BUNDLE_H_
#define PORTCALL_GRAPH_BUNDLE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/params.h"

namespace portcall::graph {

// What the index of a bundle says, which stands in front of its footer. All of it points into the file.
struct BundleIndex {
  std::string_view name, json, plan;
  std::vector<Param> params;
};

// `file` is the bundle up to its footer, the last `index_bytes` of it are the index. Any bytes give an index whose
// parameters lie within the file, aligned, or GraphError.
BundleIndex ReadBundleIndex(std::string_view file, uint64_t index_bytes);

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_BUNDLE_H_
