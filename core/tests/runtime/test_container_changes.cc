// SPDX-License-Identifier: Apache-2.0
// Containers that change, and copies on write.
#include <map>

#include "portcall/container.h"
#include "portcall/function.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;

TEST("an Array that somebody else holds is copied before it changes") {
  Array<int64_t> mine{1, 2, 3};
  Array<int64_t> theirs = mine;
  mine.Set(1, 7);
  CHECK(!mine.same_as(theirs));
  CHECK_EQ(mine[1], 7);
  CHECK_EQ(theirs[1], 2);
  TVMFFIObject* before = mine.get();
  mine.Set(0, 9);
  CHECK(mine.get() == before);
  CHECK_EQ(mine[0], 9);
  mine.erase(0, 2);
  CHECK_EQ(mine.size(), 1);
  mine.insert(0, 5);
  CHECK_EQ(mine[0], 5);
  CHECK_EQ(mine[1], 3);
  CHECK_THROWS(mine.Set(2, 0), Error);
  CHECK_THROWS(mine.erase(1, 2), Error);
}

TEST("an Array grows by doubling, from nothing on") {
  Array<int64_t> numbers;
  int moves = 0;
  for (int64_t i = 0; i < 10000; ++i) {
    TVMFFIObject* before = numbers.get();
    numbers.push_back(i);
    moves += numbers.get() != before;
  }
  CHECK(moves < 20);
  for (int64_t i = 0; i < 10000; ++i) CHECK_EQ(numbers[static_cast<size_t>(i)], i);
}

TEST("a List changes for everybody who holds it") {
  List<Any> list{1, "two"};
  List<Any> same = list;
  list.push_back(3);
  list.Set(0, "one");
  list.insert(1, 1.5);
  CHECK_EQ(same.size(), 4);
  CHECK_EQ(same[0].cast<std::string>(), "one");
  CHECK_EQ(same[1].cast<double>(), 1.5);
  same.erase(0, 3);
  CHECK_EQ(list.size(), 1);
  CHECK_EQ(list[0].cast<int64_t>(), 3);
  CHECK_EQ(Any(list).type_index(), static_cast<int32_t>(kTVMFFIList));
  CHECK(!Any(list).try_cast<Dict<>>());
  CHECK(!Any(Array<Any>{1}).try_cast<List<>>());
}

TEST("what a List lets go of may come back to it") {
  List<Any> list;
  struct Closer {
    List<Any>* list;
    ~Closer() {
      if (list) list->push_back("closed");
    }
    Closer(List<Any>* given) : list(given) {}
    Closer(Closer&& other) noexcept : list(std::exchange(other.list, nullptr)) {}
  };
  list.push_back(PackedFunc([closer = std::make_shared<Closer>(&list)](Args, RetValue*) {}));
  list.push_back(2);
  list.erase(0);
  CHECK_EQ(list.size(), 2);
  CHECK_EQ(list[1].cast<std::string>(), "closed");
  list.Set(0, 1);
}

TEST("a Map that somebody else holds is copied before it changes, and keeps its order") {
  Map<String, int64_t> mine{{"a", 1}, {"b", 2}, {"c", 3}};
  Map<String, int64_t> theirs = mine;
  mine.Set("b", 7);
  mine.Set("d", 4);
  CHECK(mine.erase("a"));
  CHECK(!mine.erase("a"));
  CHECK_EQ(theirs.size(), 3);
  CHECK_EQ(theirs.at("b"), 2);
  std::string order;
  for (const auto& [key, value] : mine) order += key.str() + std::to_string(value);
  CHECK_EQ(order, "b7c3d4");
  Map<String, int64_t> fresh;
  fresh.Set("x", 1);
  CHECK_EQ(fresh.at("x"), 1);
}

TEST("a Dict agrees with a map of the standard library, whatever is done to it") {
  Dict<int64_t, int64_t> dict;
  Dict<int64_t, int64_t> same = dict;
  std::map<int64_t, int64_t> model;
  uint64_t seed = 7;
  for (int i = 0; i < 4000; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    int64_t key = static_cast<int64_t>((seed >> 33) % 200);
    if (seed >> 63) {
      CHECK_EQ(dict.erase(key), model.erase(key) == 1);
    } else {
      dict.Set(key, i);
      model[key] = i;
    }
    CHECK_EQ(same.size(), model.size());
  }
  for (const auto& [key, value] : model) CHECK_EQ(same.at(key), value);
  CHECK(!same.contains(1000));
}
