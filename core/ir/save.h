// SPDX-License-Identifier: Apache-2.0
// What both saved forms have in common: a list of nodes, each after those that it refers to, so that a reader makes each
// of them at once; a node that is held twice stands there once. A graph that contains itself does so through a List or a
// Dict, as a rule: in such a graph these stand there empty, and their contents are separate nodes, further on.
#ifndef PORTCALL_IR_SAVE_H_
#define PORTCALL_IR_SAVE_H_

#include <exception>
#include <vector>

#include "ir/pointer_map.h"
#include "ir/types.h"

namespace portcall::ir {

// The nodes of the containers and tensors are written under these keys, objects under that of their type.
inline bool IsNode(const TVMFFIAny& value) noexcept { return !Types::IsValue(value); }

// Thrown when a graph contains itself, and can be written with the contents of Lists and Dicts put off.
struct NeedsPutOff : std::exception {};

// write(put_off) writes the graph.
template <typename F> auto Save(F write) {
  try {
    return write(false);
  } catch (const NeedsPutOff&) {
    return write(true);
  }
}

// Walks the graph. `Sink` has
//   void Node(const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs);
//   void Contents(uint32_t number, const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs);
// refs: the numbers of those parts that are nodes, in order; number: of the List or Dict that stands there empty.
template <typename Sink> class Saver {
 public:
  Saver(Types* types, Sink* sink, bool put_off) : types_(types), sink_(sink), put_off_(put_off) {}

  // Hands over the nodes. Returns the number of the root, or 0 when the root is not a node.
  uint32_t Run(const TVMFFIAny& root) {
    Visit(root);
    Work();
    while (!waiting_.empty()) {
      Waiting next = waiting_.back();
      waiting_.pop_back();
      frames_.push_back({next.obj, next.type, 0, types_->NumParts(next.obj, *next.type), refs_.size(), false, false,
                         uint64_t{next.number} + 1, nullptr});
      Work();
    }
    return refs_.empty() ? 0 : refs_.front();
  }
  uint32_t num_nodes() const { return num_nodes_; }

 private:
  struct Frame {
    const TVMFFIObject* obj;
    const Type* type;
    size_t next, count, first_ref;
    bool shared;
    bool whole;             // what a hook made of an object: it is read at once, so that nothing in it is put off
    uint64_t contents_of;   // the number of a node, plus one; 0 for a node of its own
    const TVMFFIAny* pair;  // of the part that was visited last
  };
  struct Waiting {
    const TVMFFIObject* obj;
    const Type* type;
    uint32_t number;
  };

  void Work() {
    while (!frames_.empty()) {
      if (Advance()) Finish();
    }
  }

  // Whether nothing is to be done before what holds the value goes on.
  bool Visit(const TVMFFIAny& value) {
    if (!IsNode(value)) {
      if (!CanBeSaved(value.type_index)) Refuse(value);
      return true;
    }
    const TVMFFIObject* obj = value.v_obj;
    const bool shared = IsShared(obj);
    if (shared) {
      auto [number, added] = known_.Insert(obj);
      if (!added) {
        if (*number == 0) ThrowCycle(obj);
        refs_.push_back(static_cast<uint32_t>(*number - 1));
        return true;
      }
    }
    const Type& type = types_->Of(obj);
    if (type.form == Form::kOpaque || (type.form == Form::kFields && !CanBeMade(obj, type))) Refuse(value);
    if (type.form == Form::kTensor && TryDLTensor(value)->dtype.code == kDLOpaqueHandle) Refuse(value);
    const bool whole = type.to_data.defined() || (!frames_.empty() && frames_.back().whole);
    if (put_off_ && !whole && Changes(type)) {
      waiting_.push_back({obj, &type, num_nodes_});
      sink_->Node(obj, type, 0, nullptr);
      Added(obj, shared);
      return true;
    }
    frames_.push_back({obj, &type, 0, types_->NumParts(obj, type), refs_.size(), shared, whole, 0, nullptr});
    return false;
  }

  bool Advance() {
    TVMFFIAny space;
    Frame& frame = frames_.back();
    while (frame.next < frame.count) {
      if (!Visit(*types_->Part(frame.obj, *frame.type, frame.next++, &space, &frame.pair))) return false;
    }
    return true;
  }

  void Finish() {
    const Frame frame = frames_.back();
    frames_.pop_back();
    const uint32_t* refs = refs_.data() + frame.first_ref;
    if (frame.contents_of) {
      sink_->Contents(static_cast<uint32_t>(frame.contents_of - 1), frame.obj, *frame.type, frame.count, refs);
    } else {
      sink_->Node(frame.obj, *frame.type, frame.count, refs);
    }
    refs_.resize(frame.first_ref);
    Added(frame.obj, frame.shared);
  }

  void Added(const TVMFFIObject* obj, bool shared) {
    refs_.push_back(num_nodes_++);
    if (shared) *known_.Find(obj) = uint64_t{num_nodes_};
  }

  static bool Changes(const Type& type) { return type.index == kTVMFFIList || type.index == kTVMFFIDict; }

  static bool CanBeSaved(int32_t index) {
    return index != kTVMFFIOpaquePtr && index != kTVMFFIDLTensorPtr && index != kTVMFFIObjectRValueRef &&
           index != kTVMFFIUnchanged;
  }

  // Whether what is read can be made again. Of a type without a default constructor that is tried.
  bool CanBeMade(const TVMFFIObject* obj, const Type& type) {
    if (!type.init.defined()) return type.creatable;
    std::vector<TVMFFIAny> parts;
    for (size_t i = 0; i < type.fields.size(); ++i) {
      TVMFFIAny space;
      parts.push_back(*types_->Part(obj, type, i, &space, nullptr));
    }
    try {
      MakeByInit(type, parts.data());
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  [[noreturn]] void Refuse(const TVMFFIAny& value) {
    const Type& type = types_->Of(value.type_index);
    const char* why =
        type.form == Form::kFields   ? " cannot be saved: its C++ type has no default constructor, which makes the "
                                       "object that is read, nor one that takes its first fields; add one, or save what "
                                       "it consists of"
        : type.form == Form::kTensor ? " cannot be saved: it holds addresses"
        : type.index == kTVMFFIOpaquePyObject
            ? " cannot be saved: it is an object of Python alone; register_value_type saves those of its class"
            : " cannot be saved";
    std::string path = types_->PathOf(StepsTo(frames_.size()));
    if (!frames_.empty() && frames_.front().contents_of) path.insert(path.find('>') + 1, "…");  // from there on
    PORTCALL_THROW(TypeError) << path << ": a value of type '" << DescribeType(value.type_index) << "'" << why;
  }

  [[noreturn]] void ThrowCycle(const TVMFFIObject* obj) {
    size_t start = 0;
    while (frames_[start].obj != obj) ++start;
    for (size_t i = start; i < frames_.size() && !put_off_; ++i) {
      if (!frames_[i].whole && Changes(*frames_[i].type)) throw NeedsPutOff();
    }
    types_->ThrowCycle(StepsTo(frames_.size()), start, "cannot be saved");
  }

  std::vector<Step> StepsTo(size_t depth) const {
    std::vector<Step> steps;
    for (size_t i = 0; i < depth; ++i) steps.push_back({frames_[i].obj, frames_[i].next - 1});
    return steps;
  }

  Types* types_;
  Sink* sink_;
  bool put_off_;
  std::vector<Frame> frames_;
  std::vector<Waiting> waiting_;  // Lists and Dicts whose contents are to be written
  std::vector<uint32_t> refs_;
  PointerMap known_;  // numbers of shared nodes, plus one; 0 while what they hold is worked on
  uint32_t num_nodes_ = 0;
};

}  // namespace portcall::ir
#endif  // PORTCALL_IR_SAVE_H_
