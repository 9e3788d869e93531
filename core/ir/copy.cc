// SPDX-License-Identifier: Apache-2.0
// Copies of graphs. An object, a List or a Dict is copied before what it holds, which is put in afterwards; so what
// contains itself can be copied too: every cycle goes through one of these.
#include <atomic>
#include <memory>
#include <utility>

#include "ir/containers.h"
#include "ir/pointer_map.h"
#include "ir/types.h"

namespace portcall::ir {
namespace {

class Copier {
 public:
  // What it copied before, it does not copy again.
  Any Run(const TVMFFIAny& root) {
    PORTCALL_CHECK(!at_work_.exchange(true), RuntimeError) << "a copy with the same memo is being made";
    try {
      Any result = CopyOf(root);
      while (!waiting_.empty()) {
        auto [before, after] = std::move(waiting_.back());
        waiting_.pop_back();
        Fill(before, after);
      }
      at_work_ = false;
      return result;
    } catch (...) {
      Forget();
      at_work_ = false;
      throw;
    }
  }

 private:
  struct Frame {
    ObjectRef obj;  // an Array or a Map
    const Type* type;
    size_t next, first_part;
    const TVMFFIAny* pair;  // of a Map
  };

  // Some copies lack what they hold.
  void Forget() {
    frames_.clear();
    parts_.clear();
    waiting_.clear();
    copies_.clear();
    known_ = PointerMap();
  }

  // What it holds may have to be put in yet.
  Any CopyOf(const TVMFFIAny& value) {
    Enter(value);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      TVMFFIAny space;
      if (frame.next < types_.NumParts(frame.obj.get(), *frame.type)) {
        Enter(*types_.Part(frame.obj.get(), *frame.type, frame.next++, &space, &frame.pair));
      } else {
        Finish();
      }
    }
    Any copy = std::move(parts_.back());
    parts_.pop_back();
    return copy;
  }

  void Enter(const TVMFFIAny& value) {
    if (Types::IsValue(value)) return parts_.push_back(Any::Copy(value));
    if (uint64_t* number = known_.Find(value.v_obj)) return parts_.push_back(copies_[*number].second);
    ObjectRef obj = ObjectRef::Borrow(value.v_obj);
    const Type& type = types_.Of(value.v_obj);
    if (type.form == Form::kOpaque || type.is_enum) return Put(obj, obj);
    if (type.form == Form::kTensor) return Put(obj, CopyTensor(*TryDLTensor(value)));
    if (type.index == kTVMFFIArray || type.index == kTVMFFIMap) {
      frames_.push_back({std::move(obj), &type, 0, parts_.size(), nullptr});
      return;
    }
    Any copy = type.form == Form::kFields ? CopyFields(obj, type) : Any(MakeContainer(type.index, nullptr, 0));
    waiting_.emplace_back(obj, copy);
    Put(obj, std::move(copy));
  }

  void Put(const ObjectRef& before, Any after) {
    *known_.Insert(before.get()).first = copies_.size();
    copies_.emplace_back(before, after);
    parts_.push_back(std::move(after));
  }

  void Finish() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    Any copy = MakeContainer(frame.type->index, parts_.data() + frame.first_part, parts_.size() - frame.first_part);
    parts_.resize(frame.first_part);
    Put(frame.obj, std::move(copy));
  }

  // Another object with the same fields, which do not show all that an object of compiled code holds.
  Any CopyFields(const ObjectRef& obj, const Type& type) {
    static const TVMFFITypeAttrColumn* const hooks = AttributeColumn("__ffi_shallow_copy__");
    static const TVMFFITypeAttrColumn* const described = AttributeColumn("__ffi_type_final__");
    if (PackedFunc hook = FindHook(type.index, hooks); hook.defined()) {
      Any copy = hook(obj);
      PORTCALL_CHECK(copy.type_index() == type.index && copy.cell().v_obj != obj.get(), TypeError)
          << "what copies objects of type '" << type.key << "' gave " << DescribeType(copy.type_index());
      return copy;
    }
    PORTCALL_CHECK(type.creatable && !FindAttribute(type.index, described), TypeError)
        << "objects of type '" << type.key << "' cannot be copied: their C++ type has no "
        << (type.creatable ? "copy" : "default") << " constructor";
    std::vector<Any> values;
    for (const Field& field : type.fields) values.push_back(GetField(obj.get(), *field.info));
    return CreateObject(type.index, values);
  }

  static Any CopyTensor(const DLTensor& tensor) {
    DLTensor prototype = tensor;
    prototype.data = nullptr;
    prototype.strides = nullptr;
    prototype.byte_offset = 0;
    TVMFFIObjectHandle handle = nullptr;
    Check(PortcallTensorAlloc(&prototype, &handle));
    Any copy = ObjectRef::Steal(handle);
    Check(PortcallTensorCopy(&tensor, TryDLTensor(copy.cell())));
    return copy;
  }

  void Fill(const ObjectRef& before, const Any& after) {
    const Type& type = types_.Of(before.get());
    std::vector<Any> parts;  // all of them, before hooks are called, which may change a List or a Dict
    const TVMFFIAny* pair = nullptr;
    for (size_t i = 0, n = types_.NumParts(before.get(), type); i < n; ++i) {
      TVMFFIAny space;
      parts.push_back(Any::Copy(*types_.Part(before.get(), type, i, &space, &pair)));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      Any copy = CopyOf(parts[i].cell());
      const bool same = !IsObject(copy.cell()) || parts[i].cell().v_obj == copy.cell().v_obj;
      if (type.form == Form::kFields && !same) {
        Check(PortcallObjectSetField(after.cell().v_obj, type.fields[i].info, &copy.cell()));
      }
      parts[i] = std::move(copy);
    }
    const auto* cells = reinterpret_cast<const TVMFFIAny*>(parts.data());
    TVMFFIObjectHandle container = after.cell().v_obj;
    if (type.form == Form::kItems) {
      Check(PortcallArraySplice(&container, 0, 0, cells, static_cast<int64_t>(parts.size())));
    }
    for (size_t i = 0; type.form == Form::kPairs && i < parts.size(); i += 2) {
      Check(PortcallMapSet(&container, cells + i, cells + i + 1));
    }
  }

  Types types_;
  std::vector<Frame> frames_;
  std::vector<Any> parts_;
  std::vector<std::pair<ObjectRef, Any>> waiting_;  // objects, and copies to be filled
  std::vector<std::pair<ObjectRef, Any>> copies_;   // of objects, which are held so that none takes its address
  PointerMap known_;                                // their places there
  std::atomic<bool> at_work_{false};
};

// A function that copies graphs, what they share once. Tensors are copied too; functions, modules and entries of enums are
// not.
PORTCALL_REGISTER_GLOBAL("portcall.ir.DeepCopier").set_body_typed([] {
  auto copier = std::make_shared<Copier>();
  return PackedFunc([copier](Args args, RetValue* rv) {
    const Any value = Any::Copy(args[0].cell());
    *rv = copier->Run(value.cell());
  });
});

}  // namespace
}  // namespace portcall::ir
