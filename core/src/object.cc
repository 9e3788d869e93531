// SPDX-License-Identifier: Apache-2.0
// The table of types, and the reference counts as functions.
//
// Reading the table takes no lock: entries never move and are published with release. Types are never removed.
#include "portcall/object.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "node.h"
#include "portcall/error.h"
#include "portcall/function.h"

namespace portcall {
namespace {

constexpr int32_t kMaxTypes = 32768;

struct TypeEntry {
  TVMFFITypeInfo info{};
  std::string key;
  std::vector<const TVMFFITypeInfo*> ancestors;
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

  int32_t GetOrAdd(std::string_view key, int32_t index, int32_t parent) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = by_key_.find(std::string(key));
    if (it != by_key_.end()) return it->second;
    PORTCALL_CHECK(parent < 0 || Find(parent), ValueError)
        << "the parent of type '" << key << "' has the unknown index " << parent;
    if (index < 0) {
      while (Find(next_)) ++next_;
      index = next_++;
    }
    PORTCALL_CHECK(index < kMaxTypes, RuntimeError)
        << "more than " << kMaxTypes << " types; '" << key << "' was refused";
    PORTCALL_CHECK(!Find(index), ValueError) << "type index " << index << " of '" << key << "' belongs to another type";
    return Add(std::string(key), index, parent);
  }

 private:
  TypeTable() {
    static constexpr std::pair<int32_t, const char*> kPlain[] = {
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
    static constexpr std::pair<int32_t, const char*> kObjects[] = {
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

  std::mutex mutex_;
  std::unordered_map<std::string, int32_t> by_key_;
  int32_t next_ = kTVMFFIDynObjectBegin;
  std::array<std::atomic<TypeEntry*>, kMaxTypes> entries_{};
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

int TVMFFIObjectIncRef(TVMFFIObjectHandle obj) {
  if (obj) Retain(static_cast<TVMFFIObject*>(obj));
  return 0;
}

int TVMFFIObjectDecRef(TVMFFIObjectHandle obj) {
  if (obj) Release(static_cast<TVMFFIObject*>(obj));
  return 0;
}

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

int32_t TVMFFITypeGetOrAllocIndex(const TVMFFIByteArray* type_key, int32_t static_type_index, int32_t, int32_t, int32_t,
                                  int32_t parent_type_index) {
  int32_t index = -2;
  if (parent_type_index == -2) return TypeTable::Get().IndexOf(ToView(*type_key));
  Guard([&] { index = TypeTable::Get().GetOrAdd(ToView(*type_key), static_type_index, parent_type_index); });
  return index;
}

const TVMFFITypeInfo* TVMFFIGetTypeInfo(int32_t type_index) { return TypeTable::Get().Find(type_index); }

int TVMFFITypeKeyToIndex(const TVMFFIByteArray* type_key, int32_t* out) {
  return Guard([&] {
    int32_t index = TypeTable::Get().IndexOf(ToView(*type_key));
    PORTCALL_CHECK(index >= 0, KeyError) << "no type has the key '" << ToView(*type_key) << "'";
    *out = index;
  });
}

int TVMFFITypeRegisterField(int32_t, const TVMFFIFieldInfo*) { return 0; }
int TVMFFITypeRegisterMethod(int32_t, const TVMFFIMethodInfo*) { return 0; }
int TVMFFITypeRegisterMetadata(int32_t, const TVMFFITypeMetadata*) { return 0; }
int TVMFFITypeRegisterAttr(int32_t, const TVMFFIByteArray*, const TVMFFIAny*) { return 0; }
const TVMFFITypeAttrColumn* TVMFFIGetTypeAttrColumn(const TVMFFIByteArray*) { return nullptr; }
