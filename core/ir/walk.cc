// SPDX-License-Identifier: Apache-2.0
// Walks over graphs, and graphs made anew with some objects replaced. Call-backs may do anything, so everything that is
// being worked on is held, and containers are asked for their size at each step.
#include "portcall/ir.h"

#include "ir/pointer_map.h"
#include "ir/types.h"

namespace portcall::ir {
namespace {

PackedFunc FunctionOf(TVMFFIObjectHandle handle) {
  PORTCALL_CHECK(handle, TypeError) << "expected a function to call for each object, got None";
  return ObjectRef::Borrow<PackedFunc>(handle);
}

// Calls func(obj), whose result is to be put in the place of obj. None: obj itself.
Any Change(const PackedFunc& func, const Any& value) {
  Any changed = func(value);
  return changed == nullptr ? value : changed;
}

bool IsSame(const TVMFFIAny& a, const TVMFFIAny& b) {
  return a.type_index == b.type_index && a.small_str_len == b.small_str_len && a.v_uint64 == b.v_uint64;
}

// Says where in the graph an object was at which a call-back failed: behind the last of these frames.
// What to walk over in the place of an object: of a map its keys and values in turn, as they are now.
ObjectRef PartsOf(const TVMFFIObject* obj, const Type& type) {
  if (type.form != Form::kPairs) return ObjectRef::Borrow(const_cast<TVMFFIObject*>(obj));
  std::vector<TVMFFIAny> parts;
  for (const TVMFFIAny* pair = nullptr; (pair = detail::NextPair(MapOf(obj), pair));) {
    parts.insert(parts.end(), pair, pair + 2);
  }
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallArrayCreate(parts.data(), static_cast<int64_t>(parts.size()), &handle));
  return ObjectRef::Steal(handle);
}

template <typename Frame>
void AddNote(const Error& error, const ObjectRef& obj, const std::vector<Frame>& frames, Types* types) {
  std::vector<Step> steps;
  for (const Frame& frame : frames) steps.push_back({frame.obj.get(), frame.next - 1});
  error.AddNote("at " + types->PathOf(steps) + ", of type " + obj.type_key());
}

class Walker {
 public:
  Walker(int32_t type_index, bool post_order, PackedFunc visit)
      : type_index_(type_index), post_order_(post_order), visit_(std::move(visit)) {}

  void Run(const TVMFFIAny& root) {
    Enter(root);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      const TVMFFIObject* parts = frame.parts.get();
      const Type& type = types_.Of(parts);
      if (frame.next < types_.NumParts(parts, type)) {
        TVMFFIAny space;
        Enter(*types_.Part(parts, type, frame.next++, &space, nullptr));
      } else {
        Frame done = std::move(frame);
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

// An object with these parts in the place of its own.
Any Remake(const Type& type, const TVMFFIAny* parts, size_t n) {
  TVMFFIObjectHandle handle = nullptr;
  auto size = static_cast<int64_t>(n);
  switch (type.index) {
    case kTVMFFIArray:
      Check(PortcallArrayCreate(parts, size, &handle));
      break;
    case kTVMFFIList:
      Check(PortcallListCreate(parts, size, &handle));
      break;
    case kTVMFFIMap:
      Check(PortcallMapCreate(parts, size / 2, &handle));
      break;
    case kTVMFFIDict:
      Check(PortcallDictCreate(parts, size / 2, &handle));
      break;
    default:
      Check(PortcallObjectCreate(type.index, parts, static_cast<int32_t>(n), &handle));
  }
  return ObjectRef::Steal(handle);
}

class Rewriter {
 public:
  Rewriter(int32_t type_index, PackedFunc change) : type_index_(type_index), change_(std::move(change)) {}

  Any Run(const TVMFFIAny& root) {
    Enter(root);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      const TVMFFIObject* parts = frame.parts.get();
      const Type& type = types_.Of(parts);
      if (frame.next < types_.NumParts(parts, type)) {
        TVMFFIAny space;
        Enter(*types_.Part(parts, type, frame.next++, &space, nullptr));
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
    if (frame.changed) {
      const auto* parts = reinterpret_cast<const TVMFFIAny*>(parts_.data() + frame.first_part);
      result = Remake(*frame.type, parts, parts_.size() - frame.first_part);
    }
    if (IsInstance(frame.type->index, type_index_)) {
      try {
        result = Change(change_, result);
      } catch (const Error& error) {
        AddNote(error, frame.obj, frames_, &types_);
        throw;
      }
    }
    parts_.resize(frame.first_part);
    if (frame.shared) {
      results_.emplace_back(frame.obj, result);
      *known_.Find(frame.obj.get()) = results_.size();
    }
    Put(std::move(result), frame.obj.get());
  }

  [[noreturn]] void ThrowCycle(const TVMFFIObject* obj) {
    std::vector<Step> steps;
    std::string start;
    for (const Frame& frame : frames_) {
      if (frame.obj.get() == obj) start = types_.PathOf(steps);
      steps.push_back({frame.obj.get(), frame.next - 1});
    }
    PORTCALL_THROW(ValueError) << types_.PathOf(steps) << ": is " << start
                               << " again: an object that contains itself cannot be rewritten";
  }

  Types types_;
  int32_t type_index_;
  PackedFunc change_;
  std::vector<Frame> frames_;
  std::vector<Any> parts_;
  std::vector<std::pair<ObjectRef, Any>> results_;  // of shared objects, which are held so that none takes its address
  PointerMap known_;                                // their places there, plus one; 0 while they are worked on
};

Any ReplaceChildren(const Any& value, const PackedFunc& change) {
  Types types;
  if (Types::IsValue(value.cell())) return value;
  const TVMFFIObject* obj = value.cell().v_obj;
  const Type& type = types.Of(obj);
  const ObjectRef walked = PartsOf(obj, type);
  const Type& walked_type = types.Of(walked.get());
  std::vector<Any> parts;
  bool changed = false;
  for (size_t i = 0; i < types.NumParts(walked.get(), walked_type); ++i) {
    TVMFFIAny space;
    Any part = Any::Copy(*types.Part(walked.get(), walked_type, i, &space, nullptr));
    parts.push_back(Change(change, part));
    changed |= !IsSame(parts.back().cell(), part.cell());
  }
  return changed ? Remake(type, reinterpret_cast<const TVMFFIAny*>(parts.data()), parts.size()) : value;
}

}  // namespace
}  // namespace portcall::ir

using namespace portcall;

int PortcallWalk(const TVMFFIAny* value, int32_t type_index, int32_t post_order, TVMFFIObjectHandle visit) {
  return Guard([&] { ir::Walker(type_index, post_order != 0, ir::FunctionOf(visit)).Run(*value); });
}

int PortcallRewrite(const TVMFFIAny* value, int32_t type_index, TVMFFIObjectHandle change, TVMFFIAny* out) {
  return Guard([&] { *out = ir::Rewriter(type_index, ir::FunctionOf(change)).Run(*value).release(); });
}

int PortcallMapChildren(const TVMFFIAny* value, TVMFFIObjectHandle change, TVMFFIAny* out) {
  return Guard([&] { *out = ir::ReplaceChildren(Any::Copy(*value), ir::FunctionOf(change)).release(); });
}
