// SPDX-License-Identifier: Apache-2.0
// Parameters as a blob of named tensors, the format of TVM's save_param_dict. Any bytes give a list or GraphError.
#ifndef PORTCALL_GRAPH_PARAMS_H_
#define PORTCALL_GRAPH_PARAMS_H_

#include <string>
#include <string_view>
#include <vector>

#include "graph/cursor.h"
#include "portcall/tensor.h"

namespace portcall::graph {

// A tensor as it is described in bytes. `name` and `data` point into them; `data` is compact, and aligned by chance only.
struct Param {
  std::string_view name;
  DLDataType dtype{};
  std::vector<int64_t> shape;
  std::string_view data;

  Tensor Copy() const;    // in new memory, 64-byte aligned
  DLTensor View() const;  // over `shape` and `data`
};

using Tensors = Map<>;  // by name

// A map of names and tensors in turn.
Tensors MakeTensors(const std::vector<Any>& cells);

std::vector<Param> ReadParams(std::string_view blob);

// The blob of tensors on any device; vectors as elements have no form in it: GraphError.
std::string WriteParams(const Tensors& tensors);

// A tensor on `device` with the same elements, 64-byte aligned.
Tensor CompactCopy(const Tensor& tensor, Device device);

// The number of axes, the element type and the extents that follow at the cursor, checked. Returns how many elements.
size_t ReadDescription(Cursor* cursor, Param* param);

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_PARAMS_H_
