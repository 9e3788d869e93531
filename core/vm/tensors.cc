// SPDX-License-Identifier: Apache-2.0
// Built-in functions of memory and tensors.
#include "vm/builtin.h"
#include "vm/machine.h"

namespace portcall::vm {
namespace {

void AllocStorage(const Arguments& args, Result result) {  // (machine, shape, device or -1, data type, scope)
  args.CheckCount(4, 5);
  Extents shape = args.ExtentsAt(1);
  size_t nbytes = BytesOf(args.function(), shape.data, shape.size, args.DataType(3));
  if (args.size() == 5 && args.Text(4) != "global") args.Refuse({"there is no memory of scope '", args.Text(4), "'"});
  const Place& place = Machine::Current(args[0])->PlaceAt(args.Int(2));
  result.Owned(NewStorage(place.pool, place.device, nbytes));
}

void AllocTensor(const Arguments& args, Result result) {  // (storage, byte offset, shape, data type, [scope])
  args.CheckCount(4, 5);
  static const int32_t storage_index = TypeIndexOf<StorageObj>();
  if (args[0].type_index != storage_index) args.Fail(0, "a vm.Storage");
  auto* storage = static_cast<StorageObj*>(static_cast<Object*>(args[0].v_obj));
  Extents shape = args.ExtentsAt(2);
  DLDataType dtype = args.DataType(3);
  const DLTensor& block = *storage->block.dl_tensor();
  auto offset = static_cast<uint64_t>(args.Int(1));
  auto size = static_cast<uint64_t>(block.shape[0]);
  size_t nbytes = BytesOf(args.function(), shape.data, shape.size, dtype);
  if (offset > size || nbytes > size - offset)
    args.Refuse({"a tensor of ", nbytes, " bytes at offset ", args.Int(1), " of ", size});
  result.Owned(NewView(args[0].v_obj, static_cast<char*>(block.data) + offset, shape.data,
                       static_cast<int32_t>(shape.size), dtype, block.device));
}

void ClearPools(const Arguments&, Result) { Pool::ClearAll(); }

// A tensor over part of another one's memory.
void MakeView(const Arguments& args, Extents shape, DLDataType dtype, uint64_t offset, Result result) {
  TVMFFIObject* owner = args.Owner(0);
  const DLTensor& tensor = args.TensorAt(0);
  size_t nbytes = BytesOf(args.function(), shape.data, shape.size, dtype), whole = NumBytes(tensor);
  if (!IsContiguous(tensor)) args.Refuse({"the tensor is not compact"});
  if (offset > whole || nbytes > whole - offset)
    args.Refuse({nbytes, " bytes at offset ", offset, " of a tensor of ", whole});
  result.Owned(NewView(owner, static_cast<char*>(tensor.data) + tensor.byte_offset + offset, shape.data,
                       static_cast<int32_t>(shape.size), dtype, tensor.device));
}

void Reshape(const Arguments& args, Result result) {  // (tensor, shape)
  args.CheckCount(2, 2);
  const DLTensor& tensor = args.TensorAt(0);
  Extents shape = args.ExtentsAt(1);
  uint64_t elements = 1;
  BytesOf(args.function(), shape.data, shape.size, tensor.dtype);  // then the product does not overflow
  for (int64_t i = 0; i < shape.size; ++i) elements *= static_cast<uint64_t>(shape.data[i]);
  uint64_t present = NumElements(tensor);
  if (elements != present) args.Refuse({"the tensor has ", present, " elements, the shape ", elements});
  MakeView(args, shape, tensor.dtype, 0, result);
}

void TensorCreateView(const Arguments& args, Result result) {  // (tensor, shape, data type, byte offset)
  args.CheckCount(4, 4);
  MakeView(args, args.ExtentsAt(1), args.DataType(2), static_cast<uint64_t>(args.Int(3)), result);
}

void EnsureZeroOffset(const Arguments& args, Result result) {  // (tensor)
  args.CheckCount(1, 1);
  args.Owner(0);
  const DLTensor& tensor = args.TensorAt(0);
  if (tensor.byte_offset == 0) return result.Copy(args[0]);
  MakeView(args, {tensor.shape, tensor.ndim}, tensor.dtype, 0, result);
}

void ToDevice(const Arguments& args, Result result) {  // (tensor, kind, index, [scope])
  args.CheckCount(3, 4);
  auto tensor = ObjectRef::Borrow<Tensor>(args.Owner(0));
  Device device{static_cast<DLDeviceType>(args.Int(1)), static_cast<int32_t>(args.Int(2))};
  result.Owned(tensor.CopyTo(device).release());
}

Builtin tensors_builtins[] = {
    {"vm.builtin.alloc_storage", AllocStorage},
    {"vm.builtin.alloc_tensor", AllocTensor},
    {"vm.builtin.memory_manager.clear", ClearPools},
    {"vm.builtin.reshape", Reshape},
    {"runtime.TVMTensorCreateView", TensorCreateView},
    {"vm.builtin.ensure_zero_offset", EnsureZeroOffset},
    {"vm.builtin.to_device", ToDevice},
};

}  // namespace
}  // namespace portcall::vm
