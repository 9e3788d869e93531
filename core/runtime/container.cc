// SPDX-License-Identifier: Apache-2.0
// Shape, Array, List, Map and Dict.
#include "portcall/container.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "portcall/function.h"
#include "runtime/node.h"

namespace portcall {
namespace {

struct ArrayImpl final : Object {
  static constexpr int32_t kTypeIndex = kTVMFFIArray;
  static constexpr bool kHoldsObjects = true;
  TVMFFISeqCell cell{};

  Any* items() { return reinterpret_cast<Any*>(this + 1); }
  ~ArrayImpl() { std::destroy_n(items(), static_cast<size_t>(cell.size)); }
};

// For memory that others may replace by their own, and leave to this to free: tvm-ffi's headers do.
void Free(void* data) { ::operator delete(data); }

struct ListImpl final : Object {
  static constexpr int32_t kTypeIndex = kTVMFFIList;
  static constexpr bool kHoldsObjects = true;
  TVMFFISeqCell cell{nullptr, 0, 0, Free};

  ~ListImpl() {
    std::destroy_n(static_cast<Any*>(cell.data), static_cast<size_t>(cell.size));
    if (cell.data_deleter) cell.data_deleter(cell.data);
  }
};

// Sizes in bytes stay far from overflow, with 32 bits too.
constexpr int64_t kMaxItems = std::min<uint64_t>(uint64_t{1} << 40, SIZE_MAX / 64);

// ---- Keys ---------------------------------------------------------------------------------------------------------

uint64_t Combine(uint64_t a, uint64_t b) { return a ^ (b + 0x9e3779b9u + (a << 6) + (a >> 2)); }

uint64_t HashBytes(std::string_view bytes) {
  uint64_t hash = 0;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    hash = (hash * 0x100000001b3u + word) % 0x7fffffffu;
  }
  return hash;
}

std::string_view WordsOf(const TVMFFIAny& big_int) { return ToView(TVMFFIBigIntGetContentByteArray(&big_int)); }

std::string_view ExtentsOf(const TVMFFIAny& shape) {
  const TVMFFIShapeCell& cell = static_cast<ShapeObj*>(shape.v_obj)->cell;
  return {reinterpret_cast<const char*>(cell.data), cell.size * sizeof(int64_t)};
}

const TVMFFISeqCell& SequenceOf(const TVMFFIAny& array) { return static_cast<ArrayObj*>(array.v_obj)->cell; }

// Where types say how their objects are hashed and compared as keys.
const TVMFFITypeAttrColumn* ColumnOf(std::string_view name) {
  TVMFFIByteArray text = ToByteArray(name);
  return TVMFFIGetTypeAttrColumn(&text);
}
const TVMFFITypeAttrColumn& Hashes() {
  static const TVMFFITypeAttrColumn* column = ColumnOf("__any_hash__");
  return *column;
}
const TVMFFITypeAttrColumn& Equals() {
  static const TVMFFITypeAttrColumn* column = ColumnOf("__any_equal__");
  return *column;
}

// Calls what the type of args[0] says, a function object or the address of a function; false if it says nothing.
bool CallHook(const TVMFFITypeAttrColumn& column, const TVMFFIAny* args, int num_args, int64_t* result) {
  const int32_t i = args[0].type_index - column.begin_index;
  if (i < 0 || i >= __atomic_load_n(&column.size, __ATOMIC_ACQUIRE)) return false;
  const TVMFFIAny hook = __atomic_load_n(&column.data, __ATOMIC_ACQUIRE)[i];
  Any answer;
  if (hook.type_index == kTVMFFIFunction) {
    Check(TVMFFIFunctionCall(hook.v_obj, args, num_args, answer.out()));
  } else if (hook.type_index != kTVMFFIOpaquePtr) {
    return false;
  } else if (num_args == 1) {
    answer = Any::Steal(reinterpret_cast<TVMFFIAny (*)(const TVMFFIAny&)>(hook.v_ptr)(args[0]));
  } else {
    auto equal = reinterpret_cast<TVMFFIAny (*)(const TVMFFIAny&, const TVMFFIAny&)>(hook.v_ptr);
    answer = Any::Steal(equal(args[0], args[1]));
  }
  if (answer.type_index() == kTVMFFIError) throw Error(ObjectRef::Borrow(answer.cell().v_obj));
  *result = answer.cast<int64_t>();
  return true;
}

// Keys that are values compare by content, and so do the Arrays that Python's tuples become; other objects compare by
// identity, unless their type says otherwise, the rest by type and payload. tvm-ffi's headers compute the same.
//
// An Array counts with all that it holds, as often as it holds it, and what is deep takes stack: so a key has so many
// values at most, of which `*left` are left. Below zero, there were more.
constexpr int kMaxKeyValues = 1024;

uint64_t HashValue(const TVMFFIAny& key, int* left);

// Of what this runtime compares by content.
uint64_t HashContent(const TVMFFIAny& key, int* left) {
  if (key.type_index == kTVMFFIBigInt) return HashBytes(WordsOf(key));
  if (key.type_index == kTVMFFIShape) return HashBytes(ExtentsOf(key));
  uint64_t hash = 0;
  const TVMFFISeqCell& sequence = SequenceOf(key);
  for (int64_t i = 0; i < sequence.size && *left >= 0; ++i) {
    TVMFFIAny item = static_cast<TVMFFIAny*>(sequence.data)[i];
    if (item.type_index == kTVMFFIFloat && item.v_float64 == 0) item.v_float64 = 0;  // 0.0 == -0.0
    hash = Combine(hash, HashValue(item, left));
  }
  return hash;
}

uint64_t HashValue(const TVMFFIAny& key, int* left) {
  if (--*left < 0) return 0;
  if (auto text = TryString(key)) return Combine(kTVMFFIStr, HashBytes(*text));
  if (auto bytes = TryBytes(key)) return Combine(kTVMFFIBytes, HashBytes(*bytes));
  uint64_t hash = key.v_uint64;
  int64_t own;
  if (key.type_index == kTVMFFIBigInt || key.type_index == kTVMFFIShape || key.type_index == kTVMFFIArray) {
    hash = HashContent(key, left);
  } else if (IsObject(key) && CallHook(Hashes(), &key, 1, &own)) {
    hash = static_cast<uint64_t>(own);
  }
  return Combine(static_cast<uint64_t>(key.type_index), hash);
}

// What does not fit is never a key of a map.
uint64_t HashKey(const TVMFFIAny& key, bool* fits = nullptr) {
  int left = kMaxKeyValues;
  const uint64_t hash = HashValue(key, &left);
  if (fits) *fits = left >= 0;
  return hash;
}

bool EqualKeys(const TVMFFIAny& a, const TVMFFIAny& b) {
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
      return x.size == y.size && std::equal(first, first + x.size, other, EqualKeys);
    }
    default: {
      const TVMFFIAny both[] = {a, b};
      int64_t equal = 0;
      return IsObject(a) && CallHook(Equals(), both, 2, &equal) && equal;
    }
  }
}

PORTCALL_REGISTER_GLOBAL("ffi.ArrayContains").set_body([](Args args, RetValue* rv) {
  const Array<Any> array = args[0];
  const TVMFFIAny value = args.size() == 2 ? args.cells()[1] : TVMFFIAny{};
  PORTCALL_CHECK(args.size() == 2, TypeError) << "ffi.ArrayContains takes an Array and a value";
  const Any* items = array.items();
  *rv = std::any_of(items, items + array.size(), [&](const Any& item) { return EqualKeys(item.cell(), value); });
});

// Code on tvm-ffi's headers asks the table of types.
void RegisterHooks(int32_t type_index, std::string_view name, const PackedFunc& hook) {
  TVMFFIByteArray text = ToByteArray(name);
  Any value(hook);
  Check(TVMFFITypeRegisterAttr(type_index, &text, &value.cell()));
}
[[maybe_unused]] const bool hooks_registered = [] {
  PackedFunc hash([](Args args, RetValue* rv) {
    int left = kMaxKeyValues;
    *rv = static_cast<int64_t>(HashContent(args.cells()[0], &left));
  });
  PackedFunc equal([](Args args, RetValue* rv) { *rv = EqualKeys(args.cells()[0], args.cells()[1]); });
  for (int32_t index : {kTVMFFIBigInt, kTVMFFIShape, kTVMFFIArray}) {
    RegisterHooks(index, "__any_hash__", hash);
    RegisterHooks(index, "__any_equal__", equal);
  }
  return true;
}();

// ---- Maps ---------------------------------------------------------------------------------------------------------
//
// The layout is tvm-ffi's (docs/abi.md, section 3): any code that has a Map or Dict reads and changes it in place, whichever
// code made it. Up to four pairs are a row. More are in a table, where the pairs whose hashes have one home are a chain:
// its head is at home, and the state of each slot says how far it is to the next one.

using detail::MapBlock;
using detail::MapItem;

constexpr uint64_t kNone = detail::kNoItem;
constexpr uint64_t kSmallCapacity = 4;
constexpr uint64_t kMinSlots = detail::kSlotsOfBlock;
constexpr uint64_t kMaxPairs = std::min<uint64_t>(uint64_t{1} << 31, SIZE_MAX / 256);
constexpr uint8_t kEmpty = 0xff, kReserved = 0xfe, kBody = 0x80;  // states; kBody: not the head of its chain

template <int32_t kIndex> struct MapImpl final : Object {
  static constexpr int32_t kTypeIndex = kIndex;
  static constexpr bool kHoldsObjects = true;
  PortcallMapCell cell{};
  TVMFFIAny row[2 * kSmallCapacity];

  MapImpl() {  // NOLINT(cppcoreguidelines-pro-type-member-init): the row is filled up to `size`
    cell.data = row;
    cell.slots = detail::kSmallMap | kSmallCapacity;
  }
  ~MapImpl() {
    for (const TVMFFIAny* pair = nullptr; (pair = detail::NextPair(cell, pair));) {
      Any::Steal(pair[0]);
      Any::Steal(pair[1]);
    }
    if (cell.data_deleter) cell.data_deleter(cell.data);
  }
};

PortcallMapCell* CellOf(TVMFFIObjectHandle map) { return &static_cast<MapObj*>(map)->cell; }

bool IsSmall(const PortcallMapCell& map) { return map.slots & detail::kSmallMap; }
MapItem& ItemAt(const PortcallMapCell& map, uint64_t slot) { return detail::ItemAt(map, slot); }
TVMFFIAny* PairAt(const PortcallMapCell& map, uint64_t position) {
  return IsSmall(map) ? static_cast<TVMFFIAny*>(map.data) + 2 * position : &ItemAt(map, position).key;
}
uint8_t& StateOf(const PortcallMapCell& map, uint64_t slot) {
  return static_cast<MapBlock*>(map.data)[slot / detail::kSlotsOfBlock].states[slot % detail::kSlotsOfBlock];
}
uint64_t HomeOf(const PortcallMapCell& map, uint64_t hash) { return hash * 0x9e3779b97f4a7c15u >> map.shift; }

// How far a jump goes: triangular numbers but for the first ones.
constexpr uint8_t kNumJumps = 126;
uint64_t Distance(uint8_t jump) {
  static constexpr uint32_t kFar[] = {
      130,       195,       292,       438,       657,        986,        1478,      2217,      3326,
      4988,      7482,      11223,     16835,     25252,      37877,      56816,     85223,     127835,
      191752,    287627,    431440,    647160,    970740,     1456110,    2184165,   3276247,   4914370,
      7371555,   11057333,  16585999,  24878998,  37318497,   55977745,   83966618,  125949926, 188924889,
      283387334, 425081001, 637621501, 956432251, 1434648376, 2151972564, 3227958845};
  if (jump < 16) return jump;
  uint64_t n = jump < 83 ? jump - 10u : kFar[jump - 83];
  return n % 2 ? (n + 1) / 2 * n : n / 2 * (n + 1);
}
// The slot after this one in its chain, or kNone.
uint64_t NextInChain(const PortcallMapCell& map, uint64_t slot) {
  uint8_t jump = StateOf(map, slot) & 0x7f;
  return jump ? (slot + Distance(jump)) & (map.slots - 1) : kNone;
}
void SetJump(const PortcallMapCell& map, uint64_t slot, uint8_t jump) {
  StateOf(map, slot) = (StateOf(map, slot) & kBody) | jump;
}
// An empty slot that can be reached from this one, and the jump to it; 0 when there is none.
uint8_t FindEmpty(const PortcallMapCell& map, uint64_t from, uint64_t* slot) {
  for (uint8_t jump = 1; jump < kNumJumps; ++jump) {
    *slot = (from + Distance(jump)) & (map.slots - 1);
    if (StateOf(map, *slot) == kEmpty) return jump;
  }
  return 0;
}

// Tells the pairs before and after a pair in order of insertion where it is.
void Link(PortcallMapCell* map, uint64_t slot) {
  const MapItem& item = ItemAt(*map, slot);
  (item.previous == kNone ? map->first : ItemAt(*map, item.previous).next) = slot;
  (item.next == kNone ? map->last : ItemAt(*map, item.next).previous) = slot;
}

uint64_t SearchHash(const PortcallMapCell& map, const TVMFFIAny& key, uint64_t hash) {
  if (map.size == 0) return kNone;
  uint64_t slot = HomeOf(map, hash);
  if (StateOf(map, slot) & kBody) return kNone;
  while (slot != kNone && !EqualKeys(ItemAt(map, slot).key, key)) slot = NextInChain(map, slot);
  return slot;
}

// Where the pair of this key is, or kNone.
uint64_t Locate(const PortcallMapCell& map, const TVMFFIAny& key, uint64_t hash) {
  if (IsSmall(map)) {
    for (uint64_t i = 0; i < map.size; ++i) {
      if (EqualKeys(*PairAt(map, i), key)) return i;
    }
    return kNone;
  }
  uint64_t slot = SearchHash(map, key, hash);
  if (slot != kNone) return slot;
  if (key.type_index == kTVMFFIFloat && key.v_float64 == 0) {  // 0.0 == -0.0, with another hash
    TVMFFIAny other = key;
    other.v_float64 = -key.v_float64;
    return SearchHash(map, other, HashKey(other));
  }
  if ((key.type_index == kTVMFFIArray || key.type_index == kTVMFFIShape) && map.data_deleter != Free && map.size) {
    // The table is of code on another runtime, perhaps, which hashes their addresses.
    for (slot = map.first; slot != kNone && !EqualKeys(ItemAt(map, slot).key, key);) slot = ItemAt(map, slot).next;
  }
  return slot;
}

uint64_t Find(const PortcallMapCell& map, const TVMFFIAny& key) {
  bool fits;
  const uint64_t hash = HashKey(key, &fits);
  return fits ? Locate(map, key, hash) : kNone;
}

// Moves the rest of a chain, from its slot on, elsewhere. When that fails, the map has to be rebuilt.
bool ClearSlot(PortcallMapCell* map, uint64_t target) {
  uint64_t before = HomeOf(*map, HashKey(ItemAt(*map, target).key));
  for (uint64_t next; (next = NextInChain(*map, before)) != target;) before = next;
  for (uint64_t slot = target; slot != kNone;) {
    uint64_t empty;
    const uint8_t jump = FindEmpty(*map, before, &empty);
    if (!jump) return false;
    ItemAt(*map, empty) = ItemAt(*map, slot);
    Link(map, empty);
    const uint64_t next = NextInChain(*map, slot);
    StateOf(*map, slot) = slot == target ? kReserved : kEmpty;
    StateOf(*map, empty) = kBody;
    SetJump(*map, before, jump);
    before = empty;
    slot = next;
  }
  return true;
}

// Puts a pair, whose key is not there, after all others. False when the table is too full for it.
bool Place(PortcallMapCell* map, const TVMFFIAny* pair, uint64_t hash) {
  if (map->size >= map->slots / 8 * 7) return false;
  uint64_t slot = HomeOf(*map, hash);
  uint8_t state = 0;
  if (StateOf(*map, slot) & kBody) {
    if (StateOf(*map, slot) != kEmpty && !ClearSlot(map, slot)) return false;
  } else {
    uint64_t tail = slot;
    for (uint64_t next = slot; next != kNone; next = NextInChain(*map, next)) tail = next;
    const uint8_t jump = FindEmpty(*map, tail, &slot);
    if (!jump) return false;
    SetJump(*map, tail, jump);
    state = kBody;
  }
  StateOf(*map, slot) = state;
  ItemAt(*map, slot) = {pair[0], pair[1], map->last, kNone};
  Link(map, slot);
  ++map->size;
  return true;
}

// An empty table.
void Clear(PortcallMapCell* map, uint64_t slots) {
  const uint64_t num_blocks = slots / detail::kSlotsOfBlock;
  auto* blocks = static_cast<MapBlock*>(::operator new(num_blocks * sizeof(MapBlock)));
  for (uint64_t i = 0; i < num_blocks; ++i) std::memset(blocks[i].states, kEmpty, sizeof blocks[i].states);
  map->data = blocks;
  map->size = 0;
  map->slots = slots;
  map->data_deleter = Free;
  map->shift = static_cast<uint32_t>(__builtin_clzll(slots) + 1);
  map->first = map->last = kNone;
}

// Moves the pairs into a table with so many slots, or more.
void Grow(PortcallMapCell* map, uint64_t slots) {
  PortcallMapCell larger{};
  Clear(&larger, slots);
  try {
    for (const TVMFFIAny* pair = nullptr; (pair = detail::NextPair(*map, pair));) {
      const uint64_t hash = HashKey(*pair);
      while (!Place(&larger, pair, hash)) Grow(&larger, 2 * larger.slots);
    }
  } catch (...) {
    Free(larger.data);
    throw;
  }
  if (map->data_deleter) map->data_deleter(map->data);
  *map = larger;
}

// The value that the key had, for the caller to let go of: that may run anything.
Any Insert(PortcallMapCell* map, const TVMFFIAny& key, const TVMFFIAny& value) {
  bool fits;
  const uint64_t hash = HashKey(key, &fits);
  PORTCALL_CHECK(fits, ValueError) << "a key of more than " << kMaxKeyValues << " values";
  const uint64_t found = Locate(*map, key, hash);
  Any copy = Any::Copy(value);
  if (found != kNone) {
    std::swap(reinterpret_cast<Any&>(PairAt(*map, found)[1]), copy);
    return copy;
  }
  PORTCALL_CHECK(map->size + 1 < kMaxPairs, ValueError) << "a Map of " << map->size << " pairs is full";
  Any key_copy = Any::Copy(key);
  const TVMFFIAny pair[] = {key_copy.cell(), copy.cell()};
  if (IsSmall(*map) && map->size < (map->slots & ~detail::kSmallMap)) {
    std::copy_n(pair, 2, PairAt(*map, map->size++));
  } else {
    if (IsSmall(*map)) Grow(map, kMinSlots);
    while (!Place(map, pair, hash)) Grow(map, std::max(kMinSlots, 2 * map->slots));
  }
  key_copy.release();
  copy.release();
  return {};
}

// Key and value, for the caller to let go of. Nothing when there is no such key.
std::pair<Any, Any> Erase(PortcallMapCell* map, const TVMFFIAny& key, bool* erased) {
  const uint64_t found = Find(*map, key);
  *erased = found != kNone;
  if (found == kNone) return {};
  TVMFFIAny* pair = PairAt(*map, found);
  std::pair<Any, Any> gone{Any::Steal(pair[0]), Any::Steal(pair[1])};
  --map->size;
  if (IsSmall(*map)) {
    std::memmove(pair, pair + 2, (map->size - found) * 2 * sizeof(TVMFFIAny));
    return gone;
  }
  uint64_t last = found, before = kNone;  // places in the chain
  for (uint64_t next = found; (next = NextInChain(*map, next)) != kNone; last = next) before = last;
  if (last == found && StateOf(*map, found) & kBody) {
    before = HomeOf(*map, HashKey(gone.first.cell()));
    for (uint64_t next; (next = NextInChain(*map, before)) != found;) before = next;
  }
  const MapItem& item = ItemAt(*map, found);
  (item.previous == kNone ? map->first : ItemAt(*map, item.previous).next) = item.next;
  (item.next == kNone ? map->last : ItemAt(*map, item.next).previous) = item.previous;
  if (last != found) {
    ItemAt(*map, found) = ItemAt(*map, last);
    Link(map, found);
  }
  StateOf(*map, last) = kEmpty;
  if (before != kNone) SetJump(*map, before, 0);
  return gone;
}

// Room for so many pairs.
template <int32_t kIndex> ObjectRef NewMap(int64_t num_pairs) {
  PORTCALL_CHECK(num_pairs >= 0, ValueError) << "a Map of " << num_pairs << " pairs";
  const auto n = static_cast<uint64_t>(num_pairs);
  PORTCALL_CHECK(n < kMaxPairs, ValueError) << "a Map of " << n << " pairs is too large";
  auto map = ObjectRef::Steal(NewCountedNode<MapImpl<kIndex>>(0));
  uint64_t slots = kMinSlots;
  while (slots < 2 * n) slots *= 2;
  if (n > kSmallCapacity) Clear(CellOf(map.get()), slots);
  return map;
}

template <int32_t kIndex> int CreateMap(const TVMFFIAny* cells, int64_t num_pairs, TVMFFIObjectHandle* out) {
  return Guard([&] {
    ObjectRef map = NewMap<kIndex>(num_pairs);
    for (int64_t i = 0; i < num_pairs; ++i) Insert(CellOf(map.get()), cells[2 * i], cells[2 * i + 1]);
    *out = map.release();
  });
}

bool IsUnique(const TVMFFIObject* obj) {
  return __atomic_load_n(&obj->combined_ref_count, __ATOMIC_ACQUIRE) == (kWeakOne | kStrongOne);
}

// The map to change: *container becomes a copy first when it is a Map that somebody else holds too.
PortcallMapCell* MapToChange(TVMFFIObjectHandle* container) {
  auto* map = static_cast<TVMFFIObject*>(*container);
  if (map->type_index == kTVMFFIDict || IsUnique(map)) return CellOf(map);
  const PortcallMapCell& cell = *CellOf(map);
  ObjectRef copy = NewMap<kTVMFFIMap>(static_cast<int64_t>(cell.size));
  for (const TVMFFIAny* pair = nullptr; (pair = detail::NextPair(cell, pair));) {
    Insert(CellOf(copy.get()), pair[0], pair[1]);
  }
  Release(map);
  return CellOf(*container = copy.release());
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

// Moves the items after `start + count` so that there is room for `added` at `start`.
void MakeRoom(TVMFFISeqCell* list, int64_t start, int64_t count, int64_t added) {
  auto* items = static_cast<TVMFFIAny*>(list->data);
  auto* target = items;
  const int64_t size = list->size - count + added;
  PORTCALL_CHECK(size < kMaxItems, ValueError) << "a List of " << size << " items";
  if (size > list->capacity) {
    const int64_t capacity = std::max(size, 2 * list->capacity);
    target = static_cast<TVMFFIAny*>(::operator new(static_cast<size_t>(capacity) * sizeof(TVMFFIAny)));
    std::copy_n(items, start, target);
    list->capacity = capacity;
  }
  auto after = static_cast<size_t>(list->size - start - count);
  if (after) std::memmove(target + start + added, items + start + count, after * sizeof(TVMFFIAny));
  list->size = size;
  if (target == items) return;
  if (list->data_deleter) list->data_deleter(items);
  list->data = target;
  list->data_deleter = Free;
}

void SpliceList(TVMFFISeqCell* list, int64_t start, int64_t count, std::vector<Any> items) {
  // What goes is let go of at the end: that may run anything, and come back here.
  auto* first = static_cast<Any*>(list->data) + start;
  std::vector<Any> gone(std::make_move_iterator(first), std::make_move_iterator(first + count));
  MakeRoom(list, start, count, static_cast<int64_t>(items.size()));
  std::uninitialized_move(items.begin(), items.end(), static_cast<Any*>(list->data) + start);
}

}  // namespace
}  // namespace portcall

using namespace portcall;

int PortcallShapeCreate(const int64_t* values, size_t size, TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(static_cast<uint64_t>(size) < uint64_t{kMaxItems}, ValueError)
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
    MakeRoom(&node->cell, 0, 0, size);
    node->cell.size = 0;
    for (int64_t i = 0; i < size; ++i) {
      new (static_cast<Any*>(node->cell.data) + i) Any(Any::Copy(items[i]));
      node->cell.size = i + 1;
    }
    *out = owner.release();
  });
}

int PortcallArraySplice(TVMFFIObjectHandle* container, int64_t start, int64_t count, const TVMFFIAny* items,
                        int64_t size) {
  return Guard([&] {
    auto* obj = static_cast<TVMFFIObject*>(*container);
    TVMFFISeqCell* cell = &static_cast<ArrayObj*>(obj)->cell;
    const int64_t length = cell->size;
    PORTCALL_CHECK(start >= 0 && count >= 0 && size >= 0 && start <= length && count <= length - start, IndexError)
        << "items " << start << " to " << start + count << " of " << length;
    std::vector<Any> copies;
    copies.reserve(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) copies.push_back(Any::Copy(items[i]));
    if (obj->type_index == kTVMFFIArray) return SpliceArray(container, start, count, copies);
    SpliceList(cell, start, count, std::move(copies));
  });
}

int PortcallDictCreate(const TVMFFIAny* cells, int64_t num_pairs, TVMFFIObjectHandle* out) {
  return CreateMap<kTVMFFIDict>(cells, num_pairs, out);
}

int PortcallMapCreate(const TVMFFIAny* cells, int64_t num_pairs, TVMFFIObjectHandle* out) {
  return CreateMap<kTVMFFIMap>(cells, num_pairs, out);
}

int PortcallMapSet(TVMFFIObjectHandle* container, const TVMFFIAny* key, const TVMFFIAny* value) {
  return Guard([&] { Insert(MapToChange(container), *key, *value); });
}

int PortcallMapErase(TVMFFIObjectHandle* container, const TVMFFIAny* key, int* erased) {
  return Guard([&] {
    bool found = false;
    Erase(MapToChange(container), *key, &found);
    *erased = found ? 1 : 0;
  });
}

int64_t PortcallMapSize(TVMFFIObjectHandle map) { return static_cast<int64_t>(CellOf(map)->size); }

int PortcallMapFind(TVMFFIObjectHandle map, const TVMFFIAny* key, const TVMFFIAny** value) {
  return Guard([&] {
    const PortcallMapCell& cell = *CellOf(map);
    const uint64_t position = Find(cell, *key);
    *value = position == kNone ? nullptr : PairAt(cell, position) + 1;
  });
}

const TVMFFIAny* PortcallMapNext(TVMFFIObjectHandle map, const TVMFFIAny* pair) {
  return detail::NextPair(*CellOf(map), pair);
}
