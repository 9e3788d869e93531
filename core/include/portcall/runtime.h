// SPDX-License-Identifier: Apache-2.0
// What the C++ API asks of the runtime that loaded the library. portcall's has all of it. Another one on the same ABI
// has the functions TVMFFI… and its own global functions: these do where they can, and what is left is an error with the
// name of the function. So a library on these headers loads there too.
#ifndef PORTCALL_RUNTIME_H_
#define PORTCALL_RUNTIME_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "c_api.h"

#ifdef PORTCALL_BUILDING
#define PORTCALL_HAS(function) true
#else
#define PORTCALL_HAS(function) (&(function) != nullptr)
#pragma weak PortcallArrayCreate
#pragma weak PortcallArraySplice
#pragma weak PortcallDeviceGetAPI
#pragma weak PortcallDeviceRegister
#pragma weak PortcallDictCreate
#pragma weak PortcallFunctionCreate
#pragma weak PortcallFunctionGetInfo
#pragma weak PortcallFunctionRemoveGlobal
#pragma weak PortcallListCreate
#pragma weak PortcallMapCreate
#pragma weak PortcallMapErase
#pragma weak PortcallMapFind
#pragma weak PortcallMapSet
#pragma weak PortcallModuleCreate
#pragma weak PortcallModuleFailLoad
#pragma weak PortcallObjectCreate
#pragma weak PortcallObjectEnterDelete
#pragma weak PortcallObjectLeaveDelete
#pragma weak PortcallShapeCreate
#pragma weak PortcallTensorAlloc
#pragma weak PortcallTensorCopy
#pragma weak PortcallTensorFromMemory
#pragma weak PortcallTensorGetFlags
#endif

namespace portcall::runtime {

inline int Missing(const char* function) noexcept {
  const char* parts[] = {"the runtime that loaded this library is not portcall's, and cannot do what ", function,
                         " does: load the library with portcall"};
  TVMFFIErrorSetRaisedFromCStrParts("RuntimeError", parts, 3);
  return -1;
}
// `PORTCALL_CALL(PortcallModuleCreate)(node, &handle)` is an error where the runtime has no such function.
#define PORTCALL_CALL(function) \
  [&](auto... args) { return PORTCALL_HAS(function) ? function(args...) : ::portcall::runtime::Missing(#function); }

// Calls a global function of the other runtime.
inline int CallGlobal(const char* name, const TVMFFIAny* args, size_t num_args, TVMFFIAny* result) noexcept {
  const TVMFFIByteArray key{name, std::strlen(name)};
  TVMFFIObjectHandle function = nullptr;
  if (TVMFFIFunctionGetGlobal(&key, &function) != 0) return -1;
  if (!function) return Missing(name);
  *result = TVMFFIAny{};
  const int failed = TVMFFIFunctionCall(function, args, static_cast<int32_t>(num_args), result);
  TVMFFIObjectDecRef(function);
  return failed;
}
// The same for one that makes an object, or none.
inline int MakeByGlobal(const char* name, const TVMFFIAny* args, size_t num_args, TVMFFIObjectHandle* out) noexcept {
  TVMFFIAny result;
  if (CallGlobal(name, args, num_args, &result) != 0) return -1;
  *out = result.v_obj;
  return 0;
}
inline TVMFFIAny ViewOf(TVMFFIObjectHandle obj) noexcept {
  TVMFFIAny view{};
  view.type_index = static_cast<TVMFFIObject*>(obj)->type_index;
  view.v_obj = static_cast<TVMFFIObject*>(obj);
  return view;
}
inline TVMFFIAny ViewOf(int64_t value) noexcept {
  TVMFFIAny view{};
  view.type_index = kTVMFFIInt;
  view.v_int64 = value;
  return view;
}

// ---- Objects and functions ----------------------------------------------------------------------------------------

inline int EnterDelete(TVMFFIObject* obj) noexcept {
  return PORTCALL_HAS(PortcallObjectEnterDelete) ? PortcallObjectEnterDelete(obj) : 1;
}
inline void LeaveDelete() noexcept {
  if (PORTCALL_HAS(PortcallObjectLeaveDelete)) PortcallObjectLeaveDelete();
}

// Elsewhere a constructor that fails goes on without what it was to do: an exception would end the process.
inline int FailLoad() noexcept {
  if (PORTCALL_HAS(PortcallModuleFailLoad)) return PortcallModuleFailLoad();
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return 0;
  const auto* cell = reinterpret_cast<const TVMFFIErrorCell*>(static_cast<TVMFFIObject*>(error) + 1);
  std::fprintf(stderr, "while a library was loaded: %.*s: %.*s\n", static_cast<int>(cell->kind.size), cell->kind.data,
               static_cast<int>(cell->message.size), cell->message.data);
  TVMFFIObjectDecRef(error);
  return 0;
}

inline int FunctionCreate(void* self, TVMFFISafeCallType call, void (*deleter)(void*), int32_t flags, const char* name,
                          TVMFFIObjectHandle* out) noexcept {
  if (PORTCALL_HAS(PortcallFunctionCreate)) return PortcallFunctionCreate(self, call, deleter, flags, name, out);
  return TVMFFIFunctionCreate(self, call, deleter, out);
}
inline const char* FunctionName(TVMFFIObjectHandle function) noexcept {
  if (!PORTCALL_HAS(PortcallFunctionGetInfo)) return "";
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(function, &info);
  return info.name;
}
inline int FunctionRemoveGlobal(const TVMFFIByteArray* name, int* removed) noexcept {
  if (PORTCALL_HAS(PortcallFunctionRemoveGlobal)) return PortcallFunctionRemoveGlobal(name, removed);
  TVMFFIAny text{}, result;
  text.type_index = kTVMFFIByteArrayPtr;
  if (TVMFFIStringFromByteArray(name, &text) != 0) return -1;
  const int failed = CallGlobal("ffi.FunctionRemoveGlobal", &text, 1, &result);
  if (text.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(text.v_obj);
  *removed = !failed && result.v_int64 != 0;
  return failed;
}

// ---- Containers ---------------------------------------------------------------------------------------------------

inline int ShapeCreate(const int64_t* values, size_t size, TVMFFIObjectHandle* out) {
  if (PORTCALL_HAS(PortcallShapeCreate)) return PortcallShapeCreate(values, size, out);
  std::vector<TVMFFIAny> args;
  for (size_t i = 0; i < size; ++i) args.push_back(ViewOf(values[i]));
  return MakeByGlobal("ffi.Shape", args.data(), size, out);
}

// size: of items, or of pairs.
inline int ContainerCreate(int32_t type_index, const TVMFFIAny* cells, int64_t size, TVMFFIObjectHandle* out) noexcept {
  const auto n = static_cast<size_t>(size);
  switch (type_index) {
    case kTVMFFIArray:
      if (PORTCALL_HAS(PortcallArrayCreate)) return PortcallArrayCreate(cells, size, out);
      return MakeByGlobal("ffi.Array", cells, n, out);
    case kTVMFFIList:
      if (PORTCALL_HAS(PortcallListCreate)) return PortcallListCreate(cells, size, out);
      return MakeByGlobal("ffi.List", cells, n, out);
    case kTVMFFIMap:
      if (PORTCALL_HAS(PortcallMapCreate)) return PortcallMapCreate(cells, size, out);
      return MakeByGlobal("ffi.Map", cells, 2 * n, out);
    default:
      if (PORTCALL_HAS(PortcallDictCreate)) return PortcallDictCreate(cells, size, out);
      return MakeByGlobal("ffi.Dict", cells, 2 * n, out);
  }
}

inline int ArraySplice(TVMFFIObjectHandle* container, int64_t start, int64_t count, const TVMFFIAny* items,
                       int64_t size) {
  if (PORTCALL_HAS(PortcallArraySplice)) return PortcallArraySplice(container, start, count, items, size);
  auto* obj = static_cast<TVMFFIObject*>(*container);
  TVMFFIObjectHandle made = nullptr;
  if (obj->type_index == kTVMFFIList) {
    if (ContainerCreate(kTVMFFIList, items, size, &made) != 0) return -1;
    const TVMFFIAny args[] = {ViewOf(obj), ViewOf(start), ViewOf(start + count), ViewOf(made)};
    TVMFFIAny result;
    const int failed = CallGlobal("ffi.ListReplaceSlice", args, 4, &result);
    TVMFFIObjectDecRef(made);
    return failed;
  }
  const auto* cell = reinterpret_cast<const TVMFFISeqCell*>(obj + 1);
  const auto* old = static_cast<const TVMFFIAny*>(cell->data);
  std::vector<TVMFFIAny> all(old, old + start);
  all.insert(all.end(), items, items + size);
  all.insert(all.end(), old + start + count, old + cell->size);
  if (ContainerCreate(kTVMFFIArray, all.data(), static_cast<int64_t>(all.size()), &made) != 0) return -1;
  TVMFFIObjectDecRef(obj);
  *container = made;
  return 0;
}

}  // namespace portcall::runtime
#endif  // PORTCALL_RUNTIME_H_
