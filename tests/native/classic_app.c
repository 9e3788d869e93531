// SPDX-License-Identifier: Apache-2.0
// A program in C on the classic C API: `classic_app LIBRARY` prints "done".
#include <portcall/classic_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, TVMGetLastError()); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

static int Add(TVMValue* args, int* codes, int count, TVMRetValueHandle ret, void* resource) {
  if (count != 1 || codes[0] != kTVMArgInt) {
    TVMAPISetLastError("ValueError: one integer, please");
    return -1;
  }
  TVMValue sum = {.v_int64 = args[0].v_int64 + *(int64_t*)resource};
  int code = kTVMArgInt;
  return TVMCFuncSetReturn(ret, &sum, &code, 1);
}

static TVMFunctionHandle FunctionOf(TVMModuleHandle module, const char* name) {
  TVMFunctionHandle function = NULL;
  CHECK(TVMModGetFunction(module, name, 0, &function) == 0 && function != NULL);
  return function;
}

int main(int argc, char** argv) {
  TVMModuleHandle module = NULL;
  CHECK(argc == 2 && TVMModLoadFromFile("no.so", "", &module) == -1 && strstr(TVMGetLastError(), "no.so"));
  CHECK(TVMModLoadFromFile(argv[1], "", &module) == 0);

  TVMArrayHandle x = NULL, y = NULL;
  const int64_t shape[] = {3};
  float values[] = {1, 2, 3};
  CHECK(TVMArrayAlloc(shape, 1, kDLFloat, 32, 1, kDLCPU, 0, &x) == 0);
  CHECK(TVMArrayAlloc(shape, 1, kDLFloat, 32, 1, kDLCPU, 0, &y) == 0);
  CHECK(TVMArrayCopyFromBytes(x, values, sizeof(values)) == 0);
  TVMFunctionHandle scaled = FunctionOf(module, "scaled");
  TVMValue args[] = {{.v_handle = x}, {.v_handle = y}, {.v_float64 = 2}}, result;
  int codes[] = {kTVMNDArrayHandle, kTVMDLTensorHandle, kTVMArgFloat}, code;
  CHECK(TVMFuncCall(scaled, args, codes, 3, &result, &code) == 0 && code == kTVMNullptr);
  CHECK(TVMArrayCopyToBytes(y, values, sizeof(values)) == 0 && values[2] == 6);
  CHECK(TVMFuncCall(scaled, args, codes, 2, &result, &code) == -1 && strstr(TVMGetLastError(), "scaled"));

  int64_t ten = 10;
  TVMFunctionHandle add = NULL, found = NULL, apply = FunctionOf(module, "apply");
  CHECK(TVMFuncCreateFromCFunc(Add, &ten, NULL, &add) == 0);
  CHECK(TVMFuncRegisterGlobal("app.add", add, 0) == 0 && TVMFuncRegisterGlobal("app.add", add, 0) == -1);
  CHECK(TVMFuncGetGlobal("app.add", &found) == 0 && found != NULL);
  TVMValue applied[] = {{.v_handle = found}, {.v_int64 = 32}};
  int applied_codes[] = {kTVMPackedFuncHandle, kTVMArgInt};
  CHECK(TVMFuncCall(apply, applied, applied_codes, 2, &result, &code) == 0);
  CHECK(code == kTVMArgInt && result.v_int64 == 42);
  CHECK(TVMFuncCall(add, NULL, NULL, 0, &result, &code) == -1);
  CHECK(strncmp(TVMGetLastError(), "ValueError: one integer", 23) == 0);

  TVMFunctionHandle owned[] = {scaled, add, found, apply};
  for (int i = 0; i < 4; ++i) CHECK(TVMFuncFree(owned[i]) == 0);
  CHECK(TVMArrayFree(x) == 0 && TVMArrayFree(y) == 0 && TVMModFree(module) == 0);
  puts("done");
  return 0;
}
