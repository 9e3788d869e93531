// SPDX-License-Identifier: Apache-2.0
#include "vm/builtin.h"

namespace portcall::vm {

void Arguments::Fail(int32_t i, const char* expected) const {
  detail::ThrowArgumentError(function_, i, expected, DescribeValue(cells_[i]));
}

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
      PORTCALL_CHECK(integer && tensor.dtype.bits == 1, TypeError)
          << "expected a tensor of integers, got one of " << ToString(tensor.dtype);
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
