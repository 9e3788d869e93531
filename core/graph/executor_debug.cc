// SPDX-License-Identifier: Apache-2.0
// The functions of an executor that run, show and time single nodes.
#include "graph/executor.h"
#include "runtime/time_evaluator.h"

namespace portcall::graph {
namespace {

void Append(std::string* bytes, int64_t value) { bytes->append(reinterpret_cast<const char*>(&value), sizeof value); }
void Append(std::string* bytes, double value) { bytes->append(reinterpret_cast<const char*>(&value), sizeof value); }

}  // namespace

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
  TimingOptions options = TimingOptions::FromArgs(args, first, args.size());
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
    int64_t duration;
    if (device.device_type == kDLCPU) {
      Execute(n, n + 1);
      duration = timing::SteadyNow() - begin;
    } else {
      timing::Stopwatch stopwatch(device, nullptr);
      Execute(n, n + 1);
      duration = stopwatch.Stop();
    }
    bool calls = program_->first_step[n] != program_->first_step[n + 1];
    Append(&bytes, static_cast<double>(begin - start) / 1e9);
    Append(&bytes, calls ? static_cast<double>(duration) / 1e9 : 0.0);
  }
  *rv = Bytes(bytes);
}

}  // namespace portcall::graph
