// SPDX-License-Identifier: Apache-2.0
#include "vm/modules.h"

#include <fstream>
#include <iterator>
#include <sstream>

namespace portcall::vm {
namespace {

constexpr std::pair<const char*, void (MachineState::*)(Args, RetValue*)> kFunctions[] = {
    {"vm_initialization", &MachineState::Initialize},
    {"invoke_closure", &MachineState::InvokeClosure},
    {"set_input", &MachineState::SetInput},
    {"set_input_with_param_module", &MachineState::SetInputWithParams},
    {"invoke_stateful", &MachineState::InvokeStateful},
    {"get_output", &MachineState::GetOutput},
    {"get_output_arity", &MachineState::GetOutputArity},
    {"get_function_arity", &MachineState::GetFunctionArity},
    {"get_function_param_name", &MachineState::GetParamName},
    {"save_function", &MachineState::SaveFunction},
    {"set_instrument", &MachineState::SetInstrument},
    {"profile", &MachineState::ProfileCalls},
};

std::vector<TVMFFIAny> CellsOf(const std::vector<Any>& values) {
  std::vector<TVMFFIAny> cells;
  cells.reserve(values.size());
  for (const Any& value : values) cells.push_back(value.cell());
  return cells;
}

}  // namespace

// ---- The executable ------------------------------------------------------------------------------------------------

std::vector<std::string> ExecutableNode::FunctionNames() {
  return {"as_text", "describe", "has_function", "stats", "vm_load_executable"};
}

PackedFunc ExecutableNode::GetFunction(const std::string& name, const Module& self) {
  auto text = [&](std::string (*write)(const Executable&)) {
    return PackedFunc([e = executable_, write](Args, RetValue* rv) { *rv = write(*e); }, name);
  };
  if (name == "as_text") return text(Listing);
  if (name == "describe") return text(Description);
  if (name == "stats") return text(Summary);
  if (name == "has_function") {
    auto has = [e = executable_](Args args, RetValue* rv) { *rv = e->index.count(args[0].cast<std::string>()) > 0; };
    return PackedFunc(has, name);
  }
  if (name != "vm_load_executable") return nullptr;
  auto load = [e = executable_, self](Args, RetValue* rv) {
    std::vector<Module> imports = self.imports();
    Module machine(std::make_unique<MachineNode>(std::make_shared<MachineState>(e, imports)));
    for (const Module& import : imports) machine.Import(import);
    *rv = machine;
  };
  return PackedFunc(load, name);
}

// ---- The machine ---------------------------------------------------------------------------------------------------

std::vector<std::string> MachineNode::FunctionNames() {
  std::vector<std::string> names;
  for (const Function& f : state_->executable().functions) {
    if (f.kind != kPacked) names.push_back(f.name);
  }
  return names;
}

PackedFunc MachineNode::GetFunction(const std::string& name, const Module&) {
  for (const auto& [known, method] : kFunctions) {
    if (name != known) continue;
    return PackedFunc([state = state_, run = method](Args args, RetValue* rv) { (state.get()->*run)(args, rv); }, name);
  }
  return state_->Find(name);
}

MachineState::Kept MachineState::At(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = kept_.find(name);
  return it == kept_.end() ? Kept() : it->second;
}

PackedFunc MachineState::Find(const std::string& name) {
  if (Kept kept = At(name); kept.saved >= 0) {
    auto run = [self = shared_from_this(), kept](Args args, RetValue* rv) {
      std::vector<Any> inputs = *self->InputsFrom(args, 0);
      inputs.insert(inputs.end(), kept.bound->begin(), kept.bound->end());
      Any value = self->Run(kept.saved, inputs);
      if (kept.returns) *rv = value;
    };
    return PackedFunc(run, name);
  }
  int64_t function = machine_.Find(name);
  if (function < 0) return nullptr;
  auto run = [self = shared_from_this(), function, name](Args args, RetValue* rv) {
    self->machine_.Required(name);
    *rv = self->ForUser(self->Run(function, *self->InputsFrom(args, 0)));
  };
  return PackedFunc(run, name);
}

Any MachineState::Run(int64_t function, const std::vector<Any>& inputs, Profile* profile) {
  // An Any is a cell.
  return machine_.Run(function, reinterpret_cast<const TVMFFIAny*>(inputs.data()), static_cast<int32_t>(inputs.size()),
                      profile);
}

// A closure is a function for a user, which keeps the machine.
Any MachineState::ForUser(Any value) {
  if (!TryClosure(value.cell())) return value;
  auto call = [self = shared_from_this(), closure = value](Args args, RetValue* rv) {
    Values values = self->InputsFrom(args, 0);
    std::vector<TVMFFIAny> cells = CellsOf(*values);
    TVMFFIAny result;
    detail::SetCell(&result, kTVMFFINone);
    self->machine_.InvokeObject(closure.cell(), cells.data(), static_cast<int32_t>(cells.size()), &result);
    *rv = self->ForUser(Any::Steal(result));
  };
  return PackedFunc(call, "closure");
}

MachineState::Values MachineState::InputsFrom(Args args, int first) const {
  auto values = std::make_shared<std::vector<Any>>();
  values->reserve(static_cast<size_t>(std::max(args.size() - first, 0)));
  for (int i = first; i < args.size(); ++i) values->push_back(machine_.Input(args.cells()[i]));
  return values;
}

const Function& MachineState::FunctionOf(Args args) const {
  int64_t function = machine_.Find(args[0].cast<std::string>());
  PORTCALL_CHECK(function >= 0, ValueError) << "the executable has no function '" << args[0].cast<std::string>() << "'";
  return executable().FunctionAt(function);
}

void MachineState::Initialize(Args args, RetValue*) { machine_.SetUp(args); }

void MachineState::InvokeClosure(Args args, RetValue* rv) {
  Values values = InputsFrom(args, 1);
  std::vector<TVMFFIAny> cells = CellsOf(*values);
  TVMFFIAny result;
  detail::SetCell(&result, kTVMFFINone);
  machine_.InvokeObject(args[0].cell(), cells.data(), static_cast<int32_t>(cells.size()), &result);
  *rv = ForUser(Any::Steal(result));
}

void MachineState::SetInput(Args args, RetValue*) { StoreInput(args, false); }
void MachineState::SetInputWithParams(Args args, RetValue*) { StoreInput(args, true); }

void MachineState::StoreInput(Args args, bool with_params) {
  std::string name = args[0];
  const Function& f = executable().FunctionAt(machine_.Required(name));
  PORTCALL_CHECK(args.size() - 1 == f.num_args, ValueError)
      << name << " takes " << f.num_args << " arguments, got " << args.size() - 1;
  auto values = std::make_shared<std::vector<Any>>();
  for (int i = 1; i < args.size(); ++i) {
    bool module = with_params && i == args.size() - 1;
    values->push_back(module ? Any(args[i].cast<Module>()["get_params"]()) : machine_.Input(args.cells()[i]));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  kept_[name].inputs = values;
}

void MachineState::InvokeStateful(Args args, RetValue*) {
  std::string name = args[0];
  int64_t function = machine_.Required(name);
  Values inputs = At(name).inputs;
  PORTCALL_CHECK(inputs, ValueError) << "no inputs were set for " << name << ": call set_input first";
  Any value = Run(function, *inputs);
  std::lock_guard<std::mutex> lock(mutex_);
  kept_[name].output = std::move(value);
}

Any MachineState::OutputAt(Args args) {  // (name, indices into nested tuples)
  std::string name = args[0];
  std::optional<Any> output = At(name).output;
  PORTCALL_CHECK(output, ValueError) << "there is no output of " << name << ": call invoke_stateful first";
  Any value = *std::move(output);
  for (int i = 1; i < args.size(); ++i) {
    PORTCALL_CHECK(value.type_index() == kTVMFFIArray, ValueError) << "index " << i << ": the output there is no tuple";
    auto items = value.cast<Array<Any>>();
    auto at = args[i].cast<int64_t>();
    PORTCALL_CHECK(at >= 0 && at < static_cast<int64_t>(items.size()), IndexError)
        << "there is no item " << at << " in a tuple with " << items.size() << " elements";
    value = items[static_cast<size_t>(at)];
  }
  return value;
}

void MachineState::GetOutput(Args args, RetValue* rv) {
  Any value = OutputAt(args);
  PORTCALL_CHECK(value.type_index() != kTVMFFIArray, ValueError) << "the output there is a tuple: add an index";
  *rv = ForUser(std::move(value));
}

void MachineState::GetOutputArity(Args args, RetValue* rv) {
  Any value = OutputAt(args);
  bool tuple = value.type_index() == kTVMFFIArray;
  *rv = tuple ? static_cast<int64_t>(value.cast<Array<Any>>().size()) : int64_t{-1};
}

void MachineState::GetFunctionArity(Args args, RetValue* rv) {
  *rv = static_cast<int64_t>(FunctionOf(args).params.size());
}

void MachineState::GetParamName(Args args, RetValue* rv) {
  const std::vector<std::string>& params = FunctionOf(args).params;
  auto i = args[1].cast<int64_t>();
  PORTCALL_CHECK(i >= 0 && i < static_cast<int64_t>(params.size()), IndexError)
      << "there is no parameter " << i << " of " << params.size();
  *rv = params[static_cast<size_t>(i)];
}

void MachineState::SaveFunction(Args args, RetValue*) {  // (name, new name, whether it returns, arguments…)
  int64_t function = machine_.Required(args[0]);
  std::string name = args[1];
  auto returns = args[2].cast<bool>();
  Values bound = InputsFrom(args, 3);
  std::lock_guard<std::mutex> lock(mutex_);
  Kept& kept = kept_[name];
  kept.saved = function;
  kept.returns = returns;
  kept.bound = std::move(bound);
}

void MachineState::SetInstrument(Args args, RetValue*) {  // (function) or (name of one that makes it, arguments…)
  std::optional<PackedFunc> function = args[0].try_cast<PackedFunc>();
  if (!function) {
    PackedFunc make = Registry::GetRequired(args[0].cast<std::string>());
    function = make.CallPacked(args.cells() + 1, args.size() - 1).cast<PackedFunc>();
  }
  machine_.SetInstrument(*function);
}

void MachineState::ProfileCalls(Args args, RetValue* rv) {  // (name, arguments…)
  Profile profile;
  profile.rows.resize(executable().functions.size());
  Run(machine_.Required(args[0]), *InputsFrom(args, 1), &profile);
  std::ostringstream text;  // a line for each function: calls, nanoseconds, name
  for (size_t i = 0; i < profile.rows.size(); ++i) {
    const Profile::Row& row = profile.rows[i];
    if (row.calls) text << row.calls << ' ' << row.nanoseconds << ' ' << executable().functions[i].name << '\n';
  }
  *rv = text.str();
}

// ---- Loading -------------------------------------------------------------------------------------------------------

namespace {

Module FromBytes(std::string_view bytes) { return Module(std::make_unique<ExecutableNode>(ReadExecutable(bytes))); }

Module FromFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  PORTCALL_CHECK(file, ModuleLoadError) << "cannot read '" << path << "'";
  return FromBytes(std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
}

PORTCALL_REGISTER_GLOBAL("ffi.Module.load_from_bytes.relax.VMExecutable").set_body_typed([](Bytes bytes) {
  return FromBytes(bytes.view());
});
PORTCALL_REGISTER_GLOBAL("relax.ExecutableLoadFromFile").set_body_typed(FromFile);

}  // namespace
}  // namespace portcall::vm
