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
  MachineState(std::shared_ptr<const Executable> executable, std::vector<Module> imports)
      : machine_(std::move(executable), std::move(imports)) {}

  // A function of the executable, a saved one, or null.
  PackedFunc Find(const std::string& name);
  const Executable& executable() const { return machine_.executable(); }

  // Functions of the machine, by the names in modules.cc.
  void Initialize(Args args, RetValue* rv);
  void InvokeClosure(Args args, RetValue* rv);
  void SetInput(Args args, RetValue* rv);
  void SetInputWithParams(Args args, RetValue* rv);
  void InvokeStateful(Args args, RetValue* rv);
  void GetOutput(Args args, RetValue* rv);
  void GetOutputArity(Args args, RetValue* rv);
  void GetFunctionArity(Args args, RetValue* rv);
  void GetParamName(Args args, RetValue* rv);
  void SaveFunction(Args args, RetValue* rv);
  void SetInstrument(Args args, RetValue* rv);
  void ProfileCalls(Args args, RetValue* rv);

 private:
  using Values = std::shared_ptr<const std::vector<Any>>;
  // What is kept for one name.
  struct Kept {
    Values inputs;  // null: none were set
    std::optional<Any> output;
    int64_t saved = -1;  // the function that save_function bound to arguments; -1: none
    bool returns = false;
    Values bound;
  };

  const Function& FunctionOf(Args args) const;
  void StoreInput(Args args, bool with_params);
  Values InputsFrom(Args args, int first) const;
  Any Run(int64_t function, const std::vector<Any>& inputs, Profile* profile = nullptr);
  Kept At(const std::string& name);
  Any OutputAt(Args args);
  Any ForUser(Any value);

  Machine machine_;
  std::mutex mutex_;
  std::map<std::string, Kept> kept_;  // guarded
};

class MachineNode : public ModuleNode {
 public:
  explicit MachineNode(std::shared_ptr<MachineState> state) : state_(std::move(state)) {}
  const char* kind() const override { return "relax.VirtualMachine"; }
  PackedFunc GetFunction(const std::string& name, const Module& self) override;
  std::vector<std::string> FunctionNames() override;

 private:
  std::shared_ptr<MachineState> state_;
};

}  // namespace portcall::vm
