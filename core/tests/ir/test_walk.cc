// SPDX-License-Identifier: Apache-2.0
#include "tests/ir/nodes.h"

using namespace nodes;

namespace {

std::string Keys(const Any& value, ir::Order order) {
  std::string keys;
  ir::Walk(value, order, [&](const ObjectRef& node) {
    std::string key = node.type_key();
    keys += (keys.empty() ? "" : " ") + key.substr(key.rfind('.') + 1);
  });
  return keys;
}

}  // namespace

TEST("each object is visited once, before or after what it holds") {
  Var x("x");
  Any graph = Add(x, Add(Const(1), x));
  CHECK_EQ(Keys(graph, ir::Order::kPre), "Add Var Add Const Array");
  CHECK_EQ(Keys(graph, ir::Order::kPost), "Var Array Const Add Add");
  CHECK_EQ(Keys(Map<Any, Any>({{"k", x}, {x, "v"}}), ir::Order::kPre), "Map Var");
  CHECK_EQ(Keys("text", ir::Order::kPre), "");
  CHECK_EQ(Keys(Diamonds(50), ir::Order::kPost).size(), 50 * 5 - 1);
}

TEST("a walk by type visits what derives from it") {
  Var x("x");
  int exprs = 0, vars = 0;
  Any graph = Lambda({x}, Add(x, Const(1)));
  ir::Walk<Expr>(graph, ir::Order::kPre, [&](const Expr&) { ++exprs; });
  ir::Walk<Var>(graph, ir::Order::kPost, [&](const Var& var) { vars += var->name.view() == "x"; });
  CHECK_EQ(exprs, 4);
  CHECK_EQ(vars, 1);
}

TEST("a visitor that answers false leaves out what is below") {
  int count = 0;
  ir::Walk<Add>(Add(Add(Const(1), Const(2)), Const(3)), ir::Order::kPre, [&](const Add&) {
    ++count;
    return false;
  });
  CHECK_EQ(count, 1);
}

TEST("an error of a visitor ends the walk") {
  CHECK_EQ(Thrown([] {
             ir::Walk<Const>(Add(Const(1), Const(2)), ir::Order::kPre,
                             [](const Const& c) { PORTCALL_THROW(KeyError) << c->value.cast<int64_t>(); });
           }),
           "KeyError: 1");
}

TEST("an error of a callback names the object in a note") {
  auto notes = [](auto body) {
    try {
      body();
      return std::string("no error");
    } catch (const Error& error) {
      std::string text(error.backtrace());
      return text.substr(text.find(Error::kNotePrefix) + std::string_view(Error::kNotePrefix).size());
    }
  };
  Any graph = Array<Any>{1, Map<Any, Any>({{"k", Add(Var("x"), Const(1))}})};
  auto fail = [](const Const&) -> Any { PORTCALL_THROW(KeyError) << "gone"; };
  const char* where = "at <root>[1][\"k\"].rhs, of type test.ir.Const\n";
  for (auto order : {ir::Order::kPre, ir::Order::kPost}) {
    CHECK_EQ(notes([&] { ir::Walk<Const>(graph, order, [&](const Const& c) { fail(c); }); }), where);
  }
  CHECK_EQ(notes([&] { ir::Rewrite<Const>(graph, fail); }), where);
  CHECK_EQ(notes([&] { ir::Rewrite<Const>(Const(1), fail); }), "at <root>, of type test.ir.Const\n");
  CHECK_EQ(
      notes([&] { ir::Rewrite(Chain(1000), [](const ObjectRef&) -> Any { PORTCALL_THROW(KeyError) << 1; }); }),
      "at <root>" +
          [] {
            std::string half;
            for (int i = 0; i < 50; ++i) half += ".second";
            return half + " … (899 steps) … " + half;
          }() +
          ", of type test.ir.Pair\n");
}

TEST("rewriting copies only what changes, and keeps what is shared") {
  Var x("x");
  Expr kept = Add(x, Const(1)), changed = Add(x, Const(2));
  Add root(Add(changed, kept), changed);
  int calls = 0;
  Any out = ir::Rewrite<Const>(root, [&](const Const& c) -> Any {
    ++calls;
    return c->value.cast<int64_t>() == 2 ? Any(Const(3)) : Any(c);
  });
  Add add = out.cast<Add>();
  CHECK_EQ(calls, 2);
  CHECK(!add.same_as(root));
  CHECK(add->lhs.as<AddObj>()->rhs.same_as(kept));
  CHECK(add->lhs.as<AddObj>()->lhs.same_as(add->rhs));
  CHECK_EQ(ir::FirstMismatch(root, out), "<root>.lhs.lhs.rhs.value: 2 != 3");
  CHECK(ir::Rewrite(root, [](const ObjectRef& node) -> Any { return node; }).cast<Add>().same_as(root));
  CHECK(ir::Rewrite(root, [](const ObjectRef&) -> Any { return nullptr; }).cast<Add>().same_as(root));
}

TEST("objects are rewritten from the leaves up, in containers and as the root too") {
  auto fold = [](const Add& add) -> Any {
    auto *l = add->lhs.as<ConstObj>(), *r = add->rhs.as<ConstObj>();
    if (!l || !r) return add;
    return Const(l->value.cast<int64_t>() + r->value.cast<int64_t>());
  };
  Any graph = Map<Any, Any>({{"sum", Array<Any>{Add(Add(Const(1), Const(2)), Const(3))}}});
  CHECK(Equal(ir::Rewrite<Add>(graph, fold), Map<Any, Any>({{"sum", Array<Any>{Const(6)}}})));
  CHECK(Equal(ir::Rewrite<Add>(Add(Const(1), Const(2)), fold), Const(3)));
  CHECK(Equal(ir::Rewrite<Add>(List<Any>{Add(Const(1), Const(2))}, fold), List<Any>{Const(3)}));
  CHECK(Equal(ir::Rewrite<Add>(Dict<Any, Any>{{Add(Const(1), Const(2)), 1}}, fold), Dict<Any, Any>{{Const(3), 1}}));
  CHECK(Equal(ir::Rewrite<Var>(Lambda({Var("x")}, nullptr), [](const Var&) -> Any { return Var("y"); }),
              Lambda({Var("z")}, nullptr)));
}

TEST("a replacement that does not fit is refused, and so is a cycle") {
  CHECK_EQ(Thrown([] { ir::Rewrite<Const>(Add(Const(1), nullptr), [](const Const&) -> Any { return 5; }); }),
           "TypeError: test.ir.Add.lhs: expected test.ir.Expr, got int 5");
  Add loop(nullptr, nullptr);
  loop->rhs = loop;
  CHECK_EQ(Thrown([&] { ir::Rewrite(loop, [](const ObjectRef& node) -> Any { return node; }); }),
           "ValueError: <root>.rhs: is <root> again: an object that contains itself cannot be rewritten");
  loop->rhs = nullptr;
}

TEST("the parts of one object are replaced") {
  Add add(Const(1), Const(2), "span");
  CHECK(ir::MapChildren(add, [](const Any& part) { return part; }).cast<Add>().same_as(add));
  Any other = ir::MapChildren(add, [](const Any& part) { return part.try_cast<Const>() ? Any(Var("v")) : part; });
  CHECK(other.cast<Add>()->rhs.as<VarObj>());
  CHECK_EQ(other.cast<Add>()->span.view(), "span");
  CHECK(Equal(ir::MapChildren(Array<Any>{1, 2}, [](const Any& i) { return Any(i.cast<int64_t>() + 1); }),
              Array<Any>{2, 3}));
  CHECK(Equal(ir::MapChildren("text", [](const Any&) { return Any(1); }), "text"));
}

TEST("chains 200,000 deep and graphs with 2^100 paths are walked and rewritten") {
  int64_t count = 0;
  Any chain = Chain(200000);
  ir::Walk(chain, ir::Order::kPost, [&](const ObjectRef&) { ++count; });
  ir::Walk(Diamonds(100), ir::Order::kPre, [&](const ObjectRef&) { ++count; });
  CHECK_EQ(count, 200100);
  Any longer = ir::Rewrite(chain, [](const ObjectRef& pair) -> Any {
    return GetField(pair, "second") == nullptr ? Any(Pair(-1, nullptr)) : Any(pair);
  });
  CHECK(!ir::StructuralEqual(longer, chain));
  Any folded = ir::Rewrite(Diamonds(100), [](const ObjectRef& pair) -> Any { return pair; });
  CHECK(ir::StructuralEqual(folded, Diamonds(100)));
}
