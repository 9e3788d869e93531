// SPDX-License-Identifier: Apache-2.0
// Types that the tests of this folder build their graphs of: some of C++, some defined at run time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "portcall/ir.h"
#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

namespace nodes {

using namespace portcall;

struct ExprObj : Object {
  PORTCALL_OBJECT(ExprObj, Object, "test.ir.Expr")
  static void Describe(Description<ExprObj>*) {}
};
class Expr : public ObjectRef {
  PORTCALL_OBJECT_REF(Expr, ExprObj)
};

struct VarObj : ExprObj {
  String name;
  PORTCALL_OBJECT(VarObj, ExprObj, "test.ir.Var")
  static void Describe(Description<VarObj>* type) {
    type->compare_as(kTVMFFISEqHashKindFreeVar);
    type->field("name", &VarObj::name).ignore();
  }
};
class Var : public Expr {
  PORTCALL_OBJECT_REF(Var, VarObj)
  explicit Var(const char* name) {
    auto* node = NewNode<VarObj>();
    node->name = name;
    ptr_ = node;
  }
};

struct ConstObj : ExprObj {
  Any value;
  std::vector<int64_t> dims;  // read through a getter
  PORTCALL_OBJECT(ConstObj, ExprObj, "test.ir.Const")
  static void Describe(Description<ConstObj>* type) {
    type->field("value", &ConstObj::value);
    type->field("dims", &ConstObj::dims).set_default(Array<Any>(std::vector<Any>()));
  }
};
class Const : public Expr {
  PORTCALL_OBJECT_REF(Const, ConstObj)
  explicit Const(Any value, std::vector<int64_t> dims = {}) {
    auto* node = NewNode<ConstObj>();
    node->value = std::move(value);
    node->dims = std::move(dims);
    ptr_ = node;
  }
};

struct AddObj : ExprObj {
  Expr lhs, rhs;
  String span;
  PORTCALL_OBJECT(AddObj, ExprObj, "test.ir.Add")
  static void Describe(Description<AddObj>* type) {
    type->field("lhs", &AddObj::lhs).writable();
    type->field("rhs", &AddObj::rhs).writable();
    type->field("span", &AddObj::span).set_default("").ignore();
  }
};
class Add : public Expr {
  PORTCALL_OBJECT_REF(Add, AddObj)
  Add(Expr lhs, Expr rhs, const char* span = "") {
    auto* node = NewNode<AddObj>();
    node->lhs = std::move(lhs);
    node->rhs = std::move(rhs);
    node->span = span;
    ptr_ = node;
  }
};

struct LambdaObj : ExprObj {
  Array<Var> params;
  Expr body;
  PORTCALL_OBJECT(LambdaObj, ExprObj, "test.ir.Lambda")
  static void Describe(Description<LambdaObj>* type) {
    type->field("params", &LambdaObj::params).defines_variable();
    type->field("body", &LambdaObj::body);
  }
};
class Lambda : public Expr {
  PORTCALL_OBJECT_REF(Lambda, LambdaObj)
  Lambda(const std::vector<Var>& params, Expr body) {
    auto* node = NewNode<LambdaObj>();
    node->params = Array<Var>(params);
    node->body = std::move(body);
    ptr_ = node;
  }
};

// Defines a type at run time whose fields hold anything.
inline int32_t Define(const char* key, const std::vector<std::pair<const char*, int64_t>>& fields,
                      TVMFFISEqHashKind kind = kTVMFFISEqHashKindTreeNode) {
  std::vector<PortcallFieldSpec> specs;
  for (const auto& [name, flags] : fields) {
    PortcallFieldSpec spec{};
    spec.name = ToByteArray(name);
    spec.flags = flags;
    spec.type_index = kTVMFFIAny;
    specs.push_back(spec);
  }
  TVMFFIByteArray name = ToByteArray(key);
  TVMFFITypeMetadata metadata{};
  metadata.structural_eq_hash_kind = kind;
  int32_t index = -1;
  Check(PortcallTypeDefine(&name, kTVMFFIObject, &metadata, specs.data(), static_cast<int32_t>(specs.size()), &index));
  return index;
}

inline int32_t PairType() {
  static const int32_t index = Define("test.ir.Pair", {{"first", 0}, {"second", 0}});
  return index;
}
inline ObjectRef Pair(Any first, Any second) { return CreateObject(PairType(), {std::move(first), std::move(second)}); }

// Pairs linked through `second`.
inline Any Chain(int length) {
  Any chain;
  for (int i = 0; i < length; ++i) chain = Pair(i, chain);
  return chain;
}

// A full tree of pairs, `levels` deep, with ints at its leaves.
inline Any Tree(int levels, int64_t* next) {
  if (levels == 0) return (*next)++;
  Any first = Tree(levels - 1, next);
  return Pair(std::move(first), Tree(levels - 1, next));
}
inline Any Tree(int levels) {
  int64_t next = 0;
  return Tree(levels, &next);
}

// `levels` pairs, each of which holds the next one twice: 2^levels paths.
inline Any Diamonds(int levels) {
  Any node("bottom");
  for (int i = 0; i < levels; ++i) node = Pair(node, node);
  return node;
}

inline bool Equal(const Any& a, const Any& b) {
  bool equal = ir::StructuralEqual(a, b);
  // What agrees with equality is checked wherever something is compared.
  CHECK_EQ(ir::StructuralEqual(b, a), equal);
  CHECK_EQ(ir::FirstMismatch(a, b).empty(), equal);
  CHECK(!equal || ir::StructuralHash(a) == ir::StructuralHash(b));
  return equal;
}

inline Any Again(const Any& value) {
  Any by_json = ir::LoadJson(ir::SaveJson(value)), by_bytes = ir::FromBytes(ir::ToBytes(value));
  CHECK_EQ(ir::SaveJson(by_json), ir::SaveJson(value));
  CHECK_EQ(ir::SaveJson(by_bytes), ir::SaveJson(value));
  CHECK_EQ(ir::LoadJson(ir::SaveJson(value, 2)).type_index(), by_json.type_index());
  return by_json;
}

}  // namespace nodes
