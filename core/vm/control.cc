// SPDX-License-Identifier: Apache-2.0
// Built-in functions of tuples, control flow and closures.
#include "vm/builtin.h"
#include "vm/machine.h"

namespace portcall::vm {
namespace {

void NullValue(const Arguments&, Result) {}

void CopyValue(const Arguments& args, Result result) {
  args.CheckCount(1, 1);
  result.Copy(args[0]);
}

void MakeTuple(const Arguments& args, Result result) {
  TVMFFIObjectHandle tuple = nullptr;
  Check(PortcallArrayCreate(args.cells(), args.size(), &tuple));
  result.Owned(tuple);
}

TVMFFIAny* ItemOf(const Arguments& args) {  // (tuple, index)
  args.CheckCount(2, 2);
  const TVMFFISeqCell& tuple = args.TupleAt(0);
  int64_t i = args.Int(1);
  if (i < 0 || i >= tuple.size)
    Throw("IndexError", {args.function(), "(): there is no item ", i, " in a tuple with ", tuple.size, " elements"});
  return static_cast<TVMFFIAny*>(tuple.data) + i;
}

void TupleGetItem(const Arguments& args, Result result) { result.Copy(*ItemOf(args)); }

// Frees an item early: the tuple is changed in place.
void TupleResetItem(const Arguments& args, Result) { reinterpret_cast<Any*>(ItemOf(args))->reset(); }

void ReadIfCond(const Arguments& args, Result result) {  // (a number, or a tensor of one)
  args.CheckCount(1, 1);
  if (!TryDLTensor(args[0])) return result.Bool(args.Int(0) != 0);
  Tensor condition = OnHost(args, 0);
  if (condition.numel() == 0) args.Refuse({"the condition is an empty tensor"});
  result.Bool(IntegerAt(*condition.dl_tensor(), 0) != 0);
}

void MakeClosure(const Arguments& args, Result result) {  // (closure, values…)
  args.CheckCount(1, INT32_MAX);
  ClosureObj* base = TryClosure(args[0]);
  if (!base) args.Fail(0, "a relax.vm.Closure");
  std::vector<Any> bound;
  for (int32_t i = 1; i < args.size(); ++i) bound.push_back(Any::Copy(args[i]));
  bound.insert(bound.end(), base->bound.begin(), base->bound.end());
  result.Owned(NewNode<ClosureObj>(base->executable, base->function, std::move(bound)));
}

void InvokeClosure(const Arguments& args, Result result) {  // (machine, closure or function, arguments…)
  args.CheckCount(2, INT32_MAX);
  TVMFFIAny value;
  detail::SetCell(&value, kTVMFFINone);
  Machine::Current(args[0])->InvokeObject(args[1], args.cells() + 2, args.size() - 2, &value);
  result.Move(Any::Steal(value));
}

void InvokeDebugFunc(const Arguments& args, Result) {  // (None, name, line, arguments…)
  args.CheckCount(3, INT32_MAX);
  Registry::GetRequired(args.Text(1)).CallPacked(args.cells() + 2, args.size() - 2);
}

Builtin control_builtins[] = {
    {"vm.builtin.null_value", NullValue},
    {"vm.builtin.copy", CopyValue},
    {"vm.builtin.make_tuple", MakeTuple},
    {"vm.builtin.tuple_getitem", TupleGetItem},
    {"vm.builtin.tuple_reset_item", TupleResetItem},
    {"vm.builtin.read_if_cond", ReadIfCond},
    {"vm.builtin.make_closure", MakeClosure},
    {"vm.builtin.invoke_closure", InvokeClosure},
    {"vm.builtin.invoke_debug_func", InvokeDebugFunc},
};

}  // namespace
}  // namespace portcall::vm
