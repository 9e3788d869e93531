// SPDX-License-Identifier: Apache-2.0
// Structural equality: two graphs are walked side by side, in the order of the left one's fields.
//
// Subgraphs that are the very same object on both sides are not looked into as long as no two different objects have to
// stand for each other. When that changes, the comparison starts again and looks into everything, because a variable
// inside of what was left out may now stand for another one.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "ir/hash.h"

namespace portcall::ir {
namespace {

struct Mismatch {
  TVMFFIAny left, right;
  std::string path, text, why;
};

// Finds out which nodes have been found equal before, directly or through others: a union-find.
class Classes {
 public:
  // Whether the two were in one class already. They are now.
  bool Join(const TVMFFIObject* left, const TVMFFIObject* right) {
    uint64_t a = RootOf(Number(&left_, left)), b = RootOf(Number(&right_, right));
    if (a == b) return true;
    if (size_[a] < size_[b]) std::swap(a, b);
    parent_[b] = static_cast<uint32_t>(a);
    size_[a] += size_[b];
    return false;
  }

 private:
  uint64_t Number(PointerMap* map, const TVMFFIObject* obj) {
    auto [number, added] = map->Insert(obj);
    if (added) {
      *number = parent_.size();
      parent_.push_back(static_cast<uint32_t>(*number));
      size_.push_back(1);
    }
    return *number;
  }
  uint64_t RootOf(uint64_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

  PointerMap left_, right_;
  std::vector<uint32_t> parent_, size_;
};

// Objects that stand for each other and for nothing else: variables, and what is to be shared alike.
class Pairing {
 public:
  enum class Found { kNew, kSame, kOther };
  Found Find(const TVMFFIObject* left, const TVMFFIObject* right) {
    uint64_t *l = left_.Find(left), *r = right_.Find(right);
    if (!l && !r) return Found::kNew;
    return l && r && *l == reinterpret_cast<uintptr_t>(right) ? Found::kSame : Found::kOther;
  }
  void Add(const TVMFFIObject* left, const TVMFFIObject* right) {
    *left_.Insert(left).first = reinterpret_cast<uintptr_t>(right);
    *right_.Insert(right).first = reinterpret_cast<uintptr_t>(left);
  }

 private:
  PointerMap left_, right_;
};

std::string_view ContentOf(const TVMFFIAny& value) {
  if (auto text = TryString(value)) return *text;
  if (auto bytes = TryBytes(value)) return *bytes;
  if (value.type_index == kTVMFFIShape) {
    const TVMFFIShapeCell& cell = static_cast<ShapeObj*>(value.v_obj)->cell;
    return {reinterpret_cast<const char*>(cell.data), cell.size * sizeof(int64_t)};
  }
  return ToView(TVMFFIBigIntGetContentByteArray(&value));
}

// 0: neither text nor bytes.
int TextKind(int32_t index) {
  if (index == kTVMFFISmallStr || index == kTVMFFIStr || index == kTVMFFIRawStr) return 1;
  return index == kTVMFFISmallBytes || index == kTVMFFIBytes || index == kTVMFFIByteArrayPtr ? 2 : 0;
}

bool EqualValues(const TVMFFIAny& left, const TVMFFIAny& right) {
  if (left.type_index != right.type_index) {
    int kind = TextKind(left.type_index);
    return kind != 0 && kind == TextKind(right.type_index) && ContentOf(left) == ContentOf(right);
  }
  if (left.v_uint64 == right.v_uint64 && left.small_str_len == right.small_str_len) return true;
  if (left.type_index == kTVMFFIFloat) return std::isnan(left.v_float64) && std::isnan(right.v_float64);
  return (IsObject(left) || TextKind(left.type_index) != 0) && ContentOf(left) == ContentOf(right);
}

bool EqualShapes(const DLTensor& left, const DLTensor& right) {
  return left.ndim == right.ndim && std::equal(left.shape, left.shape + left.ndim, right.shape);
}

class Comparison {
 public:
  Comparison(Types* types, bool map_free, bool look_into_all)
      : types_(types), map_free_(map_free), look_into_all_(look_into_all), hasher_(types) {}
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  // Calls for another comparison, which looks into everything.
  bool must_start_again() const { return must_start_again_; }
  // Fills `*mismatch`, if it is given, when they differ.
  bool Equal(const TVMFFIAny& left, const TVMFFIAny& right, Mismatch* mismatch);

 private:
  struct Frame {
    const TVMFFIObject *left, *right;
    const Type* type;
    size_t next, count, first_entry;  // entries: the left map's, then the right one's
    Defines defines;
  };
  enum class Answer { kEqual, kLookInside, kDiffer };

  Answer Work(const TVMFFIAny& left, const TVMFFIAny& right, Defines defines);
  Answer Compare(const TVMFFIAny& left, const TVMFFIAny& right, Defines defines);
  Answer CompareByHook(const Type& type, TVMFFIAny left, TVMFFIAny right, Defines defines);
  bool EqualInHook(Args args, Defines defines);
  Answer CompareObjects(const TVMFFIAny& left, const TVMFFIAny& right, Defines defines);
  Answer ComparePart();
  Answer ComparePair(const Type& type, const TVMFFIObject* left, const TVMFFIObject* right, bool defined);
  Answer CompareTensors(const DLTensor& left, const DLTensor& right);
  Answer Enter(const Type& type, const TVMFFIObject* left, const TVMFFIObject* right, Defines defines);
  Answer EnterMaps(Frame* frame);
  void OrderTies(const Frame& frame);
  bool Matches(const TVMFFIAny& left, const TVMFFIAny& right);
  const Entry& EntryOf(const Frame& frame, size_t part, bool right) const {
    return entries_[frame.first_entry + part / 2 + (right ? frame.count / 2 : 0)];
  }
  Answer Differ(std::string why) {
    why_ = std::move(why);
    return Answer::kDiffer;
  }
  std::vector<Step> StepsFrom(size_t depth) const;
  void Describe(const TVMFFIAny& left, const TVMFFIAny& right, Mismatch* mismatch);

  Types* types_;
  bool map_free_, look_into_all_;
  bool left_out_ = false, must_start_again_ = false;
  Hasher hasher_;
  std::vector<Frame> frames_;
  std::vector<Entry> entries_;
  Classes classes_;
  Pairing pairing_;
  std::string why_;
  int hooks_ = 0;      // hooks that are running
  std::string below_;  // the path from the object that a hook compared to what differed in it
  const TVMFFIAny *left_ = nullptr, *right_ = nullptr;  // what is being compared
  TVMFFIAny left_space_, right_space_;
};

bool Comparison::Equal(const TVMFFIAny& left, const TVMFFIAny& right, Mismatch* mismatch) {
  if (Work(left, right, map_free_ ? Defines::kBelow : Defines::kNothing) != Answer::kDiffer) return true;
  if (mismatch && !must_start_again_) Describe(*left_, *right_, mismatch);
  return false;
}

// Leaves the frames on the way to what differs.
Comparison::Answer Comparison::Work(const TVMFFIAny& left, const TVMFFIAny& right, Defines defines) {
  const size_t depth = frames_.size();
  left_ = &left;
  right_ = &right;
  Answer answer = Compare(left, right, defines);
  while (answer != Answer::kDiffer && frames_.size() > depth) {
    Frame& frame = frames_.back();
    if (frame.next < frame.count) {
      answer = ComparePart();
    } else {
      entries_.resize(frame.first_entry);
      frames_.pop_back();
    }
  }
  return answer;
}

// The type says whether the two are equal. It hands back what it wants to have compared; what it keeps of that function
// is of no use afterwards.
Comparison::Answer Comparison::CompareByHook(const Type& type, TVMFFIAny left, TVMFFIAny right, Defines defines) {
  HookScope<Comparison> scope(this, &hooks_, "that compare themselves");
  PackedFunc equal([self = scope.self(), defines](Args args, RetValue* rv) {
    PORTCALL_CHECK(*self, RuntimeError) << "the comparison that this function is part of is over";
    *rv = (*self)->EqualInHook(args, defines);
  });
  below_.clear();
  const bool same = type.equal(Any::Copy(left), Any::Copy(right), equal).cast<bool>();
  if (must_start_again_) return Answer::kDiffer;
  if (same) return Answer::kLookInside;  // frames may have moved
  if (below_.empty()) {
    left_space_ = left;
    right_space_ = right;
    why_ = "by the type's own comparison";
  }
  left_ = &left_space_;
  right_ = &right_space_;
  return Answer::kDiffer;
}

// (left, right, what kind of variables they define, name): as of the headers, 0 asks for that of the object.
bool Comparison::EqualInHook(Args args, Defines defines) {
  const TVMFFIAny left = types_->Keep(Any::Copy(args[0].cell()));
  const TVMFFIAny right = types_->Keep(Any::Copy(args[1].cell()));
  defines = DefinesInHook(defines, args[2]);
  const size_t depth = frames_.size(), entries = entries_.size();
  below_.clear();
  if (Work(left, right, defines) != Answer::kDiffer) return true;
  std::string path = types_->PathOf(StepsFrom(depth), true).substr(std::string_view("<root>").size());
  std::string name = args.size() > 3 && TryString(args[3].cell()) ? "." + std::string(*TryString(args[3].cell())) : "";
  below_ = name + path + below_;
  left_space_ = *left_;
  right_space_ = *right_;
  frames_.resize(depth);
  entries_.resize(entries);
  classes_ = Classes();  // what was taken for equal on the way may not be
  return false;
}

// Compares parts of the innermost pair until one of them has to be looked into.
inline Comparison::Answer Comparison::ComparePart() {
  Answer answer = Answer::kEqual;
  Frame& frame = frames_.back();
  while (answer == Answer::kEqual && frame.next < frame.count) {
    const size_t i = frame.next++;
    Defines defines = frame.defines;
    bool by_identity = false;
    if (frame.type->form == Form::kFields) {
      const Field& field = frame.type->fields[i];
      if (field.ignored) continue;
      defines = DefinesInField(defines, field);
      by_identity = field.by_identity;
    }
    if (frame.type->form == Form::kPairs) {
      left_ = EntryOf(frame, i, false).pair + i % 2;
      right_ = EntryOf(frame, i, true).pair + i % 2;
    } else {
      left_ = types_->Part(frame.left, *frame.type, i, &left_space_, nullptr);
      right_ = types_->Part(frame.right, *frame.type, i, &right_space_, nullptr);
    }
    if (by_identity && !Types::IsValue(*left_) && !Types::IsValue(*right_)) {
      if (left_->v_obj != right_->v_obj) return Differ("the field is compared by identity");
      continue;
    }
    answer = Compare(*left_, *right_, defines);
  }
  return answer;
}

inline Comparison::Answer Comparison::Compare(const TVMFFIAny& left, const TVMFFIAny& right, Defines defines) {
  if (!Types::IsValue(left) && !Types::IsValue(right)) return CompareObjects(left, right, defines);
  return EqualValues(left, right) ? Answer::kEqual : Answer::kDiffer;
}

Comparison::Answer Comparison::CompareObjects(const TVMFFIAny& left, const TVMFFIAny& right, Defines defines) {
  const TVMFFIObject *l = left.v_obj, *r = right.v_obj;
  if (l == r && !look_into_all_) {
    left_out_ = true;
    return Answer::kEqual;
  }
  if (l->type_index != r->type_index) return Answer::kDiffer;
  const Type& type = types_->Of(l);
  if (l == r && type.kind == kTVMFFISEqHashKindConstTreeNode) return Answer::kEqual;
  if (type.form == Form::kTensor) return CompareTensors(*TryDLTensor(left), *TryDLTensor(right));
  if (type.form == Form::kOpaque || type.kind == kTVMFFISEqHashKindUniqueInstance ||
      (type.kind == kTVMFFISEqHashKindUnsupported && !type.equal.defined())) {
    return l == r ? Answer::kEqual : Differ("the type is compared by identity");
  }
  const bool variable = type.kind == kTVMFFISEqHashKindFreeVar;
  const bool shared = IsShared(l) || IsShared(r);
  if (variable || (type.kind == kTVMFFISEqHashKindDAGNode && shared)) {
    Answer answer = ComparePair(type, l, r, !variable || defines != Defines::kNothing);
    if (answer != Answer::kLookInside) return answer;
  } else if (shared && IsShared(l) && IsShared(r) && classes_.Join(l, r)) {
    return Answer::kEqual;
  }
  if (type.equal.defined()) return CompareByHook(type, left, right, defines);
  return Enter(type, l, r, defines);
}

Comparison::Answer Comparison::ComparePair(const Type& type, const TVMFFIObject* left, const TVMFFIObject* right,
                                           bool defined) {
  const bool variable = type.kind == kTVMFFISEqHashKindFreeVar;
  switch (pairing_.Find(left, right)) {
    case Pairing::Found::kSame:
      return Answer::kEqual;
    case Pairing::Found::kOther:
      return Differ(variable ? "one of the variables stands for another one already: define each in one place"
                             : "they are shared differently");
    default:
      break;
  }
  if (left != right) {
    if (!defined) return Differ("a variable that is defined nowhere equals itself alone");
    if (left_out_) {
      must_start_again_ = true;
      return Answer::kDiffer;
    }
    look_into_all_ = true;
  }
  pairing_.Add(left, right);
  return Answer::kLookInside;
}

Comparison::Answer Comparison::CompareTensors(const DLTensor& left, const DLTensor& right) {
  if (left.dtype != right.dtype || !EqualShapes(left, right)) return Answer::kDiffer;
  Tensor left_space, right_space;
  if (BytesOf(left, &left_space) == BytesOf(right, &right_space)) return Answer::kEqual;
  return Differ("the elements differ");
}

Comparison::Answer Comparison::Enter(const Type& type, const TVMFFIObject* left, const TVMFFIObject* right,
                                     Defines defines) {
  Frame frame{left, right, &type, 0, types_->NumParts(left, type), entries_.size(), defines};
  if (type.form != Form::kFields) {
    size_t other = types_->NumParts(right, type), each = type.form == Form::kPairs ? 2 : 1;
    if (frame.count != other) {
      return Differ(std::to_string(frame.count / each) + " and " + std::to_string(other / each) + " items");
    }
  }
  if (type.form == Form::kPairs && EnterMaps(&frame) == Answer::kDiffer) return Answer::kDiffer;
  frames_.push_back(frame);
  return Answer::kLookInside;
}

// Entries of both maps by the hashes of their keys: equal keys are then in equal places.
Comparison::Answer Comparison::EnterMaps(Frame* frame) {
  const size_t n = frame->count / 2;
  hasher_.AppendEntries(frame->left, n, &entries_);
  hasher_.AppendEntries(frame->right, n, &entries_);
  OrderTies(*frame);
  for (size_t i = 0; i < n; ++i) {
    const Entry &l = entries_[frame->first_entry + i], &r = entries_[frame->first_entry + n + i];
    if (l.key_hash == r.key_hash) continue;
    bool left = l.key_hash < r.key_hash;
    std::string key = Show(*(left ? l : r).pair);
    entries_.resize(frame->first_entry);
    return Differ("only the " + std::string(left ? "left" : "right") + " one has the key " + key);
  }
  return Answer::kEqual;
}

// Keys of equal hashes are variables of equal looks, as a rule: each finds the one that it stands for.
void Comparison::OrderTies(const Frame& frame) {
  const size_t n = frame.count / 2;
  Entry *left = entries_.data() + frame.first_entry, *right = left + n;
  for (size_t i = 0; i + 1 < n; ++i) {
    for (size_t j = i; j < n && right[j].key_hash == left[i].key_hash; ++j) {
      if (!Matches(*left[i].pair, *right[j].pair)) continue;
      std::swap(right[i], right[j]);
      break;
    }
  }
}

bool Comparison::Matches(const TVMFFIAny& left, const TVMFFIAny& right) {
  if (Types::IsValue(left) || Types::IsValue(right)) return EqualValues(left, right);
  Pairing::Found found = pairing_.Find(left.v_obj, right.v_obj);
  return found == Pairing::Found::kSame || (found == Pairing::Found::kNew && left.v_obj == right.v_obj);
}

std::vector<Step> Comparison::StepsFrom(size_t depth) const {
  std::vector<Step> steps;
  for (; depth < frames_.size(); ++depth) {
    const Frame& frame = frames_[depth];
    size_t part = frame.next - 1;
    if (frame.type->form == Form::kPairs) part = 2 * EntryOf(frame, part, false).position + part % 2;
    steps.push_back({frame.left, part});
  }
  return steps;
}

void Comparison::Describe(const TVMFFIAny& left, const TVMFFIAny& right, Mismatch* mismatch) {
  const std::vector<Step> steps = StepsFrom(0);
  mismatch->path = types_->PathOf(steps, true) + below_;
  mismatch->left = left;
  mismatch->right = right;
  mismatch->why = why_;
  mismatch->text = types_->PathOf(steps) + below_ + ": " + Show(left) + " != " + Show(right);
  if (!why_.empty()) mismatch->text += " (" + why_ + ")";
}

bool Compare(Types* types, const Any& left, const Any& right, bool map_free, Mismatch* mismatch) {
  Comparison quick(types, map_free, false);
  bool equal = quick.Equal(left.cell(), right.cell(), mismatch);
  if (!quick.must_start_again()) return equal;
  return Comparison(types, map_free, true).Equal(left.cell(), right.cell(), mismatch);
}

PORTCALL_REGISTER_GLOBAL("portcall.ir.StructuralEqual").set_body_typed([](Any left, Any right, bool map_free) {
  Types types;
  return Compare(&types, left, right, map_free, nullptr);
});

// None when they are equal, else Array(text, path, left, right, why): where they differ first, in order of fields.
PORTCALL_REGISTER_GLOBAL("portcall.ir.FirstMismatch").set_body_typed([](Any left, Any right, bool map_free) -> Any {
  Types types;
  Mismatch found;
  if (Compare(&types, left, right, map_free, &found)) return nullptr;
  return Array<Any>{found.text, found.path, Any::Copy(found.left), Any::Copy(found.right), found.why};
});

}  // namespace
}  // namespace portcall::ir
