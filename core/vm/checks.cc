// SPDX-License-Identifier: Apache-2.0
// Built-in functions that check arguments and match_cast. The last argument of each says what is checked; it ends with
// a space. The words "ndim" and "elements" are TVM's: programs look for them.
#include "vm/builtin.h"
#include "vm/machine.h"

namespace portcall::vm {
namespace {

bool IsBool(const DLDataType& t) { return t.code == kDLBool || (t.code == kDLUInt && t.bits == 1); }

void RequireKind(bool ok, const Arguments& args, const char* expected) {
  if (!ok) Throw("TypeError", {args.Text(args.size() - 1), "expected ", expected, ", got ", DescribeValue(args[0])});
}

void CheckDimensions(const Arguments& args, const char* what, int64_t got) {
  int64_t expected = args.Int(1);
  if (expected == -1 || got == expected) return;
  Throw("ValueError",
        {args.Text(args.size() - 1), "expected a ", what, " of ", expected, " dimensions (ndim), got ", got});
}

void CheckTensorInfo(const Arguments& args, Result) {  // (value, dimensions or -1, [data type], context)
  args.CheckCount(3, 4);
  const DLTensor* tensor = TryDLTensor(args[0]);
  RequireKind(tensor != nullptr, args, "a Tensor");
  CheckDimensions(args, "Tensor", tensor->ndim);
  if (args.size() == 3) return;
  DLDataType expected = args.DataType(2);
  if (expected.code == kDLOpaqueHandle) return;  // any
  if (tensor->dtype == expected || (IsBool(tensor->dtype) && IsBool(expected))) return;
  std::string wanted = ToString(expected), got = ToString(tensor->dtype);
  Throw("ValueError", {args.Text(3), "expected a Tensor of dtype ", wanted, ", got ", got});
}

void CheckShapeInfo(const Arguments& args, Result) {  // (value, dimensions or -1, context)
  args.CheckCount(3, 3);
  RequireKind(args[0].type_index == kTVMFFIShape, args, "a Shape");
  CheckDimensions(args, "Shape", args.ExtentsAt(0).size);
}

void CheckPrimValueInfo(const Arguments& args, Result) {  // (value, data type, context)
  args.CheckCount(3, 3);
  DLDataType expected = args.DataType(1);
  int32_t got = args[0].type_index;
  bool integer = got == kTVMFFIInt || got == kTVMFFIBool;
  bool ok = expected.code == kDLFloat          ? integer || got == kTVMFFIFloat
            : expected.code == kDLOpaqueHandle ? integer || got == kTVMFFIOpaquePtr
                                               : integer;
  if (!ok) RequireKind(false, args, ("a number of dtype " + ToString(expected)).c_str());
}

void CheckTupleInfo(const Arguments& args, Result) {  // (value, size, context)
  args.CheckCount(3, 3);
  RequireKind(args[0].type_index == kTVMFFIArray, args, "a tuple");
  int64_t got = args.TupleAt(0).size;
  int64_t expected = args.Int(1);
  if (got == expected) return;
  Throw("ValueError", {args.Text(2), "expected a tuple with ", expected, " elements, got ", got, " elements"});
}

void CheckFuncInfo(const Arguments& args, Result) {  // (value, context)
  args.CheckCount(2, 2);
  RequireKind(args[0].type_index == kTVMFFIFunction || TryClosure(args[0]), args, "a function");
}

Builtin checks_builtins[] = {
    {"vm.builtin.check_tensor_info", CheckTensorInfo},
    {"vm.builtin.check_shape_info", CheckShapeInfo},
    {"vm.builtin.check_prim_value_info", CheckPrimValueInfo},
    {"vm.builtin.check_tuple_info", CheckTupleInfo},
    {"vm.builtin.check_func_info", CheckFuncInfo},
};

}  // namespace
}  // namespace portcall::vm
