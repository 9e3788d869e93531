// SPDX-License-Identifier: Apache-2.0
// The time evaluator under the names that front ends and other machines call, and a preproc for it.
#include "runtime/time_evaluator.h"

#include <string>
#include <vector>

#include "portcall/module.h"

namespace portcall {
namespace {

// ---- Cache lines of arguments -------------------------------------------------------------------------------------

constexpr size_t kCacheLine = 64;

void FlushLines(const char* begin, const char* end) {
  begin -= reinterpret_cast<uintptr_t>(begin) % kCacheLine;
#if defined(__x86_64__)
  for (; begin < end; begin += kCacheLine) __builtin_ia32_clflush(begin);
  __builtin_ia32_mfence();
#elif defined(__aarch64__)
  for (; begin < end; begin += kCacheLine) asm volatile("dc civac, %0" ::"r"(begin) : "memory");
  asm volatile("dsb ish" ::: "memory");
#else  // no instruction for it: reading more than a cache holds pushes the rest out
  static const std::vector<char> filler(size_t{32} << 20, 1);
  (void)end;
  volatile char sink = 0;
  for (size_t i = 0; i < filler.size(); i += kCacheLine) sink = filler[i];
  (void)sink;
#endif
}

// From the lowest to the highest byte that the strides reach.
void FlushTensor(const DLTensor& tensor) {
  if (NumElements(tensor) == 0) return;
  const char* first = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  if (IsContiguous(tensor)) return FlushLines(first, first + NumBytes(tensor));
  const auto element = static_cast<int64_t>(NumBytes(tensor.dtype, 1));
  int64_t low = 0, high = element;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    const int64_t reach = (tensor.shape[i] - 1) * tensor.strides[i] * element;
    (reach < 0 ? low : high) += reach;
  }
  FlushLines(first + low, first + high);
}

// A preproc for layers: in a model the first argument was just written by the layer before, the others are cold.
void FlushNonFirstArguments(Args args, RetValue*) {
  for (int i = 1; i < args.size(); ++i) {
    const DLTensor* tensor = TryDLTensor(args[i].cell());
    if (!tensor) continue;
    if (tensor->device.device_type != kDLCPU) {
      detail::ThrowArgumentError(args.function(), i, "a Tensor in the host's memory",
                                 "one on " + ToString(tensor->device));
    }
    FlushTensor(*tensor);
  }
}

// ---- Functions ----------------------------------------------------------------------------------------------------

PackedFunc GlobalFunction(const std::string& name, const char* role) {
  PackedFunc func = Registry::Get(name);
  PORTCALL_CHECK(func.defined(), ValueError) << "no global function '" << name << "' to " << role;
  return func;
}

PackedFunc FunctionOf(const Module& module, const std::string& name) {
  if (!module.defined()) return GlobalFunction(name, "time");
  PackedFunc func = module.GetFunction(name);
  PORTCALL_CHECK(func.defined(), ValueError) << "the module has no function '" << name << "' to time";
  return func;
}

// (function, device type, device number, the seven integers of TimingOptions, preproc)
void LocalTimeEvaluator(Args args, RetValue* rv) {
  if (args.size() != 11) detail::ThrowCountError(args.function(), 11, args.size());
  TimingOptions options = TimingOptions::FromArgs(args, 3, 10);
  options.preproc = args[10].cast<PackedFunc>();
  *rv = TimeEvaluator(args[0], {args[1].cast<int>(), args[2].cast<int>()}, options);
}

// The same across a wire, as TVM's clients call it. A module and a name in the place of the function; preproc is the
// name of a global function, "" for none.
void RpcTimeEvaluator(Args args, RetValue* rv) {
  if (args.size() != 12) detail::ThrowCountError(args.function(), 12, args.size());
  auto module = args[0].cast<Module>();
  if (auto* node = static_cast<ModuleNode*>(PortcallModuleGetNode(module.get()))) {
    std::vector<Any> rest;
    for (int i = 1; i < args.size(); ++i) rest.push_back(Any::Copy(args[i].cell()));
    PackedFunc elsewhere = node->TimeEvaluator(rest);
    if (elsewhere.defined()) {
      *rv = elsewhere;
      return;
    }
  }
  TimingOptions options = TimingOptions::FromArgs(args, 4, 11);
  auto preproc = args[11].cast<std::string>();
  if (!preproc.empty()) options.preproc = GlobalFunction(preproc, "run before each repeat (f_preproc)");
  *rv = TimeEvaluator(FunctionOf(module, args[1]), {args[2].cast<int>(), args[3].cast<int>()}, options);
}

PORTCALL_REGISTER_GLOBAL("runtime.RPCTimeEvaluator").set_body(RpcTimeEvaluator);
PORTCALL_REGISTER_GLOBAL("portcall.TimeEvaluator").set_body(LocalTimeEvaluator);
PORTCALL_REGISTER_GLOBAL("cache_flush_cpu_non_first_arg").set_body(FlushNonFirstArguments);

}  // namespace

}  // namespace portcall
