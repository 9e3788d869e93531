// SPDX-License-Identifier: Apache-2.0
#include "vm/builtin.h"

#include <algorithm>

namespace portcall::vm {

void Arguments::Fail(int32_t i, const char* expected) const {
  detail::ThrowArgumentError(function_, i, expected, DescribeValue(cells_[i]));
}

void Arguments::Refuse(std::initializer_list<Piece> why) const { Throw("ValueError", {function_, "(): ", Join(why)}); }

void Arguments::FailCount(int32_t least) const {
  detail::ThrowArgumentError(function_, -1, "at least " + std::to_string(least) + " arguments", std::to_string(size_));
}

Builtin::Builtin(const char* global_name, Body run) : name(global_name), body(run) {
  auto call = [](void* self, const TVMFFIAny* cells, int32_t size, TVMFFIAny* result) {
    auto* builtin = static_cast<Builtin*>(self);
    return Guard([&] { builtin->body(Arguments(builtin->name, cells, size), Result(result)); });
  };
  TVMFFIObjectHandle handle = nullptr;
  CheckAtLoad(PortcallFunctionCreate(this, call, nullptr, 0, name, &handle));
  auto func = ObjectRef::Steal<PackedFunc>(handle);
  TVMFFIByteArray key = ToByteArray(name);
  TVMFFIObjectHandle present = nullptr;  // one that a program or a server registered stays
  CheckAtLoad(TVMFFIFunctionGetGlobal(&key, &present));
  if (present) TVMFFIObjectDecRef(present);
  else CheckAtLoad(TVMFFIFunctionSetGlobal(&key, func.get(), 0));
}

std::string ExtentsText(Extents extents) {
  std::string text = "[";
  for (int64_t i = 0; i < extents.size; ++i) text += (i ? ", " : "") + std::to_string(extents.data[i]);
  return text + "]";
}

Arguments ItemsOf(const Any& tuple, const char* function) {
  const TVMFFISeqCell& items = Arguments(function, &tuple.cell(), 1).TupleAt(0);
  return {function, static_cast<const TVMFFIAny*>(items.data), static_cast<int32_t>(items.size)};
}

Any NewTuple(const std::vector<Any>& items) {
  TVMFFIObjectHandle tuple = nullptr;  // an Any is a cell
  Check(PortcallArrayCreate(reinterpret_cast<const TVMFFIAny*>(items.data()), static_cast<int64_t>(items.size()),
                            &tuple));
  return ObjectRef::Steal<ObjectRef>(tuple);
}

Any NewShape(const int64_t* extents, size_t size) {
  TVMFFIObjectHandle shape = nullptr;
  Check(PortcallShapeCreate(extents, size, &shape));
  return ObjectRef::Steal<ObjectRef>(shape);
}

Tensor NewIntegers(const int64_t* values, size_t size) {
  Tensor tensor = Tensor::Empty({static_cast<int64_t>(size)}, DataTypeOf<int64_t>());
  std::copy(values, values + size, static_cast<int64_t*>(tensor.raw_data()));
  return tensor;
}

int64_t IntegerAt(const DLTensor& tensor, int64_t i) {
  const char* data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  bool integer = tensor.dtype.code == kDLInt || tensor.dtype.code == kDLUInt || tensor.dtype.code == kDLBool;
  switch (integer && tensor.dtype.lanes == 1 ? tensor.dtype.bits : 0) {
    case 8:
      return tensor.dtype.code == kDLInt ? reinterpret_cast<const int8_t*>(data)[i]
                                         : reinterpret_cast<const uint8_t*>(data)[i];
    case 16:
      return reinterpret_cast<const int16_t*>(data)[i];
    case 32:
      return reinterpret_cast<const int32_t*>(data)[i];
    case 64:
      return reinterpret_cast<const int64_t*>(data)[i];
    default:
      if (!integer || tensor.dtype.bits != 1)
        Throw("TypeError", {"expected a tensor of integers, got one of ", ToString(tensor.dtype)});
      return (reinterpret_cast<const uint8_t*>(data)[i / 8] >> (i % 8)) & 1;
  }
}

Tensor OnHost(const Arguments& args, int32_t i) {
  const DLTensor& tensor = args.TensorAt(i);
  bool here = tensor.device.device_type == kDLCPU && IsContiguous(tensor);
  if (here && args[i].type_index == kTVMFFITensor) return ObjectRef::Borrow<Tensor>(args[i].v_obj);
  Tensor copy = Tensor::Empty(std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim), tensor.dtype);
  copy.CopyFrom(tensor);
  return copy;
}

}  // namespace portcall::vm
