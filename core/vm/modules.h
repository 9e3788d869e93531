// SPDX-License-Identifier: Apache-2.0
// The two kinds of modules, with the functions that TVM gives them: an executable makes machines; a machine has the
// functions of the executable, and those that set it up and keep its inputs and outputs.
#pragma once

#include <map>
#include <mutex>

#include "vm/machine.h"

namespace portcall::vm {

class ExecutableNode : public ModuleNode {
 public:
  explicit ExecutableNode(std::shared_ptr<const Executable> executable) : executable_(std::move(executable)) {}
  const char* kind() const override { return "relax.VMExecutable"; }
  PackedFunc GetFunction(const std::string& name, const Module& self) override;
  std::vector<std::string> FunctionNames() override;

 private:
  std::shared_ptr<const Executable> executable_;
};

// What the functions of one machine share. They keep it alive: the machine's module may go before them.
class MachineState : public std::enable_shared_from_this<MachineState> {
 public:
  // `what` is what the function was made with.
  using Method = Any (MachineState::*)(const Any& what, const Arguments& args);

  MachineState(std::shared_ptr<const Executable> executable, Any imports)
      : machine_(std::move(executable), std::move(imports)) {}

  // One of the functions below, a function of the executable, a saved one, or null.
  PackedFunc Find(const std::string& name);
  const Executable& executable() const { return machine_.executable(); }

  // Functions of the machine, by the names in modules.cc.
  Any Initialize(const Any&, const Arguments& args);
  Any InvokeClosure(const Any&, const Arguments& args);
  Any SetInput(const Any&, const Arguments& args);
  Any InvokeStateful(const Any&, const Arguments& args);
  Any GetOutput(const Any&, const Arguments& args);
  Any GetOutputArity(const Any&, const Arguments& args);
  Any GetFunctionArity(const Any&, const Arguments& args);
  Any GetParamName(const Any&, const Arguments& args);
  Any SaveFunction(const Any&, const Arguments& args);
  Any SetInstrument(const Any&, const Arguments& args);
  Any ProfileCalls(const Any&, const Arguments& args);

 private:
  // What is kept for one name: tuples, or None.
  struct Kept {
    Any inputs;
    Any output;  // a tuple of it
    Any saved;   // function, whether it returns, its last arguments
  };

  PackedFunc Bind(const std::string& name, Method method, int32_t least, Any what);
  Any CallFunction(const Any& function, const Arguments& args);
  Any CallSaved(const Any& saved, const Arguments& args);
  Any CallClosure(const Any& closure, const Arguments& args);

  Kept At(std::string_view name);
  const std::vector<std::string>& ParamsOf(const Arguments& args) const;
  std::vector<Any> Inputs(const Arguments& args, int32_t first) const;
  Any Invoke(const TVMFFIAny& callee, const std::vector<Any>& inputs);
  Any OutputAt(const Arguments& args);
  Any ForUser(Any value);

  Machine machine_;
  std::mutex mutex_;
  std::map<std::string, Kept, std::less<>> kept_;  // guarded
};

class MachineNode : public ModuleNode {
 public:
  explicit MachineNode(std::shared_ptr<MachineState> state) : state_(std::move(state)) {}
  const char* kind() const override { return "relax.VirtualMachine"; }
  PackedFunc GetFunction(const std::string& name, const Module&) override { return state_->Find(name); }
  std::vector<std::string> FunctionNames() override;

 private:
  std::shared_ptr<MachineState> state_;
};

}  // namespace portcall::vm
