// SPDX-License-Identifier: Apache-2.0
// Containers that travel through calls, by reference. Shape, Array<T> and Map<K, V> are values: a change is seen through
// one reference alone. List<T> and Dict<K, V> change for everybody who holds them. Order of insertion is kept.
//
// A container that is made without items is empty, as one of std is; Array<int>(nullptr), and one that was moved from,
// is None: it has no items either, and is a new container once something is put into it.
#ifndef PORTCALL_CONTAINER_H_
#define PORTCALL_CONTAINER_H_

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "value.h"

namespace portcall {

struct ShapeObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Shape";
  static constexpr int32_t kTypeIndex = kTVMFFIShape;
  TVMFFIShapeCell cell;
};

struct ArrayObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Array";
  static constexpr int32_t kTypeIndex = kTVMFFIArray;
  TVMFFISeqCell cell;
};

struct MapObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Map";
  static constexpr int32_t kTypeIndex = kTVMFFIMap;
  PortcallMapCell cell;
};

namespace detail {
// A new container, which the caller owns. Cells: items, or keys and values in turn.
template <typename Node> TVMFFIObject* NewContainer(const Any* cells = nullptr, size_t num_cells = 0) {
  constexpr bool kPairs = std::is_same_v<decltype(Node::cell), PortcallMapCell>;
  TVMFFIObjectHandle handle = nullptr;
  Check(runtime::ContainerCreate(Node::kTypeIndex, reinterpret_cast<const TVMFFIAny*>(cells),
                                 static_cast<int64_t>(num_cells / (kPairs ? 2 : 1)), &handle));
  return static_cast<TVMFFIObject*>(handle);
}
template <typename Node> TVMFFIObject* NewContainer(const std::vector<Any>& cells) {
  return NewContainer<Node>(cells.data(), cells.size());
}
template <typename Iter> std::vector<Any> CellsOfItems(Iter first, Iter last) {
  std::vector<Any> cells;
  for (; first != last; ++first) cells.emplace_back(*first);
  return cells;
}
template <typename Pairs> std::vector<Any> CellsOfPairs(const Pairs& pairs) {
  std::vector<Any> cells;
  for (const auto& [key, value] : pairs) {
    cells.emplace_back(key);
    cells.emplace_back(value);
  }
  return cells;
}

// The two forms of a map: a row of pairs, and a table of slots.
constexpr uint64_t kSmallMap = uint64_t{1} << 63;
constexpr uint64_t kNoItem = ~uint64_t{0};
constexpr uint64_t kSlotsOfBlock = 16;
struct MapItem {
  TVMFFIAny key, value;
  uint64_t previous, next;  // slots, in order of insertion
};
struct MapBlock {
  uint8_t states[kSlotsOfBlock];
  MapItem items[kSlotsOfBlock];
};
inline MapItem& ItemAt(const PortcallMapCell& map, uint64_t slot) noexcept {
  return static_cast<MapBlock*>(map.data)[slot / kSlotsOfBlock].items[slot % kSlotsOfBlock];
}
// As PortcallMapNext.
inline const TVMFFIAny* NextPair(const PortcallMapCell& map, const TVMFFIAny* pair) noexcept {
  if (map.size == 0) return nullptr;
  if (map.slots & kSmallMap) {
    auto* row = static_cast<const TVMFFIAny*>(map.data);
    if (!pair) return row;
    return pair + 2 < row + 2 * map.size ? pair + 2 : nullptr;
  }
  uint64_t next = pair ? reinterpret_cast<const MapItem*>(pair)->next : map.first;
  return next == kNoItem ? nullptr : &ItemAt(map, next).key;
}

// What iterators over items and over pairs have in common: Read makes of cells what a loop sees. To the algorithms of
// C++17 they are input iterators, because there is no T in memory to refer to.
template <typename Derived, typename T, T (*Read)(const TVMFFIAny*)> class ReadIterator {
 public:
  using value_type = T;
  using difference_type = std::ptrdiff_t;
  using reference = T;
  using iterator_category = std::input_iterator_tag;
  struct pointer {
    T value;
    T* operator->() noexcept { return &value; }
  };

  T operator*() const { return Read(at_); }
  pointer operator->() const { return {**this}; }
  friend bool operator==(const Derived& a, const Derived& b) noexcept { return a.at_ == b.at_; }
  friend bool operator!=(const Derived& a, const Derived& b) noexcept { return a.at_ != b.at_; }

 protected:
  ReadIterator() noexcept = default;
  explicit ReadIterator(const TVMFFIAny* at) noexcept : at_(at) {}

  const TVMFFIAny* at_ = nullptr;
};

// Walks the pairs of a map.
template <typename T, T (*Read)(const TVMFFIAny*)>
class PairIterator : public ReadIterator<PairIterator<T, Read>, T, Read> {
 public:
  using iterator_concept = std::forward_iterator_tag;  // C++20

  PairIterator() noexcept = default;
  PairIterator(const PortcallMapCell* map, const TVMFFIAny* pair) noexcept
      : PairIterator::ReadIterator(pair), map_(map) {}

  PairIterator& operator++() noexcept {
    this->at_ = NextPair(*map_, this->at_);
    return *this;
  }
  PairIterator operator++(int) noexcept {
    PairIterator old = *this;
    ++*this;
    return old;
  }

 private:
  const PortcallMapCell* map_ = nullptr;
};

// Walks cells. Any step costs the same.
template <typename T, T (*Read)(const TVMFFIAny*)>
class CellIterator : public ReadIterator<CellIterator<T, Read>, T, Read> {
 public:
  using iterator_concept = std::random_access_iterator_tag;  // C++20
  using difference_type = std::ptrdiff_t;

  CellIterator() noexcept = default;
  explicit CellIterator(const TVMFFIAny* cell) noexcept : CellIterator::ReadIterator(cell) {}

  T operator[](difference_type n) const { return *(*this + n); }
  CellIterator& operator+=(difference_type n) noexcept {
    this->at_ += n;
    return *this;
  }
  CellIterator& operator-=(difference_type n) noexcept { return *this += -n; }
  CellIterator& operator++() noexcept { return *this += 1; }
  CellIterator& operator--() noexcept { return *this -= 1; }
  CellIterator operator++(int) noexcept { return (*this += 1) - 1; }
  CellIterator operator--(int) noexcept { return (*this -= 1) + 1; }
  friend CellIterator operator+(CellIterator it, difference_type n) noexcept { return it += n; }
  friend CellIterator operator+(difference_type n, CellIterator it) noexcept { return it += n; }
  friend CellIterator operator-(CellIterator it, difference_type n) noexcept { return it -= n; }
  friend difference_type operator-(CellIterator a, CellIterator b) noexcept { return a.at_ - b.at_; }
  friend bool operator<(CellIterator a, CellIterator b) noexcept { return a.at_ < b.at_; }
  friend bool operator>(CellIterator a, CellIterator b) noexcept { return b < a; }
  friend bool operator<=(CellIterator a, CellIterator b) noexcept { return !(b < a); }
  friend bool operator>=(CellIterator a, CellIterator b) noexcept { return !(a < b); }
};

template <typename T> T CastCell(const TVMFFIAny& cell) { return ArgValue(&cell, -1, "").cast<T>(); }
template <typename T> T ReadItem(const TVMFFIAny* item) { return CastCell<T>(*item); }
template <typename K, typename V> std::pair<K, V> ReadPair(const TVMFFIAny* pair) {
  return {CastCell<K>(pair[0]), CastCell<V>(pair[1])};
}

[[noreturn, gnu::noinline, gnu::cold]] inline void ThrowIndexError(size_t i, size_t size) {
  PORTCALL_THROW(IndexError) << "index " << i << " is out of range for an Array of " << size;
}
}  // namespace detail

namespace runtime {
// *value: in the map, or in *copy, which the caller owns; NULL when there is no such key.
inline int MapFind(TVMFFIObjectHandle map, const TVMFFIAny& key, const TVMFFIAny** value, Any* copy) noexcept {
  if (PORTCALL_HAS(PortcallMapFind)) return PortcallMapFind(map, &key, value);
  const TVMFFIAny args[] = {ViewOf(map), key};
  const bool dict = args[0].type_index == kTVMFFIDict;
  TVMFFIAny count;
  if (CallGlobal(dict ? "ffi.DictCount" : "ffi.MapCount", args, 2, &count) != 0) return -1;
  *value = count.v_int64 ? &copy->cell() : nullptr;
  return *value ? CallGlobal(dict ? "ffi.DictGetItem" : "ffi.MapGetItem", args, 2, copy->out()) : 0;
}

// The other runtime changes dicts alone: of a Map, one is made first.
inline int ChangeMap(TVMFFIObjectHandle* container, const char* change, const TVMFFIAny* key_and_value, size_t n) {
  auto* map = static_cast<TVMFFIObject*>(*container);
  const bool dict = map->type_index == kTVMFFIDict;
  auto make = [](int32_t type_index, TVMFFIObjectHandle from, TVMFFIObjectHandle* out) {
    const PortcallMapCell& cell = static_cast<MapObj*>(static_cast<TVMFFIObject*>(from))->cell;
    std::vector<TVMFFIAny> cells;
    for (const TVMFFIAny* pair = nullptr; (pair = detail::NextPair(cell, pair));) {
      cells.insert(cells.end(), pair, pair + 2);
    }
    return ContainerCreate(type_index, cells.data(), static_cast<int64_t>(cells.size() / 2), out);
  };
  TVMFFIObjectHandle changed = map, made = nullptr;
  if (!dict && make(kTVMFFIDict, map, &changed) != 0) return -1;
  TVMFFIAny args[3] = {ViewOf(changed)}, result;
  for (size_t i = 0; i < n; ++i) args[i + 1] = key_and_value[i];
  int failed = CallGlobal(change, args, n + 1, &result);
  if (dict) return failed;
  failed = failed ? failed : make(kTVMFFIMap, changed, &made);
  TVMFFIObjectDecRef(changed);
  if (failed) return failed;
  TVMFFIObjectDecRef(map);
  *container = made;
  return 0;
}
inline int MapSet(TVMFFIObjectHandle* container, const TVMFFIAny& key, const TVMFFIAny& value) {
  if (PORTCALL_HAS(PortcallMapSet)) return PortcallMapSet(container, &key, &value);
  const TVMFFIAny args[] = {key, value};
  return ChangeMap(container, "ffi.DictSetItem", args, 2);
}
inline int MapErase(TVMFFIObjectHandle* container, const TVMFFIAny& key, int* erased) {
  if (PORTCALL_HAS(PortcallMapErase)) return PortcallMapErase(container, &key, erased);
  Any copy;
  const TVMFFIAny* value = nullptr;
  if (MapFind(*container, key, &value, &copy) != 0) return -1;
  *erased = value != nullptr;
  return value ? ChangeMap(container, "ffi.DictErase", &key, 1) : 0;
}
}  // namespace runtime

class Shape : public ObjectRef {
 public:
  using NodeClass = ShapeObj;
  using OwnTraits = void;
  Shape() : Shape(nullptr, 0) {}     // (), the shape of a scalar
  Shape(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor)
  ShapeObj* node() const noexcept { return static_cast<ShapeObj*>(ptr_); }
  ShapeObj* operator->() const noexcept { return node(); }

  Shape(const int64_t* values, size_t size) {
    TVMFFIObjectHandle handle = nullptr;
    Check(runtime::ShapeCreate(values, size, &handle));
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }
  explicit Shape(const std::vector<int64_t>& values) : Shape(values.data(), values.size()) {}
  Shape(std::initializer_list<int64_t> values) : Shape(values.begin(), values.size()) {}

  size_t size() const noexcept { return ptr_ ? node()->cell.size : 0; }
  const int64_t* begin() const noexcept { return ptr_ ? node()->cell.data : nullptr; }
  const int64_t* end() const noexcept { return begin() + size(); }
  int64_t operator[](size_t i) const noexcept { return node()->cell.data[i]; }  // not checked
  std::vector<int64_t> vector() const { return std::vector<int64_t>(begin(), end()); }
};

// "(2, 3)", as Python writes it.
inline std::string ToString(const Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}
template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const Shape& shape) {
  return out << ToString(shape);
}
namespace detail {
inline ErrorText& operator<<(ErrorText& out, const Shape& shape) { return out << ToString(shape); }
// What TensorView::shape returns.
inline ErrorText& operator<<(ErrorText& out, const std::vector<int64_t>& shape) { return out << Shape(shape); }
}  // namespace detail

template <typename T = Any> class Array : public ObjectRef {
 public:
  using NodeClass = ArrayObj;
  using OwnTraits = void;
  Array() { ptr_ = detail::NewContainer<ArrayObj>(); }
  Array(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor)
  ArrayObj* node() const noexcept { return static_cast<ArrayObj*>(ptr_); }
  ArrayObj* operator->() const noexcept { return node(); }

  template <typename Iter> Array(Iter first, Iter last) {
    ptr_ = detail::NewContainer<ArrayObj>(detail::CellsOfItems(first, last));
  }
  Array(std::initializer_list<T> items) : Array(items.begin(), items.end()) {}
  explicit Array(const std::vector<T>& items) : Array(items.begin(), items.end()) {}

  // Each item is converted when it is reached: `for (T item : array)`.
  using Iterator = detail::CellIterator<T, detail::ReadItem<T>>;
  Iterator begin() const noexcept { return Iterator(cells()); }
  Iterator end() const noexcept { return begin() + static_cast<std::ptrdiff_t>(size()); }

  size_t size() const noexcept { return ptr_ ? static_cast<size_t>(node()->cell.size) : 0; }
  bool empty() const noexcept { return size() == 0; }
  // Both throw IndexError beyond the end, and TypeError for an item that is not a T.
  T operator[](size_t i) const { return at(i); }
  T at(size_t i) const {
    if (i >= size()) detail::ThrowIndexError(i, size());
    return items()[i].template cast<T>();
  }
  T front() const { return at(0); }
  T back() const { return at(empty() ? 0 : size() - 1); }

  // Changes are seen through this reference alone: the Array is copied first when somebody else holds it.
  void Set(size_t i, T value) {
    if (i >= size()) detail::ThrowIndexError(i, size());
    Splice(i, 1, {Any(std::move(value))});
  }
  void push_back(T value) { Splice(size(), 0, {Any(std::move(value))}); }
  void insert(size_t i, T value) { Splice(i, 0, {Any(std::move(value))}); }
  void erase(size_t i, size_t count = 1) { Splice(i, count, {}); }
  void pop_back() { erase(empty() ? 0 : size() - 1); }
  void clear() { erase(0, size()); }

  const Any* items() const noexcept { return ptr_ ? static_cast<const Any*>(node()->cell.data) : nullptr; }
  std::vector<T> vector() const { return std::vector<T>(begin(), end()); }

 protected:
  void Splice(size_t start, size_t count, const std::vector<Any>& with) {
    if (!ptr_) *this = Array();
    TVMFFIObjectHandle handle = ptr_;
    Check(runtime::ArraySplice(&handle, static_cast<int64_t>(start), static_cast<int64_t>(count),
                               reinterpret_cast<const TVMFFIAny*>(with.data()), static_cast<int64_t>(with.size())));
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }

 private:
  const TVMFFIAny* cells() const noexcept { return ptr_ ? static_cast<const TVMFFIAny*>(node()->cell.data) : nullptr; }
};

struct ListObj final : Object {
  static constexpr const char* kTypeKey = "ffi.List";
  static constexpr int32_t kTypeIndex = kTVMFFIList;
  TVMFFISeqCell cell;
};

// A sequence that changes, for everybody who holds it. Not to be changed while another thread is at it.
template <typename T = Any> class List : public Array<T> {
 public:
  using NodeClass = ListObj;
  List() : List(std::vector<T>()) {}
  List(std::nullptr_t) noexcept : Array<T>(nullptr) {}  // NOLINT(google-explicit-constructor)
  template <typename Iter> List(Iter first, Iter last) : List(std::vector<T>(first, last)) {}
  List(std::initializer_list<T> items) : List(std::vector<T>(items)) {}
  explicit List(const std::vector<T>& items) : Array<T>(nullptr) {
    this->ptr_ = detail::NewContainer<ListObj>(detail::CellsOfItems(items.begin(), items.end()));
  }

  // What was None becomes a List, not an Array.
  void push_back(T value) {
    if (!this->ptr_) *this = List();
    Array<T>::push_back(std::move(value));
  }
  void insert(size_t i, T value) {
    if (!this->ptr_) *this = List();
    Array<T>::insert(i, std::move(value));
  }
};

namespace detail {
// A key for messages: text in quotes, a number, or what it is.
inline std::string DescribeKey(const TVMFFIAny& key) {
  if (std::optional<std::string_view> text = TryString(key)) return std::string("'").append(*text).append("'");
  return std::string("the key (").append(DescribeValue(key)).append(")");
}

// How the items of a typed container are checked, and what one that fails is.
struct ItemCheck {
  bool (*fits)(const TVMFFIAny& item);
  Describe describe;
};
template <typename T>
inline constexpr ItemCheck kItemCheck{[](const TVMFFIAny& item) { return Read<T>(item).has_value(); }, kDescribe<T>};

// "Array whose item #1 is str": why a container is not of the expected type.
[[gnu::noinline, gnu::cold]] inline std::string DescribeSequence(const TVMFFIAny& value, ItemCheck items) {
  std::string text = DescribeType(value.type_index);
  const TVMFFISeqCell& cell = static_cast<ArrayObj*>(value.v_obj)->cell;
  for (int64_t i = 0; i < cell.size; ++i) {
    const TVMFFIAny& item = static_cast<const TVMFFIAny*>(cell.data)[i];
    if (!items.fits(item)) return text + " whose item #" + std::to_string(i) + " is " + items.describe(item);
  }
  return text;
}
[[gnu::noinline, gnu::cold]] inline std::string DescribeMapping(const TVMFFIAny& value, ItemCheck keys,
                                                                ItemCheck values) {
  std::string text = DescribeType(value.type_index);
  const PortcallMapCell& map = static_cast<MapObj*>(value.v_obj)->cell;
  int64_t i = 0;
  for (const TVMFFIAny* pair = nullptr; (pair = NextPair(map, pair)); ++i) {
    if (!keys.fits(pair[0])) return text + " whose key #" + std::to_string(i) + " is " + keys.describe(pair[0]);
    if (!values.fits(pair[1])) {
      return text + " whose value of " + DescribeKey(pair[0]) + " is " + values.describe(pair[1]);
    }
  }
  return text;
}
}  // namespace detail

template <typename K = Any, typename V = Any> class Map : public ObjectRef {
 public:
  using NodeClass = MapObj;
  using OwnTraits = void;
  Map() { ptr_ = detail::NewContainer<MapObj>(); }
  Map(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor)
  MapObj* node() const noexcept { return static_cast<MapObj*>(ptr_); }
  MapObj* operator->() const noexcept { return node(); }

  // From pairs, of a std::map for example.
  template <typename Iter, typename = decltype(std::declval<Iter&>()->second)>
  Map(Iter first, Iter last) : Map(std::vector<std::pair<K, V>>(first, last)) {}
  Map(std::initializer_list<std::pair<K, V>> pairs) : Map(std::vector<std::pair<K, V>>(pairs)) {}
  explicit Map(const std::vector<std::pair<K, V>>& pairs) {
    ptr_ = detail::NewContainer<MapObj>(detail::CellsOfPairs(pairs));
  }

  size_t size() const noexcept { return ptr_ ? static_cast<size_t>(node()->cell.size) : 0; }
  bool empty() const noexcept { return size() == 0; }
  bool contains(const K& key) const {
    Any copy;
    return Find(key, &copy) != nullptr;
  }
  std::optional<V> find(const K& key) const {
    Any copy;
    const TVMFFIAny* value = Find(key, &copy);
    if (!value) return std::nullopt;
    return std::optional<V>(std::in_place, detail::CastCell<V>(*value));
  }
  V at(const K& key) const {
    std::optional<V> value = find(key);
    PORTCALL_CHECK(value.has_value(), KeyError) << detail::DescribeKey(Any(key).cell()) << " is not in the Map";
    return *std::move(value);
  }
  std::vector<std::pair<K, V>> items() const { return std::vector<std::pair<K, V>>(begin(), end()); }

  // Changes are seen through this reference alone: the Map is copied first when somebody else holds it.
  void Set(const K& key, const V& value) {
    if (!ptr_) *this = Map();
    Any key_cell(key), value_cell(value);  // NOLINT(performance-unnecessary-copy-initialization): K need not be Any
    TVMFFIObjectHandle handle = ptr_;
    Check(runtime::MapSet(&handle, key_cell.cell(), value_cell.cell()));
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }
  bool erase(const K& key) {
    if (!ptr_) return false;
    Any key_cell(key);  // NOLINT(performance-unnecessary-copy-initialization): K need not be Any
    TVMFFIObjectHandle handle = ptr_;
    int erased = 0;
    Check(runtime::MapErase(&handle, key_cell.cell(), &erased));
    ptr_ = static_cast<TVMFFIObject*>(handle);
    return erased != 0;
  }

  // In order of insertion, each pair converted when it is reached: `for (const auto& [key, value] : map)`.
  using Iterator = detail::PairIterator<std::pair<K, V>, detail::ReadPair<K, V>>;
  Iterator begin() const noexcept { return ptr_ ? Iterator(cell(), detail::NextPair(*cell(), nullptr)) : Iterator(); }
  Iterator end() const noexcept { return Iterator(); }

 private:
  const PortcallMapCell* cell() const noexcept { return &node()->cell; }
  const TVMFFIAny* Find(const K& key, Any* copy) const {
    const Any key_cell(key);  // NOLINT(performance-unnecessary-copy-initialization): K need not be Any
    const TVMFFIAny* value = nullptr;
    if (ptr_) Check(runtime::MapFind(ptr_, key_cell.cell(), &value, copy));
    return value;
  }
};

struct DictObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Dict";
  static constexpr int32_t kTypeIndex = kTVMFFIDict;
  PortcallMapCell cell;
};

// A map that changes, for everybody who holds it. Not to be changed while another thread is at it.
template <typename K = Any, typename V = Any> class Dict : public Map<K, V> {
 public:
  using NodeClass = DictObj;
  Dict() : Dict(std::vector<std::pair<K, V>>()) {}
  Dict(std::nullptr_t) noexcept : Map<K, V>(nullptr) {}  // NOLINT(google-explicit-constructor)
  template <typename Iter, typename = decltype(std::declval<Iter&>()->second)>
  Dict(Iter first, Iter last) : Dict(std::vector<std::pair<K, V>>(first, last)) {}
  Dict(std::initializer_list<std::pair<K, V>> pairs) : Dict(std::vector<std::pair<K, V>>(pairs)) {}
  explicit Dict(const std::vector<std::pair<K, V>>& pairs) : Map<K, V>(nullptr) {
    this->ptr_ = detail::NewContainer<DictObj>(detail::CellsOfPairs(pairs));
  }

  // What was None becomes a Dict, not a Map.
  void Set(const K& key, const V& value) {
    if (!this->ptr_) *this = Dict();
    Map<K, V>::Set(key, value);
  }
};

// Typed containers check each element when they are read from an argument.
template <typename T> struct TypeTraits<Array<T>> {
  static std::string Name() {
    if constexpr (std::is_same_v<T, Any>) return "Array";
    return "Array[" + TypeTraits<T>::Name() + "]";
  }
  static std::optional<Array<T>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return Array<T>(nullptr);
    if (value.type_index != kTVMFFIArray && value.type_index != kTVMFFIList) return std::nullopt;
    auto array = ObjectRef::Borrow<Array<T>>(value.v_obj);
    for (size_t i = 0; i < array.size(); ++i) {
      if (!array.items()[i].template try_cast<T>()) return std::nullopt;
    }
    return array;
  }
  static std::string DescribeMismatch(const TVMFFIAny& value) {
    bool sequence = value.type_index == kTVMFFIArray || value.type_index == kTVMFFIList;
    if (std::is_same_v<T, Any> || !sequence) return DescribeValue(value);
    return detail::DescribeSequence(value, detail::kItemCheck<T>);
  }
  static void To(Array<T> value, TVMFFIAny* out) { TypeTraits<ObjectRef>::To(std::move(value), out); }
};

// An Array of integers will do: it is what a tuple becomes in Python.
template <> struct TypeTraits<Shape> {
  static std::string Name() { return "Shape"; }
  static std::optional<Shape> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return Shape(nullptr);
    if (value.type_index == kTVMFFIShape) return ObjectRef::Borrow<Shape>(value.v_obj);
    std::optional<Array<int64_t>> array = TypeTraits<Array<int64_t>>::TryFrom(value);
    if (!array) return std::nullopt;
    return Shape(array->vector());
  }
  static void To(Shape value, TVMFFIAny* out) { TypeTraits<ObjectRef>::To(std::move(value), out); }
};

template <typename K, typename V> struct TypeTraits<Map<K, V>> {
  static std::string Name() {
    if constexpr (std::is_same_v<K, Any> && std::is_same_v<V, Any>) return "Map";
    return "Map[" + TypeTraits<K>::Name() + ", " + TypeTraits<V>::Name() + "]";
  }
  static std::optional<Map<K, V>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return Map<K, V>(nullptr);
    if (value.type_index != kTVMFFIMap && value.type_index != kTVMFFIDict) return std::nullopt;
    auto map = ObjectRef::Borrow<Map<K, V>>(value.v_obj);
    for (const TVMFFIAny* pair = nullptr; (pair = detail::NextPair(map->cell, pair));) {
      if (!TypeTraits<K>::TryFrom(pair[0]) || !TypeTraits<V>::TryFrom(pair[1])) return std::nullopt;
    }
    return map;
  }
  static std::string DescribeMismatch(const TVMFFIAny& value) {
    bool mapping = value.type_index == kTVMFFIMap || value.type_index == kTVMFFIDict;
    if ((std::is_same_v<K, Any> && std::is_same_v<V, Any>) || !mapping) return DescribeValue(value);
    return detail::DescribeMapping(value, detail::kItemCheck<K>, detail::kItemCheck<V>);
  }
  static void To(Map<K, V> value, TVMFFIAny* out) { TypeTraits<ObjectRef>::To(std::move(value), out); }
};

template <typename T> struct TypeTraits<List<T>> {
  static std::string Name() {
    if constexpr (std::is_same_v<T, Any>) return "List";
    return "List[" + TypeTraits<T>::Name() + "]";
  }
  static std::optional<List<T>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index != kTVMFFIList || !TypeTraits<Array<T>>::TryFrom(value)) return std::nullopt;
    return ObjectRef::Borrow<List<T>>(value.v_obj);
  }
  static std::string DescribeMismatch(const TVMFFIAny& value) {
    return value.type_index == kTVMFFIList ? TypeTraits<Array<T>>::DescribeMismatch(value) : DescribeValue(value);
  }
  static void To(List<T> value, TVMFFIAny* out) { TypeTraits<ObjectRef>::To(std::move(value), out); }
};

template <typename K, typename V> struct TypeTraits<Dict<K, V>> {
  static std::string Name() {
    if constexpr (std::is_same_v<K, Any> && std::is_same_v<V, Any>) return "Dict";
    return "Dict[" + TypeTraits<K>::Name() + ", " + TypeTraits<V>::Name() + "]";
  }
  static std::optional<Dict<K, V>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index != kTVMFFIDict || !TypeTraits<Map<K, V>>::TryFrom(value)) return std::nullopt;
    return ObjectRef::Borrow<Dict<K, V>>(value.v_obj);
  }
  static std::string DescribeMismatch(const TVMFFIAny& value) {
    return value.type_index == kTVMFFIDict ? TypeTraits<Map<K, V>>::DescribeMismatch(value) : DescribeValue(value);
  }
  static void To(Dict<K, V> value, TVMFFIAny* out) { TypeTraits<ObjectRef>::To(std::move(value), out); }
};

template <typename T> struct TypeTraits<std::vector<T>> {
  static std::string Name() { return TypeTraits<Array<T>>::Name(); }
  static std::optional<std::vector<T>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return std::nullopt;
    if constexpr (std::is_integral_v<T>) {
      if (value.type_index == kTVMFFIShape) return FromShape(ObjectRef::Borrow<Shape>(value.v_obj));
    }
    std::optional<Array<T>> array = TypeTraits<Array<T>>::TryFrom(value);
    if (!array) return std::nullopt;
    return array->vector();
  }
  static std::string DescribeMismatch(const TVMFFIAny& value) { return TypeTraits<Array<T>>::DescribeMismatch(value); }
  static void To(const std::vector<T>& value, TVMFFIAny* out) { TypeTraits<Array<T>>::To(Array<T>(value), out); }

 private:
  static std::optional<std::vector<T>> FromShape(const Shape& shape) {
    std::vector<T> extents;
    for (int64_t extent : shape) {
      std::optional<T> fits = Any(extent).try_cast<T>();
      if (!fits) return std::nullopt;
      extents.push_back(*fits);
    }
    return extents;
  }
};

}  // namespace portcall
#endif  // PORTCALL_CONTAINER_H_
