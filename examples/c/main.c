// SPDX-License-Identifier: Apache-2.0
// A plain C program on libportcall.so, without Python: it loads a library, calls it on tensors of its own, and registers
// a C function under a global name.
//
//   python - <<'end'                      # or any C compiler: -I INCLUDE main.c LIB/libportcall.so -Wl,-rpath,LIB
//   from portcall import toolchain
//   toolchain.create_shared("add_one.c", "add_one.so")
//   toolchain.create_executable("main.c", "main")
//   end
//   ./main add_one.so
//
// The library may come from any compiler, as long as it has a function add_one(A: float32[n], B: float32[n]). The first
// half goes through the classic door of the runtime (TVMFuncCall), the second through the modern one
// (TVMFFIFunctionCall): the functions behind them are the same.
#include <portcall/classic_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 4

// Every function of the classic door returns 0, or -1 with a text that says why.
static void check(int status, const char* what) {
  if (status == 0) return;
  fprintf(stderr, "%s failed: %s\n", what, TVMGetLastError());
  exit(1);
}

static TVMArrayHandle new_vector(void) {
  int64_t shape[1] = {N};
  TVMArrayHandle array = NULL;
  check(TVMArrayAlloc(shape, 1, kDLFloat, 32, 1, kDLCPU, 0, &array), "TVMArrayAlloc");
  return array;
}

static void call_library(const char* path) {
  TVMModuleHandle library = NULL;
  TVMFunctionHandle add_one = NULL;
  check(TVMModLoadFromFile(path, "so", &library), "TVMModLoadFromFile");
  check(TVMModGetFunction(library, "add_one", 0, &add_one), "TVMModGetFunction");
  if (!add_one) {
    fprintf(stderr, "%s has no function add_one\n", path);
    exit(1);
  }

  float in[N] = {0, 1, 2, 3}, out[N];
  TVMArrayHandle a = new_vector(), b = new_vector();
  check(TVMArrayCopyFromBytes(a, in, sizeof(in)), "TVMArrayCopyFromBytes");
  TVMValue args[2] = {{.v_handle = a}, {.v_handle = b}}, result;
  int codes[2] = {kTVMDLTensorHandle, kTVMDLTensorHandle}, result_code;
  check(TVMFuncCall(add_one, args, codes, 2, &result, &result_code), "add_one");
  check(TVMArrayCopyToBytes(b, out, sizeof(out)), "TVMArrayCopyToBytes");
  printf("add_one([0 1 2 3]) = [%g %g %g %g]\n", out[0], out[1], out[2], out[3]);

  if (TVMFuncCall(add_one, args, codes, 1, &result, &result_code) != 0) {
    printf("add_one with one argument fails: %s\n", TVMGetLastError());
  }
  TVMArrayFree(a);
  TVMArrayFree(b);
  TVMModFree(library);  // the function still holds the library
  TVMFuncFree(add_one);
}

// A callback: two arrays of arguments in, the result through `ret`, 0 or -1 out.
static int multiply(TVMValue* args, int* codes, int n, TVMRetValueHandle ret, void* resource) {
  ++*(int*)resource;
  if (n != 2 || codes[0] != kTVMArgInt || codes[1] != kTVMArgInt) {
    TVMAPISetLastError("TypeError: multiply takes two integers");
    return -1;
  }
  TVMValue product = {.v_int64 = args[0].v_int64 * args[1].v_int64};
  int code = kTVMArgInt;
  return TVMCFuncSetReturn(ret, &product, &code, 1);
}

static void finalize(void* resource) { printf("multiply is released after %d calls\n", *(int*)resource); }

static void call_callback(void) {
  TVMFFIByteArray name = {"example.multiply", strlen("example.multiply")};
  TVMFFIObjectHandle func = NULL;
  if (TVMFFIFunctionGetGlobal(&name, &func) != 0 || !func) {
    fprintf(stderr, "nobody registered %s\n", name.data);
    exit(1);
  }
  TVMFFIAny args[2] = {{.type_index = kTVMFFIInt, .v_int64 = 6}, {.type_index = kTVMFFIInt, .v_int64 = 7}};
  TVMFFIAny result = {.type_index = kTVMFFINone};
  if (TVMFFIFunctionCall(func, args, 2, &result) == 0) {
    printf("%s(6, 7) = %lld\n", name.data, (long long)result.v_int64);
  }

  // An error of the modern door is an object: the handler takes it out of the thread's slot and owns it.
  args[0] = (TVMFFIAny){.type_index = kTVMFFIRawStr, .v_c_str = "six"};
  if (TVMFFIFunctionCall(func, args, 2, &result) != 0) {
    TVMFFIObjectHandle error = NULL;
    TVMFFIErrorMoveFromRaised(&error);
    const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)((TVMFFIObject*)error + 1);
    printf("%s(\"six\", 7) fails: %s, %s\n", name.data, cell->kind.data, cell->message.data);
    TVMFFIObjectDecRef(error);
  }
  TVMFFIObjectDecRef(func);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
    return 2;
  }
  call_library(argv[1]);

  int calls = 0;
  TVMFunctionHandle func = NULL;
  check(TVMFuncCreateFromCFunc(multiply, &calls, finalize, &func), "TVMFuncCreateFromCFunc");
  check(TVMFuncRegisterGlobal("example.multiply", func, 0), "TVMFuncRegisterGlobal");
  TVMFuncFree(func);  // the registry has a reference of its own
  call_callback();
  check(TVMFuncRemoveGlobal("example.multiply"), "TVMFuncRemoveGlobal");
  return 0;
}
