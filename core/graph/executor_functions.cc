// SPDX-License-Identifier: Apache-2.0
// The functions of an executor that docs/graph.md lists, but for those of executor_debug.cc.
#include <climits>

#include "graph/executor.h"
#include "graph/params.h"
#include "graph/views.h"

namespace portcall::graph {

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
    {"clone", &Executor::Clone, 0, 0, false},
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
          if (function.most == INT_MAX) expected.insert(0, "at least ");
          else expected.append(" to ").append(std::to_string(function.most));
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
void Executor::GetOutputIndex(Args args, RetValue* rv) { *rv = FindOutput(args[0].cast<std::string_view>()); }

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
  std::vector<int64_t> pairs;
  for (Device device : program_->devices) pairs.insert(pairs.end(), {device.device_type, device.device_id});
  *rv = Bytes(std::string(reinterpret_cast<const char*>(pairs.data()), pairs.size() * sizeof(int64_t)));
}

// Threads that each make a clone wait for each other; a run is not waited for.
void Executor::Clone(Args, RetValue* rv) {
  std::lock_guard<std::mutex> lock(cloning_);
  Inside inside(this);
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
      ThrowGraphError({DescribeInput(i), " is not a parameter of the other executor: load it there first"});
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

[[maybe_unused]] const Registry create =
    Registry::Register("portcall.graph.create", true).set_body([](Args args, RetValue* rv) {
      auto plan = args[0].cast<Bytes>();
      bool lookup = args.size() > 2 && args[2].type_index() == kTVMFFIFunction;
      *rv = CreateExecutor(plan, args[1].cast<Module>(), DevicesOf(args, lookup ? 3 : 2),
                           lookup ? args[2].cast<PackedFunc>() : PackedFunc());
    });

// Throws GraphError, which says where, for bytes that are no plan: other readers of plans have no rules.
[[maybe_unused]] const Registry check_plan =
    Registry::Register("portcall.graph.check_plan", true).set_body_typed([](const Bytes& plan) {
      DecodePlan(plan.view());
    });

}  // namespace
}  // namespace portcall::graph
