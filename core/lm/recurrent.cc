// SPDX-License-Identifier: Apache-2.0
// States of recurrent models: vm.builtin.rnn_state_*. Each sequence has a slot with the states of its last steps, in a ring,
// so that steps can be taken back. Kernels of the model's library read the state of now and write that of the next step.
//
// What fails changes nothing.
#include <algorithm>

#include "lm/sequences.h"
#include "lm/state.h"
#include "vm/memory.h"

namespace portcall::lm {
namespace {

class RecurrentState : public State {
 public:
  struct Part {
    Tensor init;
    PackedFunc get, set;
  };

  RecurrentState(const char* function, int64_t layers, int64_t slots, int64_t history, std::vector<Part> parts)
      : slots_(slots), history_(history), parts_(std::move(parts)), device_(parts_[0].init.device()) {
    for (size_t i = 0; i < static_cast<size_t>(layers) * parts_.size(); ++i) {
      const DLTensor& init = *parts_[i % parts_.size()].init.dl_tensor();
      std::vector<int64_t> shape{slots, history};
      shape.insert(shape.end(), init.shape, init.shape + init.ndim);
      vm::BytesOf(function, shape.data(), init.ndim + 2, init.dtype);
      storages_.push_back(Tensor::Empty(shape, init.dtype, device_));
    }
    RecurrentState::Clear();
  }

  void Clear() override {
    begun_ = false;
    all_.clear();
    free_.clear();
    for (int64_t slot = slots_; slot-- > 0;) free_.push_back(slot);
  }

  void Add(int64_t id) override {
    Sequence made{id, NewSlot(id)};
    for (size_t i = 0; i < storages_.size(); ++i)
      CopyTo(*parts_[i % parts_.size()].init.dl_tensor(), At(storages_[i], made.slot, 0));
    Take(made);
  }

  void Remove(int64_t id) override {
    Sequence& gone = Get(id);
    free_.push_back(gone.slot);
    gone = all_.back();
    all_.pop_back();
    begun_ = false;
  }

  // At an earlier position, if its state is there still.
  void Fork(int64_t parent, int64_t child, int64_t at) override {
    Sequence made = Get(parent);
    if (at == -1) at = made.length;
    if (at < 0 || at > made.length || made.length - at > made.back) Lacks(made, "be forked at ", at);
    int64_t back = made.length - at, from = made.slot;
    made.slot = NewSlot(child);
    for (const Tensor& storage : storages_) CopyTo(At(storage, from), At(storage, made.slot));
    Back(&made, back);
    made.id = child;
    Take(made);
  }

  void Pop(int64_t id, int64_t count) override {
    Sequence& now = Get(id);
    if (count < 0 || count > now.back) Lacks(now, "lose its last tokens: ", count);
    Back(&now, count);
    begun_ = false;
  }

  void Begin(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts) override {
    CheckDistinct(ids, &sorted_);
    numbers_.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      const Sequence& sequence = Get(ids[i]);
      if (counts[i] < 1 || counts[i] > INT64_MAX / 2 - sequence.length)
        Throw("ValueError", {"sequence ", ids[i], " cannot get ", counts[i], " tokens, at least 1"});
      numbers_.push_back(static_cast<int32_t>(sequence.slot));
    }
    for (int64_t id : ids) numbers_.push_back(static_cast<int32_t>(Get(id).at));
    begun_ = false;
    ids_ = ids;
    counts_ = counts;
    PlaceNumbers(&slot_table_, numbers_.data(), ids.size(), device_);
    PlaceNumbers(&step_table_, numbers_.data() + ids.size(), ids.size(), device_);
    begun_ = true;
  }

  void End() override {
    CheckBegun("kv_state_end_forward");
    for (size_t i = 0; i < ids_.size(); ++i) {
      Sequence& sequence = Get(ids_[i]);
      sequence.length += counts_[i];
      sequence.back = counts_[i] > 1 ? 0 : std::min(sequence.back + 1, history_ - 1);
      sequence.at = (sequence.at + 1) % history_;
    }
    begun_ = false;
  }

  // (state, layer, part, states of the batch): reads them, or writes those of the next step.
  void Move(const Arguments& args, PackedFunc Part::* kernel) {
    args.CheckCount(4, 4);
    const Tensor& storage = StorageAt(args);
    CheckBegun(args.function());
    const DLTensor &given = args.TensorAt(3), &kept = *storage.dl_tensor();
    auto batch = static_cast<int64_t>(ids_.size());
    bool fits = given.ndim == kept.ndim - 1 && given.shape[0] == batch && given.dtype == kept.dtype &&
                given.device == kept.device && IsContiguous(given) &&
                std::equal(given.shape + 1, given.shape + given.ndim, kept.shape + 2);
    if (!fits) {
      std::string type = ToString(kept.dtype), state = vm::ExtentsText({kept.shape + 2, kept.ndim - 2});
      args.Refuse({"argument 3 must be ", batch, " times ", type, state,
                   " on the device of the states, compact; it is ", ToString(given.dtype),
                   vm::ExtentsText({given.shape, given.ndim})});
    }
    Tensor slots = slot_table_, steps = step_table_;  // kept, should the kernel begin a batch
    Call call;
    call << storage << slots << steps << given;
    call(parts_[static_cast<size_t>(args.Int(2))].*kernel);
  }

  Any Read(const Arguments& args) {  // (state, layer, part, sequence)
    args.CheckCount(4, 4);
    const Tensor& storage = StorageAt(args);
    const Sequence& sequence = Get(args.Int(3));
    DLTensor from = At(storage, sequence.slot, sequence.at);
    Tensor copy = Tensor::Empty({from.shape, from.shape + from.ndim}, from.dtype, device_);
    CopyTo(from, *copy.dl_tensor());
    return copy;
  }

 private:
  struct Sequence {
    int64_t id, slot;
    int64_t at = 0, back = 0;  // the step of now in the ring, and how many can be taken back
    int64_t length = 0;
  };

  Sequence* Find(int64_t id) {
    auto found = std::find_if(all_.begin(), all_.end(), [&](const Sequence& sequence) { return sequence.id == id; });
    return found == all_.end() ? nullptr : &*found;
  }
  Sequence& Get(int64_t id) {
    if (Sequence* found = Find(id)) return *found;
    Throw("ValueError", {"there is no sequence ", id, ": it was not added, or it was removed"});
  }
  [[noreturn]] static void Lacks(const Sequence& now, const char* what, int64_t number) {
    Throw("ValueError", {"sequence ", now.id, " cannot ", what, number, ": it has ", now.length,
                         " tokens, of which the last ", now.back, " can be taken back"});
  }
  void CheckBegun(const char* function) const {
    if (!begun_)
      Throw("RuntimeError",
            {function, "(): no batch was begun since the sequences changed: call kv_state_begin_forward"});
  }
  int64_t NewSlot(int64_t id) {
    if (Find(id)) Throw("ValueError", {"there is a sequence ", id, " already: remove it first"});
    if (free_.empty()) Throw("RuntimeError", {"there are ", slots_, " sequences, more are not possible: remove some"});
    return free_.back();
  }
  void Take(const Sequence& made) {
    all_.push_back(made);
    free_.pop_back();
  }
  void Back(Sequence* sequence, int64_t count) const {
    sequence->length -= count;
    sequence->back -= count;
    sequence->at = (sequence->at - count + history_) % history_;
  }
  const Tensor& StorageAt(const Arguments& args) const {
    auto parts = static_cast<int64_t>(parts_.size()), layers = static_cast<int64_t>(storages_.size()) / parts;
    int64_t layer = args.Int(1), part = args.Int(2);
    if (layer < 0 || layer >= layers || part < 0 || part >= parts)
      args.Refuse({"there are ", layers, " layers of ", parts, " states, but no state ", part, " of layer ", layer});
    return storages_[static_cast<size_t>(layer * parts + part)];
  }
  // The states of a slot, or one of them.
  DLTensor At(const Tensor& storage, int64_t slot, int64_t step = -1) const {
    DLTensor view = *storage.dl_tensor();
    int32_t skipped = step < 0 ? 1 : 2;
    view.ndim -= skipped;
    view.shape += skipped;
    view.strides = nullptr;
    view.byte_offset += static_cast<uint64_t>(step < 0 ? slot : slot * history_ + step) * NumBytes(view);
    return view;
  }
  static void CopyTo(const DLTensor& from, const DLTensor& to) { Check(runtime::TensorCopy(from, to)); }

  int64_t slots_, history_;
  std::vector<Part> parts_;  // of each layer
  Device device_;
  std::vector<Tensor> storages_;  // by layer and part: [slots, history, …]
  std::vector<Sequence> all_;
  std::vector<int64_t> free_, ids_, counts_, sorted_;
  std::vector<int32_t> numbers_;
  Tensor slot_table_, step_table_;
  bool begun_ = false;
};

struct RecurrentBaseObj : StateObj {
  static constexpr const char* kTypeKey = "relax.vm.RNNState";
  using ParentClass = StateObj;
  using StateObj::StateObj;
};
struct RecurrentObj : RecurrentBaseObj {
  static constexpr const char* kTypeKey = "relax.vm.RNNStateImp";
  using ParentClass = RecurrentBaseObj;
  using RecurrentBaseObj::RecurrentBaseObj;
};

void CreateRecurrent(const Arguments& args,
                     Result result) {  // (layers, sequences, history, readers, writers, first states)
  args.CheckCount(6, 6);
  static constexpr int64_t kMost[] = {1 << 16, kMostSequences, 1 << 20};
  for (int32_t i = 0; i < 3; ++i) {
    if (args.Int(i) < 1 || args.Int(i) > kMost[i])
      args.Refuse(
          {"layers, sequences or states kept: argument ", i, " is ", args.Int(i), " (must be 1-", kMost[i], ")"});
  }
  Arguments get = ItemsAt(args, 3), set = ItemsAt(args, 4), inits = ItemsAt(args, 5);
  if (inits.size() == 0 || inits.size() > 1024 || get.size() != inits.size() || set.size() != inits.size())
    args.Refuse({get.size(), " functions that read, ", set.size(), " that write, and ", inits.size(), " first states"});
  std::vector<RecurrentState::Part> parts(static_cast<size_t>(inits.size()));
  for (int32_t i = 0; i < inits.size(); ++i) {
    const DLTensor& init = inits.TensorAt(i);
    if (init.device != inits.TensorAt(0).device || init.dtype.bits * init.dtype.lanes % 8)
      args.Refuse({"first state ", i, " is on another device, or of a type that is not of whole bytes"});
    parts[static_cast<size_t>(i)] = {ObjectRef::Borrow<Tensor>(inits.Owner(i)), FunctionAt(get, i), FunctionAt(set, i)};
  }
  result.Owned(NewNode<RecurrentObj>(
      std::make_unique<RecurrentState>(args.function(), args.Int(0), args.Int(1), args.Int(2), std::move(parts))));
}

template <typename Use> void WithRecurrent(const Arguments& args, const Use& use) {
  static const int32_t index = TypeIndexOf<RecurrentObj>();
  if (args.size() == 0) args.CheckCount(4, 4);
  if (args[0].type_index != index) args.Fail(0, "a state of a recurrent model");
  auto& state = static_cast<RecurrentState&>(StateAt(args, 0));
  std::lock_guard<std::recursive_mutex> lock(state.mutex);
  use(state);
}

void GetRecurrent(const Arguments& args, Result) {
  WithRecurrent(args, [&](RecurrentState& state) { state.Move(args, &RecurrentState::Part::get); });
}

void SetRecurrent(const Arguments& args, Result result) {
  WithRecurrent(args, [&](RecurrentState& state) { state.Move(args, &RecurrentState::Part::set); });
  result.Copy(args[0]);
}

void ReadRecurrent(const Arguments& args, Result result) {
  WithRecurrent(args, [&](RecurrentState& state) { result.Move(state.Read(args)); });
}

Builtin recurrent_builtins[] = {
    {"vm.builtin.rnn_state_create", CreateRecurrent},
    {"vm.builtin.rnn_state_get", GetRecurrent},
    {"vm.builtin.rnn_state_set", SetRecurrent},
    {"vm.builtin.rnn_state_debug_get", ReadRecurrent},
};

}  // namespace
}  // namespace portcall::lm
