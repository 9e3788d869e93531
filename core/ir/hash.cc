// SPDX-License-Identifier: Apache-2.0
#include "ir/hash.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ir/hash_bytes.h"

namespace portcall::ir {
namespace {

constexpr int kMaxKeyDepth = 64;

// What kind of value is hashed.
enum Seed : uint64_t {
  kNone = 1,
  kInt,
  kBool,
  kFloat,
  kDataType,
  kDevice,
  kText,
  kBytes,
  kShape,
  kBigInt,
  kTensor,
  kObject,
  kIdentity,
  kVariable,
  kOther,
};

uint64_t HashFloat(double value) {
  uint64_t bits = 0x7ff8000000000000u;  // all NaNs
  if (!std::isnan(value)) std::memcpy(&bits, &value, sizeof bits);
  return Mix(kFloat, bits);
}

uint64_t HashTensor(const DLTensor& tensor) {
  Tensor space;
  uint64_t hash = Mix(
      kTensor, uint64_t{tensor.dtype.code} << 32 | uint64_t{tensor.dtype.bits} << 16 | uint64_t{tensor.dtype.lanes});
  hash = Mix(hash, static_cast<uint64_t>(tensor.ndim));
  for (int32_t i = 0; i < tensor.ndim; ++i) hash = Mix(hash, static_cast<uint64_t>(tensor.shape[i]));
  return Mix(hash, HashBytes(BytesOf(tensor, &space)));
}

uint64_t HashValue(const TVMFFIAny& value) {
  if (auto text = TryString(value)) return Mix(kText, HashBytes(*text));
  if (auto bytes = TryBytes(value)) return Mix(kBytes, HashBytes(*bytes));
  switch (value.type_index) {
    case kTVMFFINone:
      return Mix(kNone, 0);
    case kTVMFFIInt:
      return Mix(kInt, value.v_uint64);
    case kTVMFFIBool:
      return Mix(kBool, value.v_int64 != 0);
    case kTVMFFIFloat:
      return HashFloat(value.v_float64);
    case kTVMFFIDataType:
      return Mix(kDataType, value.v_uint64);
    case kTVMFFIDevice:
      return Mix(kDevice, value.v_uint64);
    case kTVMFFIShape: {
      const TVMFFIShapeCell& cell = static_cast<ShapeObj*>(value.v_obj)->cell;
      return Mix(kShape, HashBytes({reinterpret_cast<const char*>(cell.data), cell.size * sizeof(int64_t)}));
    }
    case kTVMFFIBigInt:
      return Mix(kBigInt, HashBytes(ToView(TVMFFIBigIntGetContentByteArray(&value))));
    default:
      return Mix(kOther, static_cast<uint64_t>(value.type_index));  // a pointer: known by identity
  }
}

}  // namespace

uint64_t Hasher::Hash(const TVMFFIAny& value, Defines defines) {
  uint64_t hash = 0;
  const size_t depth = frames_.size();
  if (Known(value, defines, &hash)) return hash;
  for (;;) {
    if (!Advance()) continue;
    Finish(&hash);
    if (frames_.size() == depth) return hash;
    Combine(hash);
  }
}

// The type has its own hash, made of those of the values that it hands back. As of the headers, these come with the
// hash so far and the kind of variables that they define, 0 being that of the object.
uint64_t Hasher::HashByHook(const Type& type, const TVMFFIObject* obj, uint64_t start, Defines defines) {
  HookScope<Hasher> scope(this, &hooks_, "with a hash of their own");
  PackedFunc hash([self = scope.self(), defines](Args args, RetValue* rv) {
    PORTCALL_CHECK(*self, RuntimeError) << "the hash that this function is part of is done";
    const TVMFFIAny value = (*self)->types_->Keep(Any::Copy(args[0].cell()));
    const Defines inner = DefinesInHook(defines, args[2]);
    *rv = static_cast<int64_t>(Mix(static_cast<uint64_t>(args[1].cast<int64_t>()), (*self)->Hash(value, inner)));
  });
  ObjectRef ref = ObjectRef::Borrow(const_cast<TVMFFIObject*>(obj));
  return static_cast<uint64_t>(type.hash(ref, static_cast<int64_t>(start), hash).cast<int64_t>());
}

// Whether the hash is there without a look at parts; else a frame for them is.
inline bool Hasher::Known(const TVMFFIAny& value, Defines defines, uint64_t* hash) {
  if (Types::IsValue(value)) {
    *hash = HashValue(value);
    return true;
  }
  const TVMFFIObject* obj = value.v_obj;
  const bool shared = IsShared(obj);
  if (shared) {
    auto [known, added] = known_.Insert(obj);
    if (!added) {
      if (*known == 0) ThrowCycle(obj);
      *hash = *known;
      return true;
    }
  }
  const Type& type = types_->Of(obj);
  Frame frame{};
  frame.obj = obj;
  frame.type = &type;
  frame.shared = shared;
  frame.defines = defines;
  if (type.form == Form::kTensor) {
    frame.hash = HashTensor(*TryDLTensor(value));
  } else if (type.form == Form::kOpaque || type.kind == kTVMFFISEqHashKindUniqueInstance ||
             (type.kind == kTVMFFISEqHashKindUnsupported && !type.equal.defined())) {
    frame.hash = Mix(kIdentity, type.key_hash);
  } else {
    // Objects that a hook finds equal have the same hash, even when no hook was written for that.
    frame.count = type.hash.defined() || type.equal.defined() ? 0 : types_->NumParts(obj, type);
    frame.hash = Mix(kObject, type.key_hash);
    if (type.hash.defined()) frame.hash = HashByHook(type, obj, frame.hash, defines);
    if (type.form != Form::kFields) frame.hash = Mix(frame.hash, frame.count);
    if (type.kind == kTVMFFISEqHashKindFreeVar && defines != Defines::kNothing) frame.variable = ++num_variables_;
    frame.first_entry = entries_.size();
    if (type.form == Form::kPairs) AppendEntries(obj, frame.count / 2, &entries_);
  }
  frames_.push_back(frame);
  return false;
}

// Works on the innermost object until it is done, or a part of it is to be worked on first.
inline bool Hasher::Advance() {
  const size_t depth = frames_.size();
  switch (frames_.back().type->form) {
    case Form::kFields:
      AddFields();
      break;
    case Form::kItems:
      AddItems();
      break;
    case Form::kPairs:
      AddPairs();
      break;
    default:
      break;
  }
  return frames_.size() == depth;
}

void Hasher::AddFields() {
  TVMFFIAny space;
  uint64_t hash;
  Frame& frame = frames_.back();
  while (frame.next < frame.count) {
    const Field& field = frame.type->fields[frame.next++];
    if (field.ignored) continue;
    const TVMFFIAny& part = *types_->Part(frame.obj, *frame.type, frame.next - 1, &space, nullptr);
    if (field.by_identity && !Types::IsValue(part)) {
      hash = Mix(kIdentity, types_->Of(part.v_obj).key_hash);
    } else if (!Known(part, DefinesInField(frame.defines, field), &hash)) {
      return;  // there is a frame on top of this one, which may have moved
    }
    frame.hash = Mix(frame.hash, hash);
  }
}

void Hasher::AddItems() {
  TVMFFIAny space;
  uint64_t hash;
  Frame& frame = frames_.back();
  while (frame.next < frame.count) {
    if (!Known(*types_->Part(frame.obj, *frame.type, frame.next++, &space, nullptr), frame.defines, &hash)) return;
    frame.hash = Mix(frame.hash, hash);
  }
}

void Hasher::AddPairs() {
  uint64_t hash;
  Frame& frame = frames_.back();
  while (frame.next < frame.count / 2) {
    const Entry& entry = entries_[frame.first_entry + frame.next++];
    if (!Known(entry.pair[1], frame.defines, &hash)) return;
    Combine(hash);
  }
}

// The hash of the innermost object's part before `next` is there.
inline void Hasher::Combine(uint64_t hash) {
  Frame& frame = frames_.back();
  if (frame.type->form == Form::kPairs) {
    frame.sum += Mix(entries_[frame.first_entry + frame.next - 1].key_hash, hash);
  } else {
    frame.hash = Mix(frame.hash, hash);
  }
}

inline void Hasher::Finish(uint64_t* hash) {
  Frame& frame = frames_.back();
  *hash = frame.hash;
  if (frame.type->form == Form::kPairs) {
    *hash = Mix(*hash, frame.sum);
    entries_.resize(frame.first_entry);
  }
  if (frame.variable) *hash = Mix(Mix(kVariable, frame.variable), *hash);
  if (*hash == 0) *hash = 1;
  if (frame.shared) *known_.Find(frame.obj) = *hash;
  frames_.pop_back();
}

void Hasher::AppendEntries(const TVMFFIObject* map, size_t n, std::vector<Entry>* entries) {
  const TVMFFIAny* pair = nullptr;
  const size_t first = entries->size();
  for (size_t i = 0; i < n; ++i) {
    pair = detail::NextPair(MapOf(map), pair);
    entries->push_back({HashKey(*pair), i, pair});
  }
  std::sort(entries->begin() + static_cast<std::ptrdiff_t>(first), entries->end());
}

// A key is hashed by itself, wherever its map occurs, so that the order of entries is the same everywhere.
uint64_t Hasher::HashKey(const TVMFFIAny& key) {
  if (Types::IsValue(key)) return HashValue(key);
  if (uint64_t* known = known_keys_->Find(key.v_obj)) return *known;
  PORTCALL_CHECK(depth_ < kMaxKeyDepth, ValueError) << "maps are keys of maps more than " << kMaxKeyDepth << " deep";
  uint64_t hash = Hasher(types_, depth_ + 1, known_keys_).Hash(key);
  *known_keys_->Insert(key.v_obj).first = hash;
  return hash;
}

void Hasher::ThrowCycle(const TVMFFIObject* obj) {
  std::vector<Step> steps;
  size_t start = 0;
  for (const Frame& frame : frames_) {
    if (frame.obj == obj) start = steps.size();
    size_t part = frame.next - 1;
    if (frame.type->form == Form::kPairs) part = 2 * entries_[frame.first_entry + part].position + 1;
    steps.push_back({frame.obj, part});
  }
  types_->ThrowCycle(steps, start, "has no structural hash");
}
namespace {

// Signed, because integers of the ABI are.
PORTCALL_REGISTER_GLOBAL("portcall.ir.StructuralHash").set_body_typed([](Any value, bool map_free_variables) {
  Types types;
  const Defines defines = map_free_variables ? Defines::kBelow : Defines::kNothing;
  return static_cast<int64_t>(Hasher(&types).Hash(value.cell(), defines));
});

}  // namespace
}  // namespace portcall::ir
