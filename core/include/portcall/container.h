// SPDX-License-Identifier: Apache-2.0
// Shape, Array<T> and Map<K, V>: immutable containers that travel through calls. Order of insertion is kept.
#ifndef PORTCALL_CONTAINER_H_
#define PORTCALL_CONTAINER_H_

#include <initializer_list>
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

  size_t size() const noexcept { return ptr_ ? static_cast<size_t>(node()->cell.size) : 0; }
  bool empty() const noexcept { return size() == 0; }
  T operator[](size_t i) const { return items()[i].template cast<T>(); }
  T at(size_t i) const {
    PORTCALL_CHECK(i < size(), IndexError) << "index " << i << " is out of range for an Array of " << size();
    return (*this)[i];
  }
  const Any* items() const noexcept { return ptr_ ? static_cast<const Any*>(node()->cell.data) : nullptr; }
  std::vector<T> vector() const {
    std::vector<T> out;
    for (size_t i = 0; i < size(); ++i) out.push_back((*this)[i]);
    return out;
  }

 private:
  void Build(const std::vector<Any>& items) {
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallArrayCreate(reinterpret_cast<const TVMFFIAny*>(items.data()), static_cast<int64_t>(items.size()),
                              &handle));
    ptr_ = static_cast<TVMFFIObject*>(handle);
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
    return ArgValue(value, 0, "").cast<V>();
  }
  V at(const K& key) const {
    std::optional<V> value = find(key);
    PORTCALL_CHECK(value.has_value(), KeyError) << "the key is not in the Map";
    return *std::move(value);
  }
  std::vector<std::pair<K, V>> items() const {
    std::vector<std::pair<K, V>> out;
    for (size_t i = 0; i < size(); ++i) {
      const TVMFFIAny* pair = PortcallMapPairAt(ptr_, static_cast<int64_t>(i));
      out.emplace_back(ArgValue(pair, 0, "").cast<K>(), ArgValue(pair + 1, 0, "").cast<V>());
    }
    return out;
  }

 private:
  const TVMFFIAny* Find(const K& key) const {
    Any cell(key);
    return ptr_ ? PortcallMapFind(ptr_, &cell.cell()) : nullptr;
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

template <typename K, typename V> struct TypeTraits<Map<K, V>> {
  static std::string Name() {
    if constexpr (std::is_same_v<K, Any> && std::is_same_v<V, Any>) return "Map";
    return "Map[" + TypeTraits<K>::Name() + ", " + TypeTraits<V>::Name() + "]";
  }
  static std::optional<Map<K, V>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return Map<K, V>();
    if (value.type_index != kTVMFFIMap || PortcallMapSize(value.v_obj) < 0) return std::nullopt;
    auto map = ObjectRef::Borrow<Map<K, V>>(value.v_obj);
    for (size_t i = 0; i < map.size(); ++i) {
      const TVMFFIAny* pair = PortcallMapPairAt(map.get(), static_cast<int64_t>(i));
      if (!TypeTraits<K>::TryFrom(pair[0]) || !TypeTraits<V>::TryFrom(pair[1])) return std::nullopt;
    }
    return map;
  }
  static void To(Map<K, V> value, TVMFFIAny* out) { TypeTraits<ObjectRef>::To(std::move(value), out); }
};

template <typename T> struct TypeTraits<std::vector<T>> {
  static std::string Name() { return TypeTraits<Array<T>>::Name(); }
  static std::optional<std::vector<T>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return std::nullopt;
    std::optional<Array<T>> array = TypeTraits<Array<T>>::TryFrom(value);
    if (!array) return std::nullopt;
    return array->vector();
  }
  static void To(const std::vector<T>& value, TVMFFIAny* out) { TypeTraits<Array<T>>::To(Array<T>(value), out); }
};

}  // namespace portcall
#endif  // PORTCALL_CONTAINER_H_
