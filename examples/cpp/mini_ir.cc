// SPDX-License-Identifier: Apache-2.0
// The IR of examples/mini_ir.py in C++: types that are described once, a graph, and a pass that rewrites it.
//
//   python -c "from portcall import toolchain; toolchain.create_executable('mini_ir.cc', 'mini_ir')" && ./mini_ir
#include <portcall/ir.h>
#include <portcall/portcall.h>

#include <iostream>

using namespace portcall;

namespace mini {

struct ExprObj : Object {
  PORTCALL_OBJECT(ExprObj, Object, "mini.Expr")
  static void Describe(Description<ExprObj>* type) { type->doc("An expression."); }
};
PORTCALL_REGISTER_OBJECT(ExprObj);
class Expr : public ObjectRef {
  PORTCALL_OBJECT_REF(Expr, ExprObj)
};

struct VarObj : ExprObj {
  String name;
  PORTCALL_OBJECT(VarObj, ExprObj, "mini.Var")
  static void Describe(Description<VarObj>* type) {
    type->compare_as(kTVMFFISEqHashKindFreeVar);
    type->field("name", &VarObj::name).ignore();
  }
};
PORTCALL_REGISTER_OBJECT(VarObj);
class Var : public Expr {
  PORTCALL_OBJECT_REF(Var, VarObj)
  explicit Var(const char* name) : Var(Make<Var>()) { node()->name = name; }
};

struct ConstObj : ExprObj {
  int64_t value = 0;
  PORTCALL_OBJECT(ConstObj, ExprObj, "mini.Const")
  static void Describe(Description<ConstObj>* type) { type->field("value", &ConstObj::value); }
};
PORTCALL_REGISTER_OBJECT(ConstObj);
class Const : public Expr {
  PORTCALL_OBJECT_REF(Const, ConstObj)
  explicit Const(int64_t value) : Const(Make<Const>()) { node()->value = value; }
};

struct BinaryObj : ExprObj {
  String op;
  Expr lhs, rhs;
  String span;
  PORTCALL_OBJECT(BinaryObj, ExprObj, "mini.Binary")
  static void Describe(Description<BinaryObj>* type) {
    type->field("op", &BinaryObj::op);
    type->field("lhs", &BinaryObj::lhs);
    type->field("rhs", &BinaryObj::rhs);
    type->field("span", &BinaryObj::span, "where it stands in the source").set_default("").ignore();
  }
};
PORTCALL_REGISTER_OBJECT(BinaryObj);
class Binary : public Expr {
  PORTCALL_OBJECT_REF(Binary, BinaryObj)
  Binary(const char* op, Expr lhs, Expr rhs) : Binary(Make<Binary>()) {
    node()->op = op;
    node()->lhs = std::move(lhs);
    node()->rhs = std::move(rhs);
  }
};

struct FunctionObj : Object {
  Array<Var> params;
  Expr body;
  PORTCALL_OBJECT(FunctionObj, Object, "mini.Function")
  static void Describe(Description<FunctionObj>* type) {
    type->field("params", &FunctionObj::params).defines_variable();
    type->field("body", &FunctionObj::body);
  }
};
PORTCALL_REGISTER_OBJECT(FunctionObj);
class Function : public ObjectRef {
  PORTCALL_OBJECT_REF(Function, FunctionObj)
  Function(Var param, Expr body) : Function(Make<Function>()) {
    node()->params = Array<Var>{std::move(param)};
    node()->body = std::move(body);
  }
};

// Computes what is known: from the leaves up, so that one walk is enough.
Any Fold(Any func) {
  return ir::Rewrite<Binary>(func, [](const Binary& node) -> Any {
    auto *lhs = node->lhs.as<ConstObj>(), *rhs = node->rhs.as<ConstObj>();
    if (!lhs || !rhs) return nullptr;  // the node stays
    if (node->op.view() == "+") return Const(lhs->value + rhs->value);
    if (node->op.view() == "*") return Const(lhs->value * rhs->value);
    PORTCALL_THROW(KeyError) << "no operation is called '" << node->op.view() << "'";
  });
}

// f(x) = (x * (2 + -1)) + (3 * 4).
Function Example(const char* name) {
  Var x(name);
  return {x, Binary("+", Binary("*", x, Binary("+", Const(2), Const(-1))), Binary("*", Const(3), Const(4)))};
}

}  // namespace mini

int main() {
  using namespace mini;
  mini::Function func = Example("x"), other = Example("y");
  std::cout << "equal:     " << ir::StructuralEqual(func, other) << "\n";
  std::cout << "same hash: " << (ir::StructuralHash(func) == ir::StructuralHash(other)) << "\n";
  std::cout << "JSON:      " << ir::StructuralEqual(ir::LoadJson(ir::SaveJson(func)), func) << "\n";

  Any better = Fold(func);
  std::cout << "mismatch:  " << ir::FirstMismatch(func, better) << "\n";
  int nodes = 0;
  ir::Walk<Expr>(better, ir::Order::kPre, [&](const Expr&) { ++nodes; });
  std::cout << "nodes:     " << nodes << "\n";
  try {
    Fold(Function(Var("x"), Binary("-", Const(1), Const(2))));
  } catch (const Error& error) {
    std::cout << error.what() << "\n" << error.backtrace().substr(error.backtrace().find(Error::kNotePrefix));
  }
  return 0;
}
