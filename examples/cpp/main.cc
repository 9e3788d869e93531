// SPDX-License-Identifier: Apache-2.0
// The registry from C++: functions, methods and call-backs that any language can call by name.
//
//   python -c 'from portcall import toolchain; toolchain.create_executable("main.cc", "main")' && ./main
//
// Compiled as a library instead, the registrations below run when it is loaded.
#include <portcall/portcall.h>

#include <cmath>
#include <iostream>
#include <string>
#include <utility>

using namespace portcall;

// ---- Functions ----------------------------------------------------------------------------------------------------

// The body gets its arguments as they come and converts each where it is used; a wrong type is an error with its place.
PORTCALL_REGISTER_GLOBAL("example.add").set_body([](Args args, RetValue* rv) {
  int a = args[0], b = args[1];
  *rv = a + b;
});

// Typed: arguments are checked against the signature before the body runs.
PORTCALL_REGISTER_GLOBAL("example.multiply").set_body_typed([](int a, int b) { return a * b; });

// A C++ function that takes a function of whatever language, and calls it.
std::string CallHello(PackedFunc f) { return f("hello"); }
PORTCALL_REGISTER_GLOBAL("example.call_hello").set_body_typed(CallHello);

// The same with a signature: a function that breaks it is refused when it returns.
double Integrate(TypedPackedFunc<double(double)> f, double from, double to) {
  constexpr int kSteps = 1000;
  double sum = 0, step = (to - from) / kSteps;
  for (int i = 0; i < kSteps; ++i) sum += f(from + (i + 0.5) * step) * step;
  return sum;
}
PORTCALL_REGISTER_GLOBAL("example.integrate").set_body_typed(Integrate);

// ---- Methods ------------------------------------------------------------------------------------------------------

// An object type: a node with the data, and a reference that is passed around and counted.
struct CounterObj : Object {
  static constexpr const char* kTypeKey = "example.Counter";
  int64_t count = 0;
  int64_t Add(int64_t n) { return count += n; }
};
class Counter : public ObjectRef {
  PORTCALL_OBJECT_REF(Counter, CounterObj)
  bool IsZero() const { return node()->count == 0; }
};
PORTCALL_REGISTER_GLOBAL("example.Counter").set_body_typed([] { return Make<Counter>(); });
PORTCALL_REGISTER_GLOBAL("example.CounterAdd").set_body_method<Counter>(&CounterObj::Add);  // a method of the node
PORTCALL_REGISTER_GLOBAL("example.CounterIsZero").set_body_method(&Counter::IsZero);        // one of the reference
PORTCALL_REGISTER_GLOBAL("example.ShapeSize").set_body_method(&Shape::size);

// A value type travels once TypeTraits say how: here as an array of two numbers.
struct Point {
  double x, y;
  double Norm() const { return std::hypot(x, y); }
};
template <> struct portcall::TypeTraits<Point> {
  static std::string Name() { return "Point"; }
  static std::optional<Point> TryFrom(const TVMFFIAny& value) {
    auto numbers = TypeTraits<Array<double>>::TryFrom(value);
    if (!numbers || numbers->size() != 2) return std::nullopt;
    return Point{(*numbers)[0], (*numbers)[1]};
  }
  static void To(Point p, TVMFFIAny* out) { TypeTraits<Array<double>>::To({p.x, p.y}, out); }
};
PORTCALL_REGISTER_GLOBAL("example.PointNorm").set_body_method(&Point::Norm);

// ---- Calls --------------------------------------------------------------------------------------------------------

void CallFunctions() {
  PackedFunc add = Registry::Get("example.add");
  int sum = add(1, 2);  // a result converts to what it is assigned to
  std::cout << "add(1, 2) = " << sum << '\n';

  TypedPackedFunc<int(int, int)> multiply = Registry::Get("example.multiply");
  std::cout << "multiply(6, 7) = " << multiply(6, 7) << '\n';

  PackedFunc shout([](Args args, RetValue* rv) { *rv = args[0].cast<std::string>() + "!"; });
  std::cout << "call_hello(shout) = " << Registry::Get("example.call_hello")(shout).cast<std::string>() << '\n';

  TypedPackedFunc<double(double)> square = [](double x) { return x * x; };
  std::cout << "integrate(square, 0, 3) = "
            << std::round(Registry::Get("example.integrate")(square, 0, 3).cast<double>()) << '\n';
}

void CallMethods() {
  Counter counter = Registry::Get("example.Counter")();
  PackedFunc counter_add = Registry::Get("example.CounterAdd");
  counter_add(counter, 40);
  std::cout << "counter + 40 + 2 = " << counter_add(counter, 2).cast<int>() << '\n';
  std::cout << "counter is zero: " << Registry::Get("example.CounterIsZero")(counter).cast<bool>() << '\n';
  std::cout << "norm of (3, 4) = " << Registry::Get("example.PointNorm")(Point{3, 4}).cast<double>() << '\n';
  std::cout << "size of a 3-d shape = " << Registry::Get("example.ShapeSize")(Shape{2, 3, 4}).cast<int>() << '\n';
}

void ShowErrors() {
  try {
    Registry::Get("example.multiply")("six", 7);
  } catch (const Error& e) {
    std::cout << e.kind() << ": " << e.message() << '\n';
  }
}

void ManageNames() {
  int examples = 0;
  for (const std::string& name : Registry::ListNames()) examples += name.rfind("example.", 0) == 0;
  std::cout << "functions of this example: " << examples << '\n';
  bool removed = Registry::Remove("example.add");
  std::cout << "removed example.add: " << removed << ", found again: " << Registry::Get("example.add").defined()
            << '\n';
}

int main() {
  CallFunctions();
  CallMethods();
  ShowErrors();
  ManageNames();
  return 0;
}
