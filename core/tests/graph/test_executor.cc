// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "graph/params.h"
#include "tests/check.h"
#include "tests/fake_device.h"
#include "tests/graph/plan_writer.h"
#include "tests/helpers.h"

using namespace portcall;

namespace {

// A library of functions of this test.
class Kernels : public ModuleNode {
 public:
  explicit Kernels(std::map<std::string, PackedFunc> functions) : functions_(std::move(functions)) {}
  const char* kind() const override { return "library"; }
  PackedFunc GetFunction(const std::string& name, const Module&) override {
    auto it = functions_.find(name);
    return it == functions_.end() ? PackedFunc() : it->second;
  }
  std::vector<std::string> FunctionNames() override {
    std::vector<std::string> names;
    for (const auto& [name, function] : functions_) names.push_back(name);
    return names;
  }

 private:
  std::map<std::string, PackedFunc> functions_;
};

Module Library(std::map<std::string, PackedFunc> functions) {
  return Module(std::make_unique<Kernels>(std::move(functions)));
}

float* Data(const Tensor& tensor) { return static_cast<float*>(tensor.raw_data()); }

Tensor Filled(const std::vector<int64_t>& shape, float first) {
  Tensor tensor = Tensor::Empty(shape, kFloat32);
  for (size_t i = 0; i < tensor.numel(); ++i) Data(tensor)[i] = first + static_cast<float>(i);
  return tensor;
}

std::string Show(const Tensor& tensor) {
  std::string text;
  for (size_t i = 0; i < tensor.numel(); ++i) text += (i ? " " : "") + std::to_string(int(Data(tensor)[i]));
  return text;
}

PackedFunc AddTo() {  // out = a + b, by element
  return PackedFunc([](Args args, RetValue*) {
    Tensor a = args[0], b = args[1], out = args[2];
    CHECK_EQ(args.size(), 3);
    for (size_t i = 0; i < out.numel(); ++i) Data(out)[i] = Data(a)[i] + Data(b)[i];
  });
}

PackedFunc AddOne() {
  return PackedFunc([](Args args, RetValue*) {
    Tensor a = args[0], out = args[1];
    for (size_t i = 0; i < out.numel(); ++i) Data(out)[i] = Data(a)[i] + 1;
  });
}

Module Usual() { return Library({{"add", AddTo()}, {"add_one", AddOne()}}); }

template <typename... D> Module Create(const PlanWriter& plan, const Module& library, D... devices) {
  return Registry::Get("portcall.graph.create")(Bytes(plan.Encode()), library, devices...);
}

// A module's function, called.
template <typename... A> RetValue Do(const Module& module, const char* name, A&&... args) {
  PackedFunc function = module.GetFunction(name);
  CHECK(function.defined());
  return function(std::forward<A>(args)...);
}

template <typename... A> std::string Fails(const Module& module, const char* name, A... args) {
  return Thrown([&] { Do(module, name, args...); });
}

// y = (x + w) + 1, of three elements.
PlanWriter Sum() {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {3}), w = plan.Input("w", {3});
  plan.heads = {plan.Call("add_one", {plan.Call("add", {x, w}, {3})}, {3})};
  return plan;
}

Module SumExecutor() { return Create(Sum(), Usual(), Cpu()); }

std::string States(const Module& module) {
  std::string text;
  auto states = Do(module, "get_input_states").cast<Bytes>();
  for (char state : states.view()) text += static_cast<char>('0' + state);
  return text;
}

std::vector<double> Doubles(const Bytes& bytes, size_t skip) {
  std::vector<double> numbers((bytes.size() - skip) / sizeof(double));
  std::memcpy(numbers.data(), bytes.data() + skip, bytes.size() - skip);
  return numbers;
}

Tensor OffBy(size_t bytes, const std::vector<int64_t>& shape) {  // a tensor at an address that is not aligned
  Tensor base = Tensor::Empty({4096}, {kDLUInt, 8, 1});
  DLTensor view = *base.dl_tensor();
  view.data = static_cast<char*>(view.data) + bytes;
  view.dtype = kFloat32;
  view.ndim = static_cast<int32_t>(shape.size());
  view.shape = const_cast<int64_t*>(shape.data());
  view.strides = nullptr;
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

Tensor Slice(const Tensor& base, uint64_t offset, const std::vector<int64_t>& shape) {  // whose address has an offset
  DLTensor view = *base.dl_tensor();
  view.byte_offset += offset;
  view.ndim = static_cast<int32_t>(shape.size());
  view.shape = const_cast<int64_t*>(shape.data());
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

Tensor Strided(int64_t n) {  // every second of 2n elements: 0, 2, 4, …
  Tensor base = Filled({2 * n}, 0);
  DLTensor view = *base.dl_tensor();
  int64_t stride = 2;
  view.shape = &n;
  view.strides = &stride;
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

Tensor ReadOnly(const Tensor& tensor) {
  TVMFFIObjectHandle handle = nullptr;
  Retain(tensor.get());
  Check(PortcallTensorFromMemory(
      tensor.dl_tensor(), DLPACK_FLAG_BITMASK_READ_ONLY, tensor.get(),
      [](void* owner) { Release(static_cast<TVMFFIObject*>(owner)); }, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

}  // namespace

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

// ---- Devices ------------------------------------------------------------------------------------------------------

namespace {

// x on the host -> copy -> add on the accelerator (which the test does on the host) -> copy -> add_one on the host.
struct Heterogeneous {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  Module executor;

  Heterogeneous() {
    PlanWriter plan;
    plan.devices = {{-1, 0}, {kDLExtDev, 0}};
    uint32_t x = plan.Input("x", {3}), w = plan.Input("w", {3}, kFloat32, 1);
    uint32_t there = plan.Call("add_there", {plan.Copy(x, 1), w}, {3}, kFloat32, 1);
    plan.heads = {plan.Call("add_one", {plan.Copy(there, 0)}, {3}), there};
    PackedFunc add_there([](Args args, RetValue*) {
      std::vector<Tensor> here;
      for (int i = 0; i < 3; ++i) {
        Tensor there = args[i];
        CHECK_EQ(there.device().device_type, kDLExtDev);
        CHECK_EQ(there.device().device_id, 1);
        CHECK_EQ(there.dl_tensor()->byte_offset, 0);
        here.push_back(Tensor::Empty({3}, kFloat32));
        if (i < 2) here[i].CopyFrom(there);
      }
      AddTo()(here[0], here[1], here[2]);
      args[2].cast<Tensor>().CopyFrom(here[2]);
    });
    executor = Create(plan, Library({{"add_there", add_there}, {"add_one", AddOne()}}), Cpu(), fake.device(1));
  }
};

}  // namespace

TEST("a graph runs on several devices, with copies between them") {
  size_t before = FakeDevice::Of(kDLExtDev).blocks();
  {
    Heterogeneous h;
    CHECK_EQ(h.fake.blocks(), before + 2);  // its addresses are not to be added to, so each slot is one
    Do(h.executor, "set_input", "x", Filled({3}, 1));
    Do(h.executor, "set_param", "w", Filled({3}, 10));
    Do(h.executor, "run");
    CHECK_EQ(Show(Do(h.executor, "get_output", 0)), "12 14 16");
    Tensor out = Tensor::Empty({3}, kFloat32);
    Do(h.executor, "get_output", 1, out);
    CHECK_EQ(Show(out), "11 13 15");
    CHECK_EQ(Show(Do(h.executor, "debug_get_output", "copy2")), "1 2 3");
    auto outputs = Do(h.executor, "run_from_inputs", 1, 0, "x", Filled({3}, 2)).cast<Array<Tensor>>();
    CHECK_EQ(Show(outputs[1]), "12 14 16");
    outputs = Do(h.executor, "run_from_inputs", int{kDLExtDev}, 1).cast<Array<Tensor>>();
    CHECK_EQ(outputs[0].device().device_type, kDLExtDev);
    CHECK_EQ(outputs[0].device().device_id, 1);
    std::vector<double> spans = Doubles(Do(h.executor, "profile_run"), 8);
    CHECK_EQ(spans.size(), 2 * 6);
    CHECK_EQ(h.fake.pending(), 0);
    CHECK_EQ(Doubles(Do(h.executor, "run_individual_node", 2, 1, 2, 0), 0).size(), 2);
    Module clone = Do(h.executor, "clone");
    Do(clone, "set_input", "x", Filled({3}, 3));
    Do(clone, "run");
    CHECK_EQ(Show(Do(clone, "get_output", 0)), "14 16 18");
  }
  CHECK_EQ(FakeDevice::Of(kDLExtDev).blocks(), before);
}

TEST("a parameter that lies on the device of its slot is used in place") {
  Heterogeneous h;
  Tensor there = Tensor::Empty({3}, kFloat32, h.fake.device(1)),
         elsewhere = Tensor::Empty({3}, kFloat32, h.fake.device(0));
  there.CopyFrom(Filled({3}, 10));
  elsewhere.CopyFrom(Filled({3}, 20));
  Do(h.executor, "set_param", "w", there);
  CHECK(Do(h.executor, "get_input", "w").cast<Tensor>().raw_data() == there.raw_data());
  CHECK(Contains(Fails(h.executor, "set_input_zero_copy", "w", elsewhere), "it lies on ext_dev:0, not on ext_dev:1"));
  Do(h.executor, "set_param", "w", elsewhere);
  Do(h.executor, "set_input", "x", Filled({3}, 0));
  Do(h.executor, "run");
  CHECK_EQ(Show(Do(h.executor, "get_output", 0)), "21 23 25");
}

TEST("a device that was not given is replaced by the first") {
  PlanWriter plan = Sum();
  plan.devices.push_back({kDLCUDA, 64});
  plan.slots[3] = {1, 0, 0, 12};
  Module m = Create(plan, Usual(), Cpu());
  Do(m, "set_input", "x", Filled({3}, 1));
  Do(m, "set_input", "w", Filled({3}, 1));
  Do(m, "run");
  CHECK_EQ(Show(Do(m, "get_output", 0)), "3 5 7");
}

TEST("a copy may change shape and type") {
  PlanWriter plan;
  uint32_t copy = plan.Copy(plan.Input("x", {2, 3}), 0);
  plan.entries[copy].shape = {6};
  plan.entries[copy].dtype = {kDLInt, 32, 1};
  plan.heads = {copy};
  Module m = Create(plan, Module(), Cpu());
  Do(m, "set_input", 0, Filled({2, 3}, 1));
  Do(m, "run");
  Tensor y = Do(m, "get_output", 0);
  CHECK_EQ(Data(y)[5], 6.0F);
}

// ---- Linked parameters --------------------------------------------------------------------------------------------

TEST("parameters that are linked into the library are found by storage id") {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {3}, kFloat32, 0, 0), w = plan.Input("w", {3}, kFloat32, 0, 1);
  plan.heads = {plan.Call("add", {x, w}, {3})};
  alignas(64) static float weights[16] = {7, 8, 9};
  for (int off : {0, 1}) {  // and copied when kernels could not use them where they are
    std::vector<int64_t> asked;
    PackedFunc lookup([&](Args args, RetValue* rv) {
      asked.push_back(args[0]);
      *rv = static_cast<void*>(asked.back() == 1 ? weights + off : nullptr);
    });
    Module m = Create(plan, Library({{"add", AddTo()}, {"_lookup_linked_param", lookup}}), Cpu());
    CHECK_EQ(asked, (std::vector<int64_t>{0, 1}));
    CHECK_EQ(States(m), "02");
    Do(m, "set_input", "x", Filled({3}, 0));
    Do(m, "run");
    CHECK_EQ(Show(Do(m, "get_output", 0)), off ? "8 10 2" : "7 9 11");
    CHECK((Do(m, "get_input", "w").cast<Tensor>().raw_data() == weights) == (off == 0));
    Do(m, "set_input", "w", Filled({3}, 0));  // the library's own are not written
    CHECK_EQ(weights[off], off ? 8.0F : 7.0F);
    CHECK_EQ(States(Do(m, "clone")), "02");
  }
}

TEST("weights that TVM linked into a library of the classic ABI are found, and stay with it") {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {3}, kFloat32, 0, 4), w = plan.Input("w", {3}, kFloat32, 0, 3);
  plan.heads = {x, w};
  Module m = Create(plan, Module::LoadFromFile(std::string(PORTCALL_TEST_FIXTURES) + "/linked.so"), Cpu());
  CHECK_EQ(States(m), "02");
  CHECK_EQ(Show(Do(m, "get_output", 1)), "5 6 7");
}

TEST("a function that finds linked weights may be given, in place of the library's own") {
  PlanWriter plan;
  plan.heads = {plan.Input("w", {3}, kFloat32, 0, 0)};
  alignas(64) static float weights[16] = {1, 2, 3};
  PackedFunc lookup([&](Args, RetValue* rv) { *rv = static_cast<void*>(weights); });
  PackedFunc other([&](Args, RetValue*) { CHECK(false); });
  Module m = Create(plan, Library({{"_lookup_linked_param", other}}), lookup, 1, 0);
  CHECK_EQ(Show(Do(m, "get_output", 0)), "1 2 3");
  PackedFunc wrong([&](Args, RetValue* rv) { *rv = "here"; });
  CHECK(Contains(Thrown([&] { Create(plan, Module(), wrong, Cpu()); }), "expected pointer, got str"));
}

// ---- Node by node -------------------------------------------------------------------------------------------------

namespace {
// The slots of the first and third calls are the same: only a run up to a node shows what it made.
PlanWriter Chain() {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {2});
  uint32_t a = plan.Call("add_one", {x}, {2}), b = plan.Call("add_one", {a}, {2}), c = plan.Call("add_one", {b}, {2});
  plan.entries[c].slot = plan.entries[a].slot;
  plan.heads = {c};
  return plan;
}
}  // namespace

TEST("nodes are executed one by one, going on from the last") {
  int calls = 0;
  PackedFunc counted([&](Args args, RetValue* rv) {
    ++calls;
    *rv = AddOne().CallPacked(args.cells(), args.size());
  });
  Module m = Create(Chain(), Library({{"add_one", counted}}), Cpu());
  CHECK(Contains(Fails(m, "execute_node", 1), "input 'x', float32 (2,), was never set"));
  Do(m, "set_input", "x", Filled({2}, 0));
  CHECK(Contains(Fails(m, "get_node_output", 1, 0), "right after execute_node(1); none was executed since"));
  Do(m, "execute_node", 0);
  CHECK_EQ(calls, 0);
  Do(m, "execute_node", 1);
  CHECK_EQ(Show(Do(m, "get_node_output", 1, 0)), "1 2");
  Do(m, "execute_node", 2);
  CHECK_EQ(calls, 2);
  Do(m, "execute_node", 3);
  CHECK_EQ(calls, 3);
  CHECK_EQ(Show(Do(m, "get_node_output", 3, 0)), "3 4");
  CHECK(Contains(Fails(m, "get_node_output", 1, 0), "right after execute_node(1); the last one was 3"));
  CHECK_EQ(Fails(m, "get_node_output", 3, 1), "IndexError: node 3 ('n3') has 1 outputs, there is no output 1");
  CHECK_EQ(Fails(m, "execute_node", 4), "IndexError: there is no node 4: the graph has 4");
  Do(m, "execute_node", 2);  // back: starts again
  CHECK_EQ(calls, 5);
  Do(m, "set_input", "x", Filled({2}, 10));
  Do(m, "execute_node", 3);  // and so does a new input
  CHECK_EQ(calls, 8);
  Tensor out = Tensor::Empty({2}, kFloat32);
  Do(m, "get_node_output", "n3", 0, out);
  CHECK_EQ(Show(out), "13 14");
  Do(m, "execute_node", 3);
  Do(m, "set_output_zero_copy", 0, out);  // where nothing has been computed yet
  CHECK(Fails(m, "get_node_output", 3, 0) != "");
  Do(m, "run");
  CHECK(Fails(m, "get_node_output", 3, 0) != "");
}

TEST("after a node failed there are no outputs, and nodes are executed again") {
  int calls = 0;
  PackedFunc second_fails([&](Args args, RetValue* rv) {
    if (++calls == 2) throw Error("ValueError", "the second call");
    *rv = AddOne().CallPacked(args.cells(), args.size());
  });
  Module m = Create(Chain(), Library({{"add_one", second_fails}}), Cpu());
  Do(m, "set_input", "x", Filled({2}, 0));
  Do(m, "execute_node", 1);
  CHECK(Contains(Fails(m, "execute_node", 2), "the second call"));
  CHECK(Contains(Fails(m, "get_node_output", 1, 0), "none was executed since"));
  Do(m, "execute_node", 2);
  CHECK_EQ(calls, 4);
  CHECK_EQ(Show(Do(m, "get_node_output", 2, 0)), "2 3");
  calls = 1;
  for (const char* timed : {"run_individual", "profile_run"}) {
    Do(m, "execute_node", 0);
    calls = 1;
    CHECK(Contains(Fails(m, timed), "the second call"));
    CHECK(Contains(Fails(m, "get_node_output", 0, 0), "none was executed since"));
  }
}

TEST("the output of any node is there after a run up to it") {
  Module m = Create(Chain(), Usual(), Cpu());
  Do(m, "set_input", "x", Filled({2}, 0));
  CHECK_EQ(Show(Do(m, "debug_get_output", 1)), "1 2");
  CHECK_EQ(Show(Do(m, "debug_get_output", "n3")), "3 4");
  CHECK_EQ(Show(Do(m, "debug_get_output", "x")), "0 1");
  Tensor out = Tensor::Empty({2}, kFloat32);
  Do(m, "debug_get_output", "n2", out);
  CHECK_EQ(Show(out), "2 3");
  CHECK(Contains(Fails(m, "debug_get_output", "n5"), "the graph has no node 'n5'; there are"));
  PlanWriter twice = Chain();
  twice.nodes[2].name = "n1";
  CHECK_EQ(Fails(Create(twice, Usual(), Cpu()), "debug_get_output", "n1"),
           "GraphError: 'n1' is the name of several nodes, 1 and 2 among them: say which by its index");
}

TEST("nodes are timed one by one, in their place") {
  std::vector<int> order;
  PackedFunc watched([&](Args args, RetValue* rv) {
    order.push_back(static_cast<int>(Data(args[0].cast<Tensor>())[0]));
    *rv = AddOne().CallPacked(args.cells(), args.size());
  });
  Module m = Create(Chain(), Library({{"add_one", watched}}), Cpu());
  Do(m, "set_input", "x", Filled({2}, 0));
  Bytes bytes = Do(m, "run_individual", 2, 3, 0);
  int64_t nodes = 0;
  std::memcpy(&nodes, bytes.data(), 8);
  CHECK_EQ(nodes, 4);
  std::vector<double> seconds = Doubles(bytes, 8);
  CHECK_EQ(seconds.size(), 4 * 3);
  CHECK_EQ(seconds[0], 0.0);
  CHECK_EQ(seconds[2], 0.0);
  CHECK(seconds[3] > 0 && seconds[11] > 0);
  std::vector<int> expected;
  for (int node : {0, 1, 2}) expected.insert(expected.end(), 1 + 2 * 3, node);  // warm-up, then 3 times 2
  for (int node : {0, 1, 2}) expected.push_back(node);                          // and a run
  CHECK(order == expected);
  CHECK_EQ(Show(Do(m, "get_output", 0)), "3 4");
  order.clear();
  CHECK_EQ(Doubles(Do(m, "run_individual_node", 2, 1, 2, 0, 100, 0, 1), 0).size(), 2);
  CHECK(order == std::vector<int>({0, 1, 1, 1, 0, 1, 2}));
  CHECK_EQ(Doubles(Do(m, "run_individual_node", 0, 1, 2), 0), (std::vector<double>{0, 0}));
  CHECK_EQ(Fails(m, "run_individual", 0), "ValueError: number must be at least 1, got 0");
  CHECK_EQ(Fails(m, "run_individual_node", 0, 1, -1), "ValueError: repeat must be at least 1, got -1");
}

TEST("a profiled run waits for the device of each node") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  PlanWriter plan;
  plan.devices.push_back({kDLExtDev, 0});
  plan.heads = {plan.Copy(plan.Input("x", {3}, kFloat32, 1), 1)};
  Module m = Create(plan, Module(), Cpu(), fake.device());
  Do(m, "set_input", "x", Filled({3}, 1));
  Do(m, "run");
  CHECK_EQ(fake.pending(), 1);
  Do(m, "profile_run");
  CHECK_EQ(fake.pending(), 0);
}

TEST("a profiled run says when each node began and how long it took") {
  Module m = SumExecutor();
  Do(m, "set_input", "x", Filled({3}, 1));
  for (const char* name : {"profile_run", "run_individual"}) CHECK(Contains(Fails(m, name), "'w'"));
  CHECK(Contains(Fails(m, "run_individual_node", 2), "'w'"));
  Do(m, "set_input", "w", Filled({3}, 1));
  auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  double before = now();
  std::vector<double> spans = Doubles(Do(m, "profile_run"), 8);
  CHECK_EQ(spans.size(), 8);
  CHECK(spans[6] + spans[7] <= now() - before);  // counted from the beginning of the run
  for (size_t n = 1; n < 4; ++n) CHECK(spans[2 * n] >= spans[2 * n - 2] + spans[2 * n - 1]);
  CHECK(spans[0] >= 0);
  CHECK_EQ(spans[1], 0.0);
  CHECK(spans[5] > 0);
  CHECK_EQ(Show(Do(m, "get_output", 0)), "3 5 7");
}

// ---- Threads ------------------------------------------------------------------------------------------------------

TEST("clones run in threads at the same time") {
  Module m = SumExecutor();
  Do(m, "set_param", "w", Filled({3}, 10));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    Module clone = Do(m, "clone");
    threads.emplace_back([clone, t] {
      for (int i = 0; i < 200; ++i) {
        auto x = static_cast<float>(1000 * t + i);
        Do(clone, "set_input", "x", Filled({3}, x));
        Do(clone, "run");
        CHECK_EQ(Data(Do(clone, "get_output", 0).cast<Tensor>())[0], x + 11);
        if (i % 50 == 0) Do(clone, "set_param", "w", Filled({3}, 10));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST("a second thread is refused at once, with an error that names clone") {
  std::atomic<bool> inside{false}, done{false};
  PackedFunc waits([&](Args, RetValue*) {
    inside = true;
    while (!done) std::this_thread::yield();
  });
  PlanWriter plan;
  plan.heads = {plan.Call("waits", {plan.Input("x", {1})}, {1})};
  Module m = Create(plan, Library({{"waits", waits}}), Cpu());
  Do(m, "set_input", "x", Filled({1}, 0));
  std::thread runner([&] { Do(m, "run"); });
  while (!inside) std::this_thread::yield();
  CHECK(Contains(Fails(m, "run"), "RuntimeError: the graph executor is in use: another thread is inside"));
  for (const char* name : {"get_input", "get_output", "execute_node"}) CHECK(Contains(Fails(m, name, 0), "clone()"));
  for (const char* name : {"get_input_states", "get_input_info", "clone"}) CHECK(Contains(Fails(m, name), "clone()"));
  CHECK(Contains(Fails(m, "set_input", 0, Filled({1}, 0)), "clone()"));
  CHECK(Contains(Fails(Create(plan, Library({{"waits", waits}}), Cpu()), "share_params", m), "clone()"));
  CHECK_EQ(Do(m, "get_num_inputs").cast<int>(), 1);  // what never changes can be asked for
  done = true;
  runner.join();
  Do(m, "run");
}

TEST("a kernel that calls its own executor is refused, not stuck") {
  Module m;
  PackedFunc again([&](Args, RetValue*) { Do(m, "run"); });
  PlanWriter plan;
  plan.heads = {plan.Call("again", {}, {1})};
  m = Create(plan, Library({{"again", again}}), Cpu());
  CHECK(Contains(Fails(m, "run"), "one of its own kernels called it"));
}
