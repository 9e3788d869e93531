// SPDX-License-Identifier: Apache-2.0
#include "graph/program.h"

#include <algorithm>

namespace portcall::graph {
namespace {

// ---- Names ---------------------------------------------------------------------------------------------------------

// "; there are 'data', 'weight'", or the first few.
std::string Some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  if (names.empty()) return "; there are none";
  std::string text = "; there are ";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += Join({i ? ", '" : "'", names[i], "'"});
  return names.size() > kShown ? Join({text, ", … (", names.size(), ")"}) : text;
}

void CollectNames(const ObjectRef& module, std::vector<std::string>* names, std::vector<ObjectRef>* seen) {
  for (const ObjectRef& known : *seen) {
    if (known.same_as(module)) return;
  }
  seen->push_back(module);
  for (const std::string& name : Registry::Get("portcall.ModuleFunctionNames")(module).cast<Array<std::string>>()) {
    names->push_back(name);
  }
  for (const Any& import : Registry::Get("ffi.ModuleImports")(module).cast<Array<Any>>()) {
    CollectNames(import, names, seen);
  }
}

// ---- Building a program -------------------------------------------------------------------------------------------

// __copy. Sizes are equal, as the plan was checked for; shapes and types may differ.
int CopyValue(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  DLTensor from = *TryDLTensor(args[0]), to = *TryDLTensor(args[1]);
  auto nbytes = static_cast<int64_t>(NumBytes(from));
  for (DLTensor* tensor : {&from, &to}) {
    tensor->dtype = {kDLUInt, 8, 1};
    tensor->ndim = 1;
    tensor->shape = &nbytes;
    tensor->strides = nullptr;
  }
  return PortcallTensorCopy(&from, &to);
}

PackedFunc MakeCopyFunction() {
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallFunctionCreate(nullptr, CopyValue, nullptr, 0, "__copy", &handle));
  return ObjectRef::Steal<PackedFunc>(handle);
}

// Finds each function once.
class Functions {
 public:
  explicit Functions(const Module& library) : library_(library), copy_(MakeCopyFunction()) {}

  const PackedFunc& Find(const Plan& plan, uint32_t node) {
    if (plan.nodes[node].op == Op::kCopy) return copy_;
    const std::string& name = plan.nodes[node].function;
    auto [it, added] = known_.emplace(name, static_cast<uint32_t>(functions_.size()));
    if (added) {
      functions_.push_back(library_.defined() ? library_.GetFunction(name, true) : PackedFunc());
      if (!functions_.back().defined()) Refuse(DescribeNode(plan, node), name);
    }
    return functions_[it->second];
  }

 private:
  [[noreturn]] void Refuse(const std::string& node, const std::string& name) {
    std::vector<std::string> names;
    std::vector<ObjectRef> seen;
    if (library_.defined()) CollectNames(library_, &names, &seen);
    ThrowGraphError({node, " calls the function '", name, "', which ",
                     (library_.defined() ? "neither the library nor what it imports has" + Some(names)
                                         : "needs a library: it is None")});
  }

  const Module& library_;
  PackedFunc copy_;
  std::vector<PackedFunc> functions_;
  std::unordered_map<std::string, uint32_t> known_;  // index into functions_
};

std::vector<Device> ResolveDevices(const Plan& plan, const std::vector<Device>& given) {
  if (given.empty()) Throw("ValueError", {"an executor needs a device"});
  std::vector<Device> devices;
  for (const PlanDevice& wanted : plan.devices) {
    auto same_type = [&](Device device) { return device.device_type == wanted.type; };
    auto it = std::find_if(given.begin(), given.end(), same_type);
    devices.push_back(it == given.end() ? given[0] : *it);
  }
  return devices;
}

void AddSteps(Program* program, const Module& library) {
  Functions functions(library);
  for (uint32_t n = 0; n < program->plan.nodes.size(); ++n) {
    const Node& node = program->plan.nodes[n];
    program->first_step.push_back(static_cast<uint32_t>(program->steps.size()));
    if (node.op != Op::kCall && node.op != Op::kCopy) continue;
    const PackedFunc& function = functions.Find(program->plan, n);
    PortcallFunctionInfo info;
    PortcallFunctionGetInfo(function.get(), &info);
    auto count = static_cast<int32_t>(node.inputs.size() + node.num_outputs);
    program->functions.push_back(function);
    program->steps.push_back({info.call, info.self, nullptr, count, n});
    program->first_cell.push_back(static_cast<uint32_t>(program->cells.size()));
    program->cells.insert(program->cells.end(), node.inputs.begin(), node.inputs.end());
    for (uint32_t k = 0; k < node.num_outputs; ++k) program->cells.push_back(node.first_output + k);
    program->cell_is_flat.resize(program->cells.size(), node.flatten);
  }
  program->first_step.push_back(static_cast<uint32_t>(program->steps.size()));
}

void AddEntries(Program* program) {
  const Plan& plan = program->plan;
  size_t count = plan.entries.size();
  program->first_use.assign(count + 1, 0);
  for (uint32_t entry : program->cells) ++program->first_use[entry + 1];
  for (size_t e = 0; e < count; ++e) program->first_use[e + 1] += program->first_use[e];
  program->uses.resize(program->cells.size());
  std::vector<uint32_t> next = program->first_use;
  for (uint32_t c = 0; c < program->cells.size(); ++c) program->uses[next[program->cells[c]]++] = c;

  program->producers.resize(count);
  program->roots.resize(count);
  program->next_view.assign(count, kNone);
  for (uint32_t n = 0; n < plan.nodes.size(); ++n) {
    const Node& node = plan.nodes[n];
    for (uint32_t e = node.first_output; e < node.first_output + node.num_outputs; ++e) {
      program->producers[e] = n;
      uint32_t root = program->roots[e] = node.op == Op::kNop ? program->roots[node.inputs[0]] : e;
      if (root != e) program->next_view[e] = std::exchange(program->next_view[root], e);
    }
  }
}

void AddInputs(Program* program) {
  const Plan& plan = program->plan;
  std::vector<uint32_t> input_of(plan.entries.size(), kNone);
  program->needed_at.assign(plan.inputs.size(), kNone);
  for (uint32_t i = 0; i < plan.inputs.size(); ++i) {
    const Node& node = plan.nodes[plan.inputs[i]];
    program->input_index.emplace(node.name, i);
    input_of[node.first_output] = i;
  }
  auto need = [&](uint32_t entry, size_t node) {
    uint32_t input = input_of[program->roots[entry]];
    if (input == kNone) return;
    uint32_t& first = program->needed_at[input];
    first = std::min(first, static_cast<uint32_t>(node));
  };
  for (const Step& step : program->steps) {
    for (uint32_t entry : plan.nodes[step.node].inputs) need(entry, step.node);
  }
  for (uint32_t head : plan.heads) need(head, plan.nodes.size());
}

// An output is called as its node; "<node>:<output>" where that would not tell which.
void AddOutputs(Program* program) {
  const Plan& plan = program->plan;
  std::unordered_map<std::string, uint32_t> times;
  auto name_of = [&](uint32_t head) { return plan.nodes[program->producers[head]].name; };
  for (uint32_t head : plan.heads) ++times[name_of(head)];
  for (uint32_t i = 0; i < plan.heads.size(); ++i) {
    std::string name = name_of(plan.heads[i]);
    bool unique = times[name] == 1;
    if (unique) program->output_index.emplace(name, i);
    program->output_names.push_back(unique ? name : name + ":" + std::to_string(i));
  }
  for (uint32_t i = 0; i < plan.heads.size(); ++i) {
    program->output_index.emplace(name_of(plan.heads[i]) + ":" + std::to_string(i), i);
  }
}

}  // namespace

void ThrowNoName(const char* thing, std::string_view name, const std::vector<std::string>& there) {
  ThrowGraphError({"the graph has no ", thing, " '", name, "'", Some(there)});
}

std::shared_ptr<const Program> BuildProgram(std::string_view plan, const Module& library,
                                            const std::vector<Device>& devices, PackedFunc linked_params) {
  auto program = std::make_shared<Program>();
  program->bytes = plan;
  program->plan = DecodePlan(plan);
  program->devices = ResolveDevices(program->plan, devices);
  AddSteps(program.get(), library);
  AddEntries(program.get());
  AddInputs(program.get());
  AddOutputs(program.get());
  if (!linked_params.defined() && library.defined()) {
    linked_params = library.GetFunction("_lookup_linked_param", true);
  }
  program->linked_params = std::move(linked_params);
  return program;
}

}  // namespace portcall::graph
