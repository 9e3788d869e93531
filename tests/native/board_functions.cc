// SPDX-License-Identifier: Apache-2.0
// What tests/rpc/serving.py registers in Python, for the server that has none.
#include <fcntl.h>
#include <portcall/portcall.h>
#include <portcall/reflection.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

using namespace portcall;

#define DEMO(name) PORTCALL_REGISTER_GLOBAL("demo." name)

DEMO("scale").set_body([](Args args, RetValue* rv) {
  const auto k = args[1].cast<int64_t>();
  const auto repeated = [k](const std::string& piece) {
    std::string text;
    for (int64_t i = 0; i < k; ++i) text += piece;
    return text;
  };
  if (auto bytes = args[0].try_cast<Bytes>()) *rv = Bytes(repeated(bytes->str()));
  else if (auto text = args[0].try_cast<std::string>()) *rv = repeated(*text);
  else *rv = args[0].cast<int64_t>() * k;
});
DEMO("shape").set_body_typed([](int64_t n) {
  std::vector<int64_t> extents;
  for (int64_t i = 1; i <= n; ++i) extents.push_back(i);
  return Shape(extents);
});
DEMO("fail").set_body_typed([](std::string text) { PORTCALL_THROW(ValueError) << text; });
DEMO("crash").set_body_typed([](int number) { kill(getpid(), number); });
DEMO("exit").set_body_typed([](int code) { _exit(code); });
DEMO("leave").set_body_typed([](int code) { throw code; });
DEMO("hang").set_body_typed([] { sleep(1000); });
DEMO("pid").set_body_typed([] { return static_cast<int>(getpid()); });
DEMO("cwd").set_body_typed([] {
  char here[4096];
  return std::string(getcwd(here, sizeof(here)) ? here : "");
});
DEMO("environment").set_body_typed([](std::string name) {
  const char* value = std::getenv(name.c_str());
  return std::string(value ? value : "");
});
DEMO("maps").set_body_typed([] {
  std::ifstream file("/proc/self/maps");
  return std::string(std::istreambuf_iterator<char>(file), {});
});
DEMO("keep").set_body_typed([](int64_t nbytes) {
  return static_cast<int64_t>(std::vector<char>(static_cast<size_t>(nbytes)).size());
});
DEMO("fill").set_body([](Args args, RetValue*) {
  const auto tensor = args[0].cast<Tensor>();
  const auto value = args[1].cast<double>();
  for (size_t i = 0; i < tensor.numel(); ++i) {
    if (tensor.dtype() == DataTypeOf<float>()) tensor.data<float>()[i] = static_cast<float>(value);
    else tensor.data<int64_t>()[i] = static_cast<int64_t>(value);
  }
});
static Tensor Iota(int64_t n) {
  Tensor made = Tensor::Empty({n}, DataTypeOf<float>());
  for (int64_t i = 0; i < n; ++i) made.data<float>()[i] = static_cast<float>(i);
  return made;
}
DEMO("make").set_body_typed(Iota);
DEMO("iota").set_body_typed(Iota);
DEMO("adder").set_body_typed([](int64_t n) {
  return TypedPackedFunc<int64_t(int64_t)>([n](int64_t x) { return x + n; });
});
DEMO("litter").set_body_typed([](int64_t nbytes) {
  const int file = open("litter", O_WRONLY | O_CREAT, 0600);
  const int failed = posix_fallocate(file, 0, nbytes);
  close(file);
  PORTCALL_CHECK(!failed, OSError) << "cannot write: error " << failed;
});
DEMO("scatter").set_body_typed([] {
  const std::vector<char> data(500'000);
  for (int i = 0; i < 5; ++i) std::ofstream("part" + std::to_string(i)).write(data.data(), data.size());
});
DEMO("start").set_body_typed([] {
  const pid_t pid = fork();
  if (pid == 0) execlp("sleep", "sleep", "1000", nullptr);
  return static_cast<int>(pid);
});
DEMO("say").set_body([](Args args, RetValue*) {
  const int64_t times = args.size() > 1 ? args[1].cast<int64_t>() : 1;
  for (int64_t i = 0; i < times; ++i) puts(args[0].cast<std::string>().c_str());
});
DEMO("say_bytes").set_body_typed([] {
  PORTCALL_CHECK(write(2, "\xff\x1b[2J no end of line", 20) > 0, OSError) << "cannot write";
});
DEMO("say_in_c").set_body_typed([](std::string text) { puts(text.c_str()); });
DEMO("complain").set_body_typed([](std::string text) { fprintf(stderr, "%s\n", text.c_str()); });
DEMO("flood").set_body([](Args args, RetValue*) {
  for (int i = 0; i < args[0].cast<int>(); ++i) printf("%100d\n", i);
  if (args.size() > 1) std::ofstream file(args[1].cast<std::string>());
});
DEMO("say_and_wait").set_body_typed([](std::string path) {
  puts("before");
  struct stat facts{};
  while (stat(path.c_str(), &facts) != 0) usleep(5000);
});
DEMO("part").set_body_typed([](std::string text) {
  fputs(text.c_str(), stdout);
  fflush(stdout);
});
DEMO("crash_with").set_body_typed([](Any, Any, int number, std::string last) {
  if (write(2, last.data(), last.size()) >= 0) kill(getpid(), number);
});
DEMO("close_streams").set_body_typed([] {
  close(1);
  close(2);
});
DEMO("add").set_body([](Args args, RetValue* rv) {
  if (auto a = args[0].try_cast<int64_t>()) *rv = *a + args[1].cast<int64_t>();
  else if (auto b = args[0].try_cast<Bytes>()) *rv = Bytes(b->str() + args[1].cast<Bytes>().str());
  else *rv = args[0].cast<std::string>() + args[1].cast<std::string>();
});
static double Sum(const Tensor& x) {
  double sum = 0;
  for (size_t i = 0; i < x.numel(); ++i) {
    if (x.dtype() == DataTypeOf<uint8_t>()) sum += x.data<uint8_t>()[i];
    else if (x.dtype() == DataTypeOf<float>()) sum += static_cast<double>(x.data<float>()[i]);
    else if (x.dtype() == DataTypeOf<double>()) sum += x.data<double>()[i];
    else sum += static_cast<double>(x.data<int64_t>()[i]);
  }
  return sum;
}
DEMO("sum").set_body([](Args args, RetValue* rv) {
  if (auto shape = args[0].try_cast<Shape>()) {
    int64_t sum = 0;
    for (int64_t extent : *shape) sum += extent;
    *rv = sum;
  } else {
    *rv = Sum(args[0].cast<Tensor>());
  }
});
DEMO("array").set_body_typed([] { return Array<int64_t>{3, 4, 5}; });
DEMO("length").set_body_typed([](Array<Any> items) { return static_cast<int64_t>(items.size()); });
DEMO("imported").set_body_typed([](std::string path) { return Module::LoadFromFile(path).imports()[0]; });
DEMO("nap").set_body_typed([](double seconds) { usleep(static_cast<useconds_t>(1e6 * seconds)); });
DEMO("twice").set_body_typed([](Tensor x, Tensor y) {
  for (const Tensor& one : {x, y}) {
    for (size_t i = 0; i < one.numel(); ++i) {
      if (one.dtype() == DataTypeOf<float>()) ++one.data<float>()[i];
      else ++one.data<int64_t>()[i];
    }
  }
});
DEMO("readonly").set_body_typed([](Tensor x) { return x.is_read_only(); });
DEMO("raise").set_body_typed([](std::string kind, std::string text) { throw Error(kind, text); });
DEMO("odd").set_body_typed([](std::string text) { PORTCALL_THROW(Odd) << text; });
DEMO("shape_of").set_body_typed([](Tensor x) {
  std::string text;
  for (int64_t extent : x.shape()) text += (text.empty() ? "" : ",") + std::to_string(extent);
  return text;
});
DEMO("touch").set_body_typed([](std::string path) { std::ofstream file(path); });
DEMO("wait_for").set_body_typed([](std::string path) {
  struct stat facts{};
  while (stat(path.c_str(), &facts) != 0) usleep(5000);
});
DEMO("crash_once").set_body_typed([](std::string path) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) {
    std::ofstream file(path);
    file.close();
    kill(getpid(), SIGSEGV);
  }
  return static_cast<int>(getppid());
});
DEMO("board").set_body_typed([] { return static_cast<int>(getppid()); });
DEMO("lose_device").set_body_typed([] { Registry::GetRequired("portcall.DeviceFailed")(); });

// ---- Functions of the client ----

static PackedFunc kept;
static std::thread background;
static void Apply(Args args, RetValue* rv) {
  *rv = args[0].cast<PackedFunc>().CallPacked(args.cells() + 1, args.size() - 1);
}
DEMO("apply").set_body(Apply);
DEMO("call").set_body(Apply);
DEMO("print").set_body_typed([](std::string text) { puts(text.c_str()); });
DEMO("hold").set_body_typed([](PackedFunc f) { kept = f; });
DEMO("call_kept").set_body([](Args args, RetValue* rv) { *rv = kept.CallPacked(args.cells(), args.size()); });
DEMO("drop").set_body_typed([] { kept = nullptr; });
DEMO("in_threads").set_body_typed([](PackedFunc f, int64_t n) {
  std::vector<int64_t> results(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) {
    threads.emplace_back([&, i] { results[static_cast<size_t>(i)] = f(i).cast<int64_t>(); });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(results.begin(), results.end());
  return Array<int64_t>(results.begin(), results.end());
});
DEMO("in_background").set_body_typed([](PackedFunc f, Any x) { background = std::thread([f, x] { f(x); }); });
DEMO("join").set_body_typed([] { background.join(); });
static std::promise<void> started;
static double result;
DEMO("wait").set_body_typed([] { started.get_future().wait(); });
DEMO("go_on").set_body_typed([] { started.set_value(); });
DEMO("sum_in_background").set_body_typed([](PackedFunc f) {
  background = std::thread([f] { result = Sum(f().cast<Tensor>()); });
});
DEMO("result").set_body_typed([] {
  background.join();
  return result;
});
DEMO("many").set_body_typed([](PackedFunc f, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += f(i).cast<int64_t>();
  return sum;
});
DEMO("until_gone").set_body_typed([](PackedFunc f, std::string path) {
  try {
    for (;;) f();
  } catch (const Error& error) {
    std::ofstream(path) << error.kind();
  }
});
DEMO("fill_by").set_body_typed([](PackedFunc f) {
  Tensor tensor = Tensor::Empty({4}, DataTypeOf<float>());
  f(tensor);
  double sum = 0;
  for (size_t i = 0; i < 4; ++i) sum += tensor.data<float>()[i];
  return sum;
});

// ---- Objects ----

struct PointObj : Object {
  int64_t x = 0;
  double y = 0;
  PORTCALL_OBJECT(PointObj, Object, "rpc_values.Point")
  static void Describe(Description<PointObj>* type) {
    type->field("x", &PointObj::x);
    type->field("y", &PointObj::y);
  }
};
PORTCALL_REGISTER_OBJECT(PointObj);
class Point : public ObjectRef {
  PORTCALL_OBJECT_REF(Point, PointObj)
};
static ObjectRef MakePoint(int64_t x, double y) {
  auto* point = NewNode<PointObj>();
  point->x = x, point->y = y;
  return ObjectRef::Steal(point);
}

struct UnknownObj : Object {
  String name;
  PORTCALL_OBJECT(UnknownObj, Object, "rpc_values.Unknown")
  static void Describe(Description<UnknownObj>* type) { type->field("name", &UnknownObj::name); }
};
PORTCALL_REGISTER_OBJECT(UnknownObj);
class Unknown : public ObjectRef {
  PORTCALL_OBJECT_REF(Unknown, UnknownObj)
};

struct CounterObj : Object {
  int64_t count = 40;
  Array<Any> steps;
  int64_t Plus(int64_t n) const { return count + n; }
  int64_t Hidden() const { return 1; }
  PORTCALL_OBJECT(CounterObj, Object, "rpc_objects.Counter")
  static void Describe(Description<CounterObj>* type) {
    type->field("count", &CounterObj::count);
    type->field("steps", &CounterObj::steps);
    type->method("plus", &CounterObj::Plus);
    type->method("_hidden", &CounterObj::Hidden);
  }
};
PORTCALL_REGISTER_OBJECT(CounterObj);

static PackedFunc Length() {
  return TypedPackedFunc<int64_t(Any)>([](Any value) {
    if (auto text = value.try_cast<std::string>()) return static_cast<int64_t>(text->size());
    return static_cast<int64_t>(value.cast<Array<Any>>().size());
  });
}
static PackedFunc Largest() {
  return TypedPackedFunc<int64_t(Array<int64_t>)>([](Array<int64_t> items) {
    int64_t most = items[0];
    for (int64_t item : items) most = std::max(most, item);
    return most;
  });
}

DEMO("same").set_body_typed([](Any value) { return value; });
DEMO("point").set_body_typed(MakePoint);
DEMO("unknown").set_body_typed([](std::string name) {
  auto* unknown = NewNode<UnknownObj>();
  unknown->name = name;
  return Array<Any>{ObjectRef::Steal(unknown)};
});
DEMO("name_of").set_body_typed([](Array<Any> unknowns) { return unknowns[0].cast<Unknown>().node()->name; });
DEMO("with_function").set_body_typed([] { return Array<Any>{Length()}; });
DEMO("calls").set_body_typed([](Array<Any> functions) { return Any(functions[0].cast<PackedFunc>()("abc")); });
DEMO("total").set_body_typed([](Array<Tensor> rows) {
  double sum = 0;
  for (const Tensor& row : rows) {
    Tensor compact = Tensor::Empty(row.shape(), row.dtype());
    compact.CopyFrom(row);
    for (size_t i = 0; i < compact.numel(); ++i) sum += compact.data<float>()[i];
  }
  return sum;
});
DEMO("deep").set_body_typed([](int64_t depth) {
  Array<Any> value;
  for (int64_t i = 0; i < depth; ++i) value = Array<Any>{value};
  return value;
});
DEMO("counter").set_body_typed([] {
  auto* counter = NewNode<CounterObj>();
  counter->steps = Array<Any>{1, Length()};
  return ObjectRef::Steal(counter);
});
DEMO("functions").set_body_typed([] { return Array<Any>{Length(), Largest()}; });
DEMO("table").set_body_typed([] { return Map<String, Any>{{"a", Length()}, {"b", 2}}; });
DEMO("fill_with").set_body_typed([](Tensor tensor, double value) {
  for (size_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = static_cast<float>(value);
});
DEMO("overwrite").set_body_typed([](std::string path) {
  const int file = open(path.c_str(), O_RDWR);
  const bool written = pwrite(file, "other", 5, 70'000) == 5;
  close(file);
  PORTCALL_CHECK(written, OSError) << "cannot overwrite " << path;
});
DEMO("dig").set_body_typed([](int depth) {
  for (int i = 0; i < depth; ++i) {
    if (mkdir("deep-folder", 0700) != 0 || chdir("deep-folder") != 0) break;
  }
  std::ofstream("last").write(std::string(10'000'000, 'x').data(), 10'000'000);
});
