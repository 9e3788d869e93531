// SPDX-License-Identifier: Apache-2.0
// The structural hash. Its values are promised: a change of anything here is a change of the major version.
#ifndef PORTCALL_IR_HASH_H_
#define PORTCALL_IR_HASH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/pointer_map.h"
#include "ir/types.h"

namespace portcall::ir {

// Which variables a part of the graph defines: none; those that stand there, in containers too; all that it reaches.
// Containers hand it on to what they hold.
enum class Defines : uint8_t { kNothing, kHere, kBelow };

inline Defines DefinesInField(Defines outer, const Field& field) {
  if (outer == Defines::kBelow || field.defines_below) return Defines::kBelow;
  return field.defines ? Defines::kHere : Defines::kNothing;
}

// The same in a hook, which says 0 for that of its object, 1 for all below, else for what stands there.
inline Defines DefinesInHook(Defines outer, int64_t kind) {
  if (outer == Defines::kBelow || kind == 0) return outer;
  return kind == 1 ? Defines::kBelow : Defines::kHere;
}

// While a hook of a type runs, it may call back `self`. It finds null if it kept the pointer for later.
template <typename T> class HookScope {
 public:
  HookScope(T* self, int* depth, const char* of_types) : self_(std::make_shared<T*>(self)), depth_(depth) {
    constexpr int kMaxDepth = 1000;  // hooks use the stack
    PORTCALL_CHECK(*depth < kMaxDepth, ValueError)
        << "objects of types " << of_types << " are more than " << kMaxDepth << " deep";
    ++*depth_;
  }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
  ~HookScope() {
    --*depth_;
    *self_ = nullptr;
  }
  const std::shared_ptr<T*>& self() const { return self_; }

 private:
  std::shared_ptr<T*> self_;
  int* depth_;
};

// The hash of the entries' keys, by which both comparison and hash go through a map.
struct Entry {
  uint64_t key_hash;
  size_t position;
  const TVMFFIAny* pair;
  friend bool operator<(const Entry& a, const Entry& b) {
    return a.key_hash != b.key_hash ? a.key_hash < b.key_hash : a.position < b.position;
  }
};

class Hasher {
 public:
  explicit Hasher(Types* types) : Hasher(types, 0, &own_keys_) {}
  uint64_t Hash(const TVMFFIAny& value, Defines defines = Defines::kNothing);
  // Appends the entries of a map, in order.
  void AppendEntries(const TVMFFIObject* map, size_t n, std::vector<Entry>* entries);

 private:
  struct Frame {
    const TVMFFIObject* obj;
    const Type* type;
    uint64_t hash, sum;  // sum: of a map's entries
    size_t next, count, first_entry;
    uint64_t variable;  // its number, for a variable that is defined here; else 0
    Defines defines;
    bool shared;
  };

  Hasher(Types* types, int depth, PointerMap* known_keys) : types_(types), depth_(depth), known_keys_(known_keys) {}

  uint64_t HashByHook(const Type& type, const TVMFFIObject* obj, uint64_t start, Defines defines);
  bool Known(const TVMFFIAny& value, Defines defines, uint64_t* hash);
  bool Advance();
  void AddFields();
  void AddItems();
  void AddPairs();
  void Combine(uint64_t hash);
  void Finish(uint64_t* hash);
  uint64_t HashKey(const TVMFFIAny& key);
  [[noreturn]] void ThrowCycle(const TVMFFIObject* obj);

  Types* types_;
  int depth_;  // how deep in maps that are keys of maps
  std::vector<Frame> frames_;
  std::vector<Entry> entries_;
  PointerMap known_;                   // hashes of shared objects and variables, 0 while they are worked on
  PointerMap own_keys_, *known_keys_;  // hashes of keys, which are the same in all maps
  uint64_t num_variables_ = 0;
  int hooks_ = 0;  // hooks that are running
};

}  // namespace portcall::ir
#endif  // PORTCALL_IR_HASH_H_
