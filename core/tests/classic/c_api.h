// SPDX-License-Identifier: Apache-2.0
// The classic C API as a classic C program calls it, and code of classic libraries.
#pragma once

#include <string>
#include <vector>

#include "portcall/classic_api.h"
#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

namespace portcall::tests {

struct Classic {  // a value with its code
  TVMValue value{};
  int code = kTVMNullptr;
};

inline Classic Int(int64_t number) {
  Classic c;
  c.value.v_int64 = number;
  c.code = kTVMArgInt;
  return c;
}
inline Classic Float(double number) {
  Classic c;
  c.value.v_float64 = number;
  c.code = kTVMArgFloat;
  return c;
}
inline Classic Handle(const void* pointer, int code) {
  Classic c;
  c.value.v_handle = const_cast<void*>(pointer);
  c.code = code;
  return c;
}
inline Classic Str(const char* text) { return Handle(text, kTVMStr); }

struct Outcome {
  int status;
  Classic result;
};

inline Outcome Call(TVMFunctionHandle func, const std::vector<Classic>& args) {
  std::vector<TVMValue> values;
  std::vector<int> codes;
  for (const Classic& arg : args) {
    values.push_back(arg.value);
    codes.push_back(arg.code);
  }
  Outcome out{};
  out.status = TVMFuncCall(func, values.data(), codes.data(), static_cast<int>(args.size()), &out.result.value,
                           &out.result.code);
  return out;
}

inline Outcome Echo(const Classic& arg) { return Call(Registry::Get("testing.echo").get(), {arg}); }

inline std::string LastError() { return TVMGetLastError(); }

// A C callback as a function; released with the object.
inline PackedFunc FromC(TVMPackedCFunc func, void* resource = nullptr, TVMPackedCFuncFinalizer fin = nullptr) {
  TVMFunctionHandle handle = nullptr;
  CHECK_EQ(TVMFuncCreateFromCFunc(func, resource, fin, &handle), 0);
  return ObjectRef::Steal<PackedFunc>(handle);
}

inline int ReturnInt(TVMRetValueHandle ret, int64_t number) {
  Classic c = Int(number);
  return TVMCFuncSetReturn(ret, &c.value, &c.code, 1);
}

inline int AddInts(TVMValue* args, int*, int n, TVMRetValueHandle ret, void*) {
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += args[i].v_int64;
  return ReturnInt(ret, sum);
}

inline int FirstCode(TVMValue*, int* codes, int n, TVMRetValueHandle ret, void*) {
  return ReturnInt(ret, n ? codes[0] : -1);
}

inline int ReturnFirst(TVMValue* args, int* codes, int, TVMRetValueHandle ret, void*) {
  return TVMCFuncSetReturn(ret, &args[0], &codes[0], 1);
}

inline int FailWith(TVMValue* args, int*, int n, TVMRetValueHandle, void*) {
  if (n > 0) TVMAPISetLastError(args[0].v_str);
  return -1;
}

inline int FailSilently(TVMValue*, int*, int, TVMRetValueHandle, void*) { return -1; }

inline TVMArrayHandle AllocFloats(int64_t n) {
  TVMArrayHandle array = nullptr;
  CHECK_EQ(TVMArrayAlloc(&n, 1, kDLFloat, 32, 1, kDLCPU, 0, &array), 0);
  return array;
}

// Compiled code of the classic ABI.
inline int LibraryFirstCode(TVMValue*, int* codes, int n, TVMValue* out, int* out_code, void* resource) {
  CHECK(resource == nullptr);
  CHECK_EQ(*out_code, kTVMNullptr);
  out->v_int64 = n ? codes[0] : -1;
  *out_code = kTVMArgInt;
  return 0;
}
inline int LibraryReturnFirst(TVMValue* args, int* codes, int, TVMValue* out, int* out_code, void*) {
  *out = args[0];
  *out_code = codes[0];
  return 0;
}
inline int LibraryFail(TVMValue* args, int*, int n, TVMValue*, int*, void*) {
  if (n > 0) TVMAPISetLastError(args[0].v_str);
  return -1;
}
inline int LibraryReturnCode99(TVMValue*, int*, int, TVMValue*, int* out_code, void*) {
  *out_code = 99;
  return 0;
}
inline int LibraryApply(TVMValue* args, int* codes, int n, TVMValue* out, int* out_code, void*) {
  return TVMFuncCall(args[0].v_handle, args + 1, codes + 1, n - 1, out, out_code);
}
inline int Library06(void* args, int* codes, int n) {
  if (n != 2 || codes[0] != kTVMDLTensorHandle) return -1;
  auto* values = static_cast<TVMValue*>(args);
  static_cast<float*>(static_cast<DLTensor*>(values[0].v_handle)->data)[0] = static_cast<float>(values[1].v_int64);
  return 0;
}

// Code of a classic library as a loaded function: it is registered like statically linked code, under its bare name.
inline Module SystemLibrary(const char* prefix) { return Registry::Get("ffi.SystemLib")(prefix).cast<Module>(); }

template <typename F> PackedFunc Library(F symbol, const std::string& name) {
  CHECK_EQ(TVMBackendRegisterSystemLibSymbol(("classic_test_" + name).c_str(), reinterpret_cast<void*>(symbol)), 0);
  PackedFunc func = SystemLibrary("classic_test_").GetFunction(name);
  CHECK(func.defined());
  return func;
}

}  // namespace portcall::tests
