// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_RUNTIME_TENSOR_VIEW_H_
#define PORTCALL_RUNTIME_TENSOR_VIEW_H_

#include "portcall/tensor.h"

namespace portcall {

// A tensor over memory that `owner` holds. It keeps the owner. flags: DLPACK_FLAG_BITMASK_….
inline Tensor ViewInto(const ObjectRef& owner, const DLTensor& description, uint64_t flags) {
  auto release = [](void* object) { Release(static_cast<TVMFFIObject*>(object)); };
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallTensorFromMemory(&description, flags, owner.get(), release, &handle));
  Retain(owner.get());
  return ObjectRef::Steal<Tensor>(handle);
}

// A part of a tensor. Its offset becomes part of the address where the device has a way.
inline Tensor ViewOf(const Tensor& base, const DLTensor& description) {
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &description, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

}  // namespace portcall
#endif  // PORTCALL_RUNTIME_TENSOR_VIEW_H_
