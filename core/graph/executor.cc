// SPDX-License-Identifier: Apache-2.0
#include "graph/executor.h"

#include "graph/views.h"
#include "runtime/tensor_view.h"

namespace portcall::graph {
namespace {

int64_t Find(const std::unordered_map<std::string, uint32_t>& names, std::string_view name) {
  auto it = names.find(std::string(name));
  return it == names.end() ? -1 : int64_t{it->second};
}

// An index below `count`.
size_t IndexOf(const ArgValue& arg, size_t count, const char* thing) {
  auto index = arg.cast<int64_t>();
  if (index < 0 || static_cast<size_t>(index) >= count) {
    Throw("IndexError", {"there is no ", thing, " ", index, ": the graph has ", count});
  }
  return static_cast<size_t>(index);
}

}  // namespace

// ---- What an executor is made of ----------------------------------------------------------------------------------

Executor::Executor(std::shared_ptr<const Program> program) : program_(std::move(program)), steps_(program_->steps) {
  const Plan& plan = program_->plan;
  std::vector<Tensor> arenas;
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    Device device = program_->devices[d];
    arenas.push_back(HasPlainAddresses(device) ? AllocBytes(plan.devices[d].arena_bytes, device) : Tensor());
  }
  std::vector<Tensor> bases;
  for (const Slot& slot : plan.slots) {
    Tensor arena = slot.own_memory ? Tensor() : arenas[slot.device];
    if (!slot.own_memory && !arena.defined()) arena = AllocBytes(slot.bytes, program_->devices[slot.device]);
    bases.push_back(arena);
  }
  TVMFFIAny none;
  detail::SetCell(&none, kTVMFFINone);
  cells_.assign(program_->cells.size(), none);
  for (size_t s = 0; s < steps_.size(); ++s) steps_[s].args = cells_.data() + program_->first_cell[s];
  values_.resize(plan.entries.size());
  flats_.resize(plan.entries.size());
  for (uint32_t e = 0; e < plan.entries.size(); ++e) {
    uint32_t slot = plan.entries[e].slot;
    bool apart = !plan.slots[slot].own_memory && HasPlainAddresses(program_->devices[plan.slots[slot].device]);
    if (bases[slot].defined() && program_->roots[e] == e) Bind(e, bases[slot], apart ? plan.slots[slot].offset : 0);
  }
  inputs_.resize(plan.inputs.size());
  for (uint32_t needed : program_->needed_at) missing_ += needed != kNone;
  if (!program_->linked_params.defined()) return;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Entry& entry = plan.entries[EntryOf(i)];
    int64_t storage_id = plan.slots[entry.slot].storage_id;
    void* weights = storage_id < 0 ? nullptr : program_->linked_params(storage_id).cast<void*>();
    if (!weights) continue;
    DLTensor description{};
    description.data = weights;
    description.device = Cpu();
    description.dtype = entry.dtype;
    description.ndim = static_cast<int32_t>(entry.shape.size());
    description.shape = const_cast<int64_t*>(entry.shape.data());
    SetParam(i, ViewInto(program_->linked_params, description, DLPACK_FLAG_BITMASK_READ_ONLY));
  }
}

Executor::Inside::Inside(Executor* executor) : executor_(executor) {
  if (executor_->busy_.exchange(true, std::memory_order_acquire)) {
    Throw("RuntimeError",
          {"the graph executor is in use: another thread is inside, or one of its own kernels called it; "
           "give each thread an executor of its own: clone()"});
  }
}

const Plan& Executor::plan() const { return program_->plan; }
uint32_t Executor::EntryOf(size_t input) const { return plan().nodes[plan().inputs[input]].first_output; }
const std::string& Executor::input_name(size_t input) const { return plan().nodes[plan().inputs[input]].name; }
Device Executor::DeviceOf(uint32_t entry) const {
  return program_->devices[plan().slots[plan().entries[entry].slot].device];
}
std::string Executor::DescribeInput(size_t input) const { return "input '" + input_name(input) + "'"; }
std::string Executor::DescribeOutput(size_t output) const {
  return "output " + std::to_string(output) + " ('" + program_->output_names[output] + "')";
}

int64_t Executor::FindInput(std::string_view name) const { return Find(program_->input_index, name); }
int64_t Executor::FindOutput(std::string_view name) const { return Find(program_->output_index, name); }

size_t Executor::InputArg(const ArgValue& arg) const {
  auto name = TryString(arg.cell());
  if (!name) return IndexOf(arg, num_inputs(), "input");
  int64_t found = FindInput(*name);
  if (found >= 0) return static_cast<size_t>(found);
  std::vector<std::string> names;
  for (size_t i = 0; i < num_inputs(); ++i) names.push_back(input_name(i));
  ThrowNoName("input", *name, names);
}

size_t Executor::OutputArg(const ArgValue& arg) const {
  auto name = TryString(arg.cell());
  if (!name) return IndexOf(arg, plan().heads.size(), "output");
  int64_t found = FindOutput(*name);
  if (found < 0) ThrowNoName("output", *name, program_->output_names);
  return static_cast<size_t>(found);
}

size_t Executor::NodeArg(const ArgValue& arg) const {
  size_t count = plan().nodes.size(), found = count;
  auto name = TryString(arg.cell());
  if (!name) return IndexOf(arg, count, "node");
  std::vector<std::string> names;
  for (size_t n = 0; n < count; ++n) {
    names.push_back(plan().nodes[n].name);
    if (names.back() != *name) continue;
    if (found < count) {
      ThrowGraphError(
          {"'", *name, "' is the name of several nodes, ", found, " and ", n, " among them: say which by its index"});
    }
    found = n;
  }
  if (found == count) ThrowNoName("node", *name, names);
  return found;
}

// ---- Values -------------------------------------------------------------------------------------------------------

void Executor::Bind(uint32_t entry, const Tensor& base, uint64_t offset) {
  for (uint32_t e = entry; e != kNone; e = program_->next_view[e]) {
    values_[e] = View(base, offset, plan().entries[e], false);
    flats_[e] = nullptr;
    for (uint32_t u = program_->first_use[e]; u < program_->first_use[e + 1]; ++u) {
      uint32_t cell = program_->uses[u];
      Tensor* shown = &values_[e];
      if (program_->cell_is_flat[cell]) {
        shown = &flats_[e];
        if (!shown->defined()) *shown = View(base, offset, plan().entries[e], true);
      }
      cells_[cell].type_index = kTVMFFITensor;
      cells_[cell].v_obj = shown->get();
    }
  }
}

void Executor::SetState(size_t input, State state) {
  State before = std::exchange(inputs_[input].state, state);
  if (program_->needed_at[input] != kNone && before == kUnset && state != kUnset) --missing_;
  done_ = 0;
}

Tensor Executor::NewMemory(size_t input) const {
  uint32_t entry = EntryOf(input);
  return AllocBytes(plan().slots[plan().entries[entry].slot].bytes, DeviceOf(entry));
}

void Executor::CopyInput(size_t input, const DLTensor& from, State state) {
  uint32_t entry = EntryOf(input);
  CheckFits(plan().entries[entry], from, DescribeInput(input));
  if (inputs_[input].own) {
    Check(PortcallTensorCopy(&from, values_[entry].dl_tensor()));
  } else {
    Tensor memory = NewMemory(input);
    Check(PortcallTensorCopy(&from, View(memory, 0, plan().entries[entry], false).dl_tensor()));
    Bind(entry, memory, 0);
    inputs_[input].own = true;
  }
  SetState(input, state);
}

void Executor::SetParam(size_t input, const Tensor& tensor) {
  uint32_t entry = EntryOf(input);
  const DLTensor& dl = *tensor.dl_tensor();
  CheckFits(plan().entries[entry], dl, DescribeInput(input));
  if (!WhyNotInPlace(plan().entries[entry], dl, DeviceOf(entry)).empty()) return CopyInput(input, dl, kParam);
  Bind(entry, tensor, 0);
  inputs_[input].own = false;
  SetState(input, kParam);
}

void Executor::ShareParam(size_t input, Executor* other, size_t other_input) {
  const Tensor& value = other->values_[other->EntryOf(other_input)];
  uint32_t entry = EntryOf(input);
  // The other's kernels use it where it is, so ours can, on the same device.
  CheckFits(plan().entries[entry], *value.dl_tensor(), DescribeInput(input));
  if (!(value.device() == DeviceOf(entry))) return CopyInput(input, *value.dl_tensor(), kParam);
  Bind(entry, value, 0);
  inputs_[input].own = other->inputs_[other_input].own = false;
  SetState(input, kParam);
}

// ---- Running ------------------------------------------------------------------------------------------------------

void Executor::CheckInputsSet(size_t last_node) const {
  if (missing_ == 0) return;
  std::string missing;
  for (size_t i = 0; i < num_inputs(); ++i) {
    if (inputs_[i].state != kUnset || program_->needed_at[i] > last_node) continue;
    if (!missing.empty()) {
      missing += " (nor were others)";
      break;
    }
    missing = DescribeInput(i) + ", " + Describe(plan().entries[EntryOf(i)]);
  }
  if (missing.empty()) return;
  ThrowGraphError({missing, ", was never set: call set_input, or for weights load_params or set_param"});
}

void Executor::FailAt(const Step& step) {
  TVMFFIObjectHandle handle = nullptr;
  TVMFFIErrorMoveFromRaised(&handle);
  const Node& node = plan().nodes[step.node];
  if (!handle) {
    throw Error("RuntimeError",
                DescribeNode(plan(), step.node) + ": its function failed (nonzero return) without setting an error");
  }
  // The error stays the object that it is; where it happened is a frame more.
  ObjectRef error = ObjectRef::Steal(handle);
  const TVMFFIErrorCell& cell = static_cast<ErrorObj*>(error.get())->cell;
  std::string where = node.name + " (" + (node.op == Op::kCopy ? "__copy" : node.function) + ")";
  TVMFFIByteArray frame = *TVMFFIBacktrace("<graph>", static_cast<int>(step.node), where.c_str(), 0);
  if (cell.update_backtrace) cell.update_backtrace(error.get(), &frame, 1);
  throw Error(error);
}

void Executor::Execute(size_t first_node, size_t end_node) {
  const Step* end = steps_.data() + program_->first_step[end_node];
  for (const Step* step = steps_.data() + program_->first_step[first_node]; step != end; ++step) {
    TVMFFIAny result;
    detail::SetCell(&result, kTVMFFINone);
    if (step->call(step->self, step->args, step->count, &result) != 0) FailAt(*step);
    if (IsObject(result)) Release(result.v_obj);
  }
}

void Executor::Run() {
  done_ = 0;
  CheckInputsSet(plan().nodes.size());
  Execute(0, plan().nodes.size());
}

// Runs up to a node, which leaves its outputs as a run of the whole never shows them: later nodes reuse memory.
void Executor::ExecuteTo(size_t node) {
  CheckInputsSet(node);
  size_t first = node < done_ ? 0 : done_;
  done_ = 0;
  Execute(first, node + 1);
  done_ = node + 1;
}

void Executor::CheckDone(size_t node) const {
  if (done_ == node + 1) return;
  std::string last =
      done_ ? "the last one was " + std::to_string(done_ - 1) : "none was executed since the last run or input";
  Throw("ValueError", {"the outputs of node ", node, " are there only right after execute_node(", node, "); ", last});
}

// Into the tensor that the caller gave as argument `out`, else into a new one of the host.
Any Executor::CopyOut(uint32_t entry, const std::string& what, Args args, int out) const {
  const Entry& value = plan().entries[entry];
  const Tensor& from = values_[entry];
  if (!from.defined()) ThrowGraphError({what, " is an input that was never set"});
  if (out >= args.size() || args[out] == nullptr) {
    Tensor copy = Tensor::Empty(value.shape, value.dtype);
    copy.CopyFrom(from);
    return copy;
  }
  const DLTensor* to = args[out].cast<DLTensor*>();
  CheckFits(value, *to, what);
  if (args[out].type_index() == kTVMFFITensor) {
    args[out].cast<Tensor>().CopyFrom(from);  // it knows whether it is read-only
  } else {
    Check(PortcallTensorCopy(from.dl_tensor(), to));
  }
  return nullptr;
}

Module CreateExecutor(std::string_view plan, const Module& library, const std::vector<Device>& devices,
                      PackedFunc linked_params) {
  return Module(std::make_unique<Executor>(BuildProgram(plan, library, devices, std::move(linked_params))));
}

}  // namespace portcall::graph
