// SPDX-License-Identifier: Apache-2.0
// A program is a plan with its functions found: what an executor and its clones share, and what never changes.
#ifndef PORTCALL_GRAPH_PROGRAM_H_
#define PORTCALL_GRAPH_PROGRAM_H_

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/plan.h"
#include "portcall/module.h"

namespace portcall::graph {

constexpr uint32_t kNone = UINT32_MAX;

// One call of a kernel, or a copy.
struct Step {
  TVMFFISafeCallType call;
  void* self;
  const TVMFFIAny* args;
  int32_t count;
  uint32_t node;
};

struct Program {
  std::string bytes;
  Plan plan;
  std::vector<Device> devices;        // one for each device of the plan
  std::vector<PackedFunc> functions;  // one for each step
  std::vector<Step> steps;            // args are the executor's
  std::vector<uint32_t> first_step;   // of each node, and the end
  std::vector<uint32_t> first_cell;   // for each step: its first cell
  std::vector<uint32_t> cells;        // for each argument: its entry
  std::vector<uint32_t> cell_is_flat;
  std::vector<uint32_t> first_use, uses;  // the cells that show entry e: uses[first_use[e] .. first_use[e + 1]]
  std::vector<uint32_t> producers;        // the node of each entry
  std::vector<uint32_t> roots;            // the entry that an entry is a view of, itself if of none
  std::vector<uint32_t> next_view;        // a list from each root through its views
  std::vector<uint32_t> needed_at;        // by input: the first node that reads it; one beyond: only a head does
  std::vector<std::string> output_names;
  std::unordered_map<std::string, uint32_t> input_index, output_index;
  PackedFunc linked_params;  // TVM 0.8: storage id -> pointer to weights inside of the library, or null
};

// Checks a plan and finds its functions. Devices: at least one. Throws GraphError.
std::shared_ptr<const Program> BuildProgram(std::string_view plan, const Module& library,
                                            const std::vector<Device>& devices, PackedFunc linked_params);

[[noreturn]] void ThrowNoName(const char* thing, std::string_view name, const std::vector<std::string>& there);

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_PROGRAM_H_
