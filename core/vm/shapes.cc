// SPDX-License-Identifier: Apache-2.0
// Built-in functions of dynamic shapes. The values of shape variables lie in a heap, an int64 tensor of the host.
#include <cstring>

#include "vm/builtin.h"
#include "vm/machine.h"

namespace portcall::vm {
namespace {

constexpr int64_t kMostVariables = 1 << 20;

class Heap {
 public:
  Heap(const Arguments& args, int32_t i) : function_(args.function()) {
    const DLTensor* tensor = TryDLTensor(args[i]);
    if (!tensor) return;  // no variables
    bool ok = tensor->dtype == DataTypeOf<int64_t>() && tensor->ndim == 1 && tensor->device.device_type == kDLCPU &&
              IsContiguous(*tensor);
    if (!ok) args.Fail(i, "a heap of shape variables");
    values_ = reinterpret_cast<int64_t*>(static_cast<char*>(tensor->data) + tensor->byte_offset);
    size_ = tensor->shape[0];
  }
  int64_t& operator[](int64_t i) const {
    if (i < 0 || i >= size_)
      Throw("IndexError", {function_, "(): there is no shape variable ", i, " in a heap of ", size_});
    return values_[i];
  }

 private:
  const char* function_;
  int64_t* values_ = nullptr;
  int64_t size_ = 0;
};

void AllocShapeHeap(const Arguments& args, Result result) {  // (machine, n)
  args.CheckCount(2, 2);
  int64_t n = args.Int(1);
  if (n < 0 || n > kMostVariables) args.Refuse({"a heap of ", n, " variables"});
  Tensor heap = Tensor::Empty({n}, DataTypeOf<int64_t>());
  std::memset(heap.raw_data(), 0, heap.nbytes());
  result.Owned(heap.release());
}

// The number of pairs (code, operand) that an argument states; they follow it.
int64_t NumPairs(const Arguments& args, int32_t i, int32_t after) {
  int64_t n = args.Int(i);
  int64_t left = args.size() - i - 1 - after;
  if (n < 0 || n > left / 2) args.Refuse({n, " dimensions, but ", left, " arguments for them"});
  return n;
}

enum Match : int64_t { kEqualNumber = 0, kStore = 1, kAnything = 2, kEqualVariable = 3 };

// `dimension`: -1 for a value that is not an extent.
void MatchOne(const Heap& heap, int64_t got, int64_t code, int64_t operand, std::string_view context,
              int32_t dimension = -1) {
  if (code == kAnything) return;
  if (code == kStore) {
    heap[operand] = got;
    return;
  }
  bool number = code == kEqualNumber;
  if (!number && code != kEqualVariable) Throw("ValueError", {"there is no way ", code, " to match a shape"});
  int64_t expected = number ? operand : heap[operand];
  if (got == expected) return;
  std::string what = dimension < 0 ? "the value" : Join({"dimension ", dimension});
  Throw("RuntimeError",
        {context, "match_cast error: ", what, " is ", got, ", expected ", expected, number ? "" : " as elsewhere"});
}

void MatchShape(const Arguments& args, Result) {  // (tensor or shape, heap, n, code, operand, …, context)
  args.CheckCount(4, INT32_MAX);
  int64_t n = NumPairs(args, 2, 1);
  auto last = static_cast<int32_t>(3 + 2 * n);
  std::string_view context = args.Text(last);
  Extents got = args.ExtentsAt(0);
  if (got.size != n)
    Throw("RuntimeError", {context, "match_cast error: expected ", n, " dimensions (ndim), got ", got.size});
  Heap heap(args, 1);
  for (int32_t i = 0; i < n; ++i) {
    MatchOne(heap, got.data[i], args.Int(3 + 2 * i), args.Int(4 + 2 * i), context, i);
  }
}

void MatchPrimValue(const Arguments& args, Result) {  // (int, heap, code, operand, context)
  args.CheckCount(5, 5);
  MatchOne(Heap(args, 1), args.Int(0), args.Int(2), args.Int(3), args.Text(4));
}

int64_t Made(const Heap& heap, int64_t code, int64_t operand) { return code ? heap[operand] : operand; }

void MakeShape(const Arguments& args, Result result) {  // (heap, n, code, operand, …)
  args.CheckCount(2, INT32_MAX);
  int64_t n = NumPairs(args, 1, 0);
  Heap heap(args, 0);
  std::vector<int64_t> extents;  // also the sequences of a batch, of which there may be many
  for (int32_t i = 0; i < n; ++i) extents.push_back(Made(heap, args.Int(2 + 2 * i), args.Int(3 + 2 * i)));
  result.Move(NewShape(extents.data(), static_cast<size_t>(n)));
}

void MakePrimValue(const Arguments& args, Result result) {  // (heap, code, operand)
  args.CheckCount(3, 3);
  result.Int(Made(Heap(args, 0), args.Int(1), args.Int(2)));
}

void ShapeOf(const Arguments& args, Result result) {
  args.CheckCount(1, 1);
  const DLTensor& tensor = args.TensorAt(0);
  result.Move(NewShape(tensor.shape, static_cast<size_t>(tensor.ndim)));
}

void TensorToShape(const Arguments& args, Result result) {
  args.CheckCount(1, 1);
  Tensor tensor = OnHost(args, 0);
  const DLTensor& row = *tensor.dl_tensor();
  if (row.ndim != 1 || row.shape[0] > kMostDimensions)
    args.Refuse({"expected a row of at most ", kMostDimensions, " extents"});
  int64_t extents[kMostDimensions];
  for (int64_t i = 0; i < row.shape[0]; ++i) extents[i] = IntegerAt(row, i);
  result.Move(NewShape(extents, static_cast<size_t>(row.shape[0])));
}

// TVM up to 0.25: the extents of the last argument become arguments themselves.
void CallTirDyn(const Arguments& args, Result result) {  // (function, arguments…, shape)
  args.CheckCount(2, INT32_MAX);
  if (args[0].type_index != kTVMFFIFunction) args.Fail(0, "a function");
  Extents extents = args.ExtentsAt(args.size() - 1);
  std::vector<TVMFFIAny> cells(args.cells() + 1, args.cells() + args.size() - 1);
  for (int64_t i = 0; i < extents.size; ++i) Result(&cells.emplace_back()).Int(extents.data[i]);
  auto function = ObjectRef::Borrow<PackedFunc>(args[0].v_obj);
  result.Move(function.CallPacked(cells.data(), static_cast<int32_t>(cells.size())));
}

Builtin shapes_builtins[] = {
    {"vm.builtin.alloc_shape_heap", AllocShapeHeap}, {"vm.builtin.match_shape", MatchShape},
    {"vm.builtin.match_prim_value", MatchPrimValue}, {"vm.builtin.make_shape", MakeShape},
    {"vm.builtin.make_prim_value", MakePrimValue},   {"vm.builtin.shape_of", ShapeOf},
    {"vm.builtin.tensor_to_shape", TensorToShape},   {"vm.builtin.call_tir_dyn", CallTirDyn},
};

}  // namespace
}  // namespace portcall::vm
