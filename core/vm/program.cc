// SPDX-License-Identifier: Apache-2.0
#include "vm/program.h"

#include <algorithm>

namespace portcall::vm {
namespace {

constexpr const char* kBuiltins = "vm.builtin.";

int32_t RegisterOf(int64_t r) { return r >= kNoRegister ? -1 : static_cast<int32_t>(r); }

class Linker {
 public:
  Linker(const std::shared_ptr<const Executable>& executable, const Arguments& imports, void* machine)
      : shared_(executable), executable_(*executable), imports_(imports), machine_(machine) {}

  std::unique_ptr<Program> Link(const Device& device) {
    for (const Any& constant : executable_.constants) {
      std::optional<Tensor> tensor = TryDLTensor(constant.cell()) ? constant.try_cast<Tensor>() : std::nullopt;
      bool elsewhere = tensor && tensor->device() != device;
      program_->constants.push_back(elsewhere ? Any(tensor->CopyTo(device)) : constant);
    }
    FindFunctions();
    CountCells();
    cell_ = program_->cells.data();
    patch_ = program_->patches.data();
    for (const Function& f : executable_.functions) program_->routines.push_back(MakeRoutine(f));
    return std::move(program_);
  }

 private:
  void FindFunctions();
  void CountCells();
  Routine MakeRoutine(const Function& f);
  void MakeStep(const int64_t* word, Step* step);
  void LayOut(const CallWords& call, Step* step);
  void Resolve(Step* step);
  PackedFunc FromImports(const std::string& name) const;

  const std::shared_ptr<const Executable>& shared_;
  const Executable& executable_;
  const Arguments& imports_;
  void* machine_;
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
  TVMFFIAny* cell_ = nullptr;
  Patch* patch_ = nullptr;
};

PackedFunc Linker::FromImports(const std::string& name) const {
  for (int32_t i = 0; i < imports_.size(); ++i) {
    auto import = ObjectRef::Borrow<Module>(imports_[i].v_obj);
    if (PackedFunc f = import.GetFunction(name, true); f.defined()) return f;
  }
  return nullptr;
}

// Built-in functions of language models are in a library of their own.
void LoadLanguage() {
  if (PackedFunc load = Registry::Get("portcall.LoadPlugin"); load.defined()) load("lm");
}

PackedFunc FindBuiltin(const std::string& name) {
  PackedFunc found = Registry::Get(name);
  if (found.defined()) return found;
  LoadLanguage();
  return Registry::Get(name);
}

void Linker::FindFunctions() {
  std::string missing;
  const auto& all = executable_.functions;  // compiled code does not say what it calls
  if (std::any_of(all.begin(), all.end(), [](const Function& f) { return f.kind == kCompiled; })) LoadLanguage();
  for (const Function& f : all) {
    auto index = static_cast<int64_t>(program_->functions.size());
    // A library has no built-in functions.
    PackedFunc found = f.kind == kPacked && f.name.rfind(kBuiltins, 0) == 0 ? FindBuiltin(f.name) : PackedFunc();
    if (f.kind != kBytecode && !found.defined())
      found = FromImports(f.kind == kCompiled ? kCompiledPrefix + f.name : f.name);
    if (f.kind == kPacked && !found.defined()) found = Registry::Get(f.name);
    if (f.kind != kBytecode && !found.defined()) missing += (missing.empty() ? "" : ", ") + f.name;
    program_->compiled.push_back(f.kind == kCompiled ? found : PackedFunc());
    if (f.kind == kPacked) {
      program_->functions.emplace_back(found);
    } else {
      program_->functions.emplace_back(Make<Closure>(shared_, index, std::vector<Any>()));
    }
  }
  if (!missing.empty())
    Throw("FunctionNotFoundError",
          {"the executable calls functions that its library does not have and nobody registered: ", missing});
}

void Linker::CountCells() {
  size_t total = 0;
  for (const Function& f : executable_.functions) {
    for (int64_t at = f.begin; f.kind == kBytecode && at < f.end; ++at) {
      const int64_t* word = executable_.WordsAt(at);
      if (word[0] == kCall) total += static_cast<size_t>(CallWords(word).num_operands);
    }
  }
  program_->cells.resize(total);
  program_->patches.resize(total);
}

Routine Linker::MakeRoutine(const Function& f) {
  Routine routine;
  if (f.kind != kBytecode) return routine;
  routine.steps.reserve(static_cast<size_t>(f.end - f.begin));
  routine.num_registers = static_cast<int32_t>(f.num_args);
  for (int64_t at = f.begin; at < f.end; ++at) {
    Step& step = routine.steps.emplace_back();
    MakeStep(executable_.WordsAt(at), &step);
    // Of the registers that the function says it has, only those that it uses.
    routine.num_registers = std::max(routine.num_registers, step.target + 1);
    for (int32_t i = 0; i < step.num_patches; ++i) {
      routine.num_registers = std::max(routine.num_registers, step.patches[i].source + 1);
    }
  }
  return routine;
}

void Linker::MakeStep(const int64_t* word, Step* step) {
  switch (word[0]) {
    case kReturn:
      step->action = Step::kReturnValue;
      step->target = RegisterOf(word[1]);
      break;
    case kGoto:
      step->action = Step::kJump;
      step->jump = static_cast<int32_t>(word[1]);
      break;
    case kIf:
      step->action = Step::kBranch;
      step->target = RegisterOf(word[1]);
      step->jump = static_cast<int32_t>(word[2]);
      break;
    default:
      CallWords call(word);
      step->target = RegisterOf(call.result);
      step->function = static_cast<int32_t>(call.function);
      LayOut(call, step);
      Resolve(step);
  }
}

void Linker::LayOut(const CallWords& call, Step* step) {
  step->num_args = static_cast<int32_t>(call.num_operands);
  step->cells = cell_;
  step->patches = patch_;
  for (int32_t i = 0; i < step->num_args; ++i, ++cell_) {
    Operand operand(call.operands[i]);
    detail::SetCell(cell_, kTVMFFINone);
    if (operand.kind == Operand::kImmediate) {
      cell_->type_index = kTVMFFIInt;
      cell_->v_int64 = operand.value;
    } else if (operand.kind == Operand::kConstant) {
      *cell_ = program_->constants[static_cast<size_t>(operand.value)].cell();
    } else if (operand.kind == Operand::kFunction) {
      *cell_ = program_->functions[static_cast<size_t>(operand.value)].cell();
    } else if (operand.value == kMachineRegister) {
      cell_->type_index = kTVMFFIOpaquePtr;
      cell_->v_ptr = machine_;
    } else if (operand.value != kNoRegister) {
      *patch_++ = {i, static_cast<int32_t>(operand.value)};
      ++step->num_patches;
    }
  }
}

void Linker::Resolve(Step* step) {
  const Function& callee = executable_.FunctionAt(step->function);
  if (callee.kind != kPacked) {
    step->action = callee.kind == kBytecode ? Step::kEnter : Step::kCallCompiled;
    return;
  }
  step->action = Step::kCallFunction;
  TVMFFIObject* func = program_->functions[static_cast<size_t>(step->function)].cell().v_obj;
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(func, &info);
  // A built-in function is called directly, a kernel by way of the check of its arguments, any other by way of the
  // check that the stack is deep enough.
  bool builtin = callee.name.rfind(kBuiltins, 0) == 0 && !(info.flags & kPortcallFunctionLibrary);
  bool kernel = (info.flags & kPortcallFunctionGenerated) != 0;
  step->foreign = !builtin && !kernel;
  step->call = builtin || kernel ? info.call : static_cast<FunctionObj*>(func)->cell.safe_call;
  step->self = builtin || kernel ? info.self : func;
  if (!builtin) return;
  if (callee.name == "vm.builtin.null_value" && step->target >= 0) step->action = Step::kClear;
  bool with_machine = step->num_args >= 2 && step->cells[0].v_ptr == machine_;
  if (callee.name == "vm.builtin.invoke_closure" && with_machine) step->action = Step::kCallClosure;
}

}  // namespace

ClosureObj* TryClosure(const TVMFFIAny& cell) {
  if (!IsObject(cell) || cell.type_index != TypeIndexOf<ClosureObj>()) return nullptr;
  return static_cast<ClosureObj*>(static_cast<Object*>(cell.v_obj));
}

std::unique_ptr<Program> Link(const std::shared_ptr<const Executable>& executable, const Arguments& imports,
                              const Device& device, void* machine) {
  return Linker(executable, imports, machine).Link(device);
}

}  // namespace portcall::vm
