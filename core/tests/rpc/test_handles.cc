// SPDX-License-Identifier: Apache-2.0
// Numbers that a session lends out.
#include "rpc/handles.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;
using namespace portcall::rpc;

using Kind = HandleTable::Kind;

namespace {
const Kind kKinds[] = {Kind::kFunction, Kind::kModule, Kind::kObject, Kind::kTensor, Kind::kMemory, Kind::kStream};
bool IsObjectLike(Kind kind) { return kind != Kind::kMemory && kind != Kind::kStream; }
}  // namespace

TEST("a handle names what it was given for, as its own kind only") {
  for (Kind kind : kKinds) {
    HandleTable table;
    uint64_t handle = table.Add(kind, 42);
    CHECK(handle != 0);
    CHECK(table.Has(handle));
    for (Kind other : kKinds) {
      std::string error = Thrown([&] { CHECK_EQ(table.Get(handle, other).cast<int>(), 42); });
      CHECK_EQ(error.substr(0, 9), other == kind ? "" : "TypeError");
    }
    CHECK_EQ(Thrown([&] { table.GetObject(handle); }).empty(), IsObjectLike(kind));
    CHECK_EQ(Thrown([&] { table.GetMemory(handle); }).empty(), kind == Kind::kMemory || kind == Kind::kTensor);
  }
}

TEST("a handle is freed as what it is, and once") {
  for (Kind kind : kKinds) {
    for (Kind as : kKinds) {
      HandleTable table;
      uint64_t handle = table.Add(kind, 1);
      bool right = as == kind || (as == Kind::kObject && IsObjectLike(kind));
      CHECK_EQ(Thrown([&] { table.Free(handle, as); }).empty(), right);
      CHECK_EQ(table.Has(handle), !right);
      if (right) CHECK(Contains(Thrown([&] { table.Free(handle, as); }), "ValueError"));
    }
  }
}

TEST("numbers that name nothing are refused") {
  HandleTable table;
  uint64_t handle = table.Add(Kind::kObject, 1);
  for (uint64_t bad : {uint64_t{0}, uint64_t{1}, handle + 1, handle + 16, UINT64_MAX}) {
    CHECK(!table.Has(bad));
    CHECK(Contains(Thrown([&] { table.Get(bad, Kind::kObject); }), "names nothing in this session"));
    CHECK(Contains(Thrown([&] { table.Free(bad, Kind::kObject); }), "names nothing in this session"));
  }
}

TEST("a number is never given twice") {
  HandleTable table;
  uint64_t first = table.Add(Kind::kMemory, 1);
  table.Free(first, Kind::kMemory);
  for (int i = 0; i < 100; ++i) CHECK(table.Add(Kind::kMemory, 2) != first);
}

TEST("a name is one handle with as many references as it was asked for") {
  HandleTable table;
  CHECK_EQ(table.AddNamed("f"), 0);
  uint64_t handle = table.AddNamed("f", 1);
  CHECK_EQ(table.AddNamed("f"), handle);
  CHECK_EQ(table.AddNamed("f"), handle);
  CHECK_EQ(table.size(), 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(table.Has(handle));
    table.Free(handle, Kind::kObject);
  }
  CHECK(!table.Has(handle));
  CHECK_EQ(table.AddNamed("f"), 0);
}

TEST("freeing one of two handles of a name leaves the other known") {
  HandleTable table;  // two threads looked the name up at once
  uint64_t first = table.AddNamed("f", 1), second = table.AddNamed("f", 1);
  table.Free(first, Kind::kObject);
  CHECK_EQ(table.AddNamed("f"), second);
}

TEST("clearing a table lets go of everything, and of what that frees in turn") {
  struct Owner {
    HandleTable* table;
    uint64_t other;
  };
  HandleTable table;
  Owner owner{&table, table.Add(Kind::kObject, 1)};
  PackedFunc func([owner = std::shared_ptr<Owner>(&owner, [](Owner* o) {
                     CHECK(!o->table->Has(o->other));  // the lock is free again
                   })](Args, RetValue*) { (void)owner; });
  table.Add(Kind::kFunction, func);
  func = PackedFunc();
  table.Clear();
  CHECK_EQ(table.size(), 0);
}
