// SPDX-License-Identifier: Apache-2.0
#include "vm/modules.h"

namespace portcall::vm {
namespace {

struct Named {
  const char* name;
  MachineState::Method method;
  int32_t least;  // arguments
};
constexpr Named kFunctions[] = {
    {"vm_initialization", &MachineState::Initialize, 0},
    {"invoke_closure", &MachineState::InvokeClosure, 1},
    {"set_input", &MachineState::SetInput, 1},
    {"invoke_stateful", &MachineState::InvokeStateful, 1},
    {"get_output", &MachineState::GetOutput, 1},
    {"get_output_arity", &MachineState::GetOutputArity, 1},
    {"get_function_arity", &MachineState::GetFunctionArity, 1},
    {"get_function_param_name", &MachineState::GetParamName, 2},
    {"save_function", &MachineState::SaveFunction, 3},
    {"set_instrument", &MachineState::SetInstrument, 1},
    {"profile", &MachineState::ProfileCalls, 1},
};

enum Of : size_t { kText, kDescription, kHasFunction, kSummary, kLoad };
constexpr const char* kOfExecutable[] = {"as_text", "describe", "has_function", "stats", "vm_load_executable"};

Module NewMachine(const std::shared_ptr<const Executable>& executable, const Module& self) {
  Any imports = Registry::GetRequired("ffi.ModuleImports")(self);
  Module machine(std::make_unique<MachineNode>(std::make_shared<MachineState>(executable, imports)));
  Arguments all = ItemsOf(imports);
  for (int32_t i = 0; i < all.size(); ++i) machine.Import(ObjectRef::Borrow<Module>(all[i].v_obj));
  return machine;
}

}  // namespace

// ---- The executable ------------------------------------------------------------------------------------------------

std::vector<std::string> ExecutableNode::FunctionNames() {
  return {std::begin(kOfExecutable), std::end(kOfExecutable)};
}

PackedFunc ExecutableNode::GetFunction(const std::string& name, const Module& self) {
  size_t which = 0;
  while (which < std::size(kOfExecutable) && name != kOfExecutable[which]) ++which;
  if (which == std::size(kOfExecutable)) return nullptr;
  auto call = [e = executable_, self, which](Args args, RetValue* rv) {
    if (which == kHasFunction) {
      Arguments checked(args.function(), args.cells(), args.size());
      checked.CheckCount(1, 1);
      *rv = e->Find(checked.Text(0)) >= 0;
    } else if (which == kLoad) {
      *rv = NewMachine(e, self);
    } else {
      *rv = which == kText ? Listing(*e) : which == kDescription ? Description(*e) : Summary(*e);
    }
  };
  return PackedFunc(call, name);
}

// ---- The machine ---------------------------------------------------------------------------------------------------

std::vector<std::string> MachineNode::FunctionNames() {
  std::vector<std::string> names;
  for (const Function& f : state_->executable().functions) {
    if (f.kind != kPacked) names.push_back(f.name);
  }
  return names;
}

PackedFunc MachineState::Find(const std::string& name) {
  for (const Named& known : kFunctions) {
    if (name == known.name) return Bind(name, known.method, known.least, nullptr);
  }
  if (Any saved = At(name).saved; saved != nullptr) return Bind(name, &MachineState::CallSaved, 0, saved);
  int64_t function = machine_.Find(name);
  return function < 0 ? PackedFunc() : Bind(name, &MachineState::CallFunction, 0, function);
}

PackedFunc MachineState::Bind(const std::string& name, Method method, int32_t least, Any what) {
  auto call = [self = shared_from_this(), method, least, what = std::move(what)](Args args, RetValue* rv) {
    Arguments checked(args.function(), args.cells(), args.size());
    checked.CheckCount(least, INT32_MAX);
    *rv = (self.get()->*method)(what, checked);
  };
  return PackedFunc(std::move(call), name);
}

Any MachineState::CallFunction(const Any& function, const Arguments& args) {
  return ForUser(machine_.Run(function.cell().v_int64, Inputs(args, 0)));
}

Any MachineState::CallSaved(const Any& saved, const Arguments& args) {
  Arguments kept = ItemsOf(saved);
  std::vector<Any> inputs = Inputs(args, 0);
  for (int32_t i = 2; i < kept.size(); ++i) inputs.push_back(Any::Copy(kept[i]));
  Any value = machine_.Run(kept.Int(0), inputs);
  return kept.Int(1) ? value : Any();
}

Any MachineState::CallClosure(const Any& closure, const Arguments& args) {
  return Invoke(closure.cell(), Inputs(args, 0));
}

Any MachineState::InvokeClosure(const Any&, const Arguments& args) { return Invoke(args[0], Inputs(args, 1)); }

Any MachineState::Invoke(const TVMFFIAny& callee, const std::vector<Any>& inputs) {
  machine_.CheckReady();
  TVMFFIAny result;
  detail::SetCell(&result, kTVMFFINone);
  machine_.InvokeObject(callee, reinterpret_cast<const TVMFFIAny*>(inputs.data()), static_cast<int32_t>(inputs.size()),
                        &result);
  return ForUser(Any::Steal(result));
}

// A closure is a function for a user, which keeps the machine.
Any MachineState::ForUser(Any value) {
  if (!TryClosure(value.cell())) return value;
  return Bind("closure", &MachineState::CallClosure, 0, std::move(value));
}

std::vector<Any> MachineState::Inputs(const Arguments& args, int32_t first) const {
  std::vector<Any> values;
  values.reserve(static_cast<size_t>(args.size()) + 1);
  for (int32_t i = first; i < args.size(); ++i) values.push_back(machine_.Input(args[i]));
  return values;
}

MachineState::Kept MachineState::At(std::string_view name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = kept_.find(name);
  return it == kept_.end() ? Kept() : it->second;
}

// ---- Its functions -------------------------------------------------------------------------------------------------

Any MachineState::Initialize(const Any&, const Arguments& args) {
  machine_.SetUp(args);
  return nullptr;
}

Any MachineState::SetInput(const Any&, const Arguments& args) {  // (name, arguments…)
  std::string name(args.Text(0));
  const Function& f = executable().FunctionAt(machine_.Required(name));
  machine_.CheckReady();
  if (args.size() - 1 != f.num_args)
    Throw("ValueError", {name, " takes ", f.num_args, " arguments, got ", args.size() - 1});
  Any inputs = NewTuple(Inputs(args, 1));
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(kept_[name].inputs, inputs);  // what was there is freed without the lock
  return nullptr;
}

Any MachineState::InvokeStateful(const Any&, const Arguments& args) {  // (name)
  std::string name(args.Text(0));
  int64_t function = machine_.Required(name);
  machine_.CheckReady();
  Any inputs = At(name).inputs;
  if (inputs == nullptr) Throw("ValueError", {"no inputs were set for ", name, ": call set_input first"});
  Arguments items = ItemsOf(inputs);
  Any output = NewTuple({machine_.Run(function, Inputs(items, 0))});
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(kept_[name].output, output);
  return nullptr;
}

Any MachineState::OutputAt(const Arguments& args) {  // (name, indices into nested tuples)
  Any value = At(args.Text(0)).output;
  if (value == nullptr) Throw("ValueError", {"there is no output of ", args.Text(0), ": call invoke_stateful first"});
  for (int32_t i = 0; i < args.size(); ++i) {
    if (value.type_index() != kTVMFFIArray) Throw("ValueError", {"index ", i, ": the output there is not a tuple"});
    Arguments items = ItemsOf(value);
    int64_t at = i == 0 ? 0 : args.Int(i);
    if (at < 0 || at >= items.size())
      Throw("IndexError", {"there is no item ", at, " in a tuple with ", items.size(), " elements"});
    value = Any::Copy(items[at]);
  }
  return value;
}

Any MachineState::GetOutput(const Any&, const Arguments& args) {
  Any value = OutputAt(args);
  if (value.type_index() == kTVMFFIArray) Throw("ValueError", {"the output there is a tuple: add an index"});
  return ForUser(std::move(value));
}

Any MachineState::GetOutputArity(const Any&, const Arguments& args) {
  Any value = OutputAt(args);
  return value.type_index() == kTVMFFIArray ? ItemsOf(value).size() : -1;
}

const std::vector<std::string>& MachineState::ParamsOf(const Arguments& args) const {
  return executable().FunctionAt(machine_.Required(args.Text(0))).params;
}

Any MachineState::GetFunctionArity(const Any&, const Arguments& args) {  // (name)
  return static_cast<int64_t>(ParamsOf(args).size());
}

Any MachineState::GetParamName(const Any&, const Arguments& args) {  // (name, i)
  const std::vector<std::string>& params = ParamsOf(args);
  int64_t i = args.Int(1);
  if (i < 0 || i >= static_cast<int64_t>(params.size()))
    Throw("IndexError", {"there is no parameter ", i, " of ", params.size()});
  return params[static_cast<size_t>(i)];
}

Any MachineState::SaveFunction(const Any&, const Arguments& args) {  // (name, new name, whether it returns, arguments…)
  std::vector<Any> saved = {machine_.Required(args.Text(0)), args.Int(2) != 0};
  machine_.CheckReady();
  for (Any& value : Inputs(args, 3)) saved.push_back(std::move(value));
  Any kept = NewTuple(saved);
  std::string name(args.Text(1));
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(kept_[name].saved, kept);
  return nullptr;
}

Any MachineState::SetInstrument(const Any&, const Arguments& args) {  // (function) or (name of its maker, arguments…)
  Any function = Any::Copy(args[0]);
  if (std::optional<std::string_view> maker = TryString(args[0])) {
    function = Registry::GetRequired(*maker).CallPacked(args.cells() + 1, args.size() - 1);
  }
  if (function != nullptr && function.type_index() != kTVMFFIFunction) args.Fail(0, "a function");
  machine_.SetInstrument(function == nullptr ? PackedFunc() : function.cast<PackedFunc>());
  return nullptr;
}

Any MachineState::ProfileCalls(const Any&, const Arguments& args) {  // (name, arguments…)
  Profile profile;
  profile.rows.resize(executable().functions.size());
  machine_.Run(machine_.Required(args.Text(0)), Inputs(args, 1), &profile);
  std::string text;  // a line for each function: calls, nanoseconds, name
  for (size_t i = 0; i < profile.rows.size(); ++i) {
    const Profile::Row& row = profile.rows[i];
    if (row.calls) text += Join({row.calls, " ", row.nanoseconds, " ", executable().functions[i].name, "\n"});
  }
  return text;
}

// ---- Loading -------------------------------------------------------------------------------------------------------

namespace {

void FromBytes(const Arguments& args, Result result) {
  args.CheckCount(1, 1);
  Module made(std::make_unique<ExecutableNode>(ReadExecutable(args.BytesAt(0))));
  result.Owned(made.release());
}

Builtin modules_builtins[] = {{"ffi.Module.load_from_bytes.relax.VMExecutable", FromBytes}};

}  // namespace
}  // namespace portcall::vm
