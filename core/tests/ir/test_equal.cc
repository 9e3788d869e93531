// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/ir/nodes.h"

using namespace nodes;

namespace {

Tensor Floats(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  Tensor tensor = Tensor::Empty(shape, DataTypeOf<float>());
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

// The same bytes as elements of another type.
Tensor SameBits(const Tensor& tensor, const char* dtype) {
  Tensor other = Tensor::Empty({2}, DataTypeFromString(dtype));
  std::memcpy(other.raw_data(), tensor.raw_data(), NumBytes(*tensor.dl_tensor()));
  return other;
}

Any Wide(uint64_t low, uint64_t high) {
  uint64_t words[] = {low, high};
  TVMFFIByteArray bytes{reinterpret_cast<const char*>(words), sizeof words};
  Any value;
  Check(TVMFFIBigIntFromByteArray(&bytes, value.out()));
  return value;
}

Any Items(const std::vector<Any>& items) { return Array<Any>(items); }
Any Pairs(const std::vector<std::pair<Any, Any>>& pairs) { return Map<Any, Any>(pairs); }

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST("values are equal to those of their own kind and content") {
  const std::vector<Any> different = {nullptr,
                                      0,
                                      1,
                                      -1,
                                      false,
                                      true,
                                      0.0,
                                      -0.0,
                                      1.0,
                                      kNaN,
                                      HUGE_VAL,
                                      "",
                                      "a",
                                      "ab",
                                      std::string("a\0", 2),
                                      "eight by",
                                      "a text that is longer",
                                      Bytes(""),
                                      Bytes("a"),
                                      Bytes("a text that is longer"),
                                      DataTypeFromString("float32"),
                                      DataTypeFromString("int8"),
                                      DLDevice{kDLCPU, 0},
                                      DLDevice{kDLCPU, 1},
                                      Shape({1, 2}),
                                      Shape({2, 1}),
                                      Shape({}),
                                      Items({}),
                                      Items({1, 2}),
                                      Items({2, 1}),
                                      Items({nullptr}),
                                      List<Any>({1, 2}),
                                      Pairs({}),
                                      Pairs({{1, 2}}),
                                      Pairs({{1, 3}}),
                                      Pairs({{2, 2}}),
                                      Dict<Any, Any>({{1, 2}}),
                                      Wide(0, 1),
                                      Wide(1, 1),
                                      Wide(0, ~uint64_t{1}),
                                      Floats({1, 2}, {2}),
                                      Floats({1, 2}, {2, 1}),
                                      Floats({1, 3}, {2}),
                                      SameBits(Floats({1, 2}, {2}), "int32"),
                                      Const(1),
                                      Const(2),
                                      Const(1, {3}),
                                      Add(nullptr, nullptr)};
  for (size_t i = 0; i < different.size(); ++i) {
    for (size_t k = 0; k < different.size(); ++k) {
      CHECK_EQ(Equal(different[i], different[k]), i == k);
      CHECK_EQ(ir::StructuralHash(different[i]) == ir::StructuralHash(different[k]), i == k);
      CHECK_EQ(Equal(Items({different[i]}), Items({different[k]})), i == k);
    }
  }
  CHECK(Equal(Wide(7, 1), Wide(7, 1)));
  CHECK(Equal(kNaN, -std::numeric_limits<double>::quiet_NaN()));
  CHECK(Equal("a text that is longer", std::string("a text that is longer")));
  CHECK(Equal(Floats({1, 2}, {2}), Floats({1, 2}, {2})));
  CHECK(Equal(Floats({kNaN}, {1}), Floats({kNaN}, {1})));
}

TEST("functions, modules and objects that nobody described are equal to themselves alone") {
  PackedFunc f([](Args, RetValue*) {}), g([](Args, RetValue*) {});
  CHECK(Equal(Items({f}), Items({f})));
  CHECK(!Equal(Items({f}), Items({g})));
  int32_t unique = Define("test.ir.Unique", {{"a", 0}}, kTVMFFISEqHashKindUniqueInstance);
  ObjectRef a = CreateObject(unique, {1}), b = CreateObject(unique, {1}), c = CreateObject(unique, {2});
  CHECK(Equal(Items({a}), Items({a})));
  CHECK(!Equal(Items({a}), Items({b})));
  CHECK_EQ(ir::StructuralHash(a), ir::StructuralHash(c));
  int32_t silent = Define("test.ir.Silent", {{"a", 0}}, kTVMFFISEqHashKindUnsupported);
  CHECK(!Equal(CreateObject(silent, {1}), CreateObject(silent, {1})));
  CHECK_EQ(ir::StructuralHash(CreateObject(silent, {1})), ir::StructuralHash(CreateObject(silent, {2})));
}

TEST("ignored fields do not count, and fields by identity want the very same object") {
  CHECK(Equal(Add(Const(1), Const(2), "here"), Add(Const(1), Const(2), "there")));
  int32_t owner = Define("test.ir.Owner", {{"it", kPortcallFieldFlagIdentity}});
  Any one = Items({1}), other = Items({1});
  CHECK(Equal(CreateObject(owner, {one}), CreateObject(owner, {one})));
  CHECK(!Equal(CreateObject(owner, {one}), CreateObject(owner, {other})));
  CHECK(Equal(CreateObject(owner, {"a text that is longer"}), CreateObject(owner, {"a text that is longer"})));
  CHECK(!Equal(CreateObject(owner, {"a text that is longer"}), CreateObject(owner, {one})));
}

TEST("the order of a map's entries does not count") {
  Any key = Const(3);
  CHECK(Equal(Pairs({{"a", 1}, {2, "b"}, {key, Const(4)}}), Pairs({{Const(3), Const(4)}, {2, "b"}, {"a", 1}})));
  CHECK(!Equal(Pairs({{"a", 1}, {"b", 2}}), Pairs({{"a", 2}, {"b", 1}})));
  CHECK(!Equal(Pairs({{"a", 1}, {"b", 2}}), Pairs({{"a", 1}, {"c", 2}})));
  CHECK(!Equal(Pairs({{1, 1}}), Pairs({{true, 1}})));
  std::vector<std::pair<Any, Any>> many;
  for (int i = 0; i < 1000; ++i) many.emplace_back(i, Items({i}));
  Any forward = Pairs(many);
  std::reverse(many.begin(), many.end());
  CHECK(Equal(forward, Pairs(many)));
}

TEST("variables stand for each other where they are defined") {
  Var x("x"), y("y"), z("z");
  CHECK(Equal(Lambda({x}, Add(x, Const(1))), Lambda({y}, Add(y, Const(1)))));
  CHECK(!Equal(Lambda({x}, Add(x, Const(1))), Lambda({y}, Add(x, Const(1)))));
  CHECK(!Equal(Lambda({x}, x), Lambda({x}, y)));
  CHECK(Equal(Lambda({x, y}, Add(x, y)), Lambda({y, x}, Add(y, x))));
  CHECK(!Equal(Lambda({x, y}, Add(x, y)), Lambda({x, y}, Add(y, x))));
  CHECK(!Equal(Lambda({x, y}, Add(x, x)), Lambda({x, z}, Add(x, z))));
  CHECK(Equal(Lambda({x}, Lambda({y}, Add(x, y))), Lambda({y}, Lambda({z}, Add(y, z)))));
}

TEST("a variable that is defined nowhere equals itself alone, unless it may be matched") {
  Var x("x"), y("y");
  CHECK(Equal(Add(x, x), Add(x, x)));
  CHECK(!Equal(x, y));
  CHECK(!Equal(Add(x, y), Add(y, x)));
  CHECK(ir::StructuralEqual(Add(x, y), Add(y, x), true));
  CHECK(!ir::StructuralEqual(Add(x, x), Add(y, x), true));
  CHECK_EQ(ir::StructuralHash(Add(x, y), true), ir::StructuralHash(Add(y, x), true));
  CHECK(ir::StructuralHash(Add(x, y), true) != ir::StructuralHash(Add(x, x), true));
}

TEST("what two graphs have in common is looked into when a variable in it may stand for another one") {
  Var x("x"), y("y");
  Expr common = Add(x, Const(1));
  CHECK(!Equal(Lambda({x}, common), Lambda({y}, common)));
  CHECK(!Equal(Add(common, Lambda({x}, x)), Add(common, Lambda({y}, y))));
  Expr closed = Lambda({y}, y);
  CHECK(Equal(Add(closed, Lambda({x}, x)), Add(closed, Lambda({x}, x))));
}

TEST("a lambda that is held twice equals one that is copied") {
  Var x("x");
  Expr lambda = Lambda({x}, Add(x, x));
  CHECK(Equal(Add(lambda, lambda), Add(Lambda({x}, Add(x, x)), Lambda({x}, Add(x, x)))));
}

TEST("variables are keys of maps, and maps define variables, in an order that does not depend on insertion") {
  Var x("x"), y("y"), a("a"), b("b");
  auto lambda = [](const Var& p, const Var& q, std::vector<std::pair<Any, Any>> pairs) {
    Any map = Map<Any, Any>(pairs);
    return Pair(Lambda({p, q}, p), map);
  };
  CHECK(Equal(lambda(x, y, {{x, 1}, {y, 2}}), lambda(a, b, {{b, 2}, {a, 1}})));
  CHECK(!Equal(lambda(x, y, {{x, 1}, {y, 2}}), lambda(a, b, {{b, 1}, {a, 2}})));
  int32_t scope = Define("test.ir.Scope", {{"vars", kTVMFFIFieldFlagBitMaskSEqHashDefPattern}, {"body", 0}});
  auto open = [&](std::vector<std::pair<Any, Any>> vars, Any body) {
    return CreateObject(scope, {Map<Any, Any>(vars), body});
  };
  CHECK(Equal(open({{"p", x}, {"q", Pair(y, 1)}}, Add(x, y)), open({{"q", Pair(b, 1)}, {"p", a}}, Add(a, b))));
  CHECK(!Equal(open({{"p", x}, {"q", y}}, Add(x, y)), open({{"q", b}, {"p", a}}, Add(b, a))));
}

TEST("a field that defines a variable stops at objects, one that defines what it reaches does not") {
  int32_t here = Define("test.ir.Here", {{"def", kTVMFFIFieldFlagBitMaskSEqHashDefSimple}});
  int32_t below = Define("test.ir.Below", {{"def", kTVMFFIFieldFlagBitMaskSEqHashDefPattern}});
  Var x("x"), y("y");
  CHECK(Equal(CreateObject(here, {Items({x})}), CreateObject(here, {Items({y})})));
  CHECK(!Equal(CreateObject(here, {Pair(x, 0)}), CreateObject(here, {Pair(y, 0)})));
  CHECK(Equal(CreateObject(below, {Pair(x, 0)}), CreateObject(below, {Pair(y, 0)})));
}

TEST("the fields of a variable count too") {
  int32_t typed = Define("test.ir.Typed", {{"type", 0}}, kTVMFFISEqHashKindFreeVar);
  int32_t here = Define("test.ir.Here", {{"def", kTVMFFIFieldFlagBitMaskSEqHashDefSimple}});
  auto bind = [&](Any type) { return CreateObject(here, {CreateObject(typed, {type})}); };
  CHECK(Equal(bind("int"), bind("int")));
  CHECK(!Equal(bind("int"), bind("float")));
}

TEST("sharing counts for the types that say so only") {
  int32_t dag = Define("test.ir.Dag", {{"value", 0}}, kTVMFFISEqHashKindDAGNode);
  auto node = [&] { return Any(CreateObject(dag, {1})); };
  Any one = node(), two = node();
  CHECK(Equal(Pair(one, one), Pair(two, two)));
  CHECK(!Equal(Pair(one, one), Pair(one, two)));
  CHECK(!Equal(Pair(one, one), Pair(node(), node())));
  CHECK(Equal(Pair(one, two), Pair(node(), node())));
  Any tree = Pair(1, 2);
  CHECK(Equal(Pair(tree, tree), Pair(Pair(1, 2), Pair(1, 2))));
}

TEST("the first mismatch has its path") {
  auto mismatch = [](const Any& a, const Any& b) { return ir::FirstMismatch(a, b); };
  CHECK_EQ(mismatch(Add(Const("x"), Const(1)), Add(Const("x"), Const(2))), "<root>.rhs.value: 1 != 2");
  CHECK_EQ(mismatch(1, 1.0), "<root>: 1 != 1.0");
  CHECK_EQ(mismatch(Const("text"), Const(Any())), "<root>.value: \"text\" != None");
  CHECK_EQ(mismatch(Add(Const(1), Const(2)), Add(Const(1), Var("x"))),
           "<root>.rhs: test.ir.Const(value=2) != test.ir.Var(name=\"x\")");
  CHECK_EQ(mismatch(Items({1, Items({2, 3})}), Items({1, Items({2, 4})})), "<root>[1][1]: 3 != 4");
  CHECK_EQ(mismatch(Items({1}), Items({1, 2})), "<root>: Array != Array (1 and 2 items)");
  CHECK_EQ(mismatch(Pairs({{"key", 1}}), Pairs({{"key", 2}})), "<root>[\"key\"]: 1 != 2");
  CHECK(Contains(mismatch(Pairs({{"a", 1}}), Pairs({{"b", 1}})), "one has the key \""));
  CHECK_EQ(mismatch(Const(1, {2, 3}), Const(1, {2, 4})), "<root>.dims[1]: 3 != 4");
  CHECK_EQ(mismatch(Items({Floats({1}, {1})}), Items({Floats({2}, {1})})),
           "<root>[0]: Tensor((1,), float32) != Tensor((1,), float32) (the elements differ)");
  CHECK_EQ(mismatch(Add(Var("x"), Const(1)), Add(Var("y"), Const(1))),
           "<root>.lhs: test.ir.Var(name=\"x\") != test.ir.Var(name=\"y\") (a variable that is defined nowhere equals "
           "itself alone)");
  CHECK_EQ(mismatch(true, false), "<root>: True != False");
  Any left(1), right(2);
  for (int i = 0; i < 300; ++i) left = Items({left}), right = Items({right});
  CHECK(Contains(mismatch(left, right), "[0] … (200 steps) … [0]"));
  Var x("x"), y("y");
  CHECK_EQ(mismatch(Lambda({x}, Add(x, x)), Lambda({y}, Add(y, x))),
           "<root>.body.rhs: test.ir.Var(name=\"x\") != test.ir.Var(name=\"x\") (one of the variables stands for "
           "another one already: define each in one place)");
}

TEST("strided tensors are compared by their elements") {
  Tensor whole = Floats({1, 2, 3, 4}, {2, 2});
  int64_t shape[] = {2, 2}, strides[] = {1, 2};
  DLTensor description = *whole.dl_tensor();
  description.shape = shape;
  description.strides = strides;
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(whole.get(), &description, &handle));
  Any turned = ObjectRef::Steal(handle);
  CHECK(Equal(turned, Floats({1, 3, 2, 4}, {2, 2})));
  CHECK(!Equal(turned, whole));
  CHECK(Equal(Again(turned), turned));
}

TEST("hashes are the promised ones") {
  // A change of these is a change of the major version.
  CHECK_EQ(ir::StructuralHash(nullptr), 288448936178070599u);
  CHECK_EQ(ir::StructuralHash(42), 17828861007828837988u);
  CHECK_EQ(ir::StructuralHash("a text that is longer"), 6478610625695343220u);
  Var x("x");
  CHECK_EQ(ir::StructuralHash(Lambda({x}, Add(x, Const(1.5, {1, 2})))), 15021155584341227552u);
  CHECK_EQ(ir::StructuralHash(Pairs({{"a", Items({1, true})}, {2, Shape({3})}})), 7252994367286920678u);
  CHECK_EQ(ir::StructuralHash(Floats({1, 2, 3}, {3})), 10102906592070535517u);
}

TEST("a chain 200,000 deep and a graph with 2^200 paths are compared and hashed") {
  Any chain = Chain(200000);
  CHECK(ir::StructuralEqual(chain, Chain(200000)));
  CHECK_EQ(ir::StructuralHash(chain), ir::StructuralHash(Chain(200000)));
  CHECK(!ir::StructuralEqual(chain, Chain(200001)));
  CHECK(Equal(Diamonds(200), Diamonds(200)));
  CHECK(!Equal(Diamonds(200), Diamonds(201)));
  // Levels that are shared in one graph by one node, in the other by two.
  Any left("bottom"), a("bottom"), b("bottom");
  for (int i = 0; i < 100; ++i) {
    left = Pair(left, left);
    Any next = Pair(a, b);
    b = Pair(b, a);
    a = next;
  }
  CHECK(Equal(left, a));
}

TEST("an object that contains itself has no hash, but is compared") {
  Add loop(Const(1), nullptr), other(Const(1), nullptr);
  loop->rhs = Add(Const(2), loop);
  other->rhs = Add(Const(2), other);
  CHECK_EQ(Thrown([&] { ir::StructuralHash(loop); }),
           "ValueError: <root>.rhs.rhs: is <root> again: an object that contains itself has no structural hash");
  CHECK(ir::StructuralEqual(loop, other));
  loop->rhs = nullptr;
  other->rhs = nullptr;
}

TEST("maps are keys of maps to some depth") {
  Any key = Pairs({{1, 2}});
  for (int i = 0; i < 100; ++i) key = Pairs({{key, i}});
  CHECK(Contains(Thrown([&] { ir::StructuralHash(key); }), "keys of maps more than 64 deep"));
  auto both = [] {  // 2^50 ways to the innermost key
    Any a = Pairs({{1, 2}}), b = Pairs({{1, 3}});
    for (int i = 0; i < 50; ++i) {
      Any next = Pairs({{a, 0}, {b, 1}});
      b = Pairs({{a, 1}, {b, 0}});
      a = next;
    }
    return a;
  };
  CHECK(Equal(both(), both()));
}
