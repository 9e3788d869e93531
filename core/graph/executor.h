// SPDX-License-Identifier: Apache-2.0
// The executor of plans: a module of type "GraphExecutor", whose functions docs/graph.md lists.
//
// Rules
//  * A value is a tensor object that is never changed: kernels, callbacks and users may keep it. What is used in place
//    replaces the tensor of a value where it is an argument; memory that somebody else may hold is never written.
//  * Everything is looked up, checked and allocated before a run. A run is a walk over calls with their argument cells.
//  * One thread at a time is inside of an executor; clones share what never changes (the program) and parameters.
#ifndef PORTCALL_GRAPH_EXECUTOR_H_
#define PORTCALL_GRAPH_EXECUTOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "graph/program.h"
#include "portcall/module.h"

namespace portcall::graph {

class Executor : public ModuleNode {
 public:
  enum State : uint8_t { kUnset = 0, kInput = 1, kParam = 2 };

  explicit Executor(std::shared_ptr<const Program> program);

  const char* kind() const override { return "GraphExecutor"; }
  PackedFunc GetFunction(const std::string& name, const Module& self) override;
  std::vector<std::string> FunctionNames() override;

  size_t num_inputs() const { return inputs_.size(); }
  const std::string& input_name(size_t input) const;
  int64_t FindInput(std::string_view name) const;   // -1: there is none
  int64_t FindOutput(std::string_view name) const;  // -1: there is none

  // The rest is for a thread that is inside: see Inside.
  void Run();
  void CopyInput(size_t input, const DLTensor& from, State state);
  void SetParam(size_t input, const Tensor& tensor);                   // used in place if it can be, else copied
  void ShareParam(size_t input, Executor* other, size_t other_input);  // copied if it lies on another device
  State state(size_t input) const { return inputs_[input].state; }
  Device InputDevice(size_t input) const { return DeviceOf(EntryOf(input)); }

  // Makes its owner the only one inside, or throws RuntimeError.
  class Inside {
   public:
    explicit Inside(Executor* executor);
    ~Inside() { executor_->busy_.store(false, std::memory_order_release); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Executor* executor_;
  };

 private:
  struct Input {
    State state = kUnset;
    bool own = false;  // the memory is ours alone, so that it may be written into
  };
  struct Function;
  static const Function kFunctions[];

  void SetInput(Args args, RetValue* rv);
  void SetParamFunction(Args args, RetValue* rv);
  void SetInputZeroCopy(Args args, RetValue* rv);
  void SetOutputZeroCopy(Args args, RetValue* rv);
  void GetInput(Args args, RetValue* rv);
  void GetOutput(Args args, RetValue* rv);
  void GetNumInputs(Args args, RetValue* rv);
  void GetNumOutputs(Args args, RetValue* rv);
  void GetInputIndex(Args args, RetValue* rv);
  void GetOutputIndex(Args args, RetValue* rv);
  void GetInputInfo(Args args, RetValue* rv);
  void GetOutputInfo(Args args, RetValue* rv);
  void GetInputStates(Args args, RetValue* rv);
  void GetPlan(Args args, RetValue* rv);
  void GetDevices(Args args, RetValue* rv);
  void RunFunction(Args args, RetValue* rv);
  void RunFromInputs(Args args, RetValue* rv);
  void LoadParams(Args args, RetValue* rv);
  void ShareParams(Args args, RetValue* rv);
  void Clone(Args args, RetValue* rv);
  void ExecuteNode(Args args, RetValue* rv);
  void GetNodeOutput(Args args, RetValue* rv);
  void DebugGetOutput(Args args, RetValue* rv);
  void RunIndividual(Args args, RetValue* rv);
  void RunIndividualNode(Args args, RetValue* rv);
  void ProfileRun(Args args, RetValue* rv);

  const Plan& plan() const;
  uint32_t EntryOf(size_t input) const;
  size_t InputArg(const ArgValue& arg) const;
  size_t OutputArg(const ArgValue& arg) const;
  size_t NodeArg(const ArgValue& arg) const;
  std::string DescribeInput(size_t input) const;
  std::string DescribeOutput(size_t output) const;
  Device DeviceOf(uint32_t entry) const;

  Tensor NewMemory(size_t input) const;
  // From now on the value, and all views of it, lie in `base` at `offset`.
  void Bind(uint32_t entry, const Tensor& base, uint64_t offset);
  void SetState(size_t input, State state);
  void CheckInputsSet(size_t last_node) const;
  void Execute(size_t first_node, size_t end_node);
  void ExecuteTo(size_t node);
  void CheckDone(size_t node) const;
  Any CopyOut(uint32_t entry, const std::string& what, Args args, int out) const;
  std::string TimeNode(size_t node, Args args, int first) const;
  [[noreturn]] void FailAt(const Step& step);

  std::shared_ptr<const Program> program_;
  std::vector<Tensor> values_;  // by entry; null: an input without memory
  std::vector<Tensor> flats_;   // the same with one dimension, where a call wants it
  std::vector<TVMFFIAny> cells_;
  std::vector<Step> steps_;
  std::vector<Input> inputs_;
  size_t missing_ = 0;  // inputs that a run needs and that are not set
  size_t done_ = 0;     // nodes whose outputs are there, for who goes on from here
  std::atomic<bool> busy_{false};
  std::mutex cloning_;
};

// Devices: at least one. `linked_params` finds weights in the library by storage id: its own _lookup_linked_param, unless
// another is given. Throws GraphError for a bad plan or a function that is missing.
Module CreateExecutor(std::string_view plan, const Module& library, const std::vector<Device>& devices,
                      PackedFunc linked_params = PackedFunc());

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_EXECUTOR_H_
