// SPDX-License-Identifier: Apache-2.0
// The promises of plans: any bytes give a plan or GraphError; what the decoder lets through can be run.
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/promises.h"
#include "fuzz/targets.h"
#include "graph/plan.h"
#include "portcall/portcall.h"
#include "tests/graph/plan_writer.h"

using namespace portcall;
using namespace portcall::graph;

namespace {

constexpr uint64_t kMaxMemory = 1 << 20;

// A library that has every function: it writes each byte of its last argument, and reads each byte of the others.
class AnyLibrary : public ModuleNode {
 public:
  const char* kind() const override { return "library"; }
  PackedFunc GetFunction(const std::string& name, const Module&) override {
    if (name == "_lookup_linked_param") return nullptr;
    return PackedFunc([](Args args, RetValue*) {
      unsigned sum = 0;
      for (int i = 0; i < args.size(); ++i) {
        const DLTensor* tensor = args[i].cast<DLTensor*>();
        Promise(reinterpret_cast<uintptr_t>(tensor->data) % kTensorAlignment == 0 && tensor->byte_offset == 0);
        auto* bytes = static_cast<unsigned char*>(tensor->data);
        for (size_t k = 0; k < NumBytes(*tensor); ++k) i + 1 < args.size() ? sum += bytes[k] : bytes[k] = 1 & sum;
      }
    });
  }
};

// What the plan may allocate, inputs and copies of outputs included.
uint64_t MemoryOf(const Plan& plan) {
  uint64_t total = 0;
  auto add = [&](uint64_t nbytes) { total = nbytes > kMaxMemory ? kMaxMemory + 1 : total + nbytes; };
  for (const PlanDevice& device : plan.devices) add(device.arena_bytes);
  for (const Slot& slot : plan.slots) add(slot.own_memory ? slot.bytes : 0);
  for (uint32_t head : plan.heads) add(plan.entries[head].bytes);
  for (const Node& node : plan.nodes) {  // what a call walks over
    for (uint32_t entry : node.inputs) add(plan.entries[entry].bytes);
    for (uint32_t k = 0; k < node.num_outputs; ++k) add(plan.entries[node.first_output + k].bytes);
    if (total > kMaxMemory) break;
  }
  return total;
}

// Made once: memory that a module allocates does not belong to the plan.
const Module& Library() {
  static const Module library(std::make_unique<AnyLibrary>());
  return library;
}

void RunAll(const Plan& plan, std::string_view bytes) {
  Module executor = Registry::Get("portcall.graph.create")(Bytes(bytes), Library(), Cpu());
  Promise(executor.GetFunction("get_plan")().cast<Bytes>() == bytes);
  for (size_t i = 0; i < plan.inputs.size(); ++i) executor.GetFunction("get_input")(i);
  executor.GetFunction("run")();
  executor.GetFunction("get_output_info")();
  executor.GetFunction("get_input_info")();
  for (size_t i = 0; i < plan.heads.size(); ++i) {
    Tensor output = executor.GetFunction("get_output")(i);
    executor.GetFunction("get_output")(i, Tensor::Empty(plan.entries[plan.heads[i]].shape, output.dtype()));
  }
  for (size_t n = 0; n < plan.nodes.size() && n < 16; ++n) {
    executor.GetFunction("execute_node")(n);
    if (plan.nodes[n].num_outputs) executor.GetFunction("get_node_output")(n, 0);
  }
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    executor.GetFunction("set_param")(i, executor.GetFunction("get_input")(i));
  }
  Module clone = executor.GetFunction("clone")();
  executor = nullptr;
  clone.GetFunction("run")();
}

}  // namespace

void FuzzGraphPlan(const uint8_t* data, size_t size) {
  if (size == 0) return;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] & 1) bytes = PlanWriter::Wrap(bytes);  // with a header that is right: no mutation finds a checksum
  Plan plan;
  try {
    plan = DecodePlan(bytes);
  } catch (const Error& error) {
    return Promise(error.kind() == "GraphError" && error.message().substr(0, 6) == "plan: ");
  }
  if (MemoryOf(plan) <= kMaxMemory) RunAll(plan, bytes);
}
