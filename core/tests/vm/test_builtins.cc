// SPDX-License-Identifier: Apache-2.0
#include "tests/vm/assembler.h"

using namespace vm_test;

namespace {

PackedFunc Builtin(const std::string& name) { return Registry::GetRequired("vm.builtin." + name); }

Tensor Heap(int64_t n) {
  Assembler a;
  a.Begin("main", {"n"}, 2);
  a.Call(1, "vm.builtin.alloc_shape_heap", {kMachine, Reg(0)});
  a.Return(1);
  return MachineOf(a)["main"](n);
}

Tensor Integers(const std::vector<int64_t>& values) {
  Tensor tensor = Tensor::Empty({static_cast<int64_t>(values.size())}, DataTypeOf<int64_t>());
  std::copy(values.begin(), values.end(), tensor.data<int64_t>());
  return tensor;
}

std::vector<int64_t> Extents(const Any& value) {
  auto shape = value.cast<Shape>();
  return {shape.begin(), shape.end()};
}

}  // namespace

TEST("shape variables are stored, compared and made into shapes") {
  Tensor heap = Heap(3);
  Builtin("match_shape")(Shape({4, 5, 4}), heap, 3, 1, 0, 2, 0, 3, 0, "context ");
  CHECK_EQ(heap.data<int64_t>()[0], 4);
  CHECK(Extents(Builtin("make_shape")(heap, 3, 1, 0, 0, 9, 1, 2)) == std::vector<int64_t>({4, 9, 0}));
  CHECK_EQ(Builtin("make_prim_value")(heap, 1, 0).cast<int64_t>(), 4);
  CHECK_EQ(Builtin("make_prim_value")(nullptr, 0, 6).cast<int64_t>(), 6);
  Builtin("match_prim_value")(8, heap, 1, 2, "context ");
  CHECK_EQ(heap.data<int64_t>()[2], 8);
}

TEST("a shape that does not match is an error with the context in front") {
  Tensor heap = Heap(1);
  auto match = Builtin("match_shape");
  CHECK_EQ(Thrown([&] { match(Shape({4}), heap, 1, 0, 5, "here: "); }),
           "RuntimeError: here: match_cast error: dimension 0 is 4, expected 5");
  CHECK(Contains(Thrown([&] { match(Shape({4}), heap, 1, 3, 0, "here: "); }), "is 4, expected 0 as elsewhere"));
  CHECK(
      Contains(Thrown([&] { match(Shape({4, 4}), heap, 1, 2, 0, "here: "); }), "expected 1 dimensions (ndim), got 2"));
  CHECK(Contains(Thrown([&] { match(Shape({4}), heap, 1, 7, 0, "here: "); }), "ValueError: "));
}

TEST("a heap is never left") {
  Tensor heap = Heap(2);
  for (int64_t i : {int64_t{-1}, int64_t{2}, int64_t{1} << 62}) {
    CHECK(Contains(Thrown([&] { Builtin("make_shape")(heap, 1, 1, i); }), "IndexError: "));
    CHECK(Contains(Thrown([&] { Builtin("match_prim_value")(1, heap, 1, i, ""); }), "IndexError: "));
    CHECK(Contains(Thrown([&] { Builtin("make_prim_value")(heap, 1, i); }), "IndexError: "));
  }
  CHECK(Contains(Thrown([&] { Builtin("make_prim_value")(nullptr, 1, 0); }), "IndexError: "));
  CHECK(Contains(Thrown([&] { Builtin("make_prim_value")(Floats({1}), 1, 0); }), "TypeError: "));
  CHECK(Contains(Thrown([&] { Heap(-1); }), "ValueError: "));
  CHECK(Contains(Thrown([&] { Heap(int64_t{1} << 40); }), "ValueError: "));
}

TEST("the number of dimensions that an argument states is compared with the arguments") {
  for (int64_t n : {int64_t{-1}, int64_t{2}, int64_t{1} << 62}) {
    CHECK(Contains(Thrown([&] { Builtin("make_shape")(nullptr, n, 0, 1); }), "ValueError: "));
    CHECK(Contains(Thrown([&] { Builtin("match_shape")(Shape({1}), nullptr, n, 0, 1, ""); }), "ValueError: "));
  }
}

TEST("values are checked for their kind, and errors keep TVM's words") {
  Tensor x = Floats({1, 2});
  Any none;
  DLDataType f32 = DataTypeOf<float>(), any{kDLOpaqueHandle, 0, 0}, boolean{kDLBool, 8, 1}, old{kDLUInt, 1, 1};
  auto tensor = Builtin("check_tensor_info"), shape = Builtin("check_shape_info"), tuple = Builtin("check_tuple_info");
  auto number = Builtin("check_prim_value_info"), function = Builtin("check_func_info");
  tensor(x, 1, f32, "");
  tensor(x, -1, any, "");
  tensor(x, -1, "");
  tensor(Tensor::Empty({}, boolean), 0, old, "");
  CHECK(Contains(Thrown([&] { tensor(x, 2, f32, "w "); }),
                 "ValueError: w expected a Tensor of 2 dimensions (ndim), got 1"));
  CHECK(Contains(Thrown([&] { tensor(x, 1, DataTypeOf<int>(), "w "); }), "ValueError: w expected"));
  CHECK(Contains(Thrown([&] { tensor(none, 1, f32, "w "); }), "TypeError: w expected a Tensor, got None"));
  shape(Shape({1}), 1, "");
  shape(Shape({1}), -1, "");
  CHECK(Contains(Thrown([&] { shape(Shape({1}), 2, ""); }), "ndim"));
  CHECK(Contains(Thrown([&] { shape(x, 1, ""); }), "TypeError: "));
  tuple(Array<Any>{1, 2}, 2, "");
  CHECK(Contains(Thrown([&] { tuple(Array<Any>{1, 2}, 3, ""); }), "with 3 elements, got 2 elements"));
  CHECK(Contains(Thrown([&] { tuple(x, 3, ""); }), "TypeError: "));
  number(1, DataTypeOf<int64_t>(), "");
  number(1.5, f32, "");
  CHECK(Contains(Thrown([&] { number(1.5, DataTypeOf<int64_t>(), ""); }), "TypeError: "));
  function(tensor, "");
  CHECK(Contains(Thrown([&] { function(1, ""); }), "TypeError: "));
}

TEST("tensors get a new shape, and views stay inside") {
  Tensor x = Floats({1, 2, 3, 4, 5, 6});
  Tensor matrix = Builtin("reshape")(x, Shape({2, 3}));
  CHECK(matrix.raw_data() == x.raw_data());
  CHECK_EQ(matrix.shape(1), 3);
  for (const Shape& wrong : {Shape({4}), Shape({-2, -3}), Shape({int64_t{1} << 40, int64_t{1} << 40})}) {
    CHECK(Contains(Thrown([&] { Builtin("reshape")(x, wrong); }), "ValueError: "));
  }
  PackedFunc view = Registry::Get("runtime.TVMTensorCreateView");
  Tensor part = view(x, Shape({2}), DataTypeOf<int32_t>(), 8);
  CHECK(static_cast<char*>(part.raw_data()) == static_cast<char*>(x.raw_data()) + 8);
  for (int64_t offset : {int64_t{-4}, int64_t{20}, int64_t{1} << 62}) {
    CHECK(Contains(Thrown([&] { view(x, Shape({2}), DataTypeOf<int32_t>(), offset); }), "ValueError: "));
  }
  CHECK(Extents(Builtin("shape_of")(matrix)) == std::vector<int64_t>({2, 3}));
  CHECK(Extents(Builtin("tensor_to_shape")(Integers({7, 8}))) == std::vector<int64_t>({7, 8}));
  CHECK(Contains(Thrown([&] { Builtin("tensor_to_shape")(x); }), "TypeError: "));
  CHECK(Contains(Thrown([&] { Builtin("tensor_to_shape")(Integers(std::vector<int64_t>(100))); }), "ValueError: "));
  Tensor copy = Builtin("to_device")(x, 1, 0);
  CHECK(Values(copy) == Values(x));
}

TEST("a tensor without offset is itself, and one with an offset a view without") {
  Tensor x = Floats({1, 2, 3});
  CHECK(Builtin("ensure_zero_offset")(x).cast<Tensor>().same_as(x));
  DLTensor shifted = *x.dl_tensor();
  int64_t extent = 2;
  shifted.byte_offset = 4;
  shifted.shape = &extent;
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallTensorFromMemory(&shifted, 0, nullptr, [](void*) {}, &handle));
  auto tail = ObjectRef::Steal<Tensor>(handle);
  Tensor fixed = Builtin("ensure_zero_offset")(tail);
  CHECK_EQ(fixed.dl_tensor()->byte_offset, 0);
  CHECK(Values(fixed) == std::vector<float>({2, 3}));
}

TEST("conditions are bools, numbers, and tensors of them") {
  auto cond = Builtin("read_if_cond");
  CHECK(cond(true).cast<bool>());
  CHECK(!cond(0).cast<bool>());
  CHECK(cond(Integers({3})).cast<bool>());
  Tensor boolean = Tensor::Empty({}, {kDLBool, 8, 1});
  *static_cast<uint8_t*>(boolean.raw_data()) = 0;
  CHECK(!cond(boolean).cast<bool>());
  CHECK(Contains(Thrown([&] { cond(Floats({1})); }), "TypeError: "));
  CHECK(Contains(Thrown([&] { cond(Integers({})); }), "ValueError: "));
  CHECK(Contains(Thrown([&] { cond("text"); }), "TypeError: "));
}

TEST("items of tuples are read and reset") {
  Array<Any> tuple{1, "two"};
  CHECK_EQ(Builtin("tuple_getitem")(tuple, 1).cast<std::string>(), "two");
  CHECK(Contains(Thrown([&] { Builtin("tuple_getitem")(tuple, 2); }), "IndexError: "));
  CHECK(Contains(Thrown([&] { Builtin("tuple_getitem")(tuple, -1); }), "IndexError: "));
  CHECK(Contains(Thrown([&] { Builtin("tuple_getitem")(1, 0); }), "TypeError: "));
  Builtin("tuple_reset_item")(tuple, 0);
  CHECK(tuple[0] == nullptr);
}

TEST("extents become arguments of call_tir_dyn") {
  PackedFunc count(
      [](Args args, RetValue* rv) { *rv = args[0].cast<int64_t>() + 10 * args[1].cast<int64_t>() + args.size(); });
  CHECK_EQ(Builtin("call_tir_dyn")(count, 1, Shape({2, 3})).cast<int64_t>(), 1 + 20 + 3);
  CHECK(Contains(Thrown([&] { Builtin("call_tir_dyn")(1, Shape({2})); }), "TypeError: "));
}

TEST("a pointer that is not the running machine is refused") {
  int64_t something = 0;
  auto storage = Builtin("alloc_storage");
  for (void* pointer : {static_cast<void*>(nullptr), static_cast<void*>(&something)}) {
    CHECK(Contains(Thrown([&] { storage(pointer, Shape({4}), 0, DataTypeOf<uint8_t>(), "global"); }), "TypeError: "));
    CHECK(Contains(Thrown([&] { Builtin("invoke_closure")(pointer, storage, 1); }), "TypeError: "));
  }
}

TEST("storage and tensors in it have sensible sizes") {
  Assembler a;
  int64_t byte = a.DType({kDLUInt, 8, 1}), scope = a.Text("global");
  a.Begin("main", {"size", "offset", "shape"}, 4);
  a.Call(3, "vm.builtin.alloc_storage", {kMachine, Reg(0), Imm(-1), byte, scope});
  a.Call(3, "vm.builtin.alloc_tensor", {Reg(3), Reg(1), Reg(2), byte});
  a.Return(3);
  Module m = MachineOf(a);
  CHECK_EQ(m["main"](Shape({10}), 6, Shape({4})).cast<Tensor>().shape(0), 4);
  CHECK_EQ(m["main"](Shape({10}), 0, Shape({0, 4})).cast<Tensor>().numel(), 0);
  constexpr int64_t kBig = int64_t{1} << 50;
  for (const Shape& size : {Shape({-1}), Shape({kBig}), Shape({kBig, kBig})}) {
    CHECK(Contains(Thrown([&] { m["main"](size, 0, Shape({1})); }), "ValueError: "));
    CHECK(Contains(Thrown([&] { m["main"](Shape({10}), 0, size); }), "ValueError: "));
  }
  for (int64_t offset : {int64_t{-1}, int64_t{4090}, kBig}) {
    CHECK(Contains(Thrown([&] { m["main"](Shape({10}), offset, Shape({10})); }), "ValueError: "));
  }
  CHECK(Contains(Thrown([&] { m["main"](1, 0, Shape({10})); }), "TypeError: "));
}
