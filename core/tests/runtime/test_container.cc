// SPDX-License-Identifier: Apache-2.0
// Shape, Array and Map.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;

TEST("a shape is printed as Python writes it") {
  CHECK_EQ(ToString(Shape{}), "()");
  CHECK_EQ(ToString(Shape{2}), "(2,)");
  CHECK_EQ(ToString(Shape{2, -3}), "(2, -3)");
  CHECK_EQ(ToString(Shape()), "()");
}

TEST("a shape keeps its extents") {
  std::vector<int64_t> extents = {1, 2, INT64_MAX, INT64_MIN};
  Shape shape(extents);
  CHECK_EQ(shape.size(), 4);
  CHECK(std::vector<int64_t>(shape.begin(), shape.end()) == extents);
  CHECK_EQ(shape[2], INT64_MAX);
  CHECK_EQ(Shape().size(), 0);
  Shape scalar;
  CHECK(scalar.begin() == scalar.end());
}

// ---- Without items ------------------------------------------------------------------------------------------------

TEST("a container that is made without items is empty, not None") {
  CHECK(Array<>{}.defined() && Array<>{}.empty() && Any(Array<>{}).type_index() == kTVMFFIArray);
  CHECK(Shape{}.defined() && Shape{}.size() == 0 && Any(Shape{}).type_index() == kTVMFFIShape);
  CHECK((Map<>{}.defined() && Map<>{}.empty() && Any(Map<>{}).type_index() == kTVMFFIMap));
  CHECK(List<>{}.defined() && Any(List<>{}).type_index() == kTVMFFIList);
  CHECK((Dict<>{}.defined() && Any(Dict<>{}).type_index() == kTVMFFIDict));
  CHECK(Array<>(nullptr) == nullptr && Shape(nullptr) == nullptr && Map<>(nullptr) == nullptr);
  CHECK(Any(Array<>(nullptr)) == nullptr && Array<>(nullptr).empty());
  CHECK((Any().cast<Map<String, int>>() == nullptr && Any().cast<Shape>() == nullptr));
}

TEST("an empty container is a node of its own, released with it, and changes alone") {
  int64_t arrays = LiveNodes("ffi.Array"), maps = LiveNodes("ffi.Map"), shapes = LiveNodes("ffi.Shape");
  {
    Array<int> numbers, others;
    Map<String, int> map;
    Shape shape;
    CHECK(numbers.unique() && !numbers.same_as(others));
    numbers.push_back(1);
    map.Set("a", 1);
    CHECK(numbers.size() == 1 && others.empty() && map.size() == 1);
    numbers.clear();
    CHECK(numbers.empty() && numbers.defined());
    List<int> list;
    Dict<String, int> dict;
  }
  CHECK_EQ(LiveNodes("ffi.Array"), arrays);
  CHECK_EQ(LiveNodes("ffi.Map"), maps);
  CHECK_EQ(LiveNodes("ffi.Shape"), shapes);
}

TEST("empty containers are made and changed by many threads at once") {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 1000; ++i) {
        Array<int> array;
        array.push_back(t);
        Map<String, int> map;
        map.Set("t", t);
        CHECK(array.size() == 1 && array[0] == t && map.at("t") == t && Shape().size() == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK((Array<int>().empty() && Map<String, int>().empty()));
}

TEST("what was None or moved from becomes a container of its kind once something is put into it") {
  Array<int> array{1}, moved = std::move(array);
  array.push_back(2);  // NOLINT(bugprone-use-after-move)
  CHECK(array.size() == 1 && array[0] == 2 && moved[0] == 1);
  List<int> list(nullptr), inserted(nullptr);
  list.push_back(3);
  inserted.insert(0, 4);
  CHECK(list.type_index() == kTVMFFIList && inserted.type_index() == kTVMFFIList && list[0] == 3 && inserted[0] == 4);
  Map<String, int> map(nullptr);
  map.Set("a", 1);
  Dict<String, int> dict(nullptr);
  dict.Set("a", 1);
  CHECK(map.type_index() == kTVMFFIMap && dict.type_index() == kTVMFFIDict && dict.at("a") == 1);
}

// ---- Iterators ----------------------------------------------------------------------------------------------------

TEST("the iterator of an array goes anywhere in one step") {
  Array<int> array{3, 1, 4, 1, 5};
  auto it = array.begin();
  CHECK(*(it + 2) == 4 && *(2 + it) == 4 && it[4] == 5 && *(array.end() - 1) == 5);
  CHECK_EQ(array.end() - it, 5);
  CHECK(it < array.end() && it <= it && array.end() > it && it >= it && it != array.end());
  CHECK(*it++ == 3 && *it == 1 && *++it == 4 && *it-- == 4 && *--it == 3);
  it += 3;
  it -= 1;
  CHECK_EQ(*it, 4);
  CHECK_EQ(std::accumulate(array.begin(), array.end(), 0), 14);
  CHECK_EQ(Array<String>{"four"}.begin()->size(), 4);
  CHECK(array.front() == 3 && array.back() == 5);
  array.pop_back();
  CHECK(array.back() == 1 && array.size() == 4);
  CHECK_EQ(Thrown([] { Array<int>().back(); }), "IndexError: index 0 is out of range for an Array of 0");
  CHECK(Contains(Thrown([] { Array<int>().pop_back(); }), "IndexError"));
  CHECK_EQ(Thrown([&] { array[4]; }), "IndexError: index 4 is out of range for an Array of 4");
}

TEST("the iterator of a map shows pairs") {
  Map<String, int> map{{"a", 1}, {"b", 2}};
  auto it = map.begin();
  CHECK(it->first == "a" && it->second == 1 && (*it++).first == "a" && it->second == 2);
  CHECK_EQ(std::distance(map.begin(), map.end()), 2);
  CHECK(++it == map.end() && Map<>().begin() == Map<>().end() && Map<>(nullptr).begin() == Map<>(nullptr).end());
}

TEST("containers are made of ranges of the standard library") {
  std::map<std::string, int> source{{"a", 1}, {"b", 2}};
  Map<String, int> map(source.begin(), source.end());
  Dict<String, Any> dict(source.begin(), source.end());
  CHECK(map.at("b") == 2 && dict.at("a").cast<int>() == 1 && dict.type_index() == kTVMFFIDict);
  std::vector<int> numbers{1, 2};
  List<int> list(numbers.begin(), numbers.end());
  CHECK(list.type_index() == kTVMFFIList && list.vector() == numbers);
  CHECK((Shape{2, 3}.vector() == std::vector<int64_t>{2, 3}));
}

// ---- Array --------------------------------------------------------------------------------------------------------

TEST("an array gives its items in order") {
  Array<int> array{3, 1, 2};
  CHECK_EQ(array.size(), 3);
  CHECK_EQ(array[0], 3);
  CHECK_EQ(array.at(2), 2);
  CHECK(array.vector() == (std::vector<int>{3, 1, 2}));
  CHECK(Array<int>(std::vector<int>{}).empty() && Array<int>(std::vector<int>{}).defined());
  CHECK_EQ(Thrown([&] { array.at(3); }), "IndexError: index 3 is out of range for an Array of 3");
  CHECK_EQ(Thrown([] { Array<int>().at(0); }), "IndexError: index 0 is out of range for an Array of 0");
}

TEST("an array is walked by a range loop") {
  int sum = 0;
  for (int item : Array<int>{1, 2, 3}) sum += item;
  CHECK_EQ(sum, 6);
  std::string text;
  for (const String& item : Array<String>{"a", "longer than seven"}) text += item;
  CHECK_EQ(text, "alonger than seven");
  for (int item : Array<int>()) sum += item;
  CHECK_EQ(sum, 6);
}

TEST("an array holds values of any types") {
  Array<> array{1, 2.5, "text", nullptr, Shape{1}, Array<int>{1, 2}, true};
  CHECK_EQ(array.size(), 7);
  CHECK_EQ(array[1].cast<double>(), 2.5);
  CHECK_EQ(array[2].cast<String>(), "text");
  CHECK(array[3] == nullptr);
  CHECK_EQ(array[5].cast<Array<int>>()[1], 2);
}

TEST("a typed array refuses items of another type when it is read from a call") {
  Any numbers = Array<>{1, 2};
  Any mixed = Array<>{1, "two"};
  CHECK_EQ(numbers.cast<Array<int>>()[1], 2);
  CHECK(!mixed.try_cast<Array<int>>().has_value());
  CHECK_EQ(Thrown([&] { mixed.cast<Array<int>>(); }),
           "TypeError: expected Array[int32], got Array whose item #1 is str");
  CHECK(!numbers.try_cast<Array<String>>().has_value());
  CHECK(!Any(Array<>{Array<>{1}, Array<>{"x"}}).try_cast<Array<Array<int>>>().has_value());
  CHECK_EQ((Any(Array<>{Array<>{1}, Array<>{2}}).cast<Array<Array<int>>>()[1][0]), 2);
  CHECK(Any().cast<Array<int>>() == nullptr);
  CHECK(!Any(Shape{1}).try_cast<Array<int>>().has_value());
}

TEST("a mismatch says which item of a container is to blame, however deep") {
  Any nested = Array<>{Array<>{1}, Array<>{1, 2.5}};
  CHECK_EQ(Thrown([&] { nested.cast<Array<Array<int>>>(); }),
           "TypeError: expected Array[Array[int32]], got Array whose item #1 is Array whose item #1 is float");
  CHECK_EQ(Thrown([&] { nested.cast<std::vector<int>>(); }),
           "TypeError: expected Array[int32], got Array whose item #0 is Array");
  CHECK_EQ(Thrown([&] { Any(List<>{1, "x"}).cast<List<int>>(); }),
           "TypeError: expected List[int32], got List whose item #1 is str");
  CHECK_EQ(Thrown([&] { Any(Array<>{1}).cast<List<int>>(); }), "TypeError: expected List[int32], got Array");
  Any map = Map<>{{"a", 1}, {"b", "x"}}, keys = Dict<>{{"a", 1}, {2, 2}};
  CHECK_EQ(Thrown([&] { (map.cast<Map<String, int>>()); }),
           "TypeError: expected Map[str, int32], got Map whose value of 'b' is str");
  CHECK_EQ(Thrown([&] { (keys.cast<Dict<String, int>>()); }),
           "TypeError: expected Dict[str, int32], got Dict whose key #1 is int 2");
  CHECK_EQ(Thrown([&] { (map.cast<Dict<String, int>>()); }), "TypeError: expected Dict[str, int32], got Map");
  CHECK_EQ(Thrown([&] { map.cast<std::optional<Array<int>>>(); }),
           "TypeError: expected Optional[Array[int32]], got Map");
}

TEST("a vector travels as an array") {
  std::vector<std::string> words = {"a", "b", "a longer one"};
  Any value(words);
  CHECK_EQ(value.type_index(), kTVMFFIArray);
  CHECK(value.cast<std::vector<std::string>>() == words);
  CHECK(!Any().try_cast<std::vector<int>>().has_value());
  CHECK_EQ(Thrown([] { Any().cast<std::vector<int>>(); }), "TypeError: expected Array[int32], got None");
}

TEST("a shape and an array of numbers stand in for each other as arguments") {
  CHECK((Any(Shape{2, 3}).cast<std::vector<int64_t>>() == std::vector<int64_t>{2, 3}));
  CHECK_EQ(ToString(Any(Array<int>{2, 3}).cast<Shape>()), "(2, 3)");
  CHECK(!Any(Array<>{2, "x"}).try_cast<Shape>().has_value());
}

TEST("items are released with the last reference to their array") {
  Shape shape{1};
  {
    Array<Shape> array{shape, shape};
    Array<Shape> copy = array;
    CHECK_EQ(shape.use_count(), 3);
    array = copy;
    array = std::move(copy);
    CHECK_EQ(array.size(), 2);
  }
  CHECK_EQ(shape.use_count(), 1);
}

TEST("arguments that live only during a call are copied into a container") {
  char text[] = "text on the caller's stack";
  TVMFFIAny cell;
  detail::SetCell(&cell, kTVMFFIRawStr);
  cell.v_c_str = text;
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(PortcallArrayCreate(&cell, 1, &handle), 0);
  auto array = ObjectRef::Steal<Array<String>>(handle);
  text[0] = '?';
  CHECK_EQ(array[0], "text on the caller's stack");
  CHECK_EQ(PortcallArrayCreate(nullptr, 0, &handle), 0);
  CHECK_EQ(ObjectRef::Steal<Array<>>(handle).size(), 0);
}

TEST("impossible sizes are refused") {
  TVMFFIObjectHandle handle = nullptr;
  TVMFFIAny cell{};
  CHECK_EQ(PortcallArrayCreate(&cell, -1, &handle), -1);
  CHECK_EQ(Raised(), "ValueError: an Array of -1 items");
  CHECK_EQ(PortcallMapCreate(&cell, -1, &handle), -1);
  CHECK(Contains(Raised(), "ValueError: a Map of -1 pairs"));
  CHECK_EQ(PortcallMapCreate(&cell, int64_t{1} << 40, &handle), -1);
  CHECK(Contains(Raised(), "too large"));
  CHECK_EQ(PortcallArrayCreate(&cell, INT64_MAX, &handle), -1);
  CHECK(Contains(Raised(), "too large"));
  CHECK_EQ(PortcallShapeCreate(nullptr, SIZE_MAX / 4, &handle), -1);
  CHECK(Contains(Raised(), "too large"));
  CHECK(handle == nullptr);
}

TEST("a container of 100000 items is whole") {
  std::vector<std::pair<std::string, int64_t>> pairs;
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < 100000; ++i) {
    pairs.emplace_back("key " + std::to_string(i), i);
    numbers.push_back(i * i);
  }
  Array<int64_t> array(numbers);
  CHECK_EQ(array.size(), 100000);
  CHECK(array.vector() == numbers);
  Map<std::string, int64_t> map(pairs);
  CHECK_EQ(map.size(), 100000);
  int64_t wrong = 0;
  for (const auto& [key, value] : pairs) wrong += map.find(key).value_or(-1) != value;
  CHECK_EQ(wrong, 0);
  CHECK(map.items() == pairs);
  CHECK(!map.contains("key 100000"));
}

// ---- Map ----------------------------------------------------------------------------------------------------------

TEST("a map keeps the order of insertion; a repeated key keeps its place and takes the last value") {
  Map<String, int> map{{"b", 1}, {"a", 2}, {"b", 3}, {"c", 4}};
  CHECK_EQ(map.size(), 3);
  auto items = map.items();
  CHECK(items[0].first == "b" && items[0].second == 3);
  CHECK(items[1].first == "a" && items[1].second == 2);
  CHECK(items[2].first == "c" && items[2].second == 4);
}

TEST("a map finds what it has and nothing else") {
  Map<String, int> map{{"one", 1}, {"a key beyond seven bytes", 2}};
  CHECK_EQ(map.at("one"), 1);
  CHECK_EQ(*map.find("a key beyond seven bytes"), 2);
  CHECK(!map.find("two").has_value());
  CHECK(map.contains("one") && !map.contains(""));
  CHECK(Contains(Thrown([&] { map.at("two"); }), "KeyError: "));
  CHECK(Contains(Thrown([&] { map.at("two"); }), "two"));
  CHECK((Map<String, int>().empty() && !Map<String, int>().find("x").has_value()));
  CHECK((Map<String, int>{}.empty()));
}

TEST("a map is walked by a range loop") {
  std::string text;
  for (const auto& [key, value] : Map<String, int>{{"x", 1}, {"y", 2}}) text += key.str() + std::to_string(value);
  CHECK_EQ(text, "x1y2");
}

TEST("keys of different types are different keys") {
  Map<> map{{1, "int"}, {true, "bool"}, {1.0, "float"}, {"1", "str"}, {Bytes("1"), "bytes"}, {nullptr, "none"}};
  CHECK_EQ(map.size(), 6);
  CHECK_EQ(map.at(Any(1)).cast<String>(), "int");
  CHECK_EQ(map.at(Any(true)).cast<String>(), "bool");
  CHECK_EQ(map.at(Any(1.0)).cast<String>(), "float");
  CHECK_EQ(map.at(Any("1")).cast<String>(), "str");
  CHECK_EQ(map.at(Any(Bytes("1"))).cast<String>(), "bytes");
  CHECK_EQ(map.at(Any(nullptr)).cast<String>(), "none");
}

TEST("floats that are equal are one key, and a NaN finds itself") {
  Map<double, int> map{{0.0, 1}, {-0.0, 2}, {std::nan(""), 3}, {std::nan(""), 4}};
  CHECK_EQ(map.size(), 2);
  CHECK_EQ(map.at(0.0), 2);
  CHECK_EQ(map.at(-0.0), 2);
  CHECK_EQ(map.at(std::nan("")), 4);
}

TEST("shapes and arrays are keys by content, other objects by identity") {
  Map<> map{{Shape{1, 2}, 1}, {Array<>{1, "two"}, 2}};
  CHECK_EQ(map.at(Any(Shape{1, 2})).cast<int>(), 1);
  CHECK_EQ(map.at(Any(Array<>{1, "two"})).cast<int>(), 2);
  CHECK(!map.contains(Any(Shape{1})) && !map.contains(Any(Array<>{1, 2})) && !map.contains(Any(Shape{1, 3})));
  PackedFunc a([](Args, RetValue*) {}), b([](Args, RetValue*) {});
  Map<PackedFunc, int> functions{{a, 1}, {b, 2}};
  CHECK_EQ(functions.size(), 2);
  CHECK_EQ(functions.at(b), 2);
  CHECK(!functions.contains(PackedFunc([](Args, RetValue*) {})));
}

TEST("an array is a key only if it holds few values, however it is nested") {
  Dict<> dict;
  std::vector<Any> items(1023, Any(7));
  dict.Set(Array<>(items), "flat");
  CHECK_EQ(dict.at(Any(Array<>(items))).cast<std::string>(), "flat");
  items.emplace_back(7);
  Any wide = Array<>(items), deep = 1, twice = 1;
  for (int i = 0; i < 200000; ++i) deep = Array<>{deep};
  for (int i = 0; i < 60; ++i) twice = Array<>{twice, twice};
  for (const Any& key : {wide, deep, twice}) {
    CHECK(!dict.contains(key));
    CHECK_EQ(Thrown([&] { dict.Set(key, 1); }), "ValueError: a key of more than 1024 values");
    CHECK_EQ(Thrown([&] { Map<> map{{key, 1}}; }), "ValueError: a key of more than 1024 values");
  }
  CHECK_EQ(dict.size(), 1);
}

TEST("strings of every form are the same key") {
  Map<String, int> map{{"short", 1}, {"a longer key", 2}};
  for (const char* text : {"short", "a longer key"}) {
    TVMFFIAny raw;
    detail::SetCell(&raw, kTVMFFIRawStr);
    raw.v_c_str = text;
    const TVMFFIAny* value = nullptr;
    CHECK_EQ(PortcallMapFind(map.get(), &raw, &value), 0);
    CHECK_EQ(value->v_int64, map.at(text));
  }
}

TEST("pairs are read one after the other") {
  Map<String, int> map{{"a", 1}, {"b", 2}};
  CHECK_EQ(PortcallMapSize(map.get()), 2);
  const TVMFFIAny* first = PortcallMapNext(map.get(), nullptr);
  CHECK_EQ(*TryString(first[0]), "a");
  const TVMFFIAny* second = PortcallMapNext(map.get(), first);
  CHECK_EQ(*TryString(second[0]), "b");
  CHECK_EQ(second[1].v_int64, 2);
  CHECK(PortcallMapNext(map.get(), second) == nullptr);
  CHECK(PortcallMapNext(Map<>().get(), nullptr) == nullptr);
}

// All of a map must hold after each step: what is found, in which order, and both links of each pair.
TEST("random changes of a Dict leave what they would leave of a list of pairs") {
  std::mt19937 random(1);
  for (int range : {3, 6, 30, 400, 5000}) {
    Dict<int, int> dict;
    std::vector<std::pair<int, int>> model;
    for (int step = 0; step < 4 * range + 50; ++step) {
      int key = static_cast<int>(random() % static_cast<unsigned>(range)) << random() % 3 * 8, value = step;
      auto same = [&](const auto& pair) { return pair.first == key; };
      auto found = std::find_if(model.begin(), model.end(), same);
      if (random() % 3 == 0) {
        CHECK_EQ(dict.erase(key), found != model.end());
        if (found != model.end()) model.erase(found);
      } else {
        dict.Set(key, value);
        if (found != model.end()) found->second = value;
        else model.emplace_back(key, value);
      }
      if (range < 100 || step % 500 == 0) CHECK((dict.items() == model));
    }
    CHECK((dict.items() == model));
    for (const auto& [key, value] : model) CHECK_EQ(dict.at(key), value);
    const PortcallMapCell& cell = static_cast<DictObj*>(dict.get())->cell;
    if (cell.slots & detail::kSmallMap) continue;
    uint64_t before = detail::kNoItem, slot = cell.first;
    for (; slot != detail::kNoItem; slot = detail::ItemAt(cell, slot).next) {
      CHECK_EQ(detail::ItemAt(cell, slot).previous, before);
      before = slot;
    }
    CHECK_EQ(cell.last, before);
  }
}

TEST("keys that all hash alike are kept apart") {
  // 2^31 - 1 is what the hash of text is taken by.
  std::vector<std::string> keys;
  for (uint64_t i = 0; i < 600; ++i) {
    uint64_t word = 7 + i * 0x7fffffffu;
    keys.emplace_back(reinterpret_cast<const char*>(&word), 8);
  }
  Dict<String, int> dict;
  for (size_t i = 0; i < keys.size(); ++i) dict.Set(keys[i], static_cast<int>(i));
  for (size_t i = 0; i < keys.size(); i += 2) CHECK(dict.erase(keys[i]));
  for (size_t i = 0; i < keys.size(); ++i) CHECK_EQ(dict.contains(keys[i]), i % 2 == 1);
}

namespace {
struct KeyObj : Object {
  static constexpr const char* kTypeKey = "test.HashedKey";
  int64_t number = 0;
};
}  // namespace

TEST("a type says how its objects are hashed and compared as keys") {
  static const auto number_of = [](const TVMFFIAny& key) { return static_cast<KeyObj*>(key.v_obj)->number; };
  PackedFunc hash([](Args args, RetValue* rv) {
    PORTCALL_CHECK(number_of(args.cells()[0]) >= 0, ValueError) << "negative";
    *rv = number_of(args.cells()[0]) / 2;
  });
  PackedFunc equal([](Args args, RetValue* rv) { *rv = number_of(args.cells()[0]) == number_of(args.cells()[1]); });
  for (auto& [name, hook] : {std::pair<const char*, PackedFunc&>{"__any_hash__", hash}, {"__any_equal__", equal}}) {
    TVMFFIByteArray text = ToByteArray(name);
    Any value(hook);
    Check(TVMFFITypeRegisterAttr(TypeIndexOf<KeyObj>(), &text, &value.cell()));
  }
  auto key = [](int64_t number) {
    auto* node = NewNode<KeyObj>();
    node->number = number;
    return ObjectRef::Steal(node);
  };
  Dict<ObjectRef, int> dict;
  for (int i = 0; i < 40; ++i) dict.Set(key(i), i);
  dict.Set(key(7), -7);
  CHECK_EQ(dict.size(), 40);
  CHECK_EQ(dict.at(key(7)), -7);
  CHECK(!dict.contains(key(40)));
  CHECK_EQ(Thrown([&] { dict.Set(key(-1), 0); }), "ValueError: negative");
  CHECK_EQ(Thrown([&] { dict.contains(key(-1)); }), "ValueError: negative");
}

TEST("a typed map checks keys and values when it is read from a call") {
  Any map = Map<>{{"a", 1}, {"b", 2}};
  CHECK_EQ((map.cast<Map<String, int>>().at("b")), 2);
  CHECK((!map.try_cast<Map<int, int>>().has_value()));
  CHECK((!map.try_cast<Map<String, String>>().has_value()));
  CHECK_EQ(Thrown([&] { map.cast<Map<int, int>>(); }),
           "TypeError: expected Map[int32, int32], got Map whose key #0 is str");
  CHECK((Any().cast<Map<int, int>>() == nullptr));
}

TEST("a map may be assigned to itself and is shared when copied") {
  Map<String, Shape> map{{"a", Shape{1}}};
  Map<String, Shape>& same = map;
  map = same;
  Map<String, Shape> copy = map;
  CHECK(copy.same_as(map));
  CHECK_EQ(copy.at("a").use_count(), 2);
}

TEST("a container may hold itself's kind to any depth, and frees it") {
  int64_t before = LiveNodes("ffi.Array");
  {
    Any value = 1;
    for (int i = 0; i < 1000; ++i) value = Array<>{value};
    CHECK_EQ(LiveNodes("ffi.Array"), before + 1000);
  }
  CHECK_EQ(LiveNodes("ffi.Array"), before);
}

TEST("the functions by which foreign code reaches containers check what they are given") {
  PackedFunc make = Registry::Get("ffi.Array"), size = Registry::Get("ffi.ArraySize");
  PackedFunc item = Registry::Get("ffi.ArrayGetItem");
  Any array = make(1, "two");
  CHECK_EQ(size(array).cast<int>(), 2);
  CHECK_EQ(item(array, 1).cast<String>(), "two");
  CHECK_EQ(Thrown([&] { item(array, 2); }), "IndexError: index 2 is out of range for 2");
  CHECK_EQ(Thrown([&] { item(array, -1); }), "IndexError: index -1 is out of range for 2");
  CHECK_EQ(Thrown([&] { item(Any(), 0); }), "IndexError: index 0 is out of range for 0");
  Any map = Registry::Get("ffi.Map")("k", 5);
  CHECK_EQ(Registry::Get("ffi.MapSize")(map).cast<int>(), 1);
  CHECK_EQ(Registry::Get("ffi.MapGetItem")(map, "k").cast<int>(), 5);
  CHECK_EQ(Registry::Get("ffi.MapCount")(map, "no").cast<int>(), 0);
  CHECK(Contains(Thrown([&] { Registry::Get("ffi.MapGetItem")(map, "no"); }), "KeyError"));
  CHECK(Contains(Thrown([] { Registry::Get("ffi.Map")("k"); }), "keys and values in turn"));
}

TEST("a container is read from many threads at once") {
  Map<String, int> map{{"a", 1}, {"b", 2}};
  Array<String> array{"one", "two that is longer"};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        CHECK_EQ(map.at("b"), 2);
        CHECK_EQ(array[1], "two that is longer");
        Map<String, int> copy = map;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(map.use_count(), 1);
}

TEST("references to a List and a Dict are taken without making others") {
  int64_t lists = LiveNodes("ffi.List"), dicts = LiveNodes("ffi.Dict");
  {
    Any list = List<Any>{1}, dict = Dict<Any, Any>{{1, 2}};
    CHECK_EQ(list.cast<List<Any>>().size(), 1);
    Dict<Any, Any> same = dict;
    CHECK_EQ(same.size(), 1);
    CHECK(!List<Any>(nullptr).defined());
  }
  CHECK_EQ(LiveNodes("ffi.List"), lists);
  CHECK_EQ(LiveNodes("ffi.Dict"), dicts);
}
