// SPDX-License-Identifier: Apache-2.0
// How objects look to everything in this folder: an object has parts (fields, items, or keys and values in turn), and
// the description of its type is read once for each piece of work.
#ifndef PORTCALL_IR_TYPES_H_
#define PORTCALL_IR_TYPES_H_

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "portcall/reflection.h"

namespace portcall::ir {

enum class Form : uint8_t {
  kValue,   // equal by content, and written where it stands: numbers, text, shapes, …
  kFields,  // an object of a described type
  kItems,   // Array, List
  kPairs,   // Map, Dict: keys and values in turn
  kTensor,
  kOpaque,  // known by identity alone: functions, modules, objects of types without a description
};

struct Field {
  // kData: what is saved in place of the fields.
  enum class Access : uint8_t { kCell, kReference, kGetter, kData };

  const TVMFFIFieldInfo* info;
  std::string_view name;
  int64_t offset;
  Access access;
  bool ignored, by_identity, defines, defines_below;
};

struct Type {
  int32_t index;
  size_t number;  // of the types that were read, from 0
  Form form;
  int32_t kind;  // TVMFFISEqHashKind
  bool creatable;
  std::string_view key;
  uint64_t key_hash;  // the hash of its text
  std::vector<Field> fields;
  // What the type decides by itself; not defined, as a rule.
  PackedFunc equal, hash;         // __s_equal__, __s_hash__
  PackedFunc to_data, from_data;  // __data_to_json__, __data_from_json__
  bool is_enum;                   // saved as its number or its name, and read as the entry that is there
  PackedFunc init;                // __ffi_init__, for what is read again, where there is no default constructor

  bool can_be_made() const { return creatable || init.defined(); }
};

// An object of a type without a default constructor from the values of its fields, as MakeObject has them. TypeError when
// its constructor does not take the first ones.
ObjectRef MakeByInit(const Type& type, const TVMFFIAny* parts);

// One part of an object in the graph, for paths.
struct Step {
  const TVMFFIObject* obj;
  size_t part;
};

inline const PortcallMapCell& MapOf(const TVMFFIObject* obj) { return static_cast<const MapObj*>(obj)->cell; }

class Types {
 public:
  // saving: objects of types with their own data have that as their only part.
  explicit Types(bool saving = false) : saving_(saving) {}

  const Type& Of(int32_t index) {
    const size_t i = PlaceOf(index);
    if (i < table_.size() && table_[i]) return *table_[i];
    return Read(index);
  }
  const Type& Of(const TVMFFIObject* obj) { return Of(obj->type_index); }

  // Whether a value is one that stands for itself: anything else is an object with parts, a tensor, or opaque.
  static bool IsValue(const TVMFFIAny& value) noexcept {
    int32_t index = value.type_index;
    return index < kTVMFFIStaticObjectBegin || index == kTVMFFIStr || index == kTVMFFIBytes || index == kTVMFFIShape ||
           index == kTVMFFIBigInt;
  }

  size_t NumParts(const TVMFFIObject* obj, const Type& type) const;

  // Part `i`, borrowed; `*space` is room for a view where there is none in place, and `*pair` remembers the pair of a map
  // from one part to the next: they are asked for in turn. What a getter made lives as long as this table, because its
  // address may be remembered.
  const TVMFFIAny* Part(const TVMFFIObject* obj, const Type& type, size_t i, TVMFFIAny* space, const TVMFFIAny** pair) {
    switch (type.form) {
      case Form::kFields:
        return FieldOf(obj, type.fields[i], space);
      case Form::kItems:
        return static_cast<const TVMFFIAny*>(reinterpret_cast<const TVMFFISeqCell*>(obj + 1)->data) + i;
      default:
        if (i % 2 == 0) *pair = detail::NextPair(MapOf(obj), i ? *pair : nullptr);
        return *pair + i % 2;
    }
  }

  // Holds what is met on the way as long as this table is there.
  const TVMFFIAny& Keep(Any value) {
    kept_.push_back(std::move(value));
    return kept_.back().cell();
  }

  // "<root>.rhs[3]["key"]" of the last step's part. Unless it is to be whole, the middle of a long one is left out.
  std::string PathOf(const std::vector<Step>& steps, bool whole = false);

  // The steps lead from the root to an object that was met before, after the first `start` of them.
  [[noreturn]] void ThrowCycle(const std::vector<Step>& steps, size_t start, const char* cannot);

 private:
  const TVMFFIAny* FieldOf(const TVMFFIObject* obj, const Field& field, TVMFFIAny* space) {
    const char* place = reinterpret_cast<const char*>(obj) + field.offset;
    if (field.access == Field::Access::kCell) return reinterpret_cast<const TVMFFIAny*>(place);
    if (field.access == Field::Access::kReference) {
      auto* target = *reinterpret_cast<TVMFFIObject* const*>(place);
      detail::SetCell(space, target ? target->type_index : static_cast<int32_t>(kTVMFFINone));
      if (target) space->v_obj = target;
      return space;
    }
    return Get(obj, field, space);
  }
  const TVMFFIAny* Get(const TVMFFIObject* obj, const Field& field, TVMFFIAny* space);
  const Type& Read(int32_t index);
  // In the table: the types of this runtime and of another one in turn, so that it stays small.
  static size_t PlaceOf(int32_t index) noexcept {
    if (index < kTVMFFIDynObjectBegin) return static_cast<size_t>(index);
    bool own = index >= kPortcallDynObjectBegin;
    return kTVMFFIDynObjectBegin +
           2 * static_cast<size_t>(index - (own ? kPortcallDynObjectBegin : kTVMFFIDynObjectBegin)) + own;
  }

  const Any& DataOf(const TVMFFIObject* obj);

  bool saving_;
  std::vector<std::unique_ptr<Type>> table_;
  size_t num_read_ = 0;
  std::vector<Any> kept_;
  std::unordered_map<const TVMFFIObject*, Any> data_;
};

// An object that more than one may hold: only these can be met twice.
inline bool IsShared(const TVMFFIObject* obj) noexcept {
  return (__atomic_load_n(&obj->combined_ref_count, __ATOMIC_RELAXED) & kStrongMask) > 1;
}

// A value in a message, cut short: 1, "text", 2.5, demo.Var(name="x").
std::string Show(const TVMFFIAny& value);
// Text in double quotes, escaped, cut short.
std::string Quote(std::string_view text);

// The entry of an enum that was saved as this number or name; not defined when there is none.
Any FindEnumEntry(int32_t type_index, const TVMFFIAny& saved);

// A view on the elements of a tensor, compact and in the host's memory; copied into `*space` if they are not there.
std::string_view BytesOf(const DLTensor& tensor, Tensor* space);

}  // namespace portcall::ir
#endif  // PORTCALL_IR_TYPES_H_
