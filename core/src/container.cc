// SPDX-License-Identifier: Apache-2.0
// Shape, Array and Map. Elements live behind the node; a Map keeps its pairs in order of insertion and finds them
// through an open-addressed table of positions.
#include "portcall/container.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "node.h"
#include "portcall/function.h"

namespace portcall {
namespace {

struct ArrayImpl final : Object {
  static constexpr int32_t kTypeIndex = kTVMFFIArray;
  static constexpr bool kHoldsObjects = true;
  TVMFFISeqCell cell{};

  Any* items() { return reinterpret_cast<Any*>(this + 1); }
  ~ArrayImpl() { std::destroy_n(items(), static_cast<size_t>(cell.size)); }
};

constexpr int64_t kMaxItems = int64_t{1} << 40;  // sizes in bytes stay far from overflow

uint64_t Mix(uint64_t h) {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdu;
  return h ^ (h >> 33);
}

uint64_t HashText(std::string_view text, uint64_t seed) { return Mix(std::hash<std::string_view>()(text) + seed); }

std::string_view WordsOf(const TVMFFIAny& big_int) {
  TVMFFIByteArray words;
  Check(TVMFFIBigIntGetContentByteArray(&big_int, &words));
  return ToView(words);
}

std::string_view ExtentsOf(const TVMFFIAny& shape) {
  const TVMFFIShapeCell& cell = static_cast<ShapeObj*>(shape.v_obj)->cell;
  return {reinterpret_cast<const char*>(cell.data), cell.size * sizeof(int64_t)};
}

const TVMFFISeqCell& SequenceOf(const TVMFFIAny& array) { return static_cast<ArrayObj*>(array.v_obj)->cell; }

// Keys that are values compare by content, and so do the Arrays that Python's tuples become; other objects compare by
// identity, the rest by type and payload.
uint64_t HashCell(const TVMFFIAny& cell) {
  if (auto text = TryString(cell)) return HashText(*text, 0);
  if (auto bytes = TryBytes(cell)) return HashText(*bytes, 1);
  switch (cell.type_index) {
    case kTVMFFIBigInt:
      return HashText(WordsOf(cell), 2);
    case kTVMFFIShape:
      return HashText(ExtentsOf(cell), 3);
    case kTVMFFIFloat:
      return Mix(cell.v_float64 == 0 ? 0 : cell.v_uint64 ^ 4);  // 0.0 == -0.0
    case kTVMFFIArray: {
      uint64_t hash = 5;
      const TVMFFISeqCell& sequence = SequenceOf(cell);
      for (int64_t i = 0; i < sequence.size; ++i)
        hash = Mix(hash + HashCell(static_cast<TVMFFIAny*>(sequence.data)[i]));
      return hash;
    }
    default:
      return Mix(cell.v_uint64 + (static_cast<uint64_t>(cell.type_index) << 56));
  }
}

bool EqualCells(const TVMFFIAny& a, const TVMFFIAny& b) {
  if (auto text = TryString(a)) {
    auto other = TryString(b);
    return other && *text == *other;
  }
  if (auto bytes = TryBytes(a)) {
    auto other = TryBytes(b);
    return other && *bytes == *other;
  }
  if (a.type_index != b.type_index) return false;
  if (a.v_uint64 == b.v_uint64) return true;  // one object, or one number: a NaN finds itself
  switch (a.type_index) {
    case kTVMFFIFloat:
      return a.v_float64 == b.v_float64;
    case kTVMFFIBigInt:
      return WordsOf(a) == WordsOf(b);
    case kTVMFFIShape:
      return ExtentsOf(a) == ExtentsOf(b);
    case kTVMFFIArray: {
      const TVMFFISeqCell &x = SequenceOf(a), &y = SequenceOf(b);
      auto *first = static_cast<TVMFFIAny*>(x.data), *other = static_cast<TVMFFIAny*>(y.data);
      return x.size == y.size && std::equal(first, first + x.size, other, EqualCells);
    }
    default:
      return false;
  }
}

struct MapImpl final : Object {
  static constexpr int32_t kTypeIndex = kTVMFFIMap;
  static constexpr bool kHoldsObjects = true;

  const TVMFFIAny* data = nullptr;  // as MapObj shows it: size pairs
  uint64_t size = 0;
  uint64_t slots = 0;
  void (*data_deleter)(void*) = nullptr;
  std::vector<Any> cells;
  std::vector<uint32_t> table;  // position + 1, or 0

  MapImpl(const TVMFFIAny* pairs, int64_t n) {
    PORTCALL_CHECK(n >= 0, ValueError) << "a Map of " << n << " pairs";
    PORTCALL_CHECK(n < (int64_t{1} << 31), ValueError) << "a Map of " << n << " pairs is too large";
    size_t capacity = 4;
    while (capacity < static_cast<size_t>(n) * 2) capacity *= 2;
    table.assign(capacity, 0);
    cells.reserve(static_cast<size_t>(n) * 2);
    for (int64_t i = 0; i < n; ++i) Insert(pairs[2 * i], pairs[2 * i + 1]);
    data = reinterpret_cast<const TVMFFIAny*>(cells.data());
    size = cells.size() / 2;
    slots = table.size();
  }

  uint32_t* Locate(const TVMFFIAny& key) {
    size_t mask = table.size() - 1;
    for (size_t i = HashCell(key) & mask;; i = (i + 1) & mask) {
      if (table[i] == 0 || EqualCells(cells[(table[i] - 1) * 2].cell(), key)) return &table[i];
    }
  }
  void Insert(const TVMFFIAny& key, const TVMFFIAny& value) {
    uint32_t* place = Locate(key);
    if (*place) {
      cells[(*place - 1) * 2 + 1] = Any::Copy(value);
      return;
    }
    cells.push_back(Any::Copy(key));
    cells.push_back(Any::Copy(value));
    *place = static_cast<uint32_t>(cells.size() / 2);
  }
};

// Null for the map of another runtime: what it looks like inside is that runtime's secret.
MapImpl* MapOf(TVMFFIObjectHandle map) {
  auto* obj = static_cast<TVMFFIObject*>(map);
  return obj->deleter == DeleteCountedNode<MapImpl> ? static_cast<MapImpl*>(obj) : nullptr;
}

// The names by which code on foreign headers reaches containers.
int64_t CheckedIndex(int64_t i, size_t size) {
  PORTCALL_CHECK(i >= 0 && static_cast<size_t>(i) < size, IndexError)
      << "index " << i << " is out of range for " << size;
  return i;
}

PORTCALL_REGISTER_GLOBAL("ffi.Array").set_body([](Args args, RetValue* rv) {
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallArrayCreate(args.cells(), args.size(), &handle));
  *rv = ObjectRef::Steal(handle);
});
PORTCALL_REGISTER_GLOBAL("ffi.ArraySize").set_body_typed([](Array<Any> array) {
  return static_cast<int64_t>(array.size());
});
PORTCALL_REGISTER_GLOBAL("ffi.ArrayGetItem").set_body_typed([](Array<Any> array, int64_t i) {
  return array.items()[CheckedIndex(i, array.size())];
});
PORTCALL_REGISTER_GLOBAL("ffi.Map").set_body([](Args args, RetValue* rv) {
  PORTCALL_CHECK(args.size() % 2 == 0, TypeError)
      << "ffi.Map takes keys and values in turn, got " << args.size() << " arguments";
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallMapCreate(args.cells(), args.size() / 2, &handle));
  *rv = ObjectRef::Steal(handle);
});
PORTCALL_REGISTER_GLOBAL("ffi.MapSize").set_body_typed([](Map<Any, Any> map) {
  return static_cast<int64_t>(map.size());
});
PORTCALL_REGISTER_GLOBAL("ffi.MapGetItem").set_body_typed([](Map<Any, Any> map, Any key) { return map.at(key); });
PORTCALL_REGISTER_GLOBAL("ffi.MapCount").set_body_typed([](Map<Any, Any> map, Any key) {
  return static_cast<int64_t>(map.contains(key));
});

}  // namespace
}  // namespace portcall

using namespace portcall;

int PortcallShapeCreate(const int64_t* values, size_t size, TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(size < static_cast<size_t>(kMaxItems), ValueError)
        << "a Shape of " << size << " extents is too large";
    auto* node = NewCountedNode<ShapeObj>(size * sizeof(int64_t));
    auto* copy = reinterpret_cast<int64_t*>(node + 1);
    if (size) std::memcpy(copy, values, size * sizeof(int64_t));
    node->cell = {copy, size};
    *out = node;
  });
}

int PortcallArrayCreate(const TVMFFIAny* items, int64_t size, TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(size >= 0, ValueError) << "an Array of " << size << " items";
    PORTCALL_CHECK(size < kMaxItems, ValueError) << "an Array of " << size << " items is too large";
    auto* node = NewCountedNode<ArrayImpl>(static_cast<size_t>(size) * sizeof(Any));
    ObjectRef owner = ObjectRef::Steal(node);  // a failing copy below leaves the items made so far to the destructor
    node->cell.data = node->items();
    node->cell.capacity = size;
    for (int64_t i = 0; i < size; ++i) {
      new (node->items() + i) Any(Any::Copy(items[i]));
      node->cell.size = i + 1;
    }
    *out = owner.release();
  });
}

int PortcallMapCreate(const TVMFFIAny* cells, int64_t num_pairs, TVMFFIObjectHandle* out) {
  return Guard([&] { *out = NewCountedNode<MapImpl>(0, cells, num_pairs); });
}

int64_t PortcallMapSize(TVMFFIObjectHandle map) {
  MapImpl* impl = MapOf(map);
  return impl ? static_cast<int64_t>(impl->size) : -1;
}

const TVMFFIAny* PortcallMapFind(TVMFFIObjectHandle map, const TVMFFIAny* key) {
  MapImpl* impl = MapOf(map);
  if (!impl) return nullptr;
  uint32_t position = *impl->Locate(*key);
  return position ? &impl->cells[(position - 1) * 2 + 1].cell() : nullptr;
}

const TVMFFIAny* PortcallMapPairAt(TVMFFIObjectHandle map, int64_t index) {
  MapImpl* impl = MapOf(map);
  if (!impl || index < 0 || static_cast<uint64_t>(index) >= impl->size) return nullptr;
  return impl->data + 2 * index;
}
