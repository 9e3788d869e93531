// SPDX-License-Identifier: Apache-2.0
// What both saved forms have in common: a list of nodes, each after those that it refers to, so that a reader makes each
// of them at once and no cycle can be written down; a node that is held twice stands there once.
#ifndef PORTCALL_IR_SAVE_H_
#define PORTCALL_IR_SAVE_H_

#include <vector>

#include "ir/pointer_map.h"
#include "ir/types.h"

namespace portcall::ir {

// The nodes of the containers and tensors are written under these keys, objects under that of their type.
inline bool IsNode(const TVMFFIAny& value) noexcept { return !Types::IsValue(value); }

// Walks the graph. `Sink` has
//   void Node(const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs);
// refs: the numbers of those parts that are nodes, in order.
template <typename Sink> class Saver {
 public:
  Saver(Types* types, Sink* sink) : types_(types), sink_(sink) {}

  // Hands over the nodes. Returns the number of the root, or 0 when the root is no node.
  uint32_t Run(const TVMFFIAny& root) {
    Visit(root);
    while (!frames_.empty()) {
      if (Advance()) Finish();
    }
    return refs_.empty() ? 0 : refs_.back();
  }
  uint32_t num_nodes() const { return num_nodes_; }

 private:
  struct Frame {
    const TVMFFIObject* obj;
    const Type* type;
    size_t next, count, first_ref;
    bool shared;
    const TVMFFIAny* pair;  // of the part that was visited last
  };

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
    if (type.form == Form::kOpaque || (type.form == Form::kFields && !type.creatable)) Refuse(value);
    if (type.form == Form::kTensor && TryDLTensor(value)->dtype.code == kDLOpaqueHandle) Refuse(value);
    frames_.push_back({obj, &type, 0, types_->NumParts(obj, type), refs_.size(), shared, nullptr});
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
    sink_->Node(frame.obj, *frame.type, frame.count, refs_.data() + frame.first_ref);
    refs_.resize(frame.first_ref);
    refs_.push_back(num_nodes_++);
    if (frame.shared) *known_.Find(frame.obj) = uint64_t{num_nodes_};
  }

  static bool CanBeSaved(int32_t index) {
    return index != kTVMFFIOpaquePtr && index != kTVMFFIDLTensorPtr && index != kTVMFFIObjectRValueRef &&
           index != kTVMFFIUnchanged;
  }

  [[noreturn]] void Refuse(const TVMFFIAny& value) {
    const Type& type = types_->Of(value.type_index);
    const char* why = type.form == Form::kFields   ? " cannot be saved: its C++ type has no default constructor"
                      : type.form == Form::kTensor ? " cannot be saved: it holds addresses"
                                                   : " cannot be saved";
    PORTCALL_THROW(TypeError) << types_->PathOf(StepsTo(frames_.size())) << ": a value of type '"
                              << DescribeType(value.type_index) << "'" << why;
  }

  [[noreturn]] void ThrowCycle(const TVMFFIObject* obj) {
    size_t start = 0;
    while (frames_[start].obj != obj) ++start;
    PORTCALL_THROW(ValueError) << types_->PathOf(StepsTo(frames_.size())) << ": is " << types_->PathOf(StepsTo(start))
                               << " again: an object that contains itself cannot be saved";
  }

  std::vector<Step> StepsTo(size_t depth) const {
    std::vector<Step> steps;
    for (size_t i = 0; i < depth; ++i) steps.push_back({frames_[i].obj, frames_[i].next - 1});
    return steps;
  }

  Types* types_;
  Sink* sink_;
  std::vector<Frame> frames_;
  std::vector<uint32_t> refs_;
  PointerMap known_;  // numbers of shared nodes, plus one; 0 while what they hold is worked on
  uint32_t num_nodes_ = 0;
};

}  // namespace portcall::ir
#endif  // PORTCALL_IR_SAVE_H_
