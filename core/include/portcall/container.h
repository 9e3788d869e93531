// SPDX-License-Identifier: Apache-2.0
// Shape, Array<T> and Map<K, V>: immutable containers that travel through calls. Order of insertion is kept.
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

class Shape : public ObjectRef {
  PORTCALL_OBJECT_REF(Shape, ShapeObj)
  using OwnTraits = void;

  Shape(const int64_t* values, size_t size) {
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallShapeCreate(values, size, &handle));
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }
  explicit Shape(const std::vector<int64_t>& values) : Shape(values.data(), values.size()) {}
  Shape(std::initializer_list<int64_t> values) : Shape(values.begin(), values.size()) {}

  size_t size() const noexcept { return ptr_ ? node()->cell.size : 0; }
  const int64_t* begin() const noexcept { return ptr_ ? node()->cell.data : nullptr; }
  const int64_t* end() const noexcept { return begin() + size(); }
  int64_t operator[](size_t i) const noexcept { return node()->cell.data[i]; }
};

// "(2, 3)", as Python writes it.
inline std::string ToString(const Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

struct ArrayObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Array";
  static constexpr int32_t kTypeIndex = kTVMFFIArray;
  TVMFFISeqCell cell;
};

template <typename T = Any> class Array : public ObjectRef {
  PORTCALL_OBJECT_REF(Array, ArrayObj)
  using OwnTraits = void;

  template <typename Iter> Array(Iter first, Iter last) {
    std::vector<Any> items;
    for (; first != last; ++first) items.emplace_back(*first);
    Build(items);
  }
  Array(std::initializer_list<T> items) : Array(items.begin(), items.end()) {}
  explicit Array(const std::vector<T>& items) : Array(items.begin(), items.end()) {}

  // Walks the items, each converted when it is reached: `for (T item : array)`.
  class Iterator {
   public:
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = const T*;
    using reference = T;
    using iterator_category = std::input_iterator_tag;

    explicit Iterator(const Any* item) noexcept : item_(item) {}
    T operator*() const { return item_->template cast<T>(); }
    Iterator& operator++() noexcept {
      ++item_;
      return *this;
    }
    Iterator operator++(int) noexcept { return Iterator(item_++); }
    bool operator==(const Iterator& other) const noexcept { return item_ == other.item_; }
    bool operator!=(const Iterator& other) const noexcept { return item_ != other.item_; }

   private:
    const Any* item_;
  };
  Iterator begin() const noexcept { return Iterator(items()); }
  Iterator end() const noexcept { return Iterator(items() + size()); }

  size_t size() const noexcept { return ptr_ ? static_cast<size_t>(node()->cell.size) : 0; }
  bool empty() const noexcept { return size() == 0; }
  T operator[](size_t i) const { return items()[i].template cast<T>(); }
  T at(size_t i) const {
    PORTCALL_CHECK(i < size(), IndexError) << "index " << i << " is out of range for an Array of " << size();
    return (*this)[i];
  }
  // Changes are seen through this reference alone: the Array is copied first when somebody else holds it.
  void Set(size_t i, T value) {
    PORTCALL_CHECK(i < size(), IndexError) << "index " << i << " is out of range for an Array of " << size();
    Splice(i, 1, {Any(std::move(value))});
  }
  void push_back(T value) { Splice(size(), 0, {Any(std::move(value))}); }
  void insert(size_t i, T value) { Splice(i, 0, {Any(std::move(value))}); }
  void erase(size_t i, size_t count = 1) { Splice(i, count, {}); }

  const Any* items() const noexcept { return ptr_ ? static_cast<const Any*>(node()->cell.data) : nullptr; }
  std::vector<T> vector() const { return std::vector<T>(begin(), end()); }

 protected:
  void Splice(size_t start, size_t count, const std::vector<Any>& with) {
    if (!ptr_) Build({});
    TVMFFIObjectHandle handle = ptr_;
    Check(PortcallArraySplice(&handle, static_cast<int64_t>(start), static_cast<int64_t>(count),
                              reinterpret_cast<const TVMFFIAny*>(with.data()), static_cast<int64_t>(with.size())));
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }

 private:
  void Build(const std::vector<Any>& items) {
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallArrayCreate(reinterpret_cast<const TVMFFIAny*>(items.data()), static_cast<int64_t>(items.size()),
                              &handle));
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }
};

struct ListObj final : Object {
  static constexpr const char* kTypeKey = "ffi.List";
  static constexpr int32_t kTypeIndex = kTVMFFIList;
  TVMFFISeqCell cell;
};

// A sequence that changes, for everybody who holds it. Not to be changed while another thread is at it.
template <typename T = Any> class List : public Array<T> {
 public:
  using Node = ListObj;
  List() : List(std::vector<T>()) {}
  List(std::nullptr_t) noexcept : Array<T>(nullptr) {}  // NOLINT(google-explicit-constructor)
  List(std::initializer_list<T> items) : List(std::vector<T>(items)) {}
  explicit List(const std::vector<T>& items) {
    std::vector<Any> cells(items.begin(), items.end());
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallListCreate(reinterpret_cast<const TVMFFIAny*>(cells.data()), static_cast<int64_t>(cells.size()),
                             &handle));
    this->ptr_ = static_cast<TVMFFIObject*>(handle);
  }
};

// data points to the pairs; what finds them by key is private to the core.
struct MapObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Map";
  static constexpr int32_t kTypeIndex = kTVMFFIMap;
  void* data;
  uint64_t size;
  uint64_t slots;
  void (*data_deleter)(void*);
};

namespace detail {
// A key for messages: text in quotes, a number, or what it is.
inline std::string DescribeKey(const TVMFFIAny& key) {
  if (std::optional<std::string_view> text = TryString(key)) return "'" + std::string(*text) + "'";
  return "the key (" + DescribeValue(key) + ")";
}
}  // namespace detail

template <typename K = Any, typename V = Any> class Map : public ObjectRef {
  PORTCALL_OBJECT_REF(Map, MapObj)
  using OwnTraits = void;

  Map(std::initializer_list<std::pair<K, V>> pairs) : Map(std::vector<std::pair<K, V>>(pairs)) {}
  explicit Map(const std::vector<std::pair<K, V>>& pairs) {
    std::vector<Any> cells;
    for (const auto& [key, value] : pairs) {
      cells.emplace_back(key);
      cells.emplace_back(value);
    }
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallMapCreate(reinterpret_cast<const TVMFFIAny*>(cells.data()), static_cast<int64_t>(pairs.size()),
                            &handle));
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }

  size_t size() const noexcept { return ptr_ ? static_cast<size_t>(PortcallMapSize(ptr_)) : 0; }
  bool empty() const noexcept { return size() == 0; }
  bool contains(const K& key) const { return Find(key) != nullptr; }
  std::optional<V> find(const K& key) const {
    const TVMFFIAny* value = Find(key);
    if (!value) return std::nullopt;
    return Cast<V>(*value);
  }
  V at(const K& key) const {
    std::optional<V> value = find(key);
    PORTCALL_CHECK(value.has_value(), KeyError) << detail::DescribeKey(Any(key).cell()) << " is not in the Map";
    return *std::move(value);
  }
  std::vector<std::pair<K, V>> items() const { return std::vector<std::pair<K, V>>(begin(), end()); }

  // Changes are seen through this reference alone: the Map is copied first when somebody else holds it.
  void Set(const K& key, const V& value) {
    if (!ptr_) *this = Map(std::vector<std::pair<K, V>>());
    Any key_cell(key), value_cell(value);
    TVMFFIObjectHandle handle = ptr_;
    Check(PortcallMapSet(&handle, &key_cell.cell(), &value_cell.cell()));
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }
  bool erase(const K& key) {
    if (!ptr_) return false;
    Any key_cell(key);
    TVMFFIObjectHandle handle = ptr_;
    int erased = 0;
    Check(PortcallMapErase(&handle, &key_cell.cell(), &erased));
    ptr_ = static_cast<TVMFFIObject*>(handle);
    return erased != 0;
  }

  // Walks the pairs in order of insertion: `for (const auto& [key, value] : map)`.
  class Iterator {
   public:
    using value_type = std::pair<K, V>;
    using difference_type = std::ptrdiff_t;
    using pointer = const value_type*;
    using reference = value_type;
    using iterator_category = std::input_iterator_tag;

    explicit Iterator(const TVMFFIAny* pair) noexcept : pair_(pair) {}
    value_type operator*() const { return {Cast<K>(pair_[0]), Cast<V>(pair_[1])}; }
    Iterator& operator++() noexcept {
      pair_ += 2;
      return *this;
    }
    Iterator operator++(int) noexcept {
      Iterator old = *this;
      ++*this;
      return old;
    }
    bool operator==(const Iterator& other) const noexcept { return pair_ == other.pair_; }
    bool operator!=(const Iterator& other) const noexcept { return pair_ != other.pair_; }

   private:
    const TVMFFIAny* pair_;
  };
  Iterator begin() const noexcept { return Iterator(size() ? PortcallMapPairAt(ptr_, 0) : nullptr); }
  Iterator end() const noexcept { return Iterator(size() ? PortcallMapPairAt(ptr_, 0) + 2 * size() : nullptr); }

 private:
  template <typename T> static T Cast(const TVMFFIAny& cell) { return ArgValue(&cell, -1, "").cast<T>(); }
  const TVMFFIAny* Find(const K& key) const {
    Any cell(key);
    return ptr_ ? PortcallMapFind(ptr_, &cell.cell()) : nullptr;
  }
};

struct DictObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Dict";
  static constexpr int32_t kTypeIndex = kTVMFFIDict;
};

// A map that changes, for everybody who holds it. Not to be changed while another thread is at it.
template <typename K = Any, typename V = Any> class Dict : public Map<K, V> {
 public:
  using Node = DictObj;
  Dict() : Dict(std::vector<std::pair<K, V>>()) {}
  Dict(std::nullptr_t) noexcept : Map<K, V>(nullptr) {}  // NOLINT(google-explicit-constructor)
  Dict(std::initializer_list<std::pair<K, V>> pairs) : Dict(std::vector<std::pair<K, V>>(pairs)) {}
  explicit Dict(const std::vector<std::pair<K, V>>& pairs) {
    std::vector<Any> cells;
    for (const auto& [key, value] : pairs) {
      cells.emplace_back(key);
      cells.emplace_back(value);
    }
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallDictCreate(reinterpret_cast<const TVMFFIAny*>(cells.data()), static_cast<int64_t>(pairs.size()),
                             &handle));
    this->ptr_ = static_cast<TVMFFIObject*>(handle);
  }
};

// Typed containers check each element when they are read from an argument.
template <typename T> struct TypeTraits<Array<T>> {
  static std::string Name() {
    if constexpr (std::is_same_v<T, Any>) return "Array";
    return "Array[" + TypeTraits<T>::Name() + "]";
  }
  static std::optional<Array<T>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return Array<T>();
    if (value.type_index != kTVMFFIArray && value.type_index != kTVMFFIList) return std::nullopt;
    auto array = ObjectRef::Borrow<Array<T>>(value.v_obj);
    for (size_t i = 0; i < array.size(); ++i) {
      if (!array.items()[i].template try_cast<T>()) return std::nullopt;
    }
    return array;
  }
  static void To(Array<T> value, TVMFFIAny* out) { TypeTraits<ObjectRef>::To(std::move(value), out); }
};

// An Array of integers will do: it is what a tuple becomes in Python.
template <> struct TypeTraits<Shape> {
  static std::string Name() { return "Shape"; }
  static std::optional<Shape> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return Shape();
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
    if (value.type_index == kTVMFFINone) return Map<K, V>();
    if (value.type_index != kTVMFFIMap && value.type_index != kTVMFFIDict) return std::nullopt;
    if (PortcallMapSize(value.v_obj) < 0) return std::nullopt;
    auto map = ObjectRef::Borrow<Map<K, V>>(value.v_obj);
    for (size_t i = 0; i < map.size(); ++i) {
      const TVMFFIAny* pair = PortcallMapPairAt(map.get(), static_cast<int64_t>(i));
      if (!TypeTraits<K>::TryFrom(pair[0]) || !TypeTraits<V>::TryFrom(pair[1])) return std::nullopt;
    }
    return map;
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
