// SPDX-License-Identifier: Apache-2.0
#include "ir/load.h"

#include "ir/containers.h"

namespace portcall::ir {

template <typename F> void Builder::Make(F make) {
  if (limits_.max_nodes && nodes_.size() >= limits_.max_nodes) {
    fail_("has more than " + std::to_string(limits_.max_nodes) + " nodes, the limit that was given");
  }
  if (limits_.max_depth && depth_ + 1 > limits_.max_depth) {
    fail_("is more than " + std::to_string(limits_.max_depth) + " objects deep, the limit that was given");
  }
  TVMFFIObjectHandle handle = nullptr;
  if (make(&handle) != 0) {
    try {
      ThrowRaised();
    } catch (const Error& error) {
      // A value that does not fit is a fault of what is read; a default that cannot be made is not.
      if (error.kind() != "TypeError" && error.kind() != "ValueError") throw;
      fail_(std::string(error.message()));
    }
  }
  nodes_.emplace_back(ObjectRef::Steal(handle));
  depths_.push_back(depth_ + 1);
}

void Builder::MakeObject(const Type& type) {
  if (type.is_enum || type.to_data.defined()) return MakeOfData(type);
  if (type.init.defined()) {
    return Make(
        [&](TVMFFIObjectHandle* out) { return Guard([&] { *out = MakeByInit(type, parts_.data()).release(); }); });
  }
  Make([&](TVMFFIObjectHandle* out) {
    return PortcallObjectCreate(type.index, parts_.data(), static_cast<int32_t>(parts_.size()), out);
  });
}

// What was saved in the place of its fields.
void Builder::MakeOfData(const Type& type) {
  const TVMFFIAny& data = parts_[0];
  if (data.type_index == kTVMFFIUnchanged) fail_("has no \"\", which is what it is made of");
  Make([&](TVMFFIObjectHandle* out) {
    return Guard([&] {
      Any made = type.is_enum ? FindEnumEntry(type.index, data) : type.from_data(Any::Copy(data));
      PORTCALL_CHECK(!type.is_enum || made != nullptr, ValueError) << "the enum has no entry " << Show(data);
      PORTCALL_CHECK(made.type_index() == type.index, TypeError)
          << "what the type made of its data is " << DescribeType(made.type_index());
      *out = made.release().v_obj;
    });
  });
}

void Builder::MakeContainer(int32_t type_index) {
  Make([&](TVMFFIObjectHandle* out) { return CreateContainer(type_index, parts_.data(), parts_.size(), out); });
  const bool pairs = type_index == kTVMFFIMap || type_index == kTVMFFIDict;
  if (pairs && 2 * PortcallMapSize(nodes_.back().cell().v_obj) != static_cast<int64_t>(parts_.size()))
    fail_("a key stands there twice");
}

static int64_t SizeOfList(TVMFFIObjectHandle list) {
  return reinterpret_cast<const TVMFFISeqCell*>(static_cast<TVMFFIObject*>(list) + 1)->size;
}

int32_t Builder::CheckEmpty(uint64_t number, int32_t type_index) {
  const int32_t found = number < nodes_.size() ? nodes_[number].type_index() : static_cast<int32_t>(kTVMFFINone);
  const bool fits = (type_index == 0 || found == type_index) &&
                    (found == kTVMFFIList   ? SizeOfList(nodes_[number].cell().v_obj) == 0
                     : found == kTVMFFIDict ? PortcallMapSize(nodes_[number].cell().v_obj) == 0
                                            : false);
  if (!fits) {
    fail_("has the contents of node " + std::to_string(number) + ", which is not an empty List or Dict before it");
  }
  return found;
}

void Builder::PutContents(uint64_t number) {
  if (limits_.max_depth) fail_("is part of what contains itself, which is deeper than the limit that was given");
  ObjectRef container = ObjectRef::Borrow(nodes_[number].cell().v_obj);
  filled_.push_back(container);
  const auto size = static_cast<int64_t>(parts_.size());
  Make([&](TVMFFIObjectHandle* out) {
    TVMFFIObjectHandle handle = container.get();
    if (container.type_index() == kTVMFFIList) {
      if (int code = PortcallArraySplice(&handle, 0, 0, parts_.data(), size)) return code;
    }
    for (int64_t i = 0; container.type_index() == kTVMFFIDict && i < size; i += 2) {
      if (int code = PortcallMapSet(&handle, &parts_[static_cast<size_t>(i)], &parts_[static_cast<size_t>(i) + 1])) {
        return code;
      }
    }
    *out = ObjectRef(container).release();
    return 0;
  });
  if (container.type_index() == kTVMFFIDict && 2 * PortcallMapSize(container.get()) != size) {
    fail_("a key stands there twice");
  }
}

// Compiled code may rely on the types of the items that a field's List has.
void Builder::Finish(Types* types) {
  for (size_t n = 0; n < nodes_.size() && !filled_.empty(); ++n) {
    TVMFFIObject* obj = nodes_[n].cell().v_obj;
    const Type& type = types->Of(obj);
    if (type.form != Form::kFields) continue;
    for (const Field& field : type.fields) {
      if (field.access == Field::Access::kCell || field.access == Field::Access::kData) continue;
      Any value = GetField(obj, *field.info);
      if (!IsObject(value.cell())) continue;
      if (PortcallObjectSetField(obj, field.info, &value.cell()) == 0) continue;
      try {
        ThrowRaised();
      } catch (const Error& error) {
        fail_("node " + std::to_string(n) + ": " + std::string(error.message()));
      }
    }
  }
  filled_.clear();
}

Builder::~Builder() {
  for (ObjectRef& container : filled_) {
    TVMFFIObjectHandle handle = container.get();
    if (container.type_index() == kTVMFFIList) {
      PortcallArraySplice(&handle, 0, SizeOfList(handle), nullptr, 0);
      continue;
    }
    while (const TVMFFIAny* pair = PortcallMapNext(handle, nullptr)) {
      Any key = Any::Copy(*pair);
      int erased = 0;
      if (PortcallMapErase(&handle, &key.cell(), &erased) != 0 || !erased) break;
    }
  }
}

size_t Builder::TensorBytes(DLDataType dtype, const std::vector<int64_t>& shape) const {
  if (dtype.code == kDLOpaqueHandle || dtype.bits == 0 || dtype.lanes == 0) {
    fail_("no tensor is read with elements of type '" + ToString(dtype) + "'");
  }
  if (shape.size() > 64) fail_("a tensor of " + std::to_string(shape.size()) + " dimensions; 64 are the most");
  uint64_t bits = uint64_t{dtype.bits} * dtype.lanes;
  for (int64_t extent : shape) {
    if (extent < 0) fail_("a tensor with the extent " + std::to_string(extent));
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(extent), &bits) || bits >> 62) {
      fail_("the tensor is too large");
    }
  }
  return (bits + 7) / 8;
}

void Builder::MakeTensor(DLDataType dtype, const std::vector<int64_t>& shape, const std::function<void(char*)>& fill) {
  DLTensor prototype{};
  prototype.device = {kDLCPU, 0};
  prototype.ndim = static_cast<int32_t>(shape.size());
  prototype.dtype = dtype;
  prototype.shape = const_cast<int64_t*>(shape.data());
  Make([&](TVMFFIObjectHandle* out) { return PortcallTensorAlloc(&prototype, out); });
  const DLTensor& tensor = *TryDLTensor(nodes_.back().cell());
  if (NumBytes(tensor)) fill(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

}  // namespace portcall::ir
