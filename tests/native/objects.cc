// SPDX-License-Identifier: Apache-2.0
// Types of objects for the Python tests, described as a user describes them.
#include <portcall/ir.h>
#include <portcall/portcall.h>

#include <complex>

using namespace portcall;

namespace {

struct ExprObj : Object {
  PORTCALL_OBJECT(ExprObj, Object, "cpp.Expr")
  static void Describe(Description<ExprObj>* type) { type->doc("An expression."); }
};
PORTCALL_REGISTER_OBJECT(ExprObj);
class Expr : public ObjectRef {
  PORTCALL_OBJECT_REF(Expr, ExprObj)
};

struct VarObj : ExprObj {
  String name;
  PORTCALL_OBJECT(VarObj, ExprObj, "cpp.Var")
  static void Describe(Description<VarObj>* type) {
    type->compare_as(kTVMFFISEqHashKindFreeVar);
    type->field("name", &VarObj::name, "for people");
  }
};
PORTCALL_REGISTER_OBJECT(VarObj);
class Var : public Expr {
 public:
  PORTCALL_OBJECT_REF(Var, VarObj)
};

struct AddObj : ExprObj {
  Expr lhs, rhs;
  String span;
  PORTCALL_OBJECT(AddObj, ExprObj, "cpp.Add")
  static void Describe(Description<AddObj>* type) {
    type->doc("The sum of two expressions.");
    type->field("lhs", &AddObj::lhs, "what is added to");
    type->field("rhs", &AddObj::rhs);
    type->field("span", &AddObj::span, "where it stands").set_default("").ignore();
    type->method("depth", &AddObj::Depth, "levels of sums below");
    type->static_method("zero", [] { return int64_t{0}; });
  }
  int64_t Depth() const {
    int64_t left = lhs.as<AddObj>() ? lhs.as<AddObj>()->Depth() : 0;
    int64_t right = rhs.as<AddObj>() ? rhs.as<AddObj>()->Depth() : 0;
    return 1 + (left > right ? left : right);
  }
};
PORTCALL_REGISTER_OBJECT(AddObj);
class Add : public Expr {
 public:
  PORTCALL_OBJECT_REF(Add, AddObj)
};

struct NamedAddObj : AddObj {
  String name;
  PORTCALL_OBJECT(NamedAddObj, AddObj, "cpp.NamedAdd")
  static void Describe(Description<NamedAddObj>* type) { type->field("name", &NamedAddObj::name).set_default("sum"); }
};
PORTCALL_REGISTER_OBJECT(NamedAddObj);

struct CounterObj : Object {
  int64_t count = 0;
  double step = 0.5;
  bool up = true;
  Array<Any> seen;
  DLDataType dtype{kDLFloat, 32, 1};
  PORTCALL_OBJECT(CounterObj, Object, "cpp.Counter")
  static void Describe(Description<CounterObj>* type) {
    type->field("count", &CounterObj::count).set_default(0).writable();
    type->field("step", &CounterObj::step).set_default(0.5).writable();
    type->field("up", &CounterObj::up).set_default(true).keyword_only();
    type->field("seen", &CounterObj::seen).set_default_factory([] { return Array<Any>(std::vector<Any>()); });
    type->field("dtype", &CounterObj::dtype).set_default(DLDataType{kDLFloat, 32, 1}).hide();
  }
};
PORTCALL_REGISTER_OBJECT(CounterObj);
class Counter : public ObjectRef {
  PORTCALL_OBJECT_REF(Counter, CounterObj)
};

struct SealedObj : Object {
  explicit SealedObj(int64_t given) : value(given) {}
  int64_t value;
  PORTCALL_OBJECT(SealedObj, Object, "cpp.Sealed")
  static void Describe(Description<SealedObj>* type) { type->field("value", &SealedObj::value); }
};
PORTCALL_REGISTER_OBJECT(SealedObj);

PORTCALL_REGISTER_GLOBAL("cpp_objects.sealed").set_body_typed([](int64_t value) {
  return ObjectRef::Steal(NewNode<SealedObj>(value));
});
PORTCALL_REGISTER_GLOBAL("cpp_objects.swap").set_body_typed([](Add sum) {
  Add copy = sum;
  AddObj* node = CopyOnWrite(&copy);
  std::swap(node->lhs, node->rhs);
  return copy;
});
PORTCALL_REGISTER_GLOBAL("cpp_objects.add").set_body_typed([](Expr a, Expr b) {
  Add sum = Make<Add>();
  sum->lhs = a;
  sum->rhs = b;
  return sum;
});
PORTCALL_REGISTER_GLOBAL("cpp_objects.as_var").set_body_typed([](ObjectRef any) { return Downcast<Var>(any)->name; });
// Types that are defined elsewhere, at run time: by name alone.
PORTCALL_REGISTER_GLOBAL("cpp_objects.create").set_body([](Args args, RetValue* rv) {
  std::vector<Any> values;
  for (int i = 1; i < args.size(); ++i) values.emplace_back(args[i]);
  *rv = CreateObject(args[0].cast<std::string_view>(), values);
});
PORTCALL_REGISTER_GLOBAL("cpp_objects.get").set_body_typed([](ObjectRef obj, std::string name) {
  return GetField(obj, name);
});

// Passes over sums. What runs them is in another library, which Python has loaded.
Expr Chain(int64_t length) {
  Expr chain;
  for (int64_t i = length; i-- > 0;) {
    Var var = Make<Var>();
    var->name = "x" + std::to_string(i);
    if (!chain.defined()) {
      chain = var;
      continue;
    }
    Add sum = Make<Add>();
    sum->lhs = var;
    sum->rhs = chain;
    chain = sum;
  }
  return chain;
}
Any SwapAll(Any expr) {
  PackedFunc swap([](Args args, RetValue* rv) {
    Add sum = args[0];
    AddObj* node = CopyOnWrite(&sum);
    std::swap(node->lhs, node->rhs);
    *rv = sum;
  });
  return Registry::Get("portcall.ir.Rewrite")(expr, "cpp.Add", swap);
}
PORTCALL_REGISTER_GLOBAL("cpp_objects.chain").set_body_typed(Chain);
PORTCALL_REGISTER_GLOBAL("cpp_objects.swap_all").set_body_typed(SwapAll);
PORTCALL_REGISTER_GLOBAL("cpp_objects.fail").set_body_typed([](Any) -> Any {
  PORTCALL_THROW(ValueError) << "no such variable";
});
// A pipeline of Python is a function here.
PORTCALL_REGISTER_GLOBAL("cpp_objects.run_pipeline").set_body_typed([](PackedFunc pipeline, int64_t length) {
  return pipeline(SwapAll(Chain(length))).cast<Expr>();
});
PORTCALL_REGISTER_GLOBAL("cpp_objects.setting").set_body_typed([](std::string name) {
  return Registry::Get("portcall.ir.pass_setting")(name).cast<Any>();
});

}  // namespace

// A C++ type that travels as an object: what Python registers with register_value_type under the same key.
namespace portcall {
template <> struct TypeTraits<std::complex<double>> {
  static std::string Name() { return "complex"; }
  static std::optional<std::complex<double>> TryFrom(const TVMFFIAny& value) {
    if (TypeKeyOf(value.type_index) != "test.complex") return std::nullopt;
    Array<double> parts = GetField(ObjectRef::Borrow(value.v_obj), "value");
    return std::complex<double>(parts[0], parts[1]);
  }
  static void To(std::complex<double> value, TVMFFIAny* out) {
    *out = Any(CreateObject("test.complex", {Array<double>{value.real(), value.imag()}})).release();
  }
};
}  // namespace portcall
PORTCALL_REGISTER_GLOBAL("cpp_objects.square").set_body_typed([](std::complex<double> z) { return z * z; });
