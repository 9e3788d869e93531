// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "tests/vm/assembler.h"

using namespace vm_test;

namespace {

// Registers a global function for one test.
class Registered {
 public:
  template <typename F> Registered(std::string name, F body) : name_(std::move(name)) {
    Registry::Set(name_, PackedFunc(std::move(body), name_));
  }
  ~Registered() { Registry::Remove(name_); }

 private:
  std::string name_;
};

// main(n): n calls of itself, then 0. test.less subtracts one.
Assembler Countdown() {
  Assembler a;
  int64_t main = a.Begin("main", {"n"}, 2);
  a.If(0, 4);
  a.Call(1, "test.less", {Reg(0)});
  a.CallIndex(1, main, {Reg(1)});
  a.Return(1);
  a.Return(0);
  return a;
}

// outer(n): a closure over (nothing) that is called: main(n) = closure(main)(n - 1).
Assembler CountdownByClosure() {
  Assembler a;
  int64_t main = a.Begin("main", {"n"}, 3);
  a.If(0, 5);
  a.Call(1, "test.less", {Reg(0)});
  a.Call(2, "vm.builtin.make_closure", {Func(main)});
  a.Call(1, "vm.builtin.invoke_closure", {kMachine, Reg(2), Reg(1)});
  a.Return(1);
  a.Return(0);
  return a;
}

Registered Less() {
  return {"test.less", [](Args args, RetValue* rv) { *rv = args[0].cast<int64_t>() - 1; }};
}

// double(x): x + x by a kernel, in memory of the machine.
Assembler Doubled() {
  Assembler a;
  int64_t shape = a.ShapeOf({3}), bytes = a.ShapeOf({12}), dtype = a.DType(DataTypeOf<float>());
  int64_t byte = a.DType({kDLUInt, 8, 1}), scope = a.Text("global"), context = a.Text("ErrorContext(fn=main) ");
  a.Begin("main", {"x"}, 4);
  a.Call(kNone, "vm.builtin.check_tensor_info", {Reg(0), Imm(1), dtype, context});
  a.Call(kNone, "vm.builtin.match_shape", {Reg(0), kNone, Imm(1), Imm(0), Imm(3), context});
  a.Call(1, "vm.builtin.alloc_storage", {kMachine, bytes, Imm(0), byte, scope});
  a.Call(2, "vm.builtin.alloc_tensor", {Reg(1), Imm(0), shape, dtype});
  a.Call(1, "vm.builtin.null_value", {});
  a.Call(kNone, "test.add", {Reg(0), Reg(0), Reg(2)});
  a.Return(2);
  return a;
}

Registered Add() {
  return {"test.add", [](Args args, RetValue*) {
            TensorView x = args[0], y = args[1], out = args[2];
            for (size_t i = 0; i < x.numel(); ++i) out.data<float>()[i] = x.data<float>()[i] + y.data<float>()[i];
          }};
}

}  // namespace

TEST("a machine runs functions with their constants, branches and tuples") {
  Assembler a;
  int64_t text = a.Text("seven");
  a.Begin("main", {"c", "x"}, 3);
  a.If(0, 3);
  a.Call(2, "vm.builtin.make_tuple", {Reg(1), Imm(-7), text});
  a.Goto(2);
  a.Call(2, "vm.builtin.copy", {Reg(1)});
  a.Return(2);
  Module m = MachineOf(a);
  auto tuple = m["main"](true, 5).cast<Array<Any>>();
  CHECK_EQ(tuple.size(), 3);
  CHECK_EQ(tuple[1].cast<int64_t>(), -7);
  CHECK_EQ(tuple[2].cast<std::string>(), "seven");
  CHECK_EQ(m["main"](false, 5).cast<int64_t>(), 5);
}

TEST("results outlive the machine and the executable") {
  Registered add = Add();
  Tensor y;
  {
    Module m = MachineOf(Doubled());
    y = m["main"](Floats({1, 2, 3})).cast<Tensor>();
  }
  CHECK(Values(y) == std::vector<float>({2, 4, 6}));
}

TEST("memory of results that are gone is used again, and freed by memory_manager.clear") {
  Registered add = Add();
  PackedFunc clear = Registry::Get("vm.builtin.memory_manager.clear");
  clear();
  int64_t before = LiveNodes("ffi.Tensor");
  {
    Module m = MachineOf(Doubled());
    Tensor x = Floats({1, 2, 3});
    void* first = m["main"](x).cast<Tensor>().raw_data();
    CHECK(m["main"](x).cast<Tensor>().raw_data() == first);
    Tensor kept = m["main"](x), other = m["main"](x);
    CHECK(kept.raw_data() != other.raw_data());
  }
  CHECK(LiveNodes("ffi.Tensor") > before);
  clear();
  CHECK_EQ(LiveNodes("ffi.Tensor"), before);
}

TEST("arguments of the user that are unaligned, strided or borrowed are copied") {
  Registered add = Add();
  Module m = MachineOf(Doubled());
  alignas(64) float memory[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  Tensor unaligned = Tensor::FromMemory(memory + 1, {3}, DataTypeOf<float>(), [] {});
  CHECK(Values(m["main"](unaligned)) == std::vector<float>({2, 4, 6}));
  int64_t extent = 3, stride = 2;
  DLTensor strided{};
  strided.data = memory;
  strided.device = Cpu();
  strided.ndim = 1;
  strided.dtype = DataTypeOf<float>();
  strided.shape = &extent;
  strided.strides = &stride;
  TVMFFIAny cell{};
  cell.type_index = kTVMFFIDLTensorPtr;
  cell.v_ptr = &strided;
  CHECK(Values(m["main"].CallPacked(&cell, 1)) == std::vector<float>({0, 4, 8}));
}

TEST("an argument that does not fit is an error that names the parameter") {
  Registered add = Add();
  Module m = MachineOf(Doubled());
  CHECK(Contains(Thrown([&] { m["main"](1); }), "TypeError: ErrorContext(fn=main) expected a Tensor, got int 1"));
  CHECK(Contains(Thrown([&] { m["main"](Floats({1})); }), "RuntimeError: ErrorContext(fn=main) match_cast error"));
  Tensor matrix = Tensor::Empty({1, 3}, DataTypeOf<float>());
  CHECK(Contains(Thrown([&] { m["main"](matrix); }), "1 dimensions (ndim), got 2"));
  Tensor doubles = Tensor::Empty({3}, DataTypeOf<double>());
  CHECK(Contains(Thrown([&] { m["main"](doubles); }), "expected a Tensor of dtype float32, got float64"));
  CHECK_EQ(Thrown([&] { m["main"](); }), "TypeError: main(x) takes 1 argument, got 0");
}

TEST("functions call themselves a hundred thousand levels deep, also through closures") {
  Registered less = Less();
  CHECK_EQ(MachineOf(Countdown())["main"](100000).cast<int64_t>(), 0);
  CHECK_EQ(MachineOf(CountdownByClosure())["main"](100000).cast<int64_t>(), 0);
}

TEST("recursion without an end is an error, and the machine can be used afterwards") {
  Registered same("test.less", [](Args args, RetValue* rv) { *rv = args[0].cast<int64_t>() + 1; });
  Module m = MachineOf(Countdown());
  CHECK(Contains(Thrown([&] { m["main"](1); }), "RecursionError: "));
  CHECK_EQ(m["main"](0).cast<int64_t>(), 0);
}

TEST("an error says in which function and instruction it arose, and through which calls it came") {
  Registered fail("test.less", [](Args args, RetValue* rv) {
    PORTCALL_CHECK(args[0].cast<int64_t>() != 3, ValueError) << "three";
    *rv = args[0].cast<int64_t>() - 1;
  });
  Module m = MachineOf(Countdown());
  try {
    m["main"](5);
    CHECK(false);
  } catch (const Error& error) {
    CHECK_EQ(error.message(), "three");
    std::string trace(error.backtrace());
    CHECK(Contains(trace, "Note: in main, instruction 1: test.less\n"));
    size_t first = trace.find("instruction 1"), second = trace.find("in main, instruction 2: main", first);
    CHECK(second != std::string::npos);
    CHECK(trace.find("in main, instruction 2: main", second + 1) != std::string::npos);
  }
  CHECK(Contains(Thrown([&] { m["main"](50); }), "ValueError: three"));
}

TEST("a function that the machine calls may call the machine") {
  Module m;
  Registered again("test.less", [&m](Args args, RetValue* rv) {
    auto n = args[0].cast<int64_t>();
    if (n % 2 == 0) m["main"](1);
    *rv = n - 1;
  });
  m = MachineOf(Countdown());
  CHECK_EQ(m["main"](20).cast<int64_t>(), 0);
  m = nullptr;
}

TEST("several threads use one machine") {
  Registered add = Add();
  Module m = MachineOf(Doubled());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([m, t] {
      for (int i = 0; i < 200; ++i) {
        auto value = static_cast<float>(t * 1000 + i);
        CHECK(Values(m["main"](Floats({value, 0, 0})))[0] == 2 * value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST("inputs are kept, and outputs are read item by item") {
  Assembler a;
  a.Begin("main", {"x", "y"}, 3);
  a.Call(2, "vm.builtin.make_tuple", {Reg(0), Reg(1)});
  a.Call(2, "vm.builtin.make_tuple", {Reg(2), Reg(0)});
  a.Return(2);
  Module m = MachineOf(a);
  CHECK(Contains(Thrown([&] { m["invoke_stateful"]("main"); }), "ValueError: no inputs were set for main"));
  CHECK(Contains(Thrown([&] { m["get_output"]("main"); }), "ValueError: there is no output of main"));
  CHECK(Contains(Thrown([&] { m["set_input"]("main", 1); }), "main takes 2 arguments, got 1"));
  m["set_input"]("main", 1, 2);
  m["invoke_stateful"]("main");
  CHECK_EQ(m["get_output_arity"]("main").cast<int64_t>(), 2);
  CHECK_EQ(m["get_output_arity"]("main", 0).cast<int64_t>(), 2);
  CHECK_EQ(m["get_output_arity"]("main", 1).cast<int64_t>(), -1);
  CHECK_EQ(m["get_output"]("main", 0, 1).cast<int64_t>(), 2);
  CHECK(Contains(Thrown([&] { m["get_output"]("main", 0); }), "the output there is a tuple"));
  CHECK(Contains(Thrown([&] { m["get_output"]("main", 0, 2); }), "IndexError: "));
  CHECK(Contains(Thrown([&] { m["get_output"]("main", 1, 0); }), "ValueError: "));
  CHECK_EQ(m["get_function_arity"]("main").cast<int64_t>(), 2);
  CHECK_EQ(m["get_function_param_name"]("main", 1).cast<std::string>(), "y");
  CHECK(Contains(Thrown([&] { m["get_function_param_name"]("main", 2); }), "IndexError: "));
}

TEST("a saved function has its arguments, and others may come before them") {
  Assembler a;
  a.Begin("main", {"x", "y"}, 3);
  a.Call(2, "vm.builtin.make_tuple", {Reg(0), Reg(1)});
  a.Return(2);
  Module m = MachineOf(a);
  m["save_function"]("main", "both", true, 1, 2);
  m["save_function"]("main", "silent", false, 1, 2);
  m["save_function"]("main", "one", true, 2);
  CHECK_EQ(m["both"]().cast<Array<int64_t>>()[1], 2);
  CHECK(m["silent"]() == nullptr);
  CHECK_EQ(m["one"](7).cast<Array<int64_t>>()[0], 7);
}

TEST("a closure that the user gets is a function") {
  Assembler a;
  int64_t inner = a.Begin("inner", {"a", "b"}, 3);
  a.Call(2, "vm.builtin.make_tuple", {Reg(0), Reg(1)});
  a.Return(2);
  a.Begin("main", {"y"}, 2);
  a.Call(1, "vm.builtin.make_closure", {Func(inner), Reg(0)});
  a.Return(1);
  PackedFunc closure = MachineOf(a)["main"](5);
  alignas(64) float memory[4] = {0, 1, 2, 3};  // an argument that is copied for the call
  Tensor unaligned = Tensor::FromMemory(memory + 1, {3}, DataTypeOf<float>(), [] {});
  CHECK(Values(closure(unaligned).cast<Array<Any>>()[0]) == std::vector<float>({1, 2, 3}));
  CHECK_EQ(closure(4).cast<Array<int64_t>>()[0], 4);
  CHECK_EQ(closure(4).cast<Array<int64_t>>()[1], 5);
  CHECK(Contains(Thrown([&] { closure(); }), "TypeError: inner(a, b) takes 2 arguments, got 1"));
}

TEST("an instrument sees every call and may skip it") {
  Registered less = Less();
  Module m = MachineOf(Countdown());
  std::string seen;
  m["set_instrument"](PackedFunc([&](Args args, RetValue* rv) {
    seen += args[1].cast<std::string>() + (args[2].cast<bool>() ? " before, " : " after, ");
    *rv = 0;
  }));
  CHECK_EQ(m["main"](1).cast<int64_t>(), 0);
  CHECK_EQ(seen, "test.less before, test.less after, main before, main after, ");
  m["set_instrument"](PackedFunc([&](Args, RetValue* rv) { *rv = 1; }));
  CHECK(m["main"](1) == nullptr);
  m["set_instrument"](nullptr);
  CHECK_EQ(m["main"](1).cast<int64_t>(), 0);
}

TEST("a profile counts the calls of each function") {
  Registered less = Less();
  std::string rows = MachineOf(Countdown())["profile"]("main", 10);
  CHECK_EQ(rows.substr(0, 3), "10 ");
  CHECK(Contains(rows, " test.less\n"));
}

TEST("all functions that nobody has are named when the machine is set up") {
  Assembler a;
  a.Begin("main", {}, 1);
  a.Call(0, "test.missing_1", {});
  a.Call(0, "vm.builtin.null_value", {});
  a.Call(0, "test.missing_2", {});
  a.Return(0);
  std::string error = Thrown([&] { MachineOf(a); });
  CHECK(Contains(error, "FunctionNotFoundError: "));
  CHECK(Contains(error, ": test.missing_1, test.missing_2"));
}

TEST("a machine is set up once, for devices that exist") {
  Assembler a = Countdown();
  Registered less = Less();
  auto m = Load(a.Write())["vm_load_executable"]().cast<Module>();
  PackedFunc same([](Args args, RetValue* rv) { *rv = args[0]; });
  CHECK(Contains(Thrown([&] { m["main"](0); }), "RuntimeError: the machine was not set up"));
  CHECK(Contains(Thrown([&] { m["invoke_closure"](same, 0); }), "RuntimeError: the machine was not set up"));
  CHECK(Contains(Thrown([&] { m["profile"]("main", 0); }), "RuntimeError: the machine was not set up"));
  CHECK(Contains(Thrown([&] { m["set_input"]("main", 0); }), "RuntimeError: the machine was not set up"));
  CHECK(Contains(Thrown([&] { m["save_function"]("main", "saved", true, 0); }), "RuntimeError: the machine was not"));
  CHECK(Contains(Thrown([&] { m["vm_initialization"](1, 0); }), "ValueError: "));
  CHECK(Thrown([&] { m["vm_initialization"](99, 0, 2); }) != "");
  m["vm_initialization"](1, 0, 2, 1, 0, 1);
  CHECK(Contains(Thrown([&] { m["vm_initialization"](1, 0, 2); }), "RuntimeError: "));
  CHECK_EQ(m["main"](0).cast<int64_t>(), 0);
  CHECK(!m.GetFunction("test.less").defined());
  CHECK(m.FunctionNames() == std::vector<std::string>({"main"}));
}

TEST("what a user's function returns is made compact and aligned") {
  alignas(64) static float memory[4] = {0, 1, 2, 3};
  Registered source("test.source",
                    [](Args, RetValue* rv) { *rv = Tensor::FromMemory(memory + 1, {3}, DataTypeOf<float>(), [] {}); });
  Assembler a;
  a.Begin("main", {}, 1);
  a.Call(0, "test.source", {});
  a.Return(0);
  Tensor y = MachineOf(a)["main"]();
  CHECK_EQ(reinterpret_cast<uintptr_t>(y.raw_data()) % 64, 0);
  CHECK(Values(y) == std::vector<float>({1, 2, 3}));
}

TEST("executables, machines, closures and results are freed") {
  Registered add = Add();
  PackedFunc clear = Registry::Get("vm.builtin.memory_manager.clear");
  clear();
  auto live = [] { return LiveNodes("ffi.Tensor") + LiveNodes("ffi.Module") + LiveNodes("ffi.Function"); };
  int64_t before = live();
  for (int i = 0; i < 3; ++i) {
    Module m = MachineOf(Doubled());
    m["set_input"]("main", Floats({1, 2, 3}));
    m["save_function"]("main", "saved", true, Floats({1, 2, 3}));
    m["invoke_stateful"]("main");
    m["saved"]();
    Thrown([&] { m["main"](1); });
  }
  clear();
  CHECK_EQ(live(), before);
}
