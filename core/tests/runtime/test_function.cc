// SPDX-License-Identifier: Apache-2.0
// PackedFunc, TypedPackedFunc, the registry of global functions, and services that compiled code calls.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;

namespace {

template <typename F> PackedFunc Typed(F f, std::string name = {}) {
  return PackedFunc(detail::Unpack(std::move(f)), std::move(name));
}

// A function of the C ABI, with flags.
PackedFunc FromC(TVMFFISafeCallType call, int32_t flags = 0, const char* name = nullptr, void* self = nullptr,
                 void (*deleter)(void*) = nullptr) {
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallFunctionCreate(self, call, deleter, flags, name, &handle));
  return ObjectRef::Steal<PackedFunc>(handle);
}

int Nothing(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) { return 0; }

// The facts of an argument error, as front ends read them.
std::string FactsOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    TVMFFIObjectHandle context = error.ref().as<ErrorObj>()->cell.extra_context;
    if (!context) return "no facts";
    auto facts = ObjectRef::Borrow<Array<Any>>(context);
    if (facts.size() != 5 || !(facts[0].cast<String>() == kArgumentErrorTag)) return "other facts";
    return facts[1].cast<std::string>() + "|" + std::to_string(facts[2].cast<int>()) + "|" +
           facts[3].cast<std::string>() + "|" + facts[4].cast<std::string>();
  }
  return "no error";
}

}  // namespace

// ---- Calls --------------------------------------------------------------------------------------------------------

TEST("a lambda is called with its arguments and gives its result") {
  PackedFunc add([](Args args, RetValue* rv) {
    int a = args[0], b = args[1];
    *rv = a + b;
  });
  CHECK_EQ(add(3, 4).cast<int>(), 7);
  int sum = add(3, 4);
  CHECK_EQ(sum, 7);
}

TEST("a function that sets no result gives None, and one that sets two gives the last") {
  CHECK(PackedFunc([](Args, RetValue*) {})() == nullptr);
  PackedFunc twice([](Args, RetValue* rv) {
    *rv = Shape{1};
    *rv = 2;
  });
  CHECK_EQ(twice().cast<int>(), 2);
}

TEST("a null function is not called") {
  CHECK_EQ(Thrown([] { PackedFunc()(); }), "TypeError: called a null PackedFunc");
  TVMFFIAny result{};
  CHECK_EQ(TVMFFIFunctionCall(nullptr, nullptr, 0, &result), -1);
  CHECK_EQ(Raised(), "TypeError: called a null function");
}

TEST("a call without the cells that it announces is refused") {
  PackedFunc nop = FromC(Nothing);
  TVMFFIAny result{};
  CHECK_EQ(TVMFFIFunctionCall(nop.get(), nullptr, 1, &result), -1);
  CHECK(Contains(Raised(), "num_args (1)"));
  CHECK_EQ(TVMFFIFunctionCall(nop.get(), &result, -1, &result), -1);
  CHECK(Contains(Raised(), "num_args (-1)"));
  CHECK_EQ(TVMFFIFunctionCall(nop.get(), nullptr, 0, nullptr), -1);
  CHECK(Contains(Raised(), "result cell"));
  CHECK_EQ(TVMFFIFunctionCall(nop.get(), nullptr, 0, &result), 0);
}

TEST("a function needs something to call") {
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(TVMFFIFunctionCreate(nullptr, nullptr, nullptr, &handle), -1);
  CHECK_EQ(Raised(), "ValueError: a function needs something to call");
}

TEST("a closure gets its pointer, and its deleter runs once with the last reference") {
  static int deleted;
  deleted = 0;
  int number = 41;
  {
    PackedFunc func = FromC(
        [](void* self, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
          *result = Any(*static_cast<int*>(self) + 1).release();
          return 0;
        },
        0, nullptr, &number, [](void*) { ++deleted; });
    PackedFunc copy = func;
    CHECK_EQ(copy().cast<int>(), 42);
    CHECK_EQ(deleted, 0);
  }
  CHECK_EQ(deleted, 1);
}

TEST("what a lambda captures goes with its function") {
  Shape shape{1};
  {
    PackedFunc func([shape](Args, RetValue* rv) { *rv = shape; });
    CHECK_EQ(shape.use_count(), 2);
    CHECK(func().cast<Shape>().same_as(shape));
  }
  CHECK_EQ(shape.use_count(), 1);
}

TEST("arguments that a call made are released when it throws") {
  Shape shape{1};
  PackedFunc fail([](Args, RetValue* rv) {
    *rv = Shape{2};
    PORTCALL_THROW(ValueError) << "no";
  });
  int64_t before = LiveNodes("ffi.Shape");
  CHECK_EQ(Thrown([&] { fail(shape, "a longer string", Array<Shape>{shape}); }), "ValueError: no");
  CHECK_EQ(shape.use_count(), 1);
  CHECK_EQ(LiveNodes("ffi.Shape"), before);
}

TEST("a function may call itself, and others call it from many threads") {
  PackedFunc fib;
  fib = PackedFunc([&fib](Args args, RetValue* rv) {
    int n = args[0];
    *rv = n < 2 ? n : fib(n - 1).cast<int>() + fib(n - 2).cast<int>();
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { CHECK_EQ(fib(12).cast<int>(), 144); });
  for (std::thread& thread : threads) thread.join();
}

// ---- Typed functions ----------------------------------------------------------------------------------------------

TEST("a typed function checks how many arguments there are") {
  PackedFunc mul = Typed([](int a, int b) { return a * b; }, "mul");
  CHECK_EQ(mul(6, 7).cast<int>(), 42);
  CHECK_EQ(Thrown([&] { mul(1); }), "TypeError: mul(): expected 2 arguments, got 1");
  CHECK_EQ(FactsOf([&] { mul(1, 2, 3); }), "mul|-1|2 arguments|3");
  CHECK_EQ(Thrown([] { Typed([](int) {})(); }), "TypeError: expected 1 argument, got 0");
}

TEST("an argument error names the function, the position, what was expected and what was given") {
  PackedFunc func = Typed([](int, std::string, Array<double>) {}, "f");
  CHECK_EQ(Thrown([&] { func("x", "y", nullptr); }), "TypeError: f(): argument #0: expected int32, got str");
  CHECK_EQ(FactsOf([&] { func(1, 2, nullptr); }), "f|1|str|int 2");
  CHECK_EQ(FactsOf([&] { func(1, "", Array<>{"x"}); }), "f|2|Array[float]|Array whose item #0 is str");
  CHECK_EQ(FactsOf([&] { func(int64_t{1} << 40, "", nullptr); }), "f|0|int32|int 1099511627776");
}

TEST("of several wrong arguments the first is named") {
  PackedFunc func = Typed([](int, int, int) {}, "f");
  CHECK_EQ(FactsOf([&] { func(1, "two", "three"); }), "f|1|int32|str");
  CHECK_EQ(FactsOf([&] { func("one", "two", "three"); }), "f|0|int32|str");
}

TEST("an untyped body that asks for too many arguments gets an error") {
  PackedFunc func([](Args args, RetValue* rv) { *rv = args[1].cast<int>(); }, "g");
  CHECK_EQ(FactsOf([&] { func(1); }), "g|-1|at least 2 arguments|1");
  PackedFunc negative([](Args args, RetValue*) { args[-1]; }, "h");
  CHECK(Contains(Thrown([&] { negative(1); }), "h(): "));
}

namespace {
int Twice(int x) { return 2 * x; }
int Thrice(int x) noexcept { return 3 * x; }
struct Doubler {
  int operator()(int x) { return calls++ + 2 * x; }
  int calls = 0;
};
}  // namespace

TEST("any kind of callable becomes a function") {
  CHECK_EQ(Typed(Twice)(4).cast<int>(), 8);
  CHECK_EQ(Typed(&Twice)(4).cast<int>(), 8);
  CHECK_EQ(Typed(Thrice)(4).cast<int>(), 12);
  CHECK_EQ(Typed([](int x) noexcept { return x; })(4).cast<int>(), 4);
  CHECK_EQ(Typed(std::function<int(int)>(Twice))(4).cast<int>(), 8);
  PackedFunc counting = Typed(Doubler{});
  CHECK_EQ(counting(1).cast<int>(), 2);
  CHECK_EQ(counting(1).cast<int>(), 3);
  int calls = 0;
  PackedFunc counter = Typed([calls]() mutable { return ++calls; });
  counter();
  CHECK_EQ(counter().cast<int>(), 2);
  PackedFunc body = std::function<void(Args, RetValue*)>([](Args args, RetValue* rv) { *rv = args.size(); });
  CHECK_EQ(body(1, 2, 3).cast<int>(), 3);
}

TEST("parameters may be values, references and views") {
  PackedFunc join = Typed([](const std::string& a, std::string_view b, String c, const char* d) {
    return a + std::string(b) + c.str() + d;
  });
  CHECK_EQ(join("a", "b", "c", "d longer than seven").cast<std::string>(), "abcd longer than seven");
  PackedFunc keep = Typed([](std::string&& s) { return std::move(s); });
  CHECK_EQ(keep("moved").cast<std::string>(), "moved");
  PackedFunc any = Typed([](Any a, const Any& b) { return Array<>{a, b}; });
  CHECK_EQ(any(1, "x").cast<Array<>>().size(), 2);
  PackedFunc maybe = Typed([](std::optional<int> x) { return x.value_or(-1); });
  CHECK_EQ(maybe(nullptr).cast<int>(), -1);
  CHECK_EQ(maybe(7).cast<int>(), 7);
}

TEST("a TypedPackedFunc checks arguments and result") {
  TypedPackedFunc<int(int, int)> add([](int a, int b) { return a + b; });
  CHECK_EQ(add(3, 4), 7);
  TypedPackedFunc<int(int)> wrong = PackedFunc([](Args, RetValue* rv) { *rv = "text"; });
  CHECK_EQ(Thrown([&] { wrong(1); }), "TypeError: result: expected int32, got str");
  TypedPackedFunc<void(String)> silent([](const String&) {});
  silent("x");
  CHECK(TypedPackedFunc<void()>() == nullptr);
  CHECK(TypedPackedFunc<void()>(nullptr) == nullptr);
  PackedFunc untyped = add;
  CHECK_EQ(untyped(1, 2).cast<int>(), 3);
}

TEST("a function gets a signature by name, and an error names the function") {
  PackedFunc mul = Typed([](int a, int b) { return a * b; }, "test.mul");
  auto typed = mul.Typed<int(int, int)>();
  static_assert(std::is_same_v<decltype(typed), TypedPackedFunc<int(int, int)>>);
  CHECK_EQ(typed(6, 7), 42);
  CHECK_EQ(Thrown([&] { mul.Typed<int(int, const char*)>()(6, "7"); }),
           "TypeError: test.mul(): argument #1: expected int32, got str");
  CHECK_EQ(Thrown([&] { mul.Typed<std::string(int, int)>()(6, 7); }),
           "TypeError: test.mul(): result: expected str, got int 42");
  mul.Typed<void(int, int)>()(6, 7);
  PackedFunc list = Typed([] { return Array<>{1, "x"}; }, "test.list");
  CHECK_EQ(Thrown([&] { list.Typed<std::vector<int>()>()(); }),
           "TypeError: test.list(): result: expected Array[int32], got Array whose item #1 is str");
  CHECK(!list.Typed<std::optional<Array<>>()>()()->empty());
  CHECK_EQ(Thrown([] { PackedFunc().Typed<void()>(); }), "TypeError: a null PackedFunc has no signature");
}

TEST("a typed function is an argument and a result") {
  PackedFunc twice = Typed([](TypedPackedFunc<int(int)> f, int x) { return f(f(x)); });
  CHECK_EQ(twice(TypedPackedFunc<int(int)>([](int x) { return x + 1; }), 5).cast<int>(), 7);
  PackedFunc maker = Typed([](int n) { return TypedPackedFunc<int(int)>([n](int x) { return n * x; }); });
  TypedPackedFunc<int(int)> triple = maker(3);
  CHECK_EQ(triple(4), 12);
  CHECK_EQ(Thrown([&] { twice(1, 2); }), "TypeError: argument #0: expected Function, got int 1");
}

// ---- The registry -------------------------------------------------------------------------------------------------

namespace {

int64_t counter_calls = 0;

struct TallyObj : Object {
  static constexpr const char* kTypeKey = "test_function.Tally";
  int64_t total = 0;
  int64_t Add(int64_t n) { return total += n; }
  int64_t Total() const { return total; }
};
class Tally : public ObjectRef {
  PORTCALL_OBJECT_REF(Tally, TallyObj)
  bool IsZero() const { return node()->total == 0; }
  void Reset(int64_t to) { node()->total = to; }
};

// A value type that travels as an array of two.
struct Point {
  double x, y;
  double Dot(Point other) const { return x * other.x + y * other.y; }
};

}  // namespace

template <> struct portcall::TypeTraits<Point> {
  static std::string Name() { return "Point"; }
  static std::optional<Point> TryFrom(const TVMFFIAny& value) {
    auto numbers = TypeTraits<Array<double>>::TryFrom(value);
    if (!numbers || numbers->size() != 2) return std::nullopt;
    return Point{(*numbers)[0], (*numbers)[1]};
  }
  static void To(Point p, TVMFFIAny* out) { TypeTraits<Array<double>>::To({p.x, p.y}, out); }
};

PORTCALL_REGISTER_GLOBAL("test_function.count").set_short().set_body([](Args, RetValue* rv) { *rv = ++counter_calls; });
PORTCALL_REGISTER_GLOBAL("test_function.mul").set_body_typed([](int a, int b) { return a * b; });
PORTCALL_REGISTER_GLOBAL("test_function.dot").set_body_method(&Point::Dot);
PORTCALL_REGISTER_GLOBAL("test_function.tally_add").set_body_method<Tally>(&TallyObj::Add);
PORTCALL_REGISTER_GLOBAL("test_function.tally_total").set_body_method<Tally>(&TallyObj::Total);
PORTCALL_REGISTER_GLOBAL("test_function.tally_is_zero").set_body_method(&Tally::IsZero);
PORTCALL_REGISTER_GLOBAL("test_function.tally_reset").set_body_method(&Tally::Reset);

TEST("what is registered at load time is found by its name") {
  CHECK_EQ(Registry::Get("test_function.mul")(6, 7).cast<int>(), 42);
  CHECK_EQ(Registry::Get("test_function.count")().cast<int>(), 1);
  CHECK(Registry::Get("test_function.nobody") == nullptr);
  CHECK_EQ(Thrown([] { Registry::Get("test_function.mul")("x", 1); }),
           "TypeError: test_function.mul(): argument #0: expected int32, got str");
}

TEST("methods of values, references and nodes are functions of their object") {
  CHECK_EQ(Registry::Get("test_function.dot")(Point{1, 2}, Point{3, 4}).cast<double>(), 11.0);
  CHECK_EQ(FactsOf([] { Registry::Get("test_function.dot")(Point{1, 2}, 5); }), "test_function.dot|1|Point|int 5");
  Tally tally = Make<Tally>();
  CHECK(Registry::Get("test_function.tally_is_zero")(tally).cast<bool>());
  CHECK_EQ(Registry::Get("test_function.tally_add")(tally, 5).cast<int>(), 5);
  CHECK_EQ(Registry::Get("test_function.tally_total")(tally).cast<int>(), 5);
  Registry::Get("test_function.tally_reset")(tally, 2);
  CHECK_EQ(tally->total, 2);
  for (const char* name : {"test_function.tally_total", "test_function.tally_is_zero"}) {
    CHECK_EQ(Thrown([&] { Registry::Get(name)(nullptr); }), "TypeError: the object of a method call is None");
    CHECK_EQ(FactsOf([&] { Registry::Get(name)(Shape{1}); }), std::string(name) + "|0|test_function.Tally|Shape");
  }
}

TEST("a function that must be there is an error that names it when it is not") {
  CHECK(Registry::GetRequired("portcall.ListGlobalNames").defined());
  CHECK_EQ(Thrown([] { Registry::GetRequired("test.nobody"); }),
           "FunctionNotFoundError: no global function is named 'test.nobody': what registers it is not loaded");
}

TEST("a second registration is refused unless it says that it overrides") {
  PackedFunc one = Typed([] { return 1; }), two = Typed([] { return 2; });
  Registry::Set("test_function.again", one);
  CHECK_EQ(Thrown([&] { Registry::Set("test_function.again", two); }),
           "AlreadyRegisteredError: a global function 'test_function.again' is already registered; pass override to "
           "replace it");
  CHECK_EQ(Registry::Get("test_function.again")().cast<int>(), 1);
  Registry::Set("test_function.again", two, true);
  CHECK_EQ(Registry::Get("test_function.again")().cast<int>(), 2);
  CHECK_EQ(one.use_count(), 1);
  CHECK(Registry::Remove("test_function.again"));
  CHECK(!Registry::Remove("test_function.again"));
  CHECK(Registry::Get("test_function.again") == nullptr);
  CHECK_EQ(two.use_count(), 1);
}

TEST("a registration without a name, without a function or of something else is refused") {
  CHECK_EQ(Thrown([] { Registry::Set("", Typed([] {})); }), "ValueError: a global function needs a name");
  CHECK_EQ(Thrown([] { Registry::Set("test_function.none", PackedFunc()); }),
           "TypeError: 'test_function.none' cannot be registered: the function is None");
  TVMFFIMethodInfo info{};
  info.name = ToByteArray("test_function.method");
  info.method = Any(5).cell();
  CHECK_EQ(TVMFFIFunctionSetGlobalFromMethodInfo(&info, 0), -1);
  CHECK_EQ(Raised(), "TypeError: the method 'test_function.method' is not a function");
  TVMFFIByteArray name = ToByteArray("test_function.shape");
  Shape shape{1};
  CHECK_EQ(TVMFFIFunctionSetGlobal(&name, shape.get(), 0), -1);
  CHECK(Contains(Raised(), "TypeError: 'test_function.shape' cannot be registered"));
}

TEST("a function is registered with what reflection knows of it") {
  PackedFunc func = Typed([] { return 9; });
  Any method = func;
  TVMFFIMethodInfo info{};
  info.name = ToByteArray("test_function.reflected");
  info.method = method.cell();
  CHECK_EQ(TVMFFIFunctionSetGlobalFromMethodInfo(&info, 0), 0);
  CHECK_EQ(Registry::Get("test_function.reflected")().cast<int>(), 9);
  CHECK(Registry::Remove("test_function.reflected"));
}

TEST("a name may hold any bytes") {
  std::string name("test_function.\0odd \xff", 20);
  Registry::Set(name, Typed([] { return 1; }));
  CHECK_EQ(Registry::Get(name)().cast<int>(), 1);
  auto names = Registry::ListNames();
  CHECK(std::find(names.begin(), names.end(), name) != names.end());
  CHECK(Registry::Remove(name));
}

TEST("names are listed in order, by both functions that list them") {
  auto names = Registry::ListNames();
  CHECK(std::is_sorted(names.begin(), names.end()));
  CHECK(std::find(names.begin(), names.end(), "testing.echo") != names.end());
  TypedPackedFunc<Any(int)> functor = Registry::Get("ffi.FunctionListGlobalNamesFunctor")().cast<PackedFunc>();
  CHECK_EQ(functor(-1).cast<size_t>(), names.size());
  CHECK_EQ(functor(0).cast<std::string>(), names[0]);
  CHECK(Contains(Thrown([&] { functor(1 << 20); }), "IndexError"));
}

TEST("a function that removes itself while it runs finishes its call") {
  Registry::Set("test_function.suicide", PackedFunc([text = std::string(100, 'x')](Args, RetValue* rv) {
                  CHECK(Registry::Remove("test_function.suicide"));
                  *rv = text;
                }));
  CHECK_EQ(Registry::Get("test_function.suicide")().cast<std::string>(), std::string(100, 'x'));
}

TEST("a function whose end calls the registry may be replaced and removed") {
  struct Nosy {
    ~Nosy() { Registry::Get("testing.nop")(); }
  };
  auto make = [] { return PackedFunc([nosy = std::make_shared<Nosy>()](Args, RetValue*) {}); };
  Registry::Set("test_function.nosy", make());
  Registry::Set("test_function.nosy", make(), true);
  CHECK(Registry::Remove("test_function.nosy"));
}

TEST("functions are registered, called, replaced and removed from many threads at once") {
  std::atomic<int> calls{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        Registry::Set("test_function.race", PackedFunc([t](Args, RetValue* rv) { *rv = t; }), true);
        if (PackedFunc func = Registry::Get("test_function.race"); func.defined()) {
          int who = func();
          CHECK(who >= 0 && who < 6);
          ++calls;
        }
        if (i % 3 == 0) Registry::Remove("test_function.race");
        if (i % 100 == 0) Registry::ListNames();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(calls > 0);
  Registry::Remove("test_function.race");
}

TEST("only one of many threads registers a name") {
  std::atomic<int> won{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        std::string name = "test_function.once" + std::to_string(i);
        if (Thrown([&] { Registry::Set(name, Typed([] {})); }).empty()) ++won;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(won, 50);
  for (int i = 0; i < 50; ++i) CHECK(Registry::Remove("test_function.once" + std::to_string(i)));
}

// ---- What a caller may know ---------------------------------------------------------------------------------------

TEST("a function tells its name, its flags and the shortest way to call it") {
  int self = 0;
  PackedFunc func = FromC(Nothing, kPortcallFunctionShort | kPortcallFunctionLibrary, "named", &self);
  PortcallFunctionInfo info{};
  PortcallFunctionGetInfo(func.get(), &info);
  CHECK(info.call == Nothing && info.self == &self);
  CHECK_EQ(info.name, "named");
  CHECK_EQ(info.flags, kPortcallFunctionShort | kPortcallFunctionLibrary);
  PortcallFunctionGetInfo(FromC(Nothing).get(), &info);
  CHECK_EQ(info.flags, 0);
  PackedFunc count = Registry::Get("test_function.count");
  PortcallFunctionGetInfo(count.get(), &info);
  CHECK_EQ(info.name, "test_function.count");
  CHECK_EQ(info.flags, kPortcallFunctionShort);
  TVMFFIAny result{};
  CHECK_EQ(info.call(info.self, nullptr, 0, &result), 0);
  CHECK(Any::Steal(result).cast<int>() > 0);
}

TEST("a function of another runtime is called by its own entry") {
  struct ForeignFunction : TVMFFIObject {
    TVMFFIFunctionCell cell;
  } object{};
  object.combined_ref_count = kWeakOne | kStrongOne;
  object.type_index = kTVMFFIFunction;
  object.cell.safe_call = [](void* self, const TVMFFIAny*, int32_t n, TVMFFIAny* result) {
    *result = Any(n + (self ? 100 : 0)).release();
    return 0;
  };
  PackedFunc func = ObjectRef::Steal<PackedFunc>(static_cast<TVMFFIObject*>(&object));
  CHECK_EQ(func(1, 2).cast<int>(), 102);
  CHECK_EQ(Registry::Get("testing.apply")(func, 1).cast<int>(), 101);
  PortcallFunctionInfo info{};
  PortcallFunctionGetInfo(func.get(), &info);
  CHECK(info.call == object.cell.safe_call && info.self == func.get() && info.flags == 0);
  CHECK_EQ(info.name, "");
}

// ---- Generated functions ------------------------------------------------------------------------------------------

namespace {

// What a kernel compiler makes: it reads any object as a tensor, so it must never see another.
PackedFunc Generated() {
  static int calls;
  return FromC(
      [](void* self, const TVMFFIAny*, int32_t n, TVMFFIAny* result) {
        ++*static_cast<int*>(self);
        *result = Any(n).release();
        return 0;
      },
      kPortcallFunctionLibrary | kPortcallFunctionGenerated, "kernel", &calls);
}

}  // namespace

TEST("a generated function gets numbers, pointers, text and aligned tensors") {
  Tensor tensor = Tensor::Empty({4}, DataTypeFromString("float32"));
  DLTensor borrowed = *tensor.dl_tensor();
  int thing = 0;
  CHECK_EQ(Generated()(1, 2.5, true, nullptr, static_cast<void*>(&thing), "short", tensor, &borrowed).cast<int>(), 8);
  CHECK_EQ(Generated()().cast<int>(), 0);
}

TEST("a generated function refuses objects that are not tensors, with the facts of the argument") {
  const char* expected = "a number, a pointer or a Tensor";
  struct {
    Any value;
    const char* got;
  } cases[] = {{Shape{1}, "Shape"},
               {Array<int>{1}, "Array"},
               {Map<String, int>{{"a", 1}}, "Map"},
               {PackedFunc([](Args, RetValue*) {}), "Function"},
               {"text of more than seven bytes", "str"},
               {Bytes("bytes of more than seven"), "bytes"},
               {Make<Tally>(), "test_function.Tally"}};
  for (const auto& [value, got] : cases) {
    CHECK_EQ(FactsOf([&, &v = value] { Generated()(1, v); }), std::string("kernel|1|") + expected + "|" + got);
  }
}

TEST("a generated function refuses a tensor that is not aligned, however it is passed") {
  Tensor tensor = Tensor::Empty({64}, DataTypeFromString("float32"));
  for (uint64_t offset : {4, 16, 32, 63}) {
    DLTensor view = *tensor.dl_tensor();
    view.byte_offset = offset;
    CHECK_EQ(FactsOf([&] { Generated()(&view); }),
             "kernel|0|tensor data aligned to 64 bytes, as compiled kernels assume|data at " + std::to_string(offset) +
                 " modulo 64");
    view.byte_offset = 0;
    view.data = static_cast<char*>(view.data) + offset;
    CHECK(Contains(Thrown([&] { Generated()(&view); }), "kernel(): argument #0: expected tensor data aligned"));
  }
  DLTensor view = *tensor.dl_tensor();
  view.byte_offset = 64;
  CHECK_EQ(Generated()(&view).cast<int>(), 1);
  view.byte_offset = 4;
  view.device = {kDLCUDA, 0};  // a handle, not an address
  CHECK_EQ(Generated()(&view).cast<int>(), 1);
}

TEST("the checks of a generated function cannot be passed by") {
  PackedFunc func = Generated();
  PortcallFunctionInfo info{};
  PortcallFunctionGetInfo(func.get(), &info);
  Any shape = Shape{1};
  TVMFFIAny result{};
  CHECK_EQ(info.call(info.self, &shape.cell(), 1, &result), -1);
  CHECK(Contains(Raised(), "kernel(): argument #0"));
  CHECK_EQ(TVMFFIFunctionCall(func.get(), &shape.cell(), 1, &result), -1);
  CHECK(Contains(Raised(), "kernel(): argument #0"));
}

// ---- Functions for tests ------------------------------------------------------------------------------------------

TEST("the testing functions do what their names say") {
  CHECK(Registry::Get("testing.nop")(1, 2, 3) == nullptr);
  CHECK_EQ(Registry::Get("testing.echo")("x").cast<String>(), "x");
  CHECK(Contains(Thrown([] { Registry::Get("testing.echo")(); }), "testing.echo(): expected at least 1 arguments"));
  CHECK_EQ(Registry::Get("testing.apply")(Registry::Get("test_function.mul"), 6, 7).cast<int>(), 42);
  CHECK(Contains(Thrown([] { Registry::Get("testing.apply")(); }), "at least 1"));
  CHECK_EQ(Thrown([] { Registry::Get("testing.test_raise_error")("OddError", "text"); }), "OddError: text");
}

// ---- Services of compiled code ------------------------------------------------------------------------------------

namespace {
std::atomic<int> initialised{0};
int value_of_slot;
int InitSlot(void** result) {
  ++initialised;
  *result = &value_of_slot;
  return 0;
}
}  // namespace

TEST("a slot is initialised once, whichever thread comes first") {
  initialised = 0;
  void* slots[20] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (void*& slot : slots) {
        CHECK_EQ(TVMFFIHandleInitOnce(&slot, InitSlot), 0);
        CHECK(__atomic_load_n(&slot, __ATOMIC_ACQUIRE) == &value_of_slot);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(initialised, 20);
}

TEST("a slot whose initialiser fails, or gives nothing, stays empty and may be tried again") {
  void* slot = nullptr;
  auto fails = [](void**) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "not yet");
    return -1;
  };
  CHECK_EQ(TVMFFIHandleInitOnce(&slot, fails), -1);
  CHECK_EQ(Raised(), "ValueError: not yet");
  CHECK_EQ(TVMFFIHandleInitOnce(&slot, [](void**) { return 0; }), -1);
  CHECK(Contains(Raised(), "RuntimeError: "));
  CHECK(slot == nullptr);
  CHECK_EQ(TVMFFIHandleInitOnce(&slot, InitSlot), 0);
  CHECK(slot == &value_of_slot);
}

TEST("an initialiser may initialise another slot") {
  static void* inner;
  inner = nullptr;
  void* outer = nullptr;
  auto nested = [](void** result) {
    *result = &inner;
    return TVMFFIHandleInitOnce(&inner, InitSlot);
  };
  CHECK_EQ(TVMFFIHandleInitOnce(&outer, nested), 0);
  CHECK(outer == &inner && inner == &value_of_slot);
}

TEST("a slot is given back once") {
  static std::atomic<int> given_back;
  given_back = 0;
  auto deinit = [](void* handle) {
    CHECK(handle == &value_of_slot);
    ++given_back;
    return 0;
  };
  void* slot = nullptr;
  CHECK_EQ(TVMFFIHandleDeinitOnce(&slot, deinit), 0);
  CHECK_EQ(given_back, 0);
  CHECK_EQ(TVMFFIHandleInitOnce(&slot, InitSlot), 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { CHECK_EQ(TVMFFIHandleDeinitOnce(&slot, deinit), 0); });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(given_back, 1);
  CHECK(slot == nullptr);
}

TEST("code runs once for a handle, and again after it failed") {
  static int runs;
  runs = 0;
  auto count = [](void* cdata) {
    ++runs;
    return *static_cast<int*>(cdata);
  };
  void* handle = nullptr;
  int status = -1;
  CHECK_EQ(TVMBackendRunOnce(&handle, count, &status, sizeof(status)), -1);
  status = 0;
  CHECK_EQ(TVMBackendRunOnce(&handle, count, &status, sizeof(status)), 0);
  CHECK_EQ(TVMBackendRunOnce(&handle, count, &status, sizeof(status)), 0);
  CHECK_EQ(runs, 2);
}

TEST("items of a virtual machine's list are lent, filled and emptied") {
  Shape shape{1};
  std::vector<Any> list(3);
  list[1] = shape;
  TVMFFIAny args[2]{};
  CHECK_EQ(TVMBackendAnyListSetPackedArg(list.data(), 1, args, 0), 0);
  CHECK(args[0].v_obj == shape.get());
  CHECK_EQ(shape.use_count(), 2);  // lent, not retained
  args[1] = Any(Shape{2}).release();
  CHECK_EQ(TVMBackendAnyListMoveFromPackedReturn(list.data(), 1, args, 1), 0);
  CHECK_EQ(shape.use_count(), 1);
  CHECK_EQ(args[1].type_index, kTVMFFINone);
  CHECK_EQ(list[1].cast<Shape>()[0], 2);
  CHECK_EQ(TVMBackendAnyListResetItem(list.data(), 1), 0);
  CHECK(list[1] == nullptr);
}

TEST("TVMFFIEnvCheckSignals calls the function that was registered") {
  CHECK_EQ(TVMFFIEnvCheckSignals(), 0);
  CHECK_EQ(TVMFFIEnvRegisterCAPI("PyGILState_Ensure", nullptr), 0);
  auto interrupted = [] { return -1; };
  CHECK_EQ(TVMFFIEnvRegisterCAPI("PyErr_CheckSignals", reinterpret_cast<void*>(+interrupted)), 0);
  CHECK_EQ(TVMFFIEnvCheckSignals(), -1);
  CHECK_EQ(TVMBackendRegisterEnvCAPI("PyErr_CheckSignals", nullptr), 0);
  CHECK_EQ(TVMFFIEnvCheckSignals(), 0);
}

TEST("the table for bindings is complete") {
  const PortcallCore* core = PortcallGetCore();
  CHECK_EQ(core->struct_size, sizeof(PortcallCore));
  CHECK(std::string(core->version).find('.') != std::string::npos);
  // Every entry after the first two is a function.
  auto* entries = reinterpret_cast<void* const*>(core);
  size_t first = offsetof(PortcallCore, object_inc_ref) / sizeof(void*);
  for (size_t i = first; i < sizeof(PortcallCore) / sizeof(void*); ++i) CHECK(entries[i] != nullptr);
  TVMFFIVersion version{};
  TVMFFIGetVersion(&version);
  CHECK(version.major == 0 && version.minor == 1);
}
