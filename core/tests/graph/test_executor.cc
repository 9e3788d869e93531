// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "graph/params.h"
#include "tests/fake_device.h"
#include "tests/graph/executors.h"

using namespace portcall;
using namespace portcall::tests;

TEST("a graph is run from its inputs to its outputs") {
  Module m = SumExecutor();
  CHECK_EQ(m.kind(), "GraphExecutor");
  Do(m, "set_input", "x", Filled({3}, 10));
  Do(m, "set_input", 1, Filled({3}, 100));
  CHECK(Do(m, "run") == nullptr);
  CHECK_EQ(Show(Do(m, "get_output", 0)), "111 113 115");
  Tensor x = Do(m, "get_input", "x");
  Tensor out = Tensor::Empty({3}, kFloat32);
  CHECK(Do(m, "get_output", "n3", out) == nullptr);
  CHECK_EQ(Show(out), "111 113 115");
  Do(m, "set_input", "x", Filled({3}, 20));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "121 123 125");
  CHECK_EQ(Show(out), "111 113 115");
  CHECK(Do(m, "get_input", "x").cast<Tensor>().raw_data() == x.raw_data());  // nothing is allocated again
}

TEST("inputs and outputs are counted, found by name and described") {
  Module m = SumExecutor();
  CHECK_EQ(Do(m, "get_num_inputs").cast<int>(), 2);
  CHECK_EQ(Do(m, "get_num_outputs").cast<int>(), 1);
  CHECK_EQ(Do(m, "get_input_index", "w").cast<int>(), 1);
  CHECK_EQ(Do(m, "get_input_index", "v").cast<int>(), -1);
  CHECK_EQ(Do(m, "get_output_index", "n3").cast<int>(), 0);
  CHECK_EQ(Do(m, "get_output_index", "n3:0").cast<int>(), 0);
  CHECK_EQ(Do(m, "get_output_index", "x").cast<int>(), -1);
  CHECK_EQ(Do(m, "get_plan").cast<Bytes>(), Sum().Encode());
  using Info = Map<String, Map<String, Any>>;
  auto shape_of = [](const Info& info, const char* name) { return info.at("shape").at(name).cast<Shape>(); };
  CHECK_EQ(ToString(shape_of(Do(m, "get_input_info"), "x")), "(3,)");
  CHECK_EQ(ToString(shape_of(Do(m, "get_output_info"), "n3")), "(3,)");
  CHECK_EQ(Do(m, "get_input_info").cast<Info>().at("dtype").at("w").cast<std::string>(), "float32");
  Do(m, "set_param", "w", Filled({3}, 0));
  CHECK_EQ(Do(m, "get_input_info").cast<Info>().at("dtype").size(), 1);  // parameters are not listed as inputs
}

TEST("shapes and types are those of the value, after a node with several outputs too") {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {4});
  plan.Call("split", {x}, {1});
  plan.nodes.back().outputs = 2;
  plan.slots.push_back({0, 0, 64, 12});
  plan.devices[0].arena = 128;
  plan.entries.push_back({2, {3}});
  plan.Input("w", {5}, {kDLInt, 8, 1});
  plan.heads = {2, 1};
  Module m = Create(plan, Library({{"split", PackedFunc([](Args args, RetValue*) {
                                      Tensor in = args[0], a = args[1], b = args[2];
                                      Data(a)[0] = Data(in)[0];
                                      std::memcpy(Data(b), Data(in) + 1, 12);
                                    })}}),
                    Cpu());
  using Info = Map<String, Map<String, Any>>;
  auto in = Do(m, "get_input_info").cast<Info>(), out = Do(m, "get_output_info").cast<Info>();
  CHECK_EQ(ToString(in.at("shape").at("w").cast<Shape>()), "(5,)");
  CHECK_EQ(in.at("dtype").at("w").cast<std::string>(), "int8");
  CHECK_EQ(ToString(out.at("shape").at("n1:0").cast<Shape>()), "(3,)");  // two outputs of one node
  CHECK_EQ(ToString(out.at("shape").at("n1:1").cast<Shape>()), "(1,)");
  CHECK_EQ(Do(m, "get_output_index", "n1").cast<int>(), -1);
  CHECK_EQ(Do(m, "get_output_index", "n1:1").cast<int>(), 1);
  CHECK_EQ(Fails(m, "get_output", "n1"), "GraphError: the graph has no output 'n1'; there are 'n1:0', 'n1:1'");
  Do(m, "set_input", "x", Filled({4}, 7));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", "n1:0")), "8 9 10");
  CHECK_EQ(Show(Do(m, "debug_get_output", 1)), "7");
  CHECK_EQ(Fails(m, "debug_get_output", 2), "GraphError: node 2 ('w') is an input that was never set");
}

TEST("a wrong name or index is an error that says what there is") {
  PlanWriter plan;
  plan.heads = {plan.Input("data", {1}), plan.Input("weight_1", {1}), plan.Input("weight_2", {1}),
                plan.Input("bias", {1})};
  Module m = Create(plan, Usual(), Cpu());
  Tensor t = Filled({1}, 0);
  CHECK_EQ(Fails(m, "set_param", "zzzzzzzzzz", t),
           "GraphError: the graph has no input 'zzzzzzzzzz'; there are 'data', 'weight_1', 'weight_2', … (4)");
  CHECK_EQ(Fails(m, "set_input", 4, t), "IndexError: there is no input 4: the graph has 4");
  CHECK_EQ(Fails(m, "get_output", -1), "IndexError: there is no output -1: the graph has 4");
  CHECK(Contains(Fails(m, "set_input", nullptr, t), "TypeError: set_input(): argument #0: expected int, got None"));
  CHECK(Contains(Fails(m, "set_input", "data"), "TypeError: set_input(): expected 2 arguments, got 1"));
  CHECK(Contains(Fails(m, "get_output"), "TypeError: get_output(): expected 1 to 2 arguments, got 0"));
  CHECK(Contains(Fails(m, "run_from_inputs", 1), "expected at least 2 arguments, got 1"));
  CHECK(!m.GetFunction("no_such_function").defined());
  CHECK_EQ(Registry::Get("portcall.ModuleFunctionNames")(m).cast<std::vector<std::string>>().at(0), "run");
}

TEST("an input of another shape or type is refused") {
  Module m = SumExecutor();
  for (const char* name : {"set_input", "set_param", "set_input_zero_copy"}) {
    CHECK_EQ(Fails(m, name, "x", Filled({4}, 0)), "GraphError: input 'x' is float32 (3,), got float32 (4,)");
    CHECK_EQ(Fails(m, name, "x", Filled({3, 1}, 0)), "GraphError: input 'x' is float32 (3,), got float32 (3, 1)");
    CHECK_EQ(Fails(m, name, "x", Tensor::Empty({3}, {kDLInt, 32, 1})),
             "GraphError: input 'x' is float32 (3,), got int32 (3,)");
  }
  CHECK_EQ(States(m), "00");
  CHECK_EQ(Fails(m, "get_output", 0, Filled({4}, 0)), "GraphError: output 0 ('n3') is float32 (3,), got float32 (4,)");
  CHECK_EQ(Fails(m, "get_output", 0, ReadOnly(Filled({3}, 0))), "ValueError: the tensor is read-only");
}

TEST("a run with an input that was never set is an error that names it") {
  Module m = SumExecutor();
  CHECK_EQ(Fails(m, "run"),
           "GraphError: input 'x', float32 (3,) (nor were others), was never set: call set_input, or for weights "
           "load_params or set_param");
  for (int twice : {0, 1}) Do(m, "set_input", "x", Filled({3}, static_cast<float>(twice)));
  CHECK_EQ(States(m), "10");
  CHECK(Contains(Fails(m, "run"), "input 'w', float32 (3,), was never set"));
  Do(m, "set_param", "w", Filled({3}, 0));
  CHECK_EQ(States(m), "12");
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "2 4 6");
}

TEST("an input that is read through a view, or by several nodes, is asked for before the first that reads it") {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {3, 1}), view = plan.Nop(x, {3});
  uint32_t sum = plan.Call("add", {view, view}, {3});
  plan.heads = {plan.Call("add", {sum, view}, {3})};
  Module m = Create(plan, Usual(), Cpu());
  CHECK(Contains(Fails(m, "run"), "input 'x', float32 (3, 1), was never set"));
  CHECK(Contains(Fails(m, "execute_node", 2), "input 'x', float32 (3, 1), was never set"));
  Do(m, "execute_node", 1);  // which calls nothing
  Do(m, "set_input", "x", Filled({3, 1}, 1));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "3 6 9");
}

TEST("what no node and no output needs may stay unset") {
  PlanWriter plan = Sum();
  plan.Input("unused", {1000000000});
  Module m = Create(plan, Usual(), Cpu());
  Do(m, "set_input", "x", Filled({3}, 0));
  Do(m, "set_input", "w", Filled({3}, 0));
  Do(m, "run");
  CHECK_EQ(States(m), "110");
  PlanWriter other = Sum();
  other.Input("unused", {1});
  m = Create(other, Usual(), Cpu());
  Do(m, "set_input", "unused", Filled({1}, 0));  // stands for none of the others
  Do(m, "set_input", "x", Filled({3}, 0));
  CHECK(Contains(Fails(m, "run"), "input 'w', float32 (3,), was never set"));
}

TEST("an output that is an input is a view of it, and needs it set") {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {2, 2});
  plan.heads = {x, plan.Nop(x, {4})};
  Module m = Create(plan, Usual(), Cpu());
  CHECK(Contains(Fails(m, "run"), "input 'x', float32 (2, 2), was never set"));
  CHECK(Contains(Fails(m, "get_output", 1), "is an input that was never set"));
  Do(m, "set_input", 0, Filled({2, 2}, 5));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 1)), "5 6 7 8");
  CHECK_EQ(Fails(m, "set_output_zero_copy", 1, Filled({4}, 0)),
           "GraphError: output 1 ('nop1') is the input 'x' itself, which no kernel writes: use set_input_zero_copy, or "
           "copy it");
  Tensor mine = Filled({2, 2}, 50);
  Do(m, "set_input_zero_copy", 0, mine);
  CHECK(Do(m, "get_output", 1).cast<Tensor>().raw_data() == mine.raw_data());
}

TEST("get_input gives a view that one may write into, so the input counts as set") {
  Module m = SumExecutor();
  Tensor x = Do(m, "get_input", "x"), w = Do(m, "get_input", 1);
  CHECK_EQ(States(m), "11");
  for (int i = 0; i < 3; ++i) Data(x)[i] = 1, Data(w)[i] = 2;
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "4 4 4");
  Do(m, "set_input", "x", Filled({3}, 5));  // into the same memory
  CHECK_EQ(Show(x), "5 6 7");
}

TEST("strided and misaligned sources are copied right") {
  Module m = SumExecutor();
  Do(m, "set_input", "x", Strided(3));
  Tensor w = OffBy(4, {3});
  for (int i = 0; i < 3; ++i) Data(w)[i] = 10;
  Do(m, "set_param", "w", w);
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "11 13 15");
  CHECK(Do(m, "get_input", "w").cast<Tensor>().raw_data() != w.raw_data());
  Do(m, "set_param", "w", Strided(3));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "1 5 9");
}

TEST("borrowed tensors are copied") {
  Module m = SumExecutor();
  {
    Tensor x = Filled({3}, 1), w = Filled({3}, 2);
    Do(m, "set_input", "x", const_cast<DLTensor*>(x.dl_tensor()));
    Do(m, "set_param", "w", const_cast<DLTensor*>(w.dl_tensor()));
    CHECK(Fails(m, "set_input_zero_copy", "w", const_cast<DLTensor*>(w.dl_tensor())) != "");
  }
  Do(m, "run");
  Tensor y = Tensor::Empty({3}, kFloat32);
  Do(m, "get_output", 0, const_cast<DLTensor*>(y.dl_tensor()));
  CHECK_EQ(Show(y), "4 6 8");
}

TEST("set_param uses a tensor in place when it can, and never writes into it") {
  Module m = SumExecutor();
  Tensor w = Filled({3}, 1);
  Do(m, "get_input", "w");  // has memory of its own until then
  Do(m, "set_param", "w", w);
  CHECK(Do(m, "get_input", "w").cast<Tensor>().raw_data() == w.raw_data());
  Do(m, "set_input", "w", Filled({3}, 7));
  CHECK_EQ(Show(w), "1 2 3");
  CHECK_EQ(States(m), "01");
}

TEST("many parameters are set at once") {
  Module m = SumExecutor();
  Tensor x = Filled({3}, 1), w = Filled({3}, 10);
  Do(m, "set_param", "w", w, 0, x);
  CHECK_EQ(States(m), "22");
  CHECK(Do(m, "get_input", "x").cast<Tensor>().raw_data() == x.raw_data());
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "12 14 16");
  CHECK(Contains(Fails(m, "set_param", "w", w, "x"), "expected a Tensor for each input, got an input without one"));
  CHECK(Contains(Fails(m, "set_param", "w"), "expected at least 2 arguments, got 1"));
}

TEST("zero-copy inputs are read where they are") {
  Module m = SumExecutor();
  Tensor x = Filled({3}, 1);
  Do(m, "set_input", "x", Filled({3}, 9));
  Do(m, "set_input_zero_copy", "x", x);
  Do(m, "set_param", "w", Filled({3}, 0));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "2 4 6");
  Data(x)[0] = 100;
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "101 4 6");
  Do(m, "set_input", "x", Filled({3}, 0));  // goes back to memory of the executor's
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "1 3 5");
  CHECK_EQ(Show(x), "100 2 3");
}

TEST("what an executor uses in place lives as long as it does") {
  int64_t before = LiveNodes("ffi.Tensor");
  {
    Module m = SumExecutor();
    Do(m, "set_input_zero_copy", "x", Filled({3}, 1));
    Do(m, "set_param", "w", Filled({3}, 2));
    Do(m, "set_output_zero_copy", 0, Filled({3}, 0));
    Do(m, "run");
    Tensor y = Do(m, "get_output", 0);
    m = nullptr;
    CHECK_EQ(Show(y), "4 6 8");  // and a value lives on after the executor
  }
  CHECK_EQ(LiveNodes("ffi.Tensor"), before);
}

TEST("zero-copy outputs are written where they are, through all views of them") {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {4});
  uint32_t a = plan.Call("add_one", {x}, {4});
  uint32_t square = plan.Nop(a, {2, 2}), view = plan.Nop(square, {4, 1});
  uint32_t b = plan.Call("add_one", {view}, {4});
  plan.heads = {view, b, a, square};
  Module m = Create(plan, Usual(), Cpu());
  Do(m, "set_input", "x", Filled({4}, 0));
  Tensor mine = Filled({4, 1}, 1000);
  Do(m, "set_output_zero_copy", 0, mine);
  Do(m, "run");
  CHECK_EQ(Show(mine), "1 2 3 4");
  CHECK_EQ(Show(Do(m, "get_output", 1)), "2 3 4 5");
  CHECK(Do(m, "get_output", 0).cast<Tensor>().raw_data() == mine.raw_data());
  for (int each : {2, 3}) CHECK(Do(m, "get_output", each).cast<Tensor>().raw_data() == mine.raw_data());
}

TEST("the offset of a tensor counts where its memory is used in place") {
  Module m = SumExecutor();
  Tensor base = Filled({64}, 0);
  auto from = [&](uint64_t offset) { return Slice(base, offset, {3}); };
  Do(m, "set_input_zero_copy", "x", from(64));
  Do(m, "set_param", "w", from(128));
  Do(m, "set_output_zero_copy", 0, from(192));
  Do(m, "run");
  CHECK_EQ(Show(from(192)), "49 51 53");  // 16 + 32 + 1, …
  CHECK_EQ(Show(Do(m, "get_output", 0)), "49 51 53");
  CHECK(Contains(Fails(m, "set_input_zero_copy", "x", from(68)), "its address is 4 bytes off a multiple of 64"));
}

TEST("zero-copy says which condition failed, and by how much") {
  Module m = SumExecutor();
  CHECK_EQ(Fails(m, "set_input_zero_copy", "x", OffBy(16, {3})),
           "GraphError: the tensor cannot be used in place as input 'x': its address is 16 bytes off a multiple of 64");
  CHECK(Contains(Fails(m, "set_input_zero_copy", "x", OffBy(32, {3})), "32 bytes off"));
  CHECK_EQ(
      Fails(m, "set_output_zero_copy", 0, OffBy(4, {3})),
      "GraphError: the tensor cannot be used in place as output 0 ('n3'): its address is 4 bytes off a multiple of "
      "64");
  CHECK_EQ(Fails(m, "set_input_zero_copy", "x", Strided(3)),
           "GraphError: the tensor cannot be used in place as input 'x': it is not compact: its strides are (2,)");
  CHECK_EQ(Fails(m, "set_output_zero_copy", 0, ReadOnly(Filled({3}, 0))),
           "GraphError: the tensor cannot be used in place as output 0 ('n3'): it is read-only");
  Tensor there = Tensor::Empty({3}, kFloat32, FakeDevice::Of(kDLExtDev).device());
  CHECK_EQ(Fails(m, "set_input_zero_copy", "x", there),
           "GraphError: the tensor cannot be used in place as input 'x': it lies on ext_dev:0, not on cpu:0");
  Do(m, "set_input_zero_copy", "x", ReadOnly(Filled({3}, 0)));  // which is only read
  PlanWriter narrow;
  narrow.heads = {narrow.Input("x", {100}, {kDLInt, 4, 1})};
  CHECK_EQ(
      Fails(Create(narrow, Usual(), Cpu()), "set_input_zero_copy", 0, Tensor::Empty({100}, {kDLInt, 4, 1})),
      "GraphError: the tensor cannot be used in place as input 'x': its elements share bytes, where the graph gives "
      "each a byte");
}

TEST("arguments are flattened where the graph says so") {
  std::string shapes;
  const void* first = nullptr;  // of all arguments
  PackedFunc look([&](Args args, RetValue*) {
    for (int i = 0; i < args.size(); ++i) {
      const DLTensor* t = args[i].cast<DLTensor*>();
      if (!first) first = t->data;
      shapes += ToString(Shape(t->shape, static_cast<size_t>(t->ndim)));
    }
  });
  PlanWriter plan;
  uint32_t x = plan.Input("x", {2, 3}), s = plan.Input("s", {});
  uint32_t a = plan.Call("look", {x, s}, {3, 2}, kFloat32, 0, 1);
  plan.heads = {plan.Call("look", {a, x}, {2, 3})};
  Module m = Create(plan, Library({{"look", look}}), Cpu());
  Do(m, "set_input", "x", Filled({2, 3}, 0));
  Do(m, "set_input", "s", Filled({}, 0));
  Do(m, "run");
  CHECK_EQ(shapes, "(6,)(1,)(6,)(3, 2)(2, 3)(2, 3)");
  Tensor mine = Filled({2, 3}, 0);
  Do(m, "set_input_zero_copy", "x", mine);
  first = nullptr;
  Do(m, "run");
  CHECK(first == mine.raw_data());  // flat or not, it is the value that is in use now
}

TEST("entries of one slot share its memory, those of others do not") {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {4});
  uint32_t a = plan.Call("add_one", {x}, {4}), b = plan.Call("add_one", {a}, {4}), c = plan.Call("add_one", {b}, {4});
  plan.entries[c].slot = plan.entries[a].slot;
  plan.heads = {c};
  std::vector<void*> addresses;
  PackedFunc look([&](Args args, RetValue* rv) {
    addresses.push_back(args[1].cast<Tensor>().raw_data());
    *rv = AddOne().CallPacked(args.cells(), args.size());
  });
  Module m = Create(plan, Library({{"add_one", look}}), Cpu());
  Do(m, "set_input", "x", Filled({4}, 0));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "3 4 5 6");
  CHECK(addresses.at(0) == addresses.at(2));
  CHECK_EQ(static_cast<char*>(addresses.at(1)) - static_cast<char*>(addresses.at(0)), 64);
}

TEST("a value that a kernel keeps stays what it is when another takes its place") {
  std::vector<Tensor> kept;
  PackedFunc keep([&](Args args, RetValue*) { kept.push_back(args[0].cast<Tensor>()); });
  PlanWriter plan;
  plan.heads = {plan.Call("keep", {plan.Input("x", {3})}, {1})};
  Module m = Create(plan, Library({{"keep", keep}}), Cpu());
  Do(m, "set_input_zero_copy", "x", Filled({3}, 1));
  Do(m, "run");
  Do(m, "set_input_zero_copy", "x", Filled({3}, 5));
  Do(m, "run");
  m = nullptr;
  CHECK_EQ(Show(kept.at(0)), "1 2 3");
  CHECK_EQ(Show(kept.at(1)), "5 6 7");
}

TEST("results of kernels are released") {
  PackedFunc results([](Args, RetValue* rv) { *rv = Filled({1000}, 0); });
  PlanWriter plan;
  plan.heads = {plan.Call("f", {}, {1})};
  Module m = Create(plan, Library({{"f", results}}), Cpu());
  int64_t before = LiveNodes("ffi.Tensor");
  for (int i = 0; i < 3; ++i) Do(m, "run");
  CHECK_EQ(LiveNodes("ffi.Tensor"), before);
}

TEST("a function that nobody has is an error that names the node and what there is") {
  PlanWriter plan = Sum();
  plan.nodes[3].function = "add_won";
  CHECK_EQ(Thrown([&] { Create(plan, Usual(), Cpu()); }),
           "GraphError: node 3 ('n3') calls the function 'add_won', which neither the library nor what it imports has; "
           "there are 'add', 'add_one'");
  Module outer = Library({}), inner = Library({{"add_wan", AddOne()}, {"add", AddTo()}});
  outer.Import(inner);
  CHECK(Contains(Thrown([&] { Create(plan, outer, Cpu()); }), "'add_wan'"));
  CHECK(Contains(Thrown([&] { Create(plan, Library({}), Cpu()); }), "imports has; there are none"));
  CHECK_EQ(Thrown([&] { Create(plan, Module(), Cpu()); }),
           "GraphError: node 2 ('n2') calls the function 'add', which needs a library: it is None");
}

TEST("functions are found in imports") {
  Module outer = Library({{"add", AddTo()}});
  outer.Import(Library({{"add_one", AddOne()}}));
  Module m = Create(Sum(), outer, Cpu());
  outer = nullptr;
  Do(m, "set_input", "x", Filled({3}, 1));
  Do(m, "set_input", "w", Filled({3}, 1));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "3 5 7");
}

TEST("devices are given as pairs of numbers or as such, at least one") {
  CHECK_EQ(Create(Sum(), Usual(), 1, 0).kind(), "GraphExecutor");
  CHECK_EQ(Thrown([] { Create(Sum(), Usual()); }), "ValueError: an executor needs a device");
  CHECK(Contains(Thrown([] { Create(Sum(), Usual(), 1); }), "expected at least 4 arguments, got 3"));
  CHECK(Contains(Thrown([] { Create(Sum(), Usual(), 99, 0); }), "DeviceError"));
  CHECK(Contains(Thrown([] { Registry::Get("portcall.graph.create")(1, 2); }), "argument #0: expected bytes, got int"));
}

TEST("an error of a kernel stays the object that it is, and says where it happened") {
  ObjectRef thrown;
  PackedFunc fails([&](Args, RetValue*) {
    Error error("KeyError", "missing");
    thrown = error.ref();
    throw Error(error);
  });
  PlanWriter plan = Sum();
  Module m = Create(plan, Library({{"add", AddTo()}, {"add_one", fails}}), Cpu());
  Do(m, "set_input", "x", Filled({3}, 1));
  Do(m, "set_input", "w", Filled({3}, 1));
  try {
    Do(m, "run");
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.ref().same_as(thrown));
    CHECK_EQ(error.kind(), "KeyError");
    CHECK_EQ(error.message(), "missing");
    CHECK(Contains(error.backtrace(), "File \"<graph>\", line 3, in n3 (add_one)"));
  }
  CHECK(Contains(Fails(m, "run"), "missing"));  // it can be tried again
}

TEST("a kernel that fails without an error is named") {
  static int code;
  auto call = [](void*, const TVMFFIAny*, int32_t, TVMFFIAny*) { return code; };
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFIFunctionCreate(nullptr, call, nullptr, &handle));
  PlanWriter plan;
  plan.heads = {plan.Call("f", {}, {1})};
  Module m = Create(plan, Library({{"f", ObjectRef::Steal<PackedFunc>(handle)}}), Cpu());
  for (int each : {-1, 1}) {
    code = each;
    CHECK_EQ(Fails(m, "run"),
             "RuntimeError: node 0 ('n0'): its function failed (nonzero return) without setting an error");
  }
}

TEST("clones share parameters, and nothing else") {
  Module m = SumExecutor();
  Tensor w = Filled({3}, 10);
  Do(m, "set_param", "w", const_cast<DLTensor*>(w.dl_tensor()));
  Do(m, "set_input", "x", Filled({3}, 0));
  Do(m, "run");
  Module clone = Do(m, "clone");
  CHECK_EQ(States(clone), "02");
  Tensor shared = Do(clone, "get_input", "w");
  CHECK(shared.raw_data() == Do(m, "get_input", "w").cast<Tensor>().raw_data());
  CHECK(shared.is_read_only());  // writing into it would change the other's
  Do(clone, "set_input", "x", Filled({3}, 100));
  Do(clone, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "11 13 15");
  CHECK_EQ(Show(Do(clone, "get_output", 0)), "111 113 115");
  for (const Module& changed : {m, clone}) {  // neither writes into what the other reads
    Do(changed, "set_param", "w", const_cast<DLTensor*>(Filled({3}, 0).dl_tensor()));
    CHECK_EQ(Show(shared), "10 11 12");
  }
  m = nullptr;
  Do(clone, "run");
  CHECK_EQ(Show(Do(clone, "get_output", 0)), "101 103 105");
}

TEST("clones share parameters whose elements are narrower than a byte") {
  PlanWriter plan;
  plan.heads = {plan.Input("w", {100}, {kDLInt, 4, 1})};
  Module m = Create(plan, Module(), Cpu());
  Do(m, "set_param", "w", Tensor::Empty({100}, {kDLInt, 4, 1}));
  Module clone = Do(m, "clone");
  CHECK(Do(clone, "get_input", "w").cast<Tensor>().raw_data() == Do(m, "get_input", "w").cast<Tensor>().raw_data());
}

TEST("parameters on another device are copied instead of shared") {
  PlanWriter plan;
  plan.heads = {plan.Input("w", {3})};
  Module here = Create(plan, Module(), Cpu()), there = Create(plan, Module(), FakeDevice::Of(kDLExtDev).device());
  Do(here, "set_param", "w", Filled({3}, 4));
  Do(there, "share_params", here);
  CHECK_EQ(Do(there, "get_input", "w").cast<Tensor>().device().device_type, kDLExtDev);
  Do(here, "set_param", "w", Filled({3}, 0));
  Tensor copy = Tensor::Empty({3}, kFloat32);
  Do(there, "get_output", 0, copy);
  CHECK_EQ(Show(copy), "4 5 6");
}

TEST("an executor uses the parameters of another, by name") {
  Module m = SumExecutor(), other = SumExecutor();
  Do(other, "set_param", "w", Filled({3}, 10));
  Do(other, "set_input", "x", Filled({3}, 5));
  Do(m, "share_params", other);
  CHECK_EQ(States(m), "02");  // the other's inputs are its own
  CHECK(Do(m, "get_input", "w").cast<Tensor>().raw_data() == Do(other, "get_input", "w").cast<Tensor>().raw_data());
  other = nullptr;
  Do(m, "set_input", "x", Filled({3}, 0));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "11 13 15");
  Do(m, "share_params", m);
  CHECK(Contains(Fails(m, "share_params", Usual()),
                 "TypeError: parameters are shared with another graph executor, got "
                 "a module of type 'library'"));
  CHECK(Contains(Fails(m, "share_params", nullptr), "got None"));
  auto named = [](const char* name) {
    return Bytes(graph::WriteParams(graph::MakeTensors({Any(name), Any(Filled({1}, 0))})));
  };
  Do(m, "share_params", SumExecutor());  // which has none
  CHECK_EQ(Fails(m, "share_params", SumExecutor(), named("w")),
           "GraphError: input 'w' is not a parameter of the other executor: load it there first");
  PlanWriter less;
  less.Input("x", {3});
  CHECK(
      Contains(Fails(m, "share_params", Create(less, Usual(), Cpu()), named("w")), "input 'w' is not a parameter of"));
  Do(m, "share_params", Create(less, Usual(), Cpu()), named("v"));
  PlanWriter wider;
  wider.Input("w", {4});
  CHECK_EQ(Fails(Create(wider, Usual(), Cpu()), "share_params", m),
           "GraphError: input 'w' is float32 (4,), got float32 (3,)");
}

TEST("of a blob nothing is loaded unless all of it fits") {
  Module m = SumExecutor();
  auto blob = [](Tensor x, Tensor w) {
    return Bytes(graph::WriteParams(graph::MakeTensors({Any("x"), Any(x), Any("w"), Any(w), Any("v"), Any(w)})));
  };
  CHECK_EQ(Fails(m, "load_params", blob(Filled({3}, 0), Filled({4}, 0))),
           "GraphError: input 'w' is float32 (3,), got float32 (4,)");
  CHECK_EQ(States(m), "00");
  Do(m, "load_params", blob(Filled({3}, 0), Filled({3}, 5)));
  CHECK_EQ(States(m), "22");
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "6 8 10");
}

TEST("run_from_inputs sets, runs and gives copies of the outputs") {
  Module m = SumExecutor();
  auto outputs = Do(m, "run_from_inputs", 1, 0, "x", Filled({3}, 1), 1, Filled({3}, 2)).cast<Array<Tensor>>();
  CHECK_EQ(outputs.size(), 1);
  CHECK_EQ(Show(outputs[0]), "4 6 8");
  CHECK(outputs[0].raw_data() != Do(m, "get_output", 0).cast<Tensor>().raw_data());
  CHECK_EQ(Do(m, "run_from_inputs", 1, 0).cast<Array<Tensor>>().size(), 1);
  CHECK(Contains(Fails(m, "run_from_inputs", 1, 0, "y", Filled({3}, 1)), "no input 'y'"));
  CHECK(Contains(Fails(m, "run_from_inputs", 1, 0, "x"), "expected a Tensor for each input, got an input without one"));
}
