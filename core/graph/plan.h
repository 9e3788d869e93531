// SPDX-License-Identifier: Apache-2.0
// A plan: a graph with its memory laid out, in the flat binary form that docs/graph.md describes.
//
// Rule: any bytes give a plan that can be run without further checks of a number, or GraphError with the place and the
// reason; nothing is allocated on a count's word alone.
#ifndef PORTCALL_GRAPH_PLAN_H_
#define PORTCALL_GRAPH_PLAN_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "bytes/message.h"
#include "portcall/tensor.h"

namespace portcall::graph {

constexpr uint32_t kPlanVersion = 1;

struct PlanDevice {
  int32_t type;  // -1: the first device that is given
  uint64_t arena_bytes;
};

struct Slot {
  uint32_t device;
  bool own_memory;  // a placeholder's; else in the arena
  int64_t storage_id;
  uint64_t offset;
  uint64_t bytes;
};

struct Entry {
  uint32_t slot;
  DLDataType dtype;
  uint64_t bytes;  // elements narrower than a byte take a byte each
  std::vector<int64_t> shape;
};

enum class Op : uint32_t { kPlaceholder = 0, kCall = 1, kNop = 2, kCopy = 3 };

struct Node {
  Op op;
  bool flatten;  // arguments are passed with one dimension
  std::string name;
  std::string function;
  uint32_t first_output;
  uint32_t num_outputs;
  std::vector<uint32_t> inputs;
};

struct Plan {
  std::vector<PlanDevice> devices;
  std::vector<Slot> slots;
  std::vector<Entry> entries;
  std::vector<Node> nodes;
  std::vector<uint32_t> inputs;  // nodes
  std::vector<uint32_t> heads;   // entries
};

Plan DecodePlan(std::string_view bytes);

// ---- Messages -----------------------------------------------------------------------------------------------------

using bytes::Join;
using bytes::Piece;
using bytes::Throw;
[[noreturn]] void ThrowGraphError(std::initializer_list<Piece> pieces);

// "node 3 ('relu')".
std::string DescribeNode(const Plan& plan, size_t node);
// "float32 (1, 3, 224, 224)".
std::string DescribeTensor(DLDataType dtype, const int64_t* shape, size_t ndim);

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_PLAN_H_
