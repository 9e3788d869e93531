// SPDX-License-Identifier: Apache-2.0
// The evaluator with a clock that moves only when the timed function says so: every number is exact.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "portcall/portcall.h"
#include "runtime/time_evaluator.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;

namespace {

int64_t clock_ns = 0;
std::vector<int> sleeps;

// A fresh clock and a log of what happened.
struct Fixture {
  TimingOptions options;
  int64_t calls = 0;
  int preprocs = 0;
  int64_t ns_per_call = 1000;
  PackedFunc func = [this](Args, RetValue*) {
    ++calls;
    clock_ns += ns_per_call;
  };

  Fixture() {
    clock_ns = 0;
    sleeps.clear();
    options.now_ns = [] { return clock_ns; };
    options.sleep_ms = [](int ms) { sleeps.push_back(ms); };
  }
  PackedFunc Make() const { return TimeEvaluator(func, Cpu(), options); }
};

std::vector<double> Seconds(const Any& result) {
  Bytes bytes = result.cast<Bytes>();
  CHECK_EQ(bytes.size() % sizeof(double), 0);
  std::vector<double> seconds(bytes.size() / sizeof(double));
  std::memcpy(seconds.data(), bytes.data(), bytes.size());
  return seconds;
}

// A device that only counts.
std::atomic<int> syncs{0};
std::atomic<int> copies{0};
std::atomic<void*> synced_stream{nullptr};
constexpr int kCounting = kDLMAIA;

int AllocCounted(void*, DLDevice, size_t nbytes, size_t alignment, DLDataType, void** out) {
  *out = std::aligned_alloc(alignment, (nbytes + alignment - 1) / alignment * alignment);
  return 0;
}

void RegisterCounting() {
  static const bool once = [] {
    PortcallDeviceAPI api{};
    api.struct_size = sizeof(api);
    api.alloc = AllocCounted;
    api.free = [](void*, DLDevice, void* data) {
      std::free(data);
      return 0;
    };
    api.get_attr = [](void*, DLDevice, PortcallDeviceAttr, TVMFFIAny* out) {
      *out = Any(1).release();
      return 0;
    };
    api.copy = [](void*, const void*, size_t, DLDevice, void*, size_t, DLDevice, size_t, void*) {
      ++copies;
      return 0;
    };
    api.sync_stream = [](void*, DLDevice, void* stream) {
      ++syncs;
      synced_stream = stream;
      return 0;
    };
    Check(PortcallDeviceRegister(kCounting, &api));
    return true;
  }();
  (void)once;
}

}  // namespace

TEST("number and repeat give one warm-up call and number times repeat timed ones") {
  Fixture t;
  t.options.number = 3;
  t.options.repeat = 2;
  CHECK(Seconds(t.Make()()) == std::vector<double>({1e-6, 1e-6}));
  CHECK_EQ(t.calls, 7);
  CHECK(sleeps.empty());
}

TEST("the evaluator passes its arguments on") {
  int64_t sum = 0;
  PackedFunc func = [&](Args args, RetValue* rv) {
    sum += args[0].cast<int64_t>() + static_cast<int64_t>(args[1].cast<std::string>().size());
    *rv = Array<Any>{Any("a result that must be released")};
  };
  TimingOptions options;
  options.number = 1;
  CHECK_EQ(Seconds(TimeEvaluator(func, Cpu(), options)(40, "ab")).size(), 1);
  CHECK_EQ(sum, 84);
}

TEST("number grows until a loop takes min_repeat_ms, and the last loop counts") {
  Fixture t;
  t.ns_per_call = 1000;
  t.options.number = 1;
  t.options.min_repeat_ms = 1;  // a thousand calls, and one for good measure
  CHECK(Seconds(t.Make()()) == std::vector<double>({1e-6}));
  CHECK_EQ(t.calls, 1 + 1 + 1001);
}

TEST("number grows by the golden ratio at least") {
  Fixture t;
  t.options.number = 1000;
  t.options.min_repeat_ms = 1;
  // The first loop is just too short: the estimate alone would add a single call.
  t.func = [&](Args, RetValue*) {
    ++t.calls;
    clock_ns += t.calls == 2 ? 999 : 1000;
  };
  Seconds(t.Make()());
  CHECK_EQ(t.calls, 1 + 1000 + 1618);
}

TEST("what number grew to is kept for later repeats and later calls") {
  Fixture t;
  t.options.number = 1;
  t.options.repeat = 3;
  t.options.min_repeat_ms = 1;
  PackedFunc evaluator = t.Make();
  evaluator();
  CHECK_EQ(t.calls, 1 + 1 + 3 * 1001);
  evaluator();
  CHECK_EQ(t.calls, 1 + 1 + 3 * 1001 + 1 + 3 * 1001);
}

TEST("a function that takes no time at all ends after limit_zero_time_iterations loops") {
  Fixture t;
  t.ns_per_call = 0;
  t.options.number = 2;
  t.options.min_repeat_ms = 5;
  t.options.limit_zero_time_iterations = 4;
  CHECK(Seconds(t.Make()()) == std::vector<double>({0.0}));
  CHECK_EQ(t.calls, 1 + 4 * 2);
}

TEST("preproc gets all arguments once before each repeat and is not timed") {
  Fixture t;
  t.options.repeat = 3;
  t.options.number = 2;
  std::vector<std::string> log;
  t.func = [&](Args args, RetValue*) {
    log.push_back("f" + std::to_string(args[0].cast<int>()));
    clock_ns += 10;
  };
  t.options.preproc = [&](Args args, RetValue*) {
    log.push_back("p" + std::to_string(args.size()));
    clock_ns += 1000000;
  };
  CHECK(Seconds(t.Make()(7, 8)) == std::vector<double>(3, 1e-8));
  std::vector<std::string> expected{"f7"};
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), {"p2", "f7", "f7"});
  CHECK(log == expected);
}

TEST("the thread cools down after every repeats_to_cooldown-th repeat, the first included") {
  Fixture t;
  t.options.repeat = 5;
  t.options.cooldown_interval_ms = 20;
  t.options.repeats_to_cooldown = 2;
  t.Make()();
  CHECK(sleeps == std::vector<int>({20, 20, 20}));
}

TEST("the error of the timed function passes unchanged, and so does that of preproc") {
  Fixture t;
  Error inner("KeyError", "mine");
  t.func = [&](Args, RetValue*) {
    if (++t.calls == 3) throw inner;
  };
  PackedFunc evaluator = t.Make();
  try {
    evaluator();
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.ref().same_as(inner.ref()));
  }
  t.options.preproc = [&](Args, RetValue*) { throw inner; };
  CHECK_EQ(Thrown([&] { t.Make()(); }), "KeyError: mine");
}

TEST("an option out of range is a ValueError that names it") {
  using O = TimingOptions;
  struct Case {
    const char* name;
    int O::* field;
    int bad;
    int good;
  };
  for (const Case& c : std::vector<Case>{{"number", &O::number, 0, 1},
                                         {"number", &O::number, -3, 1},
                                         {"repeat", &O::repeat, 0, 1},
                                         {"min_repeat_ms", &O::min_repeat_ms, -1, 0},
                                         {"limit_zero_time_iterations", &O::limit_zero_time_iterations, -1, 0},
                                         {"cooldown_interval_ms", &O::cooldown_interval_ms, -1, 0},
                                         {"repeats_to_cooldown", &O::repeats_to_cooldown, 0, 1},
                                         {"cache_flush_bytes", &O::cache_flush_bytes, -1, 0}}) {
    Fixture t;
    t.options.*c.field = c.bad;
    const std::string error = Thrown([&] { t.Make(); });
    CHECK(Contains(error, std::string("ValueError: ") + c.name + " must be at least"));
    CHECK(Contains(error, "got " + std::to_string(c.bad)));
    t.options.*c.field = c.good;
    t.Make()();
  }
  CHECK(Contains(Thrown([] { TimeEvaluator(nullptr, Cpu(), {}); }), "None"));
  CHECK_THROWS(TimeEvaluator(Fixture().func, {4711, 0}, {}), Error);
}

TEST("the stream of the device is synchronised before and after each loop") {
  RegisterCounting();
  Fixture t;
  t.options.repeat = 2;
  int stream = 0;
  void* before = nullptr;
  Check(TVMFFIEnvSetStream(kCounting, 0, &stream, &before));
  syncs = 0;
  TimeEvaluator(t.func, {kCounting, 0}, t.options)();
  Check(TVMFFIEnvSetStream(kCounting, 0, before, nullptr));
  CHECK_EQ(syncs.load(), 1 + 2 * 2);
  CHECK(synced_stream.load() == &stream);
}

TEST("the cache is flushed before each loop by a copy on the device") {
  RegisterCounting();
  Fixture t;
  t.options.repeat = 3;
  t.options.cache_flush_bytes = 1001;
  copies = 0;
  TimeEvaluator(t.func, {kCounting, 0}, t.options)();
  CHECK_EQ(copies.load(), 2 + 3);  // two that touch the memory first
  t.Make()();
}

TEST("one evaluator may be called from several threads") {
  std::atomic<int64_t> calls{0};
  TimingOptions options;
  options.number = 1;
  options.repeat = 3;
  options.min_repeat_ms = 1;
  PackedFunc evaluator = TimeEvaluator([&](Args, RetValue*) { ++calls; }, Cpu(), options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { CHECK_EQ(Seconds(evaluator()).size(), 3); });
  }
  for (auto& thread : threads) thread.join();
  CHECK(calls.load() >= 4 * 4);
}

TEST("an evaluator asks for the same care with arguments as the function that it times") {
  TVMFFIObjectHandle handle = nullptr;
  auto nothing = [](void*, const TVMFFIAny*, int32_t, TVMFFIAny*) { return 0; };
  Check(PortcallFunctionCreate(nullptr, nothing, nullptr,
                               kPortcallFunctionLibrary | kPortcallFunctionGenerated | kPortcallFunctionShort,
                               "add_one", &handle));
  PackedFunc evaluator = TimeEvaluator(ObjectRef::Steal<PackedFunc>(handle), Cpu(), {});
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(evaluator.get(), &info);
  CHECK_EQ(info.flags, kPortcallFunctionLibrary | kPortcallFunctionGenerated);
  CHECK_EQ(info.name, "add_one");
  CHECK(Contains(Thrown([&] { evaluator(Array<Any>{Any(1)}); }), "add_one"));
}

TEST("portcall.TimeEvaluator takes a function and the options in order") {
  PackedFunc make = Registry::Get("portcall.TimeEvaluator");
  int calls = 0, preprocs = 0;
  PackedFunc func = [&](Args, RetValue*) { ++calls; };
  PackedFunc preproc = [&](Args, RetValue*) { ++preprocs; };
  PackedFunc evaluator = make(func, static_cast<int>(kDLCPU), 0, 3, 2, 0, 100, 0, 1, 64, preproc);
  CHECK_EQ(Seconds(evaluator()).size(), 2);
  CHECK_EQ(calls, 7);
  CHECK_EQ(preprocs, 2);
  make(func, static_cast<int>(kDLCPU), 0, 3, 2, 0, 100, 0, 1, 0, nullptr).cast<PackedFunc>()();
  CHECK_EQ(preprocs, 2);
  CHECK(Contains(Thrown([&] { make(func, static_cast<int>(kDLCPU), 0, 3, 2, 0, 100, 5, 0, 0, nullptr); }),
                 "repeats_to_cooldown"));
  CHECK_THROWS(make(nullptr, static_cast<int>(kDLCPU), 0, 3, 2, 0, 100, 0, 1, 0, nullptr), Error);
}

TEST("runtime.RPCTimeEvaluator finds functions by name and says which one is missing") {
  PackedFunc make = Registry::Get("runtime.RPCTimeEvaluator");
  int calls = 0;
  Registry::Set("test_time_evaluator.f", PackedFunc([&](Args, RetValue*) { ++calls; }));
  auto call = [&](const char* name, const char* preproc, const Any& module = {}) {
    return make(module, name, static_cast<int>(kDLCPU), 0, 3, 2, 0, 100, 0, 1, 0, preproc).cast<PackedFunc>();
  };
  CHECK_EQ(Seconds(call("test_time_evaluator.f", "")()).size(), 2);
  CHECK_EQ(calls, 7);
  CHECK_EQ(Seconds(call("test_time_evaluator.f", "cache_flush_cpu_non_first_arg")()).size(), 2);
  CHECK(Contains(Thrown([&] { call("test_time_evaluator.g", ""); }), "'test_time_evaluator.g'"));
  CHECK(Contains(Thrown([&] { call("test_time_evaluator.f", "no_such_preproc"); }), "'no_such_preproc'"));
  Registry::Remove("test_time_evaluator.f");
}

TEST("runtime.RPCTimeEvaluator times a function of a module") {
  static int calls = 0;
  static auto body = [](void*, const TVMFFIAny*, int32_t, TVMFFIAny*) {
    ++calls;
    return 0;
  };
  int (*symbol)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) = body;
  Check(TVMFFIEnvModRegisterSystemLibSymbol("__tvm_ffi_test_time_evaluator_f", reinterpret_cast<void*>(symbol)));
  Module module = Registry::Get("ffi.SystemLib")("test_time_evaluator_");
  PackedFunc make = Registry::Get("runtime.RPCTimeEvaluator");
  make(module, "f", static_cast<int>(kDLCPU), 0, 4, 1, 0, 100, 0, 1, 0, "").cast<PackedFunc>()();
  CHECK_EQ(calls, 5);
  CHECK(Contains(Thrown([&] { make(module, "g", static_cast<int>(kDLCPU), 0, 4, 1, 0, 100, 0, 1, 0, ""); }), "'g'"));
}

TEST("cache_flush_cpu_non_first_arg takes any arguments and leaves their values alone") {
  PackedFunc flush = Registry::Get("cache_flush_cpu_non_first_arg");
  std::vector<float> values(1000, 2.5f);
  int64_t shape[2] = {10, 20}, strides[2] = {-40, 2}, empty[2] = {0, 20};
  DLTensor strided{values.data() + 400, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0};
  DLTensor nothing{nullptr, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, empty, nullptr, 0};
  Tensor tensor = Tensor::Empty({3, 5}, DataTypeOf<float>());
  flush();
  flush(1, 2.5, "text", tensor, &strided, &nothing, nullptr);
  CHECK(values == std::vector<float>(1000, 2.5f));
  RegisterCounting();
  Tensor remote = Tensor::Empty({4}, DataTypeOf<float>(), {kCounting, 0});
  flush(remote);  // the first argument is left alone
  CHECK(Contains(Thrown([&] { flush(1, remote); }), "argument #1"));
}
