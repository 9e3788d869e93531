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

TimeEvaluatorOptions OptionsOf(int number, int repeat, int min_repeat_ms, int limit_zero_time_iterations,
                               int cooldown_interval_ms, int repeats_to_cooldown, int cache_flush_bytes) {
  TimeEvaluatorOptions options;
  options.number = number;
  options.repeat = repeat;
  options.min_repeat_ms = min_repeat_ms;
  options.limit_zero_time_iterations = limit_zero_time_iterations;
  options.cooldown_interval_ms = cooldown_interval_ms;
  options.repeats_to_cooldown = repeats_to_cooldown;
  options.cache_flush_bytes = cache_flush_bytes;
  return options;
}

// The signature that TVM's clients call across a wire: preproc is a global function's name, "" for none.
PackedFunc RpcTimeEvaluator(Module module, std::string name, int device_type, int device_id, int number, int repeat,
                            int min_repeat_ms, int limit_zero_time_iterations, int cooldown_interval_ms,
                            int repeats_to_cooldown, int cache_flush_bytes, std::string preproc) {
  if (auto* node = static_cast<ModuleNode*>(PortcallModuleGetNode(module.get()))) {
    PackedFunc elsewhere =
        node->TimeEvaluator({name, device_type, device_id, number, repeat, min_repeat_ms, limit_zero_time_iterations,
                             cooldown_interval_ms, repeats_to_cooldown, cache_flush_bytes, preproc});
    if (elsewhere.defined()) return elsewhere;
  }
  TimeEvaluatorOptions options = OptionsOf(number, repeat, min_repeat_ms, limit_zero_time_iterations,
                                           cooldown_interval_ms, repeats_to_cooldown, cache_flush_bytes);
  if (!preproc.empty()) options.preproc = GlobalFunction(preproc, "run before each repeat (f_preproc)");
  return TimeEvaluator(FunctionOf(module, name), {device_type, device_id}, options);
}

PackedFunc LocalTimeEvaluator(PackedFunc func, int device_type, int device_id, int number, int repeat,
                              int min_repeat_ms, int limit_zero_time_iterations, int cooldown_interval_ms,
                              int repeats_to_cooldown, int cache_flush_bytes, PackedFunc preproc) {
  TimeEvaluatorOptions options = OptionsOf(number, repeat, min_repeat_ms, limit_zero_time_iterations,
                                           cooldown_interval_ms, repeats_to_cooldown, cache_flush_bytes);
  options.preproc = std::move(preproc);
  return TimeEvaluator(std::move(func), {device_type, device_id}, options);
}

PORTCALL_REGISTER_GLOBAL("runtime.RPCTimeEvaluator").set_body_typed(RpcTimeEvaluator);
PORTCALL_REGISTER_GLOBAL("portcall.TimeEvaluator").set_body_typed(LocalTimeEvaluator);
PORTCALL_REGISTER_GLOBAL("cache_flush_cpu_non_first_arg").set_body(FlushNonFirstArguments);

}  // namespace

}  // namespace portcall
