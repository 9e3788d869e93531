// SPDX-License-Identifier: Apache-2.0
// The functions vm.builtin.kv_state_*.
#include "lm/state.h"

namespace portcall::lm {

State& StateAt(const Arguments& args, int32_t i) {
  static const int32_t base = TypeIndexOf<StateObj>();
  if (!IsObject(args[i]) || !IsInstance(args[i].type_index, base)) args.Fail(i, "a cache or state of a language model");
  return *static_cast<StateObj*>(static_cast<Object*>(args[i].v_obj))->state;
}

double FloatAt(const Arguments& args, int32_t i) {
  return args[i].type_index == kTVMFFIFloat ? args[i].v_float64 : static_cast<double>(args.Int(i));
}

PackedFunc FunctionAt(const Arguments& args, int32_t i, bool required) {
  if (args[i].type_index == kTVMFFIFunction) return ObjectRef::Borrow<PackedFunc>(args[i].v_obj);
  if (required) args.Fail(i, "a function");
  return nullptr;
}

Arguments ItemsAt(const Arguments& args, int32_t i) {
  const TVMFFISeqCell& items = args.TupleAt(i);
  return {args.function(), static_cast<const TVMFFIAny*>(items.data), static_cast<int32_t>(items.size)};
}

void* PlaceNumbers(Tensor* buffer, const int32_t* numbers, size_t size, Device device) {
  auto extent = static_cast<int64_t>(size);
  if (!buffer->defined() || !buffer->unique() || buffer->dl_tensor()->shape[0] != extent)
    *buffer = Tensor::Empty({extent}, kInt32, device);
  if (device.device_type == kDLCPU) std::copy(numbers, numbers + size, static_cast<int32_t*>(buffer->raw_data()));
  else buffer->CopyFromBytes(numbers, size * sizeof(int32_t));
  return buffer->raw_data();
}

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

void Clear(const Arguments& args, Result) {  // (state)
  args.CheckCount(1, 1);
  State& state = StateAt(args, 0);
  Lock lock(state.mutex);
  state.Clear();
}

void AddSequence(const Arguments& args, Result) {  // (state, sequence)
  args.CheckCount(2, 2);
  State& state = StateAt(args, 0);
  Lock lock(state.mutex);
  state.Add(args.Int(1));
}

void RemoveSequence(const Arguments& args, Result) {  // (state, sequence)
  args.CheckCount(2, 2);
  State& state = StateAt(args, 0);
  Lock lock(state.mutex);
  state.Remove(args.Int(1));
}

void ForkSequence(const Arguments& args, Result) {  // (state, parent, child, position or -1)
  args.CheckCount(3, 4);
  State& state = StateAt(args, 0);
  Lock lock(state.mutex);
  state.Fork(args.Int(1), args.Int(2), args.size() == 4 ? args.Int(3) : -1);
}

void PopN(const Arguments& args, Result) {  // (state, sequence, tokens)
  args.CheckCount(3, 3);
  State& state = StateAt(args, 0);
  Lock lock(state.mutex);
  state.Pop(args.Int(1), args.Int(2));
}

std::vector<int64_t> Numbers(const Arguments& args, int32_t i) {
  vm::Extents extents = args.ExtentsAt(i);
  return {extents.data, extents.data + extents.size};
}

void BeginForward(const Arguments& args, Result) {  // (state, sequences, numbers of tokens, [parents of a tree])
  args.CheckCount(3, 4);
  if (args.size() == 4 && args[3].type_index != kTVMFFINone) args.Refuse({"trees of tokens are not supported"});
  std::vector<int64_t> ids = Numbers(args, 1), counts = Numbers(args, 2);
  if (ids.empty() || ids.size() != counts.size())
    args.Refuse({ids.size(), " sequences, but ", counts.size(), " numbers of tokens"});
  State& state = StateAt(args, 0);
  Lock lock(state.mutex);
  state.Begin(ids, counts);
}

void EndForward(const Arguments& args, Result) {  // (state)
  args.CheckCount(1, 1);
  State& state = StateAt(args, 0);
  Lock lock(state.mutex);
  state.End();
}

Builtin state_builtins[] = {
    {"vm.builtin.kv_state_clear", Clear},
    {"vm.builtin.kv_state_add_sequence", AddSequence},
    {"vm.builtin.kv_state_remove_sequence", RemoveSequence},
    {"vm.builtin.kv_state_fork_sequence", ForkSequence},
    {"vm.builtin.kv_state_popn", PopN},
    {"vm.builtin.kv_state_begin_forward", BeginForward},
    {"vm.builtin.kv_state_end_forward", EndForward},
};

}  // namespace
}  // namespace portcall::lm
