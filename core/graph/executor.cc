// SPDX-License-Identifier: Apache-2.0
#include "graph/executor.h"

#include <algorithm>
#include <climits>
#include <unordered_map>

#include "graph/params.h"
#include "src/time_evaluator.h"

namespace portcall::graph {

constexpr uint32_t kNone = UINT32_MAX;

struct Program {
  std::string bytes;
  Plan plan;
  std::vector<Device> devices;        // of each device of the plan
  std::vector<PackedFunc> functions;  // of each step
  std::vector<Step> steps;            // args are the executor's
  std::vector<uint32_t> first_step;   // of each node, and the end
  std::vector<uint32_t> first_cell;   // of each step
  std::vector<uint32_t> cells;        // which entry an argument is
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

namespace {

// ---- Names that resemble each other -------------------------------------------------------------------------------

constexpr size_t kNamesShown = 3;
constexpr size_t kLongName = 200;

size_t Distance(std::string_view a, std::string_view b) {  // Levenshtein's
  std::vector<size_t> row(b.size() + 1);
  for (size_t k = 0; k <= b.size(); ++k) row[k] = k;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t k = 0; k < b.size(); ++k) {
      size_t replaced = diagonal + (a[i] == b[k] ? 0 : 1);
      diagonal = row[k + 1];
      row[k + 1] = std::min({replaced, row[k] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// "; did you mean 'data'?", or the first few of those that there are.
std::string Near(std::string_view name, const std::vector<std::string>& there) {
  name = name.substr(0, kLongName);
  std::string near[kNamesShown];  // by how near they are, then by their order
  size_t distances[kNamesShown], found = 0;
  for (const std::string& known : there) {
    size_t longer = std::max(name.size(), known.size()), shorter = std::min(name.size(), known.size());
    size_t limit = 1 + longer / 3;
    if (known.size() > kLongName || longer - shorter > limit) continue;
    size_t distance = Distance(name, known), place = found;
    if (distance > limit) continue;
    while (place > 0 && distances[place - 1] > distance) --place;
    if (place == kNamesShown) continue;
    found = std::min(found + 1, kNamesShown);
    for (size_t i = found - 1; i > place; --i) {
      near[i] = near[i - 1];
      distances[i] = distances[i - 1];
    }
    near[place] = known;
    distances[place] = distance;
  }
  size_t shown = found ? found : std::min(there.size(), kNamesShown);
  if (shown == 0) return "; there are none";
  std::string text = found ? "; did you mean " : "; there are ";
  for (size_t i = 0; i < shown; ++i) text += Join({i ? ", '" : "'", found ? near[i] : there[i], "'"});
  if (found) return text + "?";
  return there.size() > shown ? Join({text, ", … (", there.size(), ")"}) : text;
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
                     (library_.defined() ? "neither the library nor what it imports has" + Near(name, names)
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

// ---- Tensors ------------------------------------------------------------------------------------------------------

// Whether an address on such a device is a number that one may add to. Others name whole allocations.
bool HasPlainAddresses(Device device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDA:
    case kDLCUDAHost:
    case kDLCUDAManaged:
    case kDLROCM:
    case kDLROCMHost:
      return true;
    default:
      return false;
  }
}

Tensor AllocBytes(uint64_t nbytes, Device device) {
  return Tensor::Empty({static_cast<int64_t>(nbytes)}, {kDLUInt, 8, 1}, device);
}

// Kernels take no offsets, so it goes into the address where it can.
Tensor View(const Tensor& base, uint64_t offset, const Entry& entry, bool flat) {
  DLTensor view = *base.dl_tensor();
  view.byte_offset += offset;
  if (HasPlainAddresses(view.device)) {
    view.data = static_cast<char*>(view.data) + std::exchange(view.byte_offset, 0);
  }
  int64_t size = 1;
  view.dtype = entry.dtype;
  view.ndim = static_cast<int32_t>(entry.shape.size());
  view.shape = const_cast<int64_t*>(entry.shape.data());
  view.strides = nullptr;
  if (flat) {
    size = static_cast<int64_t>(NumElements(view));
    view.ndim = 1;
    view.shape = &size;
  }
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

std::string Describe(const DLTensor& tensor) {
  return DescribeTensor(tensor.dtype, tensor.shape, static_cast<size_t>(tensor.ndim));
}
std::string Describe(const Entry& entry) { return DescribeTensor(entry.dtype, entry.shape.data(), entry.shape.size()); }

void CheckFits(const Entry& entry, const DLTensor& tensor, const std::string& what) {
  bool same = tensor.dtype == entry.dtype && static_cast<size_t>(tensor.ndim) == entry.shape.size() &&
              std::equal(entry.shape.begin(), entry.shape.end(), tensor.shape);
  if (!same) ThrowGraphError({what, " is ", Describe(entry), ", got ", Describe(tensor)});
}

// Why kernels cannot use the memory of a tensor that fits otherwise; "" if they can.
std::string WhyNotInPlace(const Entry& entry, const DLTensor& tensor, Device device) {
  std::string why;
  auto add = [&](const std::string& reason) { why += (why.empty() ? "" : ", and ") + reason; };
  if (!(tensor.device == device)) add("it lies on " + ToString(tensor.device) + ", not on " + ToString(device));
  if (!IsContiguous(tensor)) {
    add("it is not compact: its strides are " + ToString(Shape(tensor.strides, static_cast<size_t>(tensor.ndim))));
  }
  if (HasPlainAddresses(tensor.device)) {
    auto off = (reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset) % kTensorAlignment;
    if (off) add("its address is " + std::to_string(off) + " bytes off a multiple of 64");
  }
  if (NumBytes(tensor) < entry.bytes) add("its elements share bytes, where the graph gives each a byte");
  return why;
}

void CheckInPlace(const Entry& entry, const DLTensor& tensor, Device device, const std::string& what) {
  CheckFits(entry, tensor, what);
  std::string why = WhyNotInPlace(entry, tensor, device);
  if (!why.empty()) ThrowGraphError({"the tensor cannot be used in place as ", what, ": ", why});
}

Tensor ReadOnlyView(const Tensor& tensor) {
  auto release = [](void* owner) { Release(static_cast<TVMFFIObject*>(owner)); };
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallTensorFromMemory(tensor.dl_tensor(), DLPACK_FLAG_BITMASK_READ_ONLY, tensor.get(), release, &handle));
  Retain(tensor.get());
  return ObjectRef::Steal<Tensor>(handle);
}

void Append(std::string* bytes, int64_t value) { bytes->append(reinterpret_cast<const char*>(&value), sizeof value); }
void Append(std::string* bytes, double value) { bytes->append(reinterpret_cast<const char*>(&value), sizeof value); }

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

[[noreturn]] void ThrowNoName(const char* thing, std::string_view name, const std::vector<std::string>& there) {
  ThrowGraphError({"the graph has no ", thing, " '", name, "'", Near(name, there)});
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
    auto release = [](void* owner) { Release(static_cast<TVMFFIObject*>(owner)); };
    TVMFFIObject* library = program_->linked_params.get();  // it keeps what it points into
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallTensorFromMemory(&description, DLPACK_FLAG_BITMASK_READ_ONLY, library, release, &handle));
    Retain(library);
    SetParam(i, ObjectRef::Steal<Tensor>(handle));
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
  int64_t found = Find(program_->output_index, *name);
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
    args[out].cast<Tensor>().CopyFrom(from);  // which knows whether it is read-only
  } else {
    Check(PortcallTensorCopy(from.dl_tensor(), to));
  }
  return nullptr;
}

// ---- Functions ----------------------------------------------------------------------------------------------------

struct Executor::Function {
  const char* name;
  void (Executor::*body)(Args, RetValue*);
  int least, most;  // arguments
  bool inside;      // reads or writes what a run does
};

const Executor::Function Executor::kFunctions[] = {
    {"run", &Executor::RunFunction, 0, 0, true},
    {"set_input", &Executor::SetInput, 2, 2, true},
    {"set_param", &Executor::SetParamFunction, 2, INT_MAX, true},
    {"set_input_zero_copy", &Executor::SetInputZeroCopy, 2, 2, true},
    {"set_output_zero_copy", &Executor::SetOutputZeroCopy, 2, 2, true},
    {"get_input", &Executor::GetInput, 1, 1, true},
    {"get_output", &Executor::GetOutput, 1, 2, true},
    {"get_num_inputs", &Executor::GetNumInputs, 0, 0, false},
    {"get_num_outputs", &Executor::GetNumOutputs, 0, 0, false},
    {"get_input_index", &Executor::GetInputIndex, 1, 1, false},
    {"get_output_index", &Executor::GetOutputIndex, 1, 1, false},
    {"get_input_info", &Executor::GetInputInfo, 0, 0, true},
    {"get_output_info", &Executor::GetOutputInfo, 0, 0, false},
    {"get_input_states", &Executor::GetInputStates, 0, 0, true},
    {"load_params", &Executor::LoadParams, 1, 1, true},
    {"share_params", &Executor::ShareParams, 1, 2, true},
    {"run_from_inputs", &Executor::RunFromInputs, 2, INT_MAX, true},
    {"clone", &Executor::Clone, 0, 0, true},
    {"get_plan", &Executor::GetPlan, 0, 0, false},
    {"get_devices", &Executor::GetDevices, 0, 0, false},
    {"execute_node", &Executor::ExecuteNode, 1, 1, true},
    {"get_node_output", &Executor::GetNodeOutput, 2, 3, true},
    {"debug_get_output", &Executor::DebugGetOutput, 1, 2, true},
    {"run_individual", &Executor::RunIndividual, 0, 6, true},
    {"run_individual_node", &Executor::RunIndividualNode, 1, 7, true},
    {"profile_run", &Executor::ProfileRun, 0, 0, true},
};

PackedFunc Executor::GetFunction(const std::string& name, const Module& self) {
  for (const Function& function : kFunctions) {
    if (name != function.name) continue;
    auto body = [self, this, function](Args args, RetValue* rv) {
      if (args.size() < function.least || args.size() > function.most) {
        std::string expected = std::to_string(function.least);
        if (function.most != function.least) {
          expected =
              function.most == INT_MAX ? "at least " + expected : expected + " to " + std::to_string(function.most);
        }
        detail::ThrowArgumentError(args.function(), -1, expected + " arguments", std::to_string(args.size()));
      }
      if (!function.inside) return (this->*function.body)(args, rv);
      Inside inside(this);
      (this->*function.body)(args, rv);
    };
    return PackedFunc(std::move(body), name);
  }
  return nullptr;
}

std::vector<std::string> Executor::FunctionNames() {
  std::vector<std::string> names;
  for (const Function& function : kFunctions) names.emplace_back(function.name);
  return names;
}

void Executor::RunFunction(Args, RetValue*) { Run(); }

void Executor::SetInput(Args args, RetValue*) { CopyInput(InputArg(args[0]), *args[1].cast<DLTensor*>(), kInput); }

namespace {
// Inputs and their tensors come in turn, so that one call over a session sets many.
void CheckPairs(Args args) {
  if (args.size() % 2 != 0) {
    detail::ThrowArgumentError(args.function(), args.size() - 1, "a Tensor for each input", "an input without one");
  }
}
}  // namespace

void Executor::SetParamFunction(Args args, RetValue*) {
  CheckPairs(args);
  for (int i = 0; i < args.size(); i += 2) {
    size_t input = InputArg(args[i]);
    if (args[i + 1].type_index() == kTVMFFIDLTensorPtr) {  // borrowed
      CopyInput(input, *args[i + 1].cast<DLTensor*>(), kParam);
    } else {
      SetParam(input, args[i + 1].cast<Tensor>());
    }
  }
}

void Executor::SetInputZeroCopy(Args args, RetValue*) {
  size_t input = InputArg(args[0]);
  auto tensor = args[1].cast<Tensor>();
  uint32_t entry = EntryOf(input);
  CheckInPlace(plan().entries[entry], *tensor.dl_tensor(), DeviceOf(entry), DescribeInput(input));
  Bind(entry, tensor, 0);
  inputs_[input].own = false;
  SetState(input, kInput);
}

void Executor::SetOutputZeroCopy(Args args, RetValue*) {
  size_t output = OutputArg(args[0]);
  auto tensor = args[1].cast<Tensor>();
  uint32_t entry = plan().heads[output], root = program_->roots[entry];
  std::string what = DescribeOutput(output);
  CheckInPlace(plan().entries[entry], *tensor.dl_tensor(), DeviceOf(entry), what);
  if (tensor.is_read_only()) {
    ThrowGraphError({"the tensor cannot be used in place as ", what, ": it is read-only"});
  }
  const Node& producer = plan().nodes[program_->producers[root]];
  if (producer.op == Op::kPlaceholder) {
    ThrowGraphError({what, " is the input '", producer.name,
                     "' itself, which no kernel writes: use set_input_zero_copy, or copy it"});
  }
  Bind(root, tensor, 0);
  done_ = 0;
}

void Executor::GetInput(Args args, RetValue* rv) {
  size_t input = InputArg(args[0]);
  uint32_t entry = EntryOf(input);
  if (inputs_[input].state == kUnset) {
    Bind(entry, NewMemory(input), 0);
    inputs_[input].own = true;
    SetState(input, kInput);  // the caller may write into what it gets
  }
  bool shared = inputs_[input].state == kParam && !inputs_[input].own;
  *rv = shared ? ReadOnlyView(values_[entry]) : values_[entry];
}

void Executor::GetOutput(Args args, RetValue* rv) {
  size_t output = OutputArg(args[0]);
  uint32_t entry = plan().heads[output];
  if (args.size() == 2 && args[1] != nullptr) {
    CopyOut(entry, DescribeOutput(output), args, 1);
    return;
  }
  if (!values_[entry].defined()) ThrowGraphError({DescribeOutput(output), " is an input that was never set"});
  *rv = values_[entry];
}

void Executor::GetNumInputs(Args, RetValue* rv) { *rv = static_cast<int64_t>(num_inputs()); }
void Executor::GetNumOutputs(Args, RetValue* rv) { *rv = static_cast<int64_t>(plan().heads.size()); }
void Executor::GetInputIndex(Args args, RetValue* rv) { *rv = FindInput(args[0].cast<std::string_view>()); }
void Executor::GetOutputIndex(Args args, RetValue* rv) {
  *rv = Find(program_->output_index, args[0].cast<std::string_view>());
}

namespace {
class Info {
 public:
  void Add(const std::string& name, const Entry& entry) {
    shapes_.insert(shapes_.end(), {Any(name), Any(Shape(entry.shape))});
    dtypes_.insert(dtypes_.end(), {Any(name), Any(ToString(entry.dtype))});
  }
  Any Finish() const { return MapOf({Any("shape"), MapOf(shapes_), Any("dtype"), MapOf(dtypes_)}); }

 private:
  static Any MapOf(const std::vector<Any>& cells) {
    TVMFFIObjectHandle handle = nullptr;
    auto pairs = static_cast<int64_t>(cells.size() / 2);
    Check(PortcallMapCreate(reinterpret_cast<const TVMFFIAny*>(cells.data()), pairs, &handle));
    return ObjectRef::Steal(handle);
  }

  std::vector<Any> shapes_, dtypes_;
};
}  // namespace

void Executor::GetInputInfo(Args, RetValue* rv) {
  Info info;
  for (size_t i = 0; i < num_inputs(); ++i) {
    if (inputs_[i].state != kParam) info.Add(input_name(i), plan().entries[EntryOf(i)]);
  }
  *rv = info.Finish();
}

void Executor::GetOutputInfo(Args, RetValue* rv) {
  Info info;
  for (size_t i = 0; i < plan().heads.size(); ++i) info.Add(program_->output_names[i], plan().entries[plan().heads[i]]);
  *rv = info.Finish();
}

void Executor::GetInputStates(Args, RetValue* rv) {
  std::string states;
  for (const Input& input : inputs_) states += static_cast<char>(input.state);
  *rv = Bytes(states);
}

void Executor::GetPlan(Args, RetValue* rv) { *rv = Bytes(program_->bytes); }

void Executor::GetDevices(Args, RetValue* rv) {
  std::string pairs;
  for (Device device : program_->devices) {
    Append(&pairs, static_cast<int64_t>(device.device_type));
    Append(&pairs, static_cast<int64_t>(device.device_id));
  }
  *rv = Bytes(pairs);
}

void Executor::Clone(Args, RetValue* rv) {
  auto clone = std::make_unique<Executor>(program_);
  for (size_t i = 0; i < num_inputs(); ++i) {
    if (inputs_[i].state == kParam) clone->ShareParam(i, this, i);
  }
  *rv = Module(std::move(clone));
}

namespace {

std::vector<Param> ParamsOf(Args args, int position) {
  std::optional<std::string_view> blob = TryBytes(args[position].cell());
  if (!blob) {
    detail::ThrowArgumentError(args.function(), position, "the bytes of a parameter blob",
                               DescribeValue(args[position].cell()));
  }
  return ReadParams(*blob);
}

}  // namespace

// Names that no input has are left out: the caller has the list. Nothing is set unless all the rest fits.
void Executor::LoadParams(Args args, RetValue*) {
  std::vector<std::pair<size_t, Param>> found;
  for (Param& param : ParamsOf(args, 0)) {
    int64_t input = FindInput(param.name);
    if (input >= 0) found.emplace_back(input, std::move(param));
  }
  for (const auto& [input, param] : found) {
    CheckFits(plan().entries[EntryOf(input)], param.View(), DescribeInput(input));
  }
  for (const auto& [input, param] : found) CopyInput(input, param.View(), kParam);
}

void Executor::ShareParams(Args args, RetValue*) {
  auto module = args[0].cast<Module>();
  auto* other = dynamic_cast<Executor*>(static_cast<ModuleNode*>(PortcallModuleGetNode(module.get())));
  if (!other) {
    std::string got = module.defined() ? "a module of type '" + module.kind() + "'" : "None";
    Throw("TypeError", {"parameters are shared with another graph executor, got ", got});
  }
  if (other == this) return;
  Inside inside(other);
  std::unordered_map<std::string, uint32_t> names;  // as TVM has it: those of a blob
  if (args.size() > 1) {
    for (const Param& param : ParamsOf(args, 1)) names.emplace(param.name, 0);
  }
  for (size_t i = 0; i < num_inputs(); ++i) {
    if (args.size() > 1 && !names.count(input_name(i))) continue;
    auto theirs = static_cast<size_t>(other->FindInput(input_name(i)));  // -1 is beyond all
    if (theirs < other->num_inputs() && other->inputs_[theirs].state == kParam) {
      ShareParam(i, other, theirs);
    } else if (args.size() > 1) {
      ThrowGraphError({DescribeInput(i), " is no parameter of the other executor: load it there first"});
    }
  }
}

void Executor::RunFromInputs(Args args, RetValue* rv) {
  Device host{args[0].cast<int32_t>(), args[1].cast<int32_t>()};
  CheckPairs(args);
  for (int i = 2; i < args.size(); i += 2) CopyInput(InputArg(args[i]), *args[i + 1].cast<DLTensor*>(), kInput);
  Run();
  std::vector<Any> outputs;
  for (uint32_t head : plan().heads) {
    Tensor output = Tensor::Empty(plan().entries[head].shape, plan().entries[head].dtype, host);
    output.CopyFrom(values_[head]);
    outputs.emplace_back(output);
  }
  *rv = Array<Any>(outputs);
}

// ---- Node by node -------------------------------------------------------------------------------------------------

void Executor::ExecuteNode(Args args, RetValue*) { ExecuteTo(NodeArg(args[0])); }

void Executor::GetNodeOutput(Args args, RetValue* rv) {
  size_t node = NodeArg(args[0]);
  auto output = args[1].cast<int64_t>();
  if (output < 0 || output >= plan().nodes[node].num_outputs) {
    Throw("IndexError", {DescribeNode(plan(), node), " has ", plan().nodes[node].num_outputs,
                         " outputs, there is no output ", output});
  }
  CheckDone(node);
  uint32_t entry = plan().nodes[node].first_output + static_cast<uint32_t>(output);
  *rv = CopyOut(entry, DescribeNode(plan(), node), args, 2);
}

void Executor::DebugGetOutput(Args args, RetValue* rv) {
  size_t node = NodeArg(args[0]);
  if (plan().nodes[node].num_outputs == 0) Throw("ValueError", {DescribeNode(plan(), node), " has no output"});
  done_ = 0;
  ExecuteTo(node);
  *rv = CopyOut(plan().nodes[node].first_output, DescribeNode(plan(), node), args, 1);
}

namespace {
// Where a node works: on the first of its values' devices that is not the host.
template <typename DeviceOf> Device WorkDevice(const Node& node, DeviceOf device_of) {
  for (uint32_t e = node.first_output; e < node.first_output + node.num_outputs; ++e) {
    if (device_of(e).device_type != kDLCPU) return device_of(e);
  }
  for (uint32_t e : node.inputs) {
    if (device_of(e).device_type != kDLCPU) return device_of(e);
  }
  return Cpu();
}
}  // namespace

// `repeat` doubles, seconds a call: zeros for a node that calls nothing. Its inputs are as they are, and it is called.
std::string Executor::TimeNode(size_t node, Args args, int first) const {
  TimeEvaluatorOptions options;
  int* const fields[] = {&options.number,
                         &options.repeat,
                         &options.min_repeat_ms,
                         &options.limit_zero_time_iterations,
                         &options.cooldown_interval_ms,
                         &options.repeats_to_cooldown};
  for (int i = first; i < args.size(); ++i) *fields[i - first] = args[i];
  timing::CheckOptions(options);
  uint32_t step = program_->first_step[node];
  if (step == program_->first_step[node + 1]) {
    return std::string(static_cast<size_t>(options.repeat) * sizeof(double), '\0');
  }
  Device device = WorkDevice(plan().nodes[node], [&](uint32_t entry) { return DeviceOf(entry); });
  PackedFunc timed = portcall::TimeEvaluator(program_->functions[step], device, options);
  return timed.CallPacked(steps_[step].args, steps_[step].count).cast<Bytes>().str();
}

// Each node is timed in its turn, so that its inputs are what they are in a run; what is left behind is what a run leaves.
void Executor::RunIndividual(Args args, RetValue* rv) {
  CheckInputsSet(plan().nodes.size());
  std::string bytes;
  Append(&bytes, static_cast<int64_t>(plan().nodes.size()));
  done_ = 0;
  for (size_t n = 0; n < plan().nodes.size(); ++n) bytes += TimeNode(n, args, 0);
  Run();
  *rv = Bytes(bytes);
}

void Executor::RunIndividualNode(Args args, RetValue* rv) {
  size_t node = NodeArg(args[0]);
  CheckInputsSet(plan().nodes.size());
  done_ = 0;
  Execute(0, node);
  std::string bytes = TimeNode(node, args, 1);
  Run();
  *rv = Bytes(bytes);
}

void Executor::ProfileRun(Args, RetValue* rv) {
  done_ = 0;
  CheckInputsSet(plan().nodes.size());
  std::string bytes;
  Append(&bytes, static_cast<int64_t>(plan().nodes.size()));
  const int64_t start = timing::SteadyNow();
  for (size_t n = 0; n < plan().nodes.size(); ++n) {
    Device device = WorkDevice(plan().nodes[n], [&](uint32_t entry) { return DeviceOf(entry); });
    const int64_t begin = timing::SteadyNow();
    Execute(n, n + 1);
    if (device.device_type != kDLCPU) {
      Check(PortcallDeviceSync(device, TVMFFIEnvGetStream(device.device_type, device.device_id)));
    }
    const int64_t end = timing::SteadyNow();
    bool calls = program_->first_step[n] != program_->first_step[n + 1];
    Append(&bytes, static_cast<double>(begin - start) / 1e9);
    Append(&bytes, calls ? static_cast<double>(end - begin) / 1e9 : 0.0);
  }
  *rv = Bytes(bytes);
}

// ---- Creation -----------------------------------------------------------------------------------------------------

Module CreateExecutor(std::string_view plan, const Module& library, const std::vector<Device>& devices,
                      PackedFunc linked_params) {
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
  return Module(std::make_unique<Executor>(std::move(program)));
}

namespace {

// Devices as pairs of numbers, or as such.
std::vector<Device> DevicesOf(Args args, int first) {
  std::vector<Device> devices;
  for (int i = first; i < args.size(); ++i) {
    if (auto device = args[i].try_cast<Device>()) {
      devices.push_back(*device);
    } else {
      auto type = args[i].cast<int32_t>();
      devices.push_back({type, args[++i].cast<int32_t>()});
    }
  }
  return devices;
}

PORTCALL_REGISTER_GLOBAL("portcall.graph.create").set_body([](Args args, RetValue* rv) {
  auto plan = args[0].cast<Bytes>();
  bool lookup = args.size() > 2 && args[2].type_index() == kTVMFFIFunction;
  *rv = CreateExecutor(plan, args[1].cast<Module>(), DevicesOf(args, lookup ? 3 : 2),
                       lookup ? args[2].cast<PackedFunc>() : PackedFunc());
});

}  // namespace
}  // namespace portcall::graph
