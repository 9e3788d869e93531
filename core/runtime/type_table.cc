// SPDX-License-Identifier: Apache-2.0
// The table of types.
//
// Reading the table takes no lock: entries never move and are published with release. Types are never removed.
#include "portcall/object.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "portcall/error.h"
#include "portcall/function.h"
#include "runtime/foreign.h"
#include "runtime/library_globals.h"
#include "runtime/node.h"

namespace portcall {
namespace {

#ifdef __wasm__  // no other runtime, and no memory that costs nothing until it is written
constexpr int32_t kFirstOwn = kTVMFFIDynObjectBegin;
#else
constexpr int32_t kFirstOwn = kPortcallDynObjectBegin;
#endif
constexpr int32_t kMaxTypes = kFirstOwn + kPortcallMostTypes;

// A growing list whose items readers see without a lock: it is copied to other memory when it is full or an item is
// replaced, and the old memory stays for those who still read it.
template <typename T> class Published {
 public:
  // Adds an item, or replaces one, and publishes the list.
  void Set(size_t position, const T& item, const T** data, int32_t* count) {
    if (position < size_ || size_ == capacity_) {
      if (size_ == capacity_) capacity_ = capacity_ ? 2 * capacity_ : 4;
      auto other = std::make_unique<T[]>(capacity_);
      std::copy_n(items_, size_, other.get());
      items_ = other.get();
      all_.push_back(std::move(other));
    }
    items_[position] = item;
    if (position == size_) ++size_;
    __atomic_store_n(data, items_, __ATOMIC_RELEASE);
    __atomic_store_n(count, static_cast<int32_t>(size_), __ATOMIC_RELEASE);
  }
  size_t Find(std::string_view name) const {
    size_t i = 0;
    while (i < size_ && ToView(items_[i].name) != name) ++i;
    return i;
  }

 private:
  std::vector<std::unique_ptr<T[]>> all_;
  T* items_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

struct TypeEntry {
  TVMFFITypeInfo info{};
  std::string key;
  std::vector<const TVMFFITypeInfo*> ancestors;
  Published<TVMFFIFieldInfo> fields;
  Published<TVMFFIMethodInfo> methods;
};

struct AttrColumn {
  TVMFFITypeAttrColumn shown{};
  std::vector<std::unique_ptr<TVMFFIAny, decltype(&std::free)>> all;
  int32_t capacity = 0;
};

uint64_t HashKey(std::string_view key) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : key) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

class TypeTable {
 public:
  static TypeTable& Get() {
    static auto* table = new TypeTable();  // never destroyed: libraries release objects until the very end
    return *table;
  }

  const TVMFFITypeInfo* Find(int32_t index) const {
    if (index < 0 || index >= kMaxTypes) return nullptr;
    const TypeEntry* entry = entries_[index].load(std::memory_order_acquire);
    return entry ? &entry->info : nullptr;
  }

  int32_t IndexOf(std::string_view key) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = by_key_.find(std::string(key));
    return it == by_key_.end() ? -2 : it->second;
  }

  // `slots`: how many indexes after its own the type keeps for those that derive from it. Compiled code takes any object
  // with an index there for one of them.
  int32_t GetOrAdd(std::string_view key, int32_t index, int32_t slots, int32_t parent) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = by_key_.find(std::string(key));
    if (it != by_key_.end()) return it->second;
    PORTCALL_CHECK(parent < 0 || Find(parent), ValueError)
        << "the parent of type '" << key << "' has the unknown index " << parent;
    const int32_t count = 1 + std::max(0, std::min(slots, kMaxTypes));
    if (index < 0) {
      index = TakeSlots(parent, count);
      if (index < 0) {
        while (Find(next_)) ++next_;
        index = next_;
        next_ = std::min(next_ + count, kMaxTypes);
      }
    }
    PORTCALL_CHECK(index < kMaxTypes, RuntimeError)
        << "more than " << kPortcallMostTypes << " types; '" << key << "' was refused";
    PORTCALL_CHECK(!Find(index), ValueError) << "type index " << index << " of '" << key << "' belongs to another type";
    Add(std::string(key), index, parent);
    LibraryGlobals::Note(key);
    if (count > 1) slots_[index] = {index + 1, index + count};
    return index;
  }

  // What is known here of a type of another runtime in the process: its key. Such a type is only met with an object of it.
  const TVMFFITypeInfo* FindForeign(int32_t index) {
    const std::string key = ForeignTypeKey(index);
    if (key.empty()) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!Find(index)) Add(key, index, kTVMFFIObject);
    return Find(index);
  }

  void AddField(int32_t index, const TVMFFIFieldInfo& given) {
    std::lock_guard<std::mutex> lock(mutex_);
    TypeEntry* entry = Described(index);
    CheckLayout(*entry, given.getter == ReadCell);
    TVMFFIFieldInfo field = given;
    field.name = Keep(given.name);
    field.doc = Keep(given.doc);
    field.metadata = Keep(given.metadata);
    field.default_value_or_factory = Any().release();
    if (given.flags & kTVMFFIFieldFlagBitMaskHasDefault) {
      field.default_value_or_factory = Keep(given.default_value_or_factory);
    }
    if (given.flags & kTVMFFIFieldFlagBitSetterIsFunctionObj) {
      values_.emplace_back(ObjectRef::Borrow(given.setter));
    }
    entry->fields.Set(entry->fields.Find(ToView(field.name)), field, &entry->info.fields, &entry->info.num_fields);
    MarkIfOfTvmFfi(index, given.metadata);
  }

  void AddMethod(int32_t index, const TVMFFIMethodInfo& given) {
    std::lock_guard<std::mutex> lock(mutex_);
    TypeEntry* entry = Described(index);
    TVMFFIMethodInfo method = given;
    method.name = Keep(given.name);
    method.doc = Keep(given.doc);
    method.metadata = Keep(given.metadata);
    method.method = Keep(given.method);
    entry->methods.Set(PlaceOfMethod(entry->info, method), method, &entry->info.methods, &entry->info.num_methods);
    MarkIfOfTvmFfi(index, given.metadata);
  }

  void SetMetadata(int32_t index, const TVMFFITypeMetadata& given) {
    std::lock_guard<std::mutex> lock(mutex_);
    TypeEntry* entry = Described(index);
    CheckLayout(*entry, given.creator == CreateRow);
    LibraryGlobals::Note(entry->key);
    TVMFFITypeMetadata& metadata = metadata_.emplace_back(given);
    metadata.doc = Keep(given.doc);
    __atomic_store_n(&entry->info.metadata, &metadata, __ATOMIC_RELEASE);
    const int32_t depth = entry->info.type_depth;
    if (depth > 0 && IsOfTvmFfi(entry->info.type_ancestors[depth - 1]->type_index)) MarkAsOfTvmFfi(index);
  }

  void SetAttr(int32_t index, std::string_view name, const TVMFFIAny& value) {
    std::lock_guard<std::mutex> lock(mutex_);
    Described(index);
    Put(index, name, value);
    if (name == "__ffi_new__" || name == "__ffi_shallow_copy__") MarkAsOfTvmFfi(index);
  }

  const TVMFFITypeAttrColumn* Column(std::string_view name) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = columns_.find(std::string(name));
    return it == columns_.end() ? nullptr : &it->second.shown;
  }

 private:
  void Put(int32_t index, std::string_view name, const TVMFFIAny& value) {
    AttrColumn& column = columns_[std::string(name)];
    TVMFFITypeAttrColumn& shown = column.shown;
    if (index >= column.capacity) {
      const int32_t capacity = index + 16 + std::max(0, index - kFirstOwn);
      auto* larger = static_cast<TVMFFIAny*>(std::calloc(capacity, sizeof(TVMFFIAny)));  // None is all zeros
      if (!larger) throw std::bad_alloc();
      column.all.emplace_back(larger, std::free);
      for (int32_t i = 0; i < shown.size; ++i) {  // memory between the types that is not written takes no room
        if (shown.data[i].type_index != kTVMFFINone) larger[i] = shown.data[i];
      }
      __atomic_store_n(&shown.data, larger, __ATOMIC_RELEASE);
      column.capacity = capacity;
    }
    const_cast<TVMFFIAny*>(shown.data)[index] = Keep(value);
    if (index >= shown.size) __atomic_store_n(&shown.size, index + 1, __ATOMIC_RELEASE);
  }

  // Types that tvm-ffi's headers describe have their own rules for constructors and copies. They tell themselves by this
  // attribute since 0.1.14; what headers before that wrote all the same tells of it here, in its place.
  static constexpr const char* kOfTvmFfi = "__ffi_type_final__";
  bool IsOfTvmFfi(int32_t index) {
    const TVMFFITypeAttrColumn& column = columns_[kOfTvmFfi].shown;
    return index < column.size && column.data[index].type_index != kTVMFFINone;
  }
  [[gnu::noinline]] void MarkIfOfTvmFfi(int32_t index, const TVMFFIByteArray& metadata) {
    if (metadata.data && ToView(metadata).find("\"type_schema\"") != std::string_view::npos) MarkAsOfTvmFfi(index);
  }
  [[gnu::noinline]] void MarkAsOfTvmFfi(int32_t index) {
    if (IsOfTvmFfi(index) || IsRow(Described(index)->info)) return;
    TVMFFIAny no{};
    no.type_index = kTVMFFIBool;
    Put(index, kOfTvmFfi, no);
  }

  // The first of `count` indexes that a type kept for those that derive from it; -1 when it has not as many left.
  int32_t TakeSlots(int32_t parent, int32_t count) {
    auto it = slots_.find(parent);
    if (it == slots_.end() || it->second.end - it->second.next < count) return -1;
    return std::exchange(it->second.next, it->second.next + count);
  }

  // An overloaded method is one function, with an entry for each of its signatures. Anything else of that name is older.
  static size_t PlaceOfMethod(const TVMFFITypeInfo& type, const TVMFFIMethodInfo& method) {
    int32_t i = 0;
    for (; i < type.num_methods; ++i) {
      const TVMFFIMethodInfo& known = type.methods[i];
      if (ToView(known.name) != ToView(method.name)) continue;
      if (known.method.v_obj != method.method.v_obj || ToView(known.metadata) == ToView(method.metadata)) break;
    }
    return static_cast<size_t>(i);
  }

  TypeEntry* Described(int32_t index) const {
    PORTCALL_CHECK(Find(index), ValueError) << "no type has the index " << index;
    return entries_[index].load(std::memory_order_relaxed);
  }

  // Objects that are rows of cells must not be read as something else, by a library that is loaded late.
  static void CheckLayout(const TypeEntry& entry, bool as_row) {
    PORTCALL_CHECK(as_row || !IsRow(entry.info), ValueError)
        << "type '" << entry.key << "' was defined at run time; load the library that describes it first";
  }

  // Descriptions live as long as the process: types do, and somebody may be reading what is replaced.
  TVMFFIByteArray Keep(const TVMFFIByteArray& text) {
    return ToByteArray(texts_.emplace_back(text.data ? ToView(text) : std::string_view()));
  }

  const TVMFFIAny& Keep(const TVMFFIAny& value) { return values_.emplace_back(Any::Copy(value)).cell(); }

  TypeTable() {
    // Text in place: pointers to it would be relocated when the core is loaded.
    struct Name {
      int32_t index;
      char key[20];
    };
    static constexpr Name kPlain[] = {
        {kTVMFFINone, "None"},
        {kTVMFFIInt, "int"},
        {kTVMFFIBool, "bool"},
        {kTVMFFIFloat, "float"},
        {kTVMFFIOpaquePtr, "void*"},
        {kTVMFFIDataType, "DataType"},
        {kTVMFFIDevice, "Device"},
        {kTVMFFIDLTensorPtr, "DLTensor*"},
        {kTVMFFIRawStr, "const char*"},
        {kTVMFFIByteArrayPtr, "TVMFFIByteArray*"},
        {kTVMFFIObjectRValueRef, "ObjectRValueRef"},
        {kTVMFFISmallStr, "ffi.SmallStr"},
        {kTVMFFISmallBytes, "ffi.SmallBytes"},
        {kTVMFFIUnchanged, "ffi.Unchanged"},
        {kTVMFFIObject, "ffi.Object"},
    };
    static constexpr Name kObjects[] = {
        {kTVMFFIStr, "ffi.String"},
        {kTVMFFIBytes, "ffi.Bytes"},
        {kTVMFFIError, "ffi.Error"},
        {kTVMFFIFunction, "ffi.Function"},
        {kTVMFFIShape, "ffi.Shape"},
        {kTVMFFITensor, "ffi.Tensor"},
        {kTVMFFIArray, "ffi.Array"},
        {kTVMFFIMap, "ffi.Map"},
        {kTVMFFIModule, "ffi.Module"},
        {kTVMFFIOpaquePyObject, "ffi.OpaquePyObject"},
        {kTVMFFIList, "ffi.List"},
        {kTVMFFIDict, "ffi.Dict"},
        {kTVMFFIVisitInterrupt, "ffi.VisitInterrupt"},
        {kTVMFFIBigInt, "ffi.BigInt"},
    };
    // Libraries look for these before anybody wrote one, and do without no column of them.
    static constexpr char kColumns[][27] = {
        "__any_equal__",        "__any_hash__",       "__data_from_json__",
        "__data_to_json__",     "__ffi_compare__",    "__ffi_convert__",
        "__ffi_enum__",         "__ffi_eq__",         "__ffi_hash__",
        "__ffi_init__",         "__ffi_new__",        "__ffi_repr__",
        "__ffi_shallow_copy__", "__ffi_type_final__", "__s_equal__",
        "__s_hash__",           "__s_mutate__",       "__s_maybe_inplace_mutate__",
        "__s_visit__",
    };
    for (const char* name : kColumns) columns_[name];
    for (const auto& [index, key] : kPlain) Add(key, index, -1);
    for (const auto& [index, key] : kObjects) Add(key, index, kTVMFFIObject);
  }

  int32_t Add(std::string key, int32_t index, int32_t parent) {
    auto entry = std::make_unique<TypeEntry>();
    entry->key = std::move(key);
    if (const TVMFFITypeInfo* up = Find(parent)) {
      entry->ancestors.assign(up->type_ancestors, up->type_ancestors + up->type_depth);
      entry->ancestors.push_back(up);
    }
    TVMFFITypeInfo& info = entry->info;
    info.type_index = index;
    info.type_depth = static_cast<int32_t>(entry->ancestors.size());
    info.type_key = ToByteArray(entry->key);
    info.type_ancestors = entry->ancestors.data();
    info.type_key_hash = HashKey(entry->key);
    by_key_.emplace(entry->key, index);
    entries_[index].store(entry.release(), std::memory_order_release);
    return index;
  }

  struct Slots {
    int32_t next, end;
  };

  std::mutex mutex_;
  std::unordered_map<std::string, int32_t> by_key_;
  std::unordered_map<int32_t, Slots> slots_;  // what is left of those that types kept
  std::unordered_map<std::string, AttrColumn> columns_;
  std::deque<TVMFFITypeMetadata> metadata_;
  std::deque<std::string> texts_;
  std::deque<Any> values_;
  int32_t next_ = kFirstOwn;
  // Not a part of the table, which is made at run time: untouched memory takes no room.
  inline static std::array<std::atomic<TypeEntry*>, kMaxTypes> entries_{};
};

struct OpaqueObj : Object {
  void* handle = nullptr;
  void (*release)(void*) = nullptr;
  ~OpaqueObj() {
    if (release) release(handle);
  }
};

}  // namespace

// Live nodes of the ABI's types: {type key: count}, types with none left out.
PORTCALL_REGISTER_GLOBAL("portcall.LiveNodes").set_body_typed([]() {
  std::vector<std::pair<String, int64_t>> counts;
  for (int32_t i = 0; i < kTVMFFIStaticObjectEnd; ++i) {
    if (int64_t n = live_nodes[i].load(std::memory_order_relaxed)) counts.emplace_back(TypeKeyOf(i), n);
  }
  return Map<String, int64_t>(counts);
});

}  // namespace portcall

using namespace portcall;

int TVMFFIObjectCreateOpaque(void* handle, int32_t type_index, void (*deleter)(void*), TVMFFIObjectHandle* out) {
  return Guard([&] {
    // The other types of the ABI have bodies that readers take for granted.
    bool bodiless = type_index == kTVMFFIObject || type_index == kTVMFFIOpaquePyObject;
    PORTCALL_CHECK(bodiless || type_index >= kTVMFFIDynObjectBegin, ValueError)
        << "type index " << type_index << " is not that of an opaque object";
    auto* obj = NewNode<OpaqueObj>();
    obj->type_index = type_index;
    obj->handle = handle;
    obj->release = deleter;
    *out = obj;
  });
}

int32_t TVMFFITypeGetOrAllocIndex(const TVMFFIByteArray* type_key, int32_t static_type_index, int32_t,
                                  int32_t num_child_slots, int32_t, int32_t parent_type_index) {
  int32_t index = -2;
  if (parent_type_index == -2) return TypeTable::Get().IndexOf(ToView(*type_key));
  Guard([&] {
    index = TypeTable::Get().GetOrAdd(ToView(*type_key), static_type_index, num_child_slots, parent_type_index);
  });
  return index;
}

const TVMFFITypeInfo* TVMFFIGetTypeInfo(int32_t type_index) {
  const TVMFFITypeInfo* info = TypeTable::Get().Find(type_index);
  if (info || type_index < kTVMFFIDynObjectBegin || type_index >= kFirstOwn) return info;
  Guard([&] { info = TypeTable::Get().FindForeign(type_index); });
  return info;
}

int TVMFFITypeKeyToIndex(const TVMFFIByteArray* type_key, int32_t* out) {
  return Guard([&] {
    int32_t index = TypeTable::Get().IndexOf(ToView(*type_key));
    PORTCALL_CHECK(index >= 0, KeyError) << "no type has the key '" << ToView(*type_key) << "'";
    *out = index;
  });
}

int TVMFFITypeRegisterField(int32_t type_index, const TVMFFIFieldInfo* info) {
  return Guard([&] { TypeTable::Get().AddField(type_index, *info); });
}

int TVMFFITypeRegisterMethod(int32_t type_index, const TVMFFIMethodInfo* info) {
  return Guard([&] {
    TypeTable::Get().AddMethod(type_index, *info);
    // Headers of tvm-ffi before 0.1.11 leave it at the method; those of 0.1.10 make one of the fields, as is done here.
    if (ToView(info->name) != "__ffi_init__") return;
    if (ToView(info->metadata).find("\"auto_init\"") != std::string_view::npos) {
      Registry::Get("ffi._RegisterFFIInit")(type_index);
    } else {
      TypeTable::Get().SetAttr(type_index, "__ffi_init__", info->method);
    }
  });
}

int TVMFFITypeRegisterMetadata(int32_t type_index, const TVMFFITypeMetadata* metadata) {
  return Guard([&] { TypeTable::Get().SetMetadata(type_index, *metadata); });
}

int TVMFFITypeRegisterAttr(int32_t type_index, const TVMFFIByteArray* name, const TVMFFIAny* value) {
  return Guard([&] { TypeTable::Get().SetAttr(type_index, ToView(*name), *value); });
}

const TVMFFITypeAttrColumn* TVMFFIGetTypeAttrColumn(const TVMFFIByteArray* name) {
  return TypeTable::Get().Column(ToView(*name));
}
