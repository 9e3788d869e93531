// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_IR_CONTAINERS_H_
#define PORTCALL_IR_CONTAINERS_H_

#include "portcall/container.h"

namespace portcall::ir {

// A new container of this type with these cells: items, or keys and values in turn. As functions of the C ABI.
inline int CreateContainer(int32_t type_index, const TVMFFIAny* cells, size_t n, TVMFFIObjectHandle* out) {
  const bool pairs = type_index == kTVMFFIMap || type_index == kTVMFFIDict;
  return runtime::ContainerCreate(type_index, cells, static_cast<int64_t>(pairs ? n / 2 : n), out);
}
inline ObjectRef MakeContainer(int32_t type_index, const Any* cells, size_t n) {
  TVMFFIObjectHandle handle = nullptr;
  Check(CreateContainer(type_index, reinterpret_cast<const TVMFFIAny*>(cells), n, &handle));
  return ObjectRef::Steal(handle);
}

}  // namespace portcall::ir
#endif  // PORTCALL_IR_CONTAINERS_H_
