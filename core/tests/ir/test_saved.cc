// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <thread>

#include "tests/ir/nodes.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

using namespace nodes;

namespace {

std::string Refused(std::string_view text, ir::LoadLimits limits = {}) {
  return Thrown([&] { ir::LoadJson(text, limits); });
}
std::string RefusedBytes(std::string_view bytes, ir::LoadLimits limits = {}) {
  return Thrown([&] { ir::FromBytes(bytes, limits); });
}

std::string Document(const std::string& nodes, const std::string& root) {
  return R"({"portcall_json": 1, "nodes": [)" + nodes + R"(], "root": )" + root + "}";
}

Tensor Bytewise(DLDataType dtype, const std::vector<int64_t>& shape) {
  Tensor tensor = Tensor::Empty(shape, dtype);
  for (size_t i = 0; i < NumBytes(*tensor.dl_tensor()); ++i)
    static_cast<char*>(tensor.raw_data())[i] = static_cast<char>(37 * i);
  return tensor;
}

Any SavedWide(const char* hex) { return ir::LoadJson(Document("", R"({"int": ")" + std::string(hex) + R"("})")); }

Any EveryKind() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<Any> items = {nullptr,
                            true,
                            false,
                            0,
                            -1,
                            std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max(),
                            0.0,
                            -0.0,
                            1.0,
                            0.1,
                            1e300,
                            5e-324,
                            kInf,
                            -kInf,
                            std::nan(""),
                            "",
                            "short",
                            "text that is longer than eight",
                            "\"\\\n\t\r\x01\x7f/",
                            "é 漢 𝄞",
                            std::string("nul\0inside", 10),
                            "\xff\xfe not utf-8",
                            "\xed\xa0\x80 a surrogate",
                            Bytes(""),
                            Bytes("ab"),
                            Bytes("bytes that are longer\xff"),
                            DataTypeFromString("float32x4"),
                            DataTypeFromString("bfloat16"),
                            DataTypeFromString("void"),
                            DLDataType{200, 4, 2},
                            DLDevice{kDLCUDA, 3},
                            Shape({}),
                            Shape({1, -2, 3}),
                            SavedWide("0x123456789abcdef0123456789"),
                            SavedWide("-0x8000000000000001"),
                            Array<Any>(std::vector<Any>()),
                            List<Any>({1, "two"}),
                            Map<Any, Any>(std::vector<std::pair<Any, Any>>()),
                            Map<Any, Any>({{"k", 1}, {2, "v"}, {2.5, nullptr}, {Bytes("b"), true}}),
                            Dict<Any, Any>({{Const(1), Const(2)}, {Array<Any>{1, 2}, 3}}),
                            Bytewise(DataTypeFromString("float32"), {2, 3}),
                            Bytewise(DataTypeFromString("int4"), {5}),
                            Bytewise(DataTypeFromString("bool"), {}),
                            Bytewise(DataTypeFromString("float64"), {3, 0}),
                            Const(1, {1, 2, 3}),
                            Lambda({Var("x")}, nullptr),
                            Pair(1, Pair(2, 3))};
  return Array<Any>(items);
}

// Empties a List or Dict: a loop is freed in no other way, since objects count their holders.
void TakeApart(const Any& loop) {
  if (auto list = loop.try_cast<List<Any>>()) list->clear();
  if (auto dict = loop.try_cast<Dict<Any, Any>>()) {
    for (const auto& [key, value] : dict->items()) dict->erase(key);
  }
}

}  // namespace

TEST("every kind of value comes back from both forms as it was") {
  Any every = EveryKind();
  Any back = Again(every);
  Array<Any> a = every.cast<Array<Any>>(), b = back.cast<Array<Any>>(),
             c = ir::FromBytes(ir::ToBytes(every)).cast<Array<Any>>();
  CHECK_EQ(b.size(), a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].type_index() == TypeIndexOf<LambdaObj>()) continue;
    CHECK_EQ(ir::FirstMismatch(a[i], b[i]), "");
    CHECK_EQ(ir::FirstMismatch(a[i], c[i]), "");
    CHECK_EQ(ir::FirstMismatch(a[i], Again(a[i])), "");
  }
  CHECK(std::signbit(b[8].cast<double>()));
  CHECK_EQ(ir::SaveJson(Again(every)), ir::SaveJson(every));
}

TEST("a saved graph is short and can be read") {
  Var x("x");
  CHECK_EQ(ir::SaveJson(Add(x, x)),
           R"({"portcall_json":1,"nodes":[{"test.ir.Var":{"name":"x"}},)"
           R"({"test.ir.Add":{"lhs":{"ref":0},"rhs":{"ref":0},"span":""}}],"root":{"ref":1}})");
  CHECK_EQ(ir::SaveJson(Array<Any>{1, "a"}, 2),
           "{\n  \"portcall_json\": 1,\n  \"nodes\": [\n    {\"ffi.Array\": [1, \"a\"]}\n  ],\n  \"root\": {\"ref\": "
           "0}\n}\n");
  CHECK_EQ(ir::SaveJson(1.0), R"({"portcall_json":1,"nodes":[],"root":1.0})");
}

TEST("what is held twice is held twice again") {
  Var x("x");
  for (Any back : {Again(Add(x, x)), ir::FromBytes(ir::ToBytes(Add(x, x)))}) {
    Add add = back.cast<Add>();
    CHECK(add->lhs.same_as(add->rhs));
  }
  Any shared = Diamonds(100);
  Any back = Again(shared);
  CHECK(Equal(back, shared));
  CHECK(GetField(back.cast<ObjectRef>(), "first")
            .cast<ObjectRef>()
            .same_as(GetField(back.cast<ObjectRef>(), "second").cast<ObjectRef>()));
}

TEST("fields may be in any order and be left out when they have defaults, and so may the document's") {
  Any x = ir::LoadJson(Document(R"({"test.ir.Var": {"name": "x"}}, {"test.ir.Add": {"rhs": {"ref": 0}, "lhs": null}})",
                                R"({"ref": 1})"));
  CHECK(x.cast<Add>()->lhs == nullptr);
  CHECK_EQ(x.cast<Add>()->span.view(), "");
  Any array =
      ir::LoadJson(R"({"root": {"ref": 0}, "nodes": [{"ffi.Array": [1, {"shape": [2]}]}], "portcall_json": 1})");
  CHECK(Equal(array, Array<Any>{1, Shape({2})}));
}

TEST("what cannot be saved is refused with its path") {
  PackedFunc f([](Args, RetValue*) {});
  auto refused = [](const Any& value) {
    std::string by_json = Thrown([&] { ir::SaveJson(value); });
    CHECK_EQ(Thrown([&] { ir::ToBytes(value); }), by_json);
    return by_json;
  };
  CHECK_EQ(refused(Add(Const(1), Const(f))), "TypeError: <root>.rhs.value: a value of type 'Function' cannot be saved");
  CHECK_EQ(refused(Map<Any, Any>({{"k", Array<Any>{f}}})),
           "TypeError: <root>[\"k\"][0]: a value of type 'Function' cannot be saved");
  CHECK_EQ(refused(Map<Any, Any>({{f, 1}})),
           "TypeError: <root> key Function: a value of type 'Function' cannot be saved");
  CHECK_EQ(refused(static_cast<void*>(&f)), "TypeError: <root>: a value of type 'pointer' cannot be saved");
  CHECK_EQ(refused(Const(Bytewise(DataTypeFromString("handle"), {1}))),
           "TypeError: <root>.value: a value of type 'Tensor' cannot be saved: it holds addresses");
  Add loop(Const(1), nullptr);
  loop->rhs = Add(Const(2), loop);
  CHECK_EQ(refused(Array<Any>{loop}),
           "ValueError: <root>[0].rhs.rhs: is <root>[0] again: an object that contains itself cannot be saved");
  loop->rhs = nullptr;
}

TEST("a chain 200,000 deep is saved and loaded in both forms") {
  Any chain = Chain(200000);
  CHECK(ir::StructuralEqual(ir::LoadJson(ir::SaveJson(chain)), chain));
  CHECK(ir::StructuralEqual(ir::FromBytes(ir::ToBytes(chain)), chain));
}

TEST("limits are kept") {
  std::string text = ir::SaveJson(Chain(10));
  Bytes bytes = ir::ToBytes(Chain(10));
  CHECK_EQ(Refused(text, {10, 10}), "");
  CHECK(Contains(Refused(text, {9, 0}), "nodes[9] (test.ir.Pair): has more than 9 nodes, the limit that was given"));
  CHECK(Contains(Refused(text, {0, 9}), "is more than 9 objects deep, the limit that was given"));
  CHECK_EQ(RefusedBytes(bytes, {10, 10}), "");
  CHECK(Contains(RefusedBytes(bytes, {9, 0}), "has more than 9 nodes"));
  CHECK(Contains(RefusedBytes(bytes, {0, 9}), "is more than 9 objects deep"));
}

TEST("malformed JSON is refused with place and reason") {
  CHECK_EQ(Refused(Document(R"({"test.ir.Add": {"lhs": 3, "rhs": null}})", "null")),
           "ValueError: nodes[0] (test.ir.Add): test.ir.Add.lhs: expected test.ir.Expr, got int 3 (line 1, column 71)");
  CHECK_EQ(Refused(Document("{\"test.ir.Add\":\n {\"lhs\": {\"ref\": 7}}}", "null")),
           "ValueError: nodes[0] (test.ir.Add).lhs: refers to node 7, which does not come before it: nodes stand after "
           "all that they refer to (line 2, column 19)");
  CHECK_EQ(Refused(Document(R"({"test.ir.Const": {}})", "null")),
           "ValueError: nodes[0] (test.ir.Const): test.ir.Const needs a value for 'value' (line 1, column 52)");
  CHECK(Contains(Refused(Document("", "[1]")), "root: a list stands in a node of its own"));
  CHECK(Contains(Refused(std::string(100000, '[')), "expected '{'"));
  CHECK(Contains(Refused(R"({"root": )" + std::string(100000, '[')), "nested too deeply"));
}

TEST("every shortened and every changed copy of saved bytes is refused, or read as something") {
  Bytes saved = ir::ToBytes(EveryKind());
  for (size_t size = 0; size < saved.size(); ++size) {
    std::string error = RefusedBytes(std::string(saved.view().substr(0, size)));
    CHECK(Contains(error, "ValueError: byte "));
  }
  for (size_t i = 0; i < saved.size(); ++i) {
    std::string changed = saved.str();
    changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
    CHECK(Contains(RefusedBytes(changed), "ValueError: byte "));
  }
}

TEST("graphs that contain themselves through a List or a Dict come back from both forms") {
  List<Any> items{1};
  Dict<Any, Any> table;
  ObjectRef graph = Pair(Map<Any, Any>({{"table", table}, {"items", Array<Any>{items, Pair(items, table)}}}), items);
  items.push_back(graph);
  items.push_back(table);
  table.Set("self", table);
  table.Set("graph", graph);
  for (const Any& again : {ir::LoadJson(ir::SaveJson(graph, 1)), ir::FromBytes(ir::ToBytes(graph))}) {
    auto second = GetField(again.cast<ObjectRef>(), "second").cast<List<Any>>();
    auto made = GetField(again.cast<ObjectRef>(), "first").cast<Map<Any, Any>>().at("table").cast<Dict<Any, Any>>();
    CHECK_EQ(second.size(), 3);
    CHECK(second[1].cast<ObjectRef>().same_as(again.cast<ObjectRef>()));
    CHECK(second[2].cast<ObjectRef>().same_as(made));
    CHECK(made.at("self").cast<ObjectRef>().same_as(made));
    CHECK(made.at("graph").cast<ObjectRef>().same_as(again.cast<ObjectRef>()));
    CHECK_EQ(ir::SaveJson(again), ir::SaveJson(graph));
    TakeApart(second);
    TakeApart(made);
  }
  TakeApart(items);
  TakeApart(table);
}

TEST("a loop 100,000 objects long needs no stack") {
  List<Any> first;
  List<Any> last = first;
  for (int i = 0; i < 100000; ++i) {
    List<Any> next;
    last.push_back(Pair(next, i));
    last = next;
  }
  last.push_back(first);
  List<Any> again = ir::FromBytes(ir::ToBytes(first)).cast<List<Any>>();
  CHECK_EQ(ir::SaveJson(again), ir::SaveJson(first));
  TakeApart(again);
  TakeApart(first);
}

TEST("every shortened and every changed copy of a saved loop is refused or read") {
  // A changed copy may have a loop that its root does not reach, and that nobody can take apart.
#ifdef __SANITIZE_ADDRESS__
  __lsan::ScopedDisabler leaks_are_expected;
#endif
  List<Any> items{Dict<Any, Any>()};
  items[0].cast<Dict<Any, Any>>().Set("items", items);
  const std::string text = ir::SaveJson(items), bytes(ir::ToBytes(items).view());
  TakeApart(items);
  for (size_t i = 0; i < bytes.size(); ++i) {
    CHECK(Contains(RefusedBytes(bytes.substr(0, i)), "byte"));
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      Thrown([&] { TakeApart(ir::FromBytes(changed)); });
    }
  }
  for (size_t i = 0; i < text.size(); ++i) {
    CHECK(!Refused(text.substr(0, i)).empty());
    for (char c : {'0', '1', '9', '-', '"', '[', ']', '{', '}', ',', ' '}) {
      std::string changed = text;
      changed[i] = c;
      Thrown([&] { TakeApart(ir::LoadJson(changed)); });
    }
  }
}

TEST("graphs are read, compared and saved by many threads at once") {
  Any graph = Tree(10);
  uint64_t hash = ir::StructuralHash(graph);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        CHECK(ir::StructuralEqual(graph, ir::LoadJson(ir::SaveJson(graph))));
        CHECK_EQ(ir::StructuralHash(ir::FromBytes(ir::ToBytes(graph))), hash);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}
