// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "graph/params.h"
#include "tests/fake_device.h"
#include "tests/graph/executors.h"

using namespace portcall;
using namespace portcall::tests;

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
