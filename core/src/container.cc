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

struct ListImpl final : Object {
  static constexpr int32_t kTypeIndex = kTVMFFIList;
  static constexpr bool kHoldsObjects = true;
  TVMFFISeqCell cell{};  // shows `items`
  std::vector<Any> items;

  void Show() {
    cell.data = items.data();
    cell.size = static_cast<int64_t>(items.size());
    cell.capacity = static_cast<int64_t>(items.capacity());
  }
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
//
// An Array counts with all that it holds, as often as it holds it, and what is deep takes stack: so a key has so many
// values at most, of which `*left` are left. Below zero, there were more.
constexpr int kMaxKeyValues = 1024;

uint64_t HashCell(const TVMFFIAny& cell, int* left) {
  if (--*left < 0) return 0;
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
      for (int64_t i = 0; i < sequence.size && *left >= 0; ++i)
        hash = Mix(hash + HashCell(static_cast<TVMFFIAny*>(sequence.data)[i], left));
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

struct MapBase : Object {
  static constexpr bool kHoldsObjects = true;

  const TVMFFIAny* data = nullptr;  // as MapObj shows it: size pairs
  uint64_t size = 0;
  uint64_t slots = 0;
  void (*data_deleter)(void*) = nullptr;
  std::vector<Any> cells;
  std::vector<uint32_t> table;  // position + 1, or 0

  MapBase(const TVMFFIAny* pairs, int64_t n) {
    PORTCALL_CHECK(n >= 0, ValueError) << "a Map of " << n << " pairs";
    PORTCALL_CHECK(n < kMaxPairs, ValueError) << "a Map of " << n << " pairs is too large";
    cells.reserve(static_cast<size_t>(n) * 2);
    Resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) Insert(pairs[2 * i], pairs[2 * i + 1]);
  }

  const uint32_t* Locate(const TVMFFIAny& key) const {
    int left = kMaxKeyValues;
    return Locate(key, &left);
  }
  const uint32_t* Locate(const TVMFFIAny& key, int* left) const {
    size_t mask = table.size() - 1;
    for (size_t i = HashCell(key, left) & mask;; i = (i + 1) & mask) {
      if (table[i] == 0 || EqualCells(cells[(table[i] - 1) * 2].cell(), key)) return &table[i];
    }
  }
  // The value that the key had, for the caller to let go of: that may run anything.
  Any Insert(const TVMFFIAny& key, const TVMFFIAny& value) {
    Any copy = Any::Copy(value);
    int left = kMaxKeyValues;
    const uint32_t* place = Locate(key, &left);
    PORTCALL_CHECK(left >= 0, ValueError) << "a key of more than " << kMaxKeyValues << " values";
    if (uint32_t position = *place) {
      std::swap(cells[(position - 1) * 2 + 1], copy);
      return copy;
    }
    PORTCALL_CHECK(size + 1 < kMaxPairs, ValueError) << "a Map of " << size << " pairs is full";
    Any key_copy = Any::Copy(key);
    cells.reserve(cells.size() + 2 > cells.capacity() ? 2 * cells.size() + 2 : 0);
    if ((size + 1) * 2 > table.size()) Resize(size + 1);
    const_cast<uint32_t&>(*Locate(key)) = static_cast<uint32_t>(size + 1);
    cells.push_back(std::move(key_copy));
    cells.push_back(std::move(copy));
    Show();
    return {};
  }
  // Key and value, for the caller to let go of; those behind move up. Nothing when there is no such key.
  std::pair<Any, Any> Erase(const TVMFFIAny& key, bool* erased) {
    size_t position = *Locate(key);
    *erased = position != 0;
    if (!position) return {};
    auto pair = cells.begin() + static_cast<std::ptrdiff_t>(2 * (position - 1));
    std::pair<Any, Any> gone{std::move(pair[0]), std::move(pair[1])};
    cells.erase(pair, pair + 2);
    Show();
    Resize(size);
    return gone;
  }

 private:
  static constexpr int64_t kMaxPairs = int64_t{1} << 31;

  void Show() {
    data = reinterpret_cast<const TVMFFIAny*>(cells.data());
    size = cells.size() / 2;
    slots = table.size();
  }
  // A table with room for n pairs, of those that are there.
  void Resize(size_t n) {
    size_t capacity = std::max<size_t>(table.size(), 4);
    while (capacity < n * 2) capacity *= 2;
    table.assign(capacity, 0);
    for (size_t i = 0; i < cells.size() / 2; ++i) {
      const_cast<uint32_t&>(*Locate(cells[2 * i].cell())) = static_cast<uint32_t>(i + 1);
    }
    Show();
  }
};

struct MapImpl final : MapBase {
  static constexpr int32_t kTypeIndex = kTVMFFIMap;
  using MapBase::MapBase;
};

struct DictImpl final : MapBase {
  static constexpr int32_t kTypeIndex = kTVMFFIDict;
  using MapBase::MapBase;
};

// Null for the map of another runtime: what it looks like inside is that runtime's secret.
MapBase* MapOf(TVMFFIObjectHandle map) {
  auto* obj = static_cast<TVMFFIObject*>(map);
  bool ours = obj->deleter == DeleteCountedNode<MapImpl> || obj->deleter == DeleteCountedNode<DictImpl>;
  return ours ? static_cast<MapBase*>(obj) : nullptr;
}

bool IsUnique(const TVMFFIObject* obj) {
  return __atomic_load_n(&obj->combined_ref_count, __ATOMIC_ACQUIRE) == (kWeakOne | kStrongOne);
}

// The map to change: *container becomes a copy first when it is a Map that somebody else holds too.
MapBase* MapToChange(TVMFFIObjectHandle* container) {
  MapBase* map = MapOf(*container);
  PORTCALL_CHECK(map, TypeError) << "only a Map or Dict of this runtime can be changed";
  if (map->type_index == kTVMFFIDict || IsUnique(map)) return map;
  MapBase* copy = NewCountedNode<MapImpl>(0, map->data, static_cast<int64_t>(map->size));
  Release(map);
  *container = copy;
  return copy;
}

ArrayImpl* NewArray(int64_t capacity) {
  PORTCALL_CHECK(capacity < kMaxItems, ValueError) << "an Array of " << capacity << " items is too large";
  auto* node = NewCountedNode<ArrayImpl>(static_cast<size_t>(capacity) * sizeof(Any));
  node->cell.data = node->items();
  node->cell.capacity = capacity;
  return node;
}

void Append(ArrayImpl* array, const Any& item) { new (array->items() + array->cell.size++) Any(item); }

void SpliceArray(TVMFFIObjectHandle* container, int64_t start, int64_t count, const std::vector<Any>& items) {
  auto* array = static_cast<ArrayImpl*>(static_cast<TVMFFIObject*>(*container));
  const int64_t size = array->cell.size, added = static_cast<int64_t>(items.size());
  bool ours = array->deleter == DeleteCountedNode<ArrayImpl> && IsUnique(array);
  if (ours && count == added) {
    for (int64_t i = 0; i < count; ++i) array->items()[start + i] = items[static_cast<size_t>(i)];
    return;
  }
  if (ours && start == size && size + added <= array->cell.capacity) {
    for (const Any& item : items) Append(array, item);
    return;
  }
  int64_t length = size - count + added;
  ArrayImpl* fresh = NewArray(count < added ? std::max(length, 2 * size) : length);
  auto* old = static_cast<const Any*>(array->cell.data);
  for (int64_t i = 0; i < start; ++i) Append(fresh, old[i]);
  for (const Any& item : items) Append(fresh, item);
  for (int64_t i = start + count; i < size; ++i) Append(fresh, old[i]);
  *container = fresh;
  Release(array);
}

void SpliceList(ListImpl* list, int64_t start, int64_t count, std::vector<Any> items) {
  std::vector<Any>& all = list->items;
  auto first = all.begin() + start;
  // What goes is let go of at the end: that may run anything, and come back here.
  std::vector<Any> gone(std::make_move_iterator(first), std::make_move_iterator(first + count));
  first = all.erase(first, first + count);
  all.insert(first, std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
  list->Show();
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
    ArrayImpl* node = NewArray(size);
    ObjectRef owner = ObjectRef::Steal(node);  // a failing copy below leaves the items made so far to the destructor
    for (int64_t i = 0; i < size; ++i) {
      new (node->items() + i) Any(Any::Copy(items[i]));
      node->cell.size = i + 1;
    }
    *out = owner.release();
  });
}

int PortcallListCreate(const TVMFFIAny* items, int64_t size, TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(size >= 0 && size < kMaxItems, ValueError) << "a List of " << size << " items";
    auto* node = NewCountedNode<ListImpl>(0);
    ObjectRef owner = ObjectRef::Steal(node);
    for (int64_t i = 0; i < size; ++i) node->items.push_back(Any::Copy(items[i]));
    node->Show();
    *out = owner.release();
  });
}

int PortcallArraySplice(TVMFFIObjectHandle* container, int64_t start, int64_t count, const TVMFFIAny* items,
                        int64_t size) {
  return Guard([&] {
    auto* obj = static_cast<TVMFFIObject*>(*container);
    PORTCALL_CHECK(obj->type_index == kTVMFFIArray || obj->deleter == DeleteCountedNode<ListImpl>, TypeError)
        << "only an Array, or a List of this runtime, can be changed";
    int64_t length = reinterpret_cast<ArrayObj*>(obj)->cell.size;
    PORTCALL_CHECK(start >= 0 && count >= 0 && size >= 0 && start <= length && count <= length - start, IndexError)
        << "items " << start << " to " << start + count << " of " << length;
    std::vector<Any> copies;
    copies.reserve(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) copies.push_back(Any::Copy(items[i]));
    if (obj->type_index == kTVMFFIArray) return SpliceArray(container, start, count, copies);
    SpliceList(static_cast<ListImpl*>(obj), start, count, std::move(copies));
  });
}

int PortcallDictCreate(const TVMFFIAny* cells, int64_t num_pairs, TVMFFIObjectHandle* out) {
  return Guard([&] { *out = NewCountedNode<DictImpl>(0, cells, num_pairs); });
}

int PortcallMapSet(TVMFFIObjectHandle* container, const TVMFFIAny* key, const TVMFFIAny* value) {
  return Guard([&] { MapToChange(container)->Insert(*key, *value); });
}

int PortcallMapErase(TVMFFIObjectHandle* container, const TVMFFIAny* key, int* erased) {
  return Guard([&] {
    bool found = false;
    MapToChange(container)->Erase(*key, &found);
    *erased = found ? 1 : 0;
  });
}

int PortcallMapCreate(const TVMFFIAny* cells, int64_t num_pairs, TVMFFIObjectHandle* out) {
  return Guard([&] { *out = NewCountedNode<MapImpl>(0, cells, num_pairs); });
}

int64_t PortcallMapSize(TVMFFIObjectHandle map) {
  MapBase* impl = MapOf(map);
  return impl ? static_cast<int64_t>(impl->size) : -1;
}

const TVMFFIAny* PortcallMapFind(TVMFFIObjectHandle map, const TVMFFIAny* key) {
  MapBase* impl = MapOf(map);
  if (!impl) return nullptr;
  uint32_t position = *impl->Locate(*key);
  return position ? &impl->cells[(position - 1) * 2 + 1].cell() : nullptr;
}

const TVMFFIAny* PortcallMapPairAt(TVMFFIObjectHandle map, int64_t index) {
  MapBase* impl = MapOf(map);
  if (!impl || index < 0 || static_cast<uint64_t>(index) >= impl->size) return nullptr;
  return impl->data + 2 * index;
}
