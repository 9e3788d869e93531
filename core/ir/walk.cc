// SPDX-License-Identifier: Apache-2.0
// Walks over graphs, and copies of graphs with some objects replaced. Callbacks may do anything, so everything that is
// being worked on is held, and containers are asked for their size at each step.
#include <set>

#include "ir/containers.h"
#include "ir/pointer_map.h"
#include "ir/types.h"

namespace portcall::ir {
namespace {

// Calls func(obj), whose result is to be put in the place of obj. None: obj itself.
Any Change(const PackedFunc& func, const Any& value) {
  Any changed = func(value);
  return changed == nullptr ? value : changed;
}

bool IsSame(const TVMFFIAny& a, const TVMFFIAny& b) {
  return a.type_index == b.type_index && a.small_str_len == b.small_str_len && a.v_uint64 == b.v_uint64;
}

// What to walk over in the place of an object: of a map its keys and values in turn, as they are now.
ObjectRef PartsOf(const TVMFFIObject* obj, const Type& type) {
  if (type.form != Form::kPairs) return ObjectRef::Borrow(const_cast<TVMFFIObject*>(obj));
  std::vector<TVMFFIAny> parts;
  for (const TVMFFIAny* pair = nullptr; (pair = detail::NextPair(MapOf(obj), pair));) {
    parts.insert(parts.end(), pair, pair + 2);
  }
  TVMFFIObjectHandle handle = nullptr;
  Check(CreateContainer(kTVMFFIArray, parts.data(), parts.size(), &handle));
  return ObjectRef::Steal(handle);
}

// The next part of the object that a frame is at; null when there are no more.
template <typename Frame> const TVMFFIAny* NextPart(Types* types, Frame* frame, TVMFFIAny* space) {
  const TVMFFIObject* parts = frame->parts.get();
  const Type& type = types->Of(parts);
  if (frame->next >= types->NumParts(parts, type)) return nullptr;
  return types->Part(parts, type, frame->next++, space, nullptr);
}

template <typename Frame> std::vector<Step> StepsOf(const std::vector<Frame>& frames) {
  std::vector<Step> steps;
  for (const Frame& frame : frames) steps.push_back({frame.obj.get(), frame.next - 1});
  return steps;
}

// Says where in the graph the object is for which a callback failed: below the last of these frames.
template <typename Frame>
void AddNote(const Error& error, const ObjectRef& obj, const std::vector<Frame>& frames, Types* types) {
  error.AddNote("at " + types->PathOf(StepsOf(frames)) + ", of type " + obj.type_key());
}

class Walker {
 public:
  Walker(int32_t type_index, bool post_order, PackedFunc visit)
      : type_index_(type_index), post_order_(post_order), visit_(std::move(visit)) {}

  void Run(const TVMFFIAny& root) {
    Enter(root);
    while (!frames_.empty()) {
      TVMFFIAny space;
      if (const TVMFFIAny* part = NextPart(&types_, &frames_.back(), &space)) {
        Enter(*part);
      } else {
        Frame done = std::move(frames_.back());
        frames_.pop_back();
        if (post_order_ && IsWanted(*done.type)) Visit(done.obj);
      }
    }
  }

 private:
  struct Frame {
    ObjectRef obj, parts;
    const Type* type;
    size_t next;
  };

  bool IsWanted(const Type& type) const { return IsInstance(type.index, type_index_); }

  // An error says which object it came from.
  Any Visit(const ObjectRef& obj) {
    try {
      return visit_(obj);
    } catch (const Error& error) {
      AddNote(error, obj, frames_, &types_);
      throw;
    }
  }

  void Enter(const TVMFFIAny& value) {
    if (Types::IsValue(value)) return;
    TVMFFIObject* obj = value.v_obj;
    if (IsShared(obj) && !seen_.Insert(obj).second) return;
    const Type& type = types_.Of(obj);
    ObjectRef ref = ObjectRef::Borrow(obj);
    if (!post_order_ && IsWanted(type)) {
      Any below = Visit(ref);
      if (below.type_index() == kTVMFFIBool && !below.cell().v_int64) return;
    }
    frames_.push_back({std::move(ref), PartsOf(obj, type), &type, 0});
  }

  Types types_;
  int32_t type_index_;
  bool post_order_;
  PackedFunc visit_;
  std::vector<Frame> frames_;
  PointerMap seen_;
};

// An object with these parts instead of its own. A class of Python checks what the core cannot: what is in
// containers, say.
Any Remake(const Type& type, const Any* parts, size_t n) {
  static const TVMFFITypeAttrColumn* const checks = AttributeColumn("__portcall_check__");
  if (type.form == Form::kItems || type.form == Form::kPairs) return MakeContainer(type.index, parts, n);
  TVMFFIObjectHandle handle = nullptr;
  const auto* cells = reinterpret_cast<const TVMFFIAny*>(parts);
  Check(PortcallObjectCreate(type.index, cells, static_cast<int32_t>(n), &handle));
  ObjectRef made = ObjectRef::Steal(handle);
  if (PackedFunc check = FindHook(type.index, checks); check.defined()) check(made);
  return made;
}

class Rewriter {
 public:
  Rewriter(int32_t type_index, PackedFunc change) : type_index_(type_index), change_(std::move(change)) {}

  Any Run(const TVMFFIAny& root) {
    Enter(root);
    while (!frames_.empty()) {
      TVMFFIAny space;
      if (const TVMFFIAny* part = NextPart(&types_, &frames_.back(), &space)) {
        Enter(*part);
      } else {
        Finish();
      }
    }
    return std::move(parts_.back());
  }

 private:
  struct Frame {
    ObjectRef obj, parts;
    const Type* type;
    size_t next, first_part;
    bool shared, changed;
  };

  // Adds what is to stand in the place of a part, or a frame for it.
  void Enter(const TVMFFIAny& value) {
    if (Types::IsValue(value)) {
      parts_.push_back(Any::Copy(value));
      return;
    }
    TVMFFIObject* obj = value.v_obj;
    const bool shared = IsShared(obj);
    if (shared) {
      auto [number, added] = known_.Insert(obj);
      if (!added) {
        if (*number == 0) ThrowCycle(obj);
        Put(results_[*number - 1].second, obj);
        return;
      }
    }
    const Type& type = types_.Of(obj);
    frames_.push_back({ObjectRef::Borrow(obj), PartsOf(obj, type), &type, 0, parts_.size(), shared, false});
  }

  void Put(Any result, const TVMFFIObject* before) {
    const bool same = IsObject(result.cell()) && result.cell().v_obj == before;
    if (!frames_.empty()) frames_.back().changed |= !same;
    parts_.push_back(std::move(result));
  }

  void Finish() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    Any result(frame.obj);
    try {
      if (frame.changed) {
        result = Remake(*frame.type, parts_.data() + frame.first_part, parts_.size() - frame.first_part);
      }
      if (IsInstance(frame.type->index, type_index_)) result = Change(change_, result);
    } catch (const Error& error) {
      AddNote(error, frame.obj, frames_, &types_);
      throw;
    }
    parts_.resize(frame.first_part);
    if (frame.shared) {
      results_.emplace_back(frame.obj, result);
      *known_.Find(frame.obj.get()) = results_.size();
    }
    Put(std::move(result), frame.obj.get());
  }

  [[noreturn]] void ThrowCycle(const TVMFFIObject* obj) {
    size_t start = 0;
    while (frames_[start].obj.get() != obj) ++start;
    types_.ThrowCycle(StepsOf(frames_), start, "cannot be rewritten");
  }

  Types types_;
  int32_t type_index_;
  PackedFunc change_;
  std::vector<Frame> frames_;
  std::vector<Any> parts_;
  std::vector<std::pair<ObjectRef, Any>> results_;  // of shared objects, which are held so that none takes its address
  PointerMap known_;                                // their places there, plus one; 0 while they are worked on
};

Any MapChildren(const Any& value, const PackedFunc& change) {
  Types types;
  if (Types::IsValue(value.cell())) return value;
  const Type& type = types.Of(value.cell().v_obj);
  struct {
    ObjectRef parts;
    size_t next;
  } frame{PartsOf(value.cell().v_obj, type), 0};
  std::vector<Any> parts;
  bool changed = false;
  TVMFFIAny space;
  while (const TVMFFIAny* cell = NextPart(&types, &frame, &space)) {
    Any part = Any::Copy(*cell);
    parts.push_back(Change(change, part));
    changed |= !IsSame(parts.back().cell(), part.cell());
  }
  return changed ? Remake(type, parts.data(), parts.size()) : value;
}

// ---- Global functions: types are given by key, "" meaning all -----------------------------------------------------

int32_t IndexOf(std::string_view type_key) {
  if (type_key.empty()) return kTVMFFIObject;
  TVMFFIByteArray key = ToByteArray(type_key);
  int32_t index = -1;
  Check(TVMFFITypeKeyToIndex(&key, &index));
  return index;
}

void CheckFunction(const PackedFunc& func) {
  PORTCALL_CHECK(func.defined(), TypeError) << "expected a function to call for each object, got None";
}

PORTCALL_REGISTER_GLOBAL("portcall.ir.Walk")
    .set_body_typed([](Any value, String type_key, bool post_order, PackedFunc visit) {
      CheckFunction(visit);
      Walker(IndexOf(type_key), post_order, visit).Run(value.cell());
    });
PORTCALL_REGISTER_GLOBAL("portcall.ir.Collect").set_body_typed([](Any value, String type_key, bool post_order) {
  std::vector<Any> found;
  PackedFunc visit([&found](Args args, RetValue*) { found.emplace_back(Any::Copy(args[0].cell())); });
  Walker(IndexOf(type_key), post_order, visit).Run(value.cell());
  return Array<Any>(found);
});
// The keys of the types that occur in a graph, each once.
PORTCALL_REGISTER_GLOBAL("portcall.ir.TypeKeys").set_body_typed([](Any value) {
  std::set<int32_t> found;
  PackedFunc visit([&found](Args args, RetValue*) { found.insert(args[0].cell().type_index); });
  Walker(kTVMFFIObject, false, visit).Run(value.cell());
  std::vector<std::string> keys;
  for (int32_t index : found) keys.emplace_back(TypeKeyOf(index));
  return keys;
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.Rewrite").set_body_typed([](Any value, String type_key, PackedFunc change) {
  CheckFunction(change);
  return Rewriter(IndexOf(type_key), change).Run(value.cell());
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.MapChildren").set_body_typed([](Any value, PackedFunc change) {
  CheckFunction(change);
  return MapChildren(value, change);
});

}  // namespace
}  // namespace portcall::ir
