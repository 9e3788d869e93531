// SPDX-License-Identifier: Apache-2.0
// The classic C API and the adapters between the two ABIs. Functions here are called as a classic C program would.
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "portcall/classic_api.h"
#include "portcall/portcall.h"
#include "tests/check.h"

using namespace portcall;

namespace {

struct Classic {  // a value with its code
  TVMValue value{};
  int code = kTVMNullptr;
};

Classic Int(int64_t number) {
  Classic c;
  c.value.v_int64 = number;
  c.code = kTVMArgInt;
  return c;
}
Classic Float(double number) {
  Classic c;
  c.value.v_float64 = number;
  c.code = kTVMArgFloat;
  return c;
}
Classic Handle(const void* pointer, int code) {
  Classic c;
  c.value.v_handle = const_cast<void*>(pointer);
  c.code = code;
  return c;
}
Classic Str(const char* text) { return Handle(text, kTVMStr); }

struct Outcome {
  int status;
  Classic result;
};

Outcome Call(TVMFunctionHandle func, const std::vector<Classic>& args) {
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

Outcome Echo(const Classic& arg) { return Call(Registry::Get("testing.echo").get(), {arg}); }

std::string LastError() { return TVMGetLastError(); }

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What a call throws, "Kind: message".
std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

// A C callback as a function; released with the object.
PackedFunc FromC(TVMPackedCFunc func, void* resource = nullptr, TVMPackedCFuncFinalizer fin = nullptr) {
  TVMFunctionHandle handle = nullptr;
  CHECK_EQ(TVMFuncCreateFromCFunc(func, resource, fin, &handle), 0);
  return ObjectRef::Steal<PackedFunc>(handle);
}

int ReturnInt(TVMRetValueHandle ret, int64_t number) {
  Classic c = Int(number);
  return TVMCFuncSetReturn(ret, &c.value, &c.code, 1);
}

int AddInts(TVMValue* args, int*, int n, TVMRetValueHandle ret, void*) {
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += args[i].v_int64;
  return ReturnInt(ret, sum);
}

int FirstCode(TVMValue*, int* codes, int n, TVMRetValueHandle ret, void*) { return ReturnInt(ret, n ? codes[0] : -1); }

int ReturnFirst(TVMValue* args, int* codes, int, TVMRetValueHandle ret, void*) {
  return TVMCFuncSetReturn(ret, &args[0], &codes[0], 1);
}

int FailWith(TVMValue* args, int*, int n, TVMRetValueHandle, void*) {
  if (n > 0) TVMAPISetLastError(args[0].v_str);
  return -1;
}

int FailSilently(TVMValue*, int*, int, TVMRetValueHandle, void*) { return -1; }

TVMArrayHandle AllocFloats(int64_t n) {
  TVMArrayHandle array = nullptr;
  CHECK_EQ(TVMArrayAlloc(&n, 1, kDLFloat, 32, 1, kDLCPU, 0, &array), 0);
  return array;
}

// Compiled code of the classic ABI.
int LibraryFirstCode(TVMValue*, int* codes, int n, TVMValue* out, int* out_code, void* resource) {
  CHECK(resource == nullptr);
  CHECK_EQ(*out_code, kTVMNullptr);
  out->v_int64 = n ? codes[0] : -1;
  *out_code = kTVMArgInt;
  return 0;
}
int LibraryReturnFirst(TVMValue* args, int* codes, int, TVMValue* out, int* out_code, void*) {
  *out = args[0];
  *out_code = codes[0];
  return 0;
}
int LibraryFail(TVMValue* args, int*, int n, TVMValue*, int*, void*) {
  if (n > 0) TVMAPISetLastError(args[0].v_str);
  return -1;
}
int LibraryReturnCode99(TVMValue*, int*, int, TVMValue*, int* out_code, void*) {
  *out_code = 99;
  return 0;
}
int LibraryApply(TVMValue* args, int* codes, int n, TVMValue* out, int* out_code, void*) {
  return TVMFuncCall(args[0].v_handle, args + 1, codes + 1, n - 1, out, out_code);
}
int Library06(void* args, int* codes, int n) {
  if (n != 2 || codes[0] != kTVMDLTensorHandle) return -1;
  auto* values = static_cast<TVMValue*>(args);
  static_cast<float*>(static_cast<DLTensor*>(values[0].v_handle)->data)[0] = static_cast<float>(values[1].v_int64);
  return 0;
}

// Code of a classic library as a loaded function: it is registered like statically linked code, under its bare name.
Module SystemLibrary(const char* prefix) { return Registry::Get("ffi.SystemLib")(prefix).cast<Module>(); }

template <typename F> PackedFunc Library(F symbol, const std::string& name) {
  CHECK_EQ(TVMBackendRegisterSystemLibSymbol(("classic_test_" + name).c_str(), reinterpret_cast<void*>(symbol)), 0);
  PackedFunc func = SystemLibrary("classic_test_").GetFunction(name);
  CHECK(func.defined());
  return func;
}

}  // namespace

// ---- One registry, two doors --------------------------------------------------------------------------------------

TEST("a callback registered by the classic door is found by the modern one, and removed for both") {
  PackedFunc add = FromC(AddInts);
  CHECK_EQ(TVMFuncRegisterGlobal("classic.add", add.get(), 0), 0);
  CHECK_EQ(Registry::Get("classic.add")(3, 4).cast<int>(), 7);
  CHECK_EQ(TVMFuncRegisterGlobal("classic.add", add.get(), 0), -1);
  CHECK(Contains(LastError(), "'classic.add' is already registered"));
  CHECK_EQ(TVMFuncRegisterGlobal("classic.add", add.get(), 1), 0);
  CHECK_EQ(TVMFuncRemoveGlobal("classic.add"), 0);
  CHECK(!Registry::Get("classic.add").defined());
  CHECK_EQ(TVMFuncRemoveGlobal("classic.add"), 0);
}

TEST("a C++ function is called by the classic door") {
  Registry::Register("classic.mul").set_body_typed([](int a, double b) { return a * b; });
  TVMFunctionHandle mul = nullptr;
  CHECK_EQ(TVMFuncGetGlobal("classic.mul", &mul), 0);
  Outcome out = Call(mul, {Int(3), Float(1.5)});
  CHECK_EQ(out.status, 0);
  CHECK_EQ(out.result.code, kTVMArgFloat);
  CHECK_EQ(out.result.value.v_float64, 4.5);
  CHECK_EQ(TVMFuncFree(mul), 0);
  CHECK_EQ(TVMFuncRemoveGlobal("classic.mul"), 0);
}

TEST("a name that nobody registered gives NULL and no error") {
  TVMFunctionHandle func = &func;
  CHECK_EQ(TVMFuncGetGlobal("classic.none", &func), 0);
  CHECK(func == nullptr);
}

TEST("the list of global names holds every name") {
  int n = 0;
  const char** names = nullptr;
  CHECK_EQ(TVMFuncListGlobalNames(&n, &names), 0);
  bool found = false;
  for (int i = 0; i < n; ++i) found = found || std::string(names[i]) == "testing.echo";
  CHECK(found);
  CHECK_EQ(static_cast<size_t>(n), Registry::ListNames().size());
}

// ---- Values through TVMFuncCall -----------------------------------------------------------------------------------

TEST("numbers, pointers and devices go through a call unharmed") {
  CHECK_EQ(Echo(Int(INT64_MIN)).result.value.v_int64, INT64_MIN);
  CHECK_EQ(Echo(Int(1)).result.code, kTVMArgInt);
  CHECK_EQ(Echo(Float(-0.5)).result.value.v_float64, -0.5);
  int target = 0;
  Outcome pointer = Echo(Handle(&target, kTVMOpaqueHandle));
  CHECK(pointer.result.value.v_handle == &target && pointer.result.code == kTVMOpaqueHandle);
  CHECK_EQ(Echo(Handle(nullptr, kTVMNullptr)).result.code, kTVMNullptr);
  Classic device;
  device.value.v_device = {kDLOpenCL, 3};
  device.code = kDLDevice;
  Outcome out = Echo(device);
  CHECK(out.result.code == kDLDevice && out.result.value.v_device.device_type == kDLOpenCL);
  CHECK_EQ(out.result.value.v_device.device_id, 3);
}

TEST("a bool is 0 or 1 as an argument and an int as a result") {
  Classic yes = Int(7);
  yes.code = kTVMArgBool;
  Registry::Register("classic.index", true).set_body([](Args args, RetValue* rv) { *rv = args[0].type_index(); });
  CHECK_EQ(Call(Registry::Get("classic.index").get(), {yes}).result.value.v_int64, kTVMFFIBool);
  Outcome out = Echo(yes);
  CHECK(out.result.code == kTVMArgInt && out.result.value.v_int64 == 1);
  Registry::Remove("classic.index");
}

TEST("text and bytes results lie in the thread's storage until the next call") {
  Outcome small = Echo(Str("abc"));
  CHECK_EQ(small.result.code, kTVMStr);
  CHECK_EQ(small.result.value.v_str, "abc");
  Outcome large = Echo(Str("a text that does not fit into a cell"));
  CHECK_EQ(large.result.value.v_str, "a text that does not fit into a cell");
  for (std::string content : {std::string("\0\1", 2), std::string(100, '\7')}) {
    TVMByteArray bytes{content.data(), content.size()};
    Outcome out = Echo(Handle(&bytes, kTVMBytes));
    CHECK_EQ(out.result.code, kTVMBytes);
    auto* result = static_cast<TVMByteArray*>(out.result.value.v_handle);
    CHECK(result != &bytes && std::string(result->data, result->size) == content);
    CHECK_EQ(TVMByteArrayFree(result), 0);
    CHECK_EQ(TVMByteArrayFree(&bytes), -1);
  }
}

TEST("a data type as a result is text") {
  Classic dtype;
  dtype.value.v_int64 = -1;  // a careless caller sets four of the eight bytes
  dtype.value.v_type = {kDLFloat, 16, 4};
  dtype.code = kTVMDataType;
  Outcome out = Echo(dtype);
  CHECK_EQ(out.result.code, kTVMStr);
  CHECK_EQ(out.result.value.v_str, "float16x4");
}

TEST("NULL of any kind is None") {
  for (int code : {kTVMDLTensorHandle, kTVMObjectHandle, kTVMModuleHandle, kTVMPackedFuncHandle, kTVMStr, kTVMBytes,
                   kTVMNDArrayHandle}) {
    Outcome out = Echo(Handle(nullptr, code));
    CHECK(out.status == 0 && out.result.code == kTVMNullptr);
  }
}

TEST("an array result is owned by the caller") {
  TVMArrayHandle array = AllocFloats(2);
  auto* tensor = reinterpret_cast<TVMFFIObject*>(array) - 1;
  Outcome out = Echo(Handle(array, kTVMNDArrayHandle));
  CHECK(out.result.code == kTVMNDArrayHandle && out.result.value.v_handle == array);
  CHECK_EQ(ObjectRef::Borrow(tensor).use_count(), 3u);
  CHECK_EQ(TVMArrayFree(static_cast<TVMArrayHandle>(out.result.value.v_handle)), 0);
  Outcome lent = Echo(Handle(array, kTVMDLTensorHandle));
  CHECK(lent.result.code == kTVMDLTensorHandle && lent.result.value.v_handle == array);
  CHECK_EQ(ObjectRef::Borrow(tensor).use_count(), 2u);
  CHECK_EQ(TVMArrayFree(array), 0);
}

TEST("functions and other objects as results are owned by the caller") {
  PackedFunc func = FromC(AddInts);
  Outcome out = Echo(Handle(func.get(), kTVMPackedFuncHandle));
  CHECK(out.result.code == kTVMPackedFuncHandle && out.result.value.v_handle == func.get());
  CHECK_EQ(func.use_count(), 2u);
  CHECK_EQ(TVMFuncFree(out.result.value.v_handle), 0);
  Shape shape{1, 2};
  out = Echo(Handle(shape.get(), kTVMObjectHandle));
  CHECK(out.result.code == kTVMObjectHandle && out.result.value.v_handle == shape.get());
  CHECK_EQ(TVMObjectFree(out.result.value.v_handle), 0);
  CHECK(shape.unique() && func.unique());
}

TEST("an object may be moved out of a caller's variable") {
  TVMFFIObject* variable = Shape{1, 2}.release();
  TVMFFIObject* shape = variable;
  Outcome out = Echo(Handle(&variable, kTVMObjectRValueRefArg));
  CHECK(out.result.code == kTVMObjectHandle && out.result.value.v_handle == shape);
  CHECK(variable == nullptr);
  CHECK_EQ(TVMObjectFree(shape), 0);
}

TEST("a call with more arguments than fit on the stack") {
  PackedFunc add = FromC(AddInts);
  CHECK_EQ(Call(add.get(), std::vector<Classic>(100, Int(2))).result.value.v_int64, 200);
}

TEST("an argument with an unknown code is refused by position") {
  for (int code : {1, 16, 99, -1}) {
    CHECK_EQ(Call(Registry::Get("testing.echo").get(), {Int(1), Handle(nullptr, code)}).status, -1);
    CHECK_EQ(LastError(),
             "TypeError: testing.echo(): argument #1: expected a type code from 0 to 15, got " + std::to_string(code));
  }
}

// ---- Callbacks ----------------------------------------------------------------------------------------------------

TEST("a callback sees the classic code of every value") {
  PackedFunc code = FromC(FirstCode);
  auto code_of = [&](const Any& value) { return code(value).cast<int>(); };
  CHECK_EQ(code().cast<int>(), -1);
  CHECK_EQ(code_of(nullptr), kTVMNullptr);
  CHECK_EQ(code_of(1), kTVMArgInt);
  CHECK_EQ(code_of(true), kTVMArgInt);
  CHECK_EQ(code_of(1.0), kTVMArgFloat);
  CHECK_EQ(code_of(static_cast<void*>(&code)), kTVMOpaqueHandle);
  CHECK_EQ(code_of(DLDataType{kDLInt, 8, 1}), kTVMDataType);
  CHECK_EQ(code_of(Cpu()), kDLDevice);
  CHECK_EQ(code_of("abc"), kTVMStr);
  CHECK_EQ(code_of("abcdefghijkl"), kTVMStr);
  CHECK_EQ(code_of(Bytes("abc")), kTVMBytes);
  CHECK_EQ(code_of(Bytes("abcdefghijkl")), kTVMBytes);
  CHECK_EQ(code_of(code), kTVMPackedFuncHandle);
  Tensor tensor = Tensor::Empty({1}, DataTypeOf<float>());
  CHECK_EQ(code_of(tensor), kTVMNDArrayHandle);
  CHECK_EQ(code_of(const_cast<DLTensor*>(tensor.dl_tensor())), kTVMDLTensorHandle);
  CHECK_EQ(code_of(Shape{1}), kTVMObjectHandle);
  CHECK_EQ(code_of(Array<Any>{Any(1)}), kTVMObjectHandle);
}

TEST("a callback sees an object in the caller's variable and leaves it there") {
  PackedFunc code = FromC(FirstCode);
  TVMFFIObject* variable = Shape{1}.release();
  TVMFFIAny cell;
  detail::SetCell(&cell, kTVMFFIObjectRValueRef);
  cell.v_ptr = &variable;
  CHECK_EQ(code.CallPacked(&cell, 1).cast<int>(), kTVMObjectHandle);
  CHECK(variable != nullptr);
  ObjectRef::Steal(variable);
  variable = nullptr;
  CHECK_EQ(code.CallPacked(&cell, 1).cast<int>(), kTVMNullptr);
}

TEST("a callback returns what it was given: text and bytes copied, objects shared") {
  PackedFunc first = FromC(ReturnFirst);
  CHECK_EQ(first(5).cast<int>(), 5);
  CHECK_EQ(first("abc").cast<std::string>(), "abc");
  CHECK_EQ(first("abcdefghijkl").cast<std::string>(), "abcdefghijkl");
  CHECK_EQ(first(Bytes(std::string_view("\0b", 2))).cast<Bytes>().size(), 2u);
  CHECK(first(DLDataType{kDLInt, 8, 1}).cast<DLDataType>() == DLDataType{kDLInt, 8, 1});
  Shape shape{1, 2};
  Any result = first(shape);
  CHECK_EQ(result.cell().v_obj, shape.get());
  CHECK_EQ(shape.use_count(), 2u);
  Tensor tensor = Tensor::Empty({2}, DataTypeOf<float>());
  CHECK(first(tensor).cast<Tensor>().same_as(tensor));
  CHECK(tensor.unique());
}

TEST("a callback keeps an argument beyond the call") {
  static Classic kept;
  PackedFunc keep = FromC([](TVMValue* args, int* codes, int, TVMRetValueHandle, void*) {
    if (TVMCbArgToReturn(&args[0], &codes[0]) != 0) return -1;
    kept = Handle(args[0].v_handle, codes[0]);
    return 0;
  });
  {
    Tensor tensor = Tensor::Empty({2}, DataTypeOf<float>());
    keep(tensor);
    CHECK_EQ(tensor.use_count(), 2u);
  }
  CHECK_EQ(kept.code, kTVMNDArrayHandle);
  CHECK_EQ(static_cast<DLTensor*>(kept.value.v_handle)->shape[0], 2);
  CHECK_EQ(TVMArrayFree(static_cast<TVMArrayHandle>(kept.value.v_handle)), 0);
  CHECK(Contains(ErrorOf([&] { keep("abc"); }), "TypeError: text and bytes cannot be kept"));
}

TEST("the finalizer of a callback runs once, with its last reference") {
  int finalized = 0;
  PackedFunc func = FromC(AddInts, &finalized, [](void* resource) { ++*static_cast<int*>(resource); });
  PackedFunc copy = func;
  func = nullptr;
  CHECK_EQ(finalized, 0);
  CHECK_EQ(copy(1, 2).cast<int>(), 3);
  copy = nullptr;
  CHECK_EQ(finalized, 1);
}

TEST("a callback that returns nothing gives None") {
  PackedFunc nothing = FromC([](TVMValue*, int*, int, TVMRetValueHandle, void*) { return 0; });
  CHECK(nothing(1) == nullptr);
  CHECK_EQ(Call(nothing.get(), {}).result.code, kTVMNullptr);
}

TEST("a callback receives its resource") {
  int resource = 41;
  PackedFunc func = FromC([](TVMValue*, int*, int, TVMRetValueHandle ret,
                             void* self) { return ReturnInt(ret, ++*static_cast<int*>(self)); },
                          &resource);
  CHECK_EQ(func().cast<int>(), 42);
}

// ---- Errors -------------------------------------------------------------------------------------------------------

TEST("the text of an error is taken apart into kind, message and backtrace") {
  struct {
    const char* text;
    const char* kind;
    const char* message;
    const char* backtrace;
  } cases[] = {
      {"ValueError: too small", "ValueError", "too small", ""},
      {"ValueError:too small", "ValueError", "too small", ""},
      {"tvm.error.OpError: no such operator", "tvm.error.OpError", "no such operator", ""},
      {"KeyboardInterrupt: ", "KeyboardInterrupt", "", ""},
      {"InternalError: Check failed: a == b\n  a was 1\nStack trace:\n  0: f\n  1: g\n", "InternalError",
       "Check failed: a == b\n  a was 1", "  0: f\n  1: g\n"},
      {"Stack trace:\n  File \"a.cc\", line 1\n", "RuntimeError", "", "  File \"a.cc\", line 1\n"},
      {"TypeError: the words Stack trace: are a part of it", "TypeError", "the words Stack trace: are a part of it",
       ""},
      {"Assert fail: (n == 2), n should be 2", "RuntimeError", "Assert fail: (n == 2), n should be 2", ""},
      {"add_one: num_args should be 2", "RuntimeError", "add_one: num_args should be 2", ""},
      {"a plain text", "RuntimeError", "a plain text", ""},
      {": nothing before it", "RuntimeError", ": nothing before it", ""},
      {"", "RuntimeError", "", ""},
  };
  for (const auto& c : cases) {
    TVMAPISetLastError(c.text);
    TVMFFIObjectHandle handle = nullptr;
    TVMFFIErrorMoveFromRaised(&handle);
    Error error(ObjectRef::Steal(handle));
    CHECK_EQ(error.kind(), c.kind);
    CHECK_EQ(error.message(), c.message);
    CHECK_EQ(error.backtrace(), c.backtrace);
  }
}

TEST("a callback's error is an exception in C++, and the other way round") {
  PackedFunc fail = FromC(FailWith);
  CHECK_EQ(ErrorOf([&] { fail("ValueError: too small"); }), "ValueError: too small");
  PackedFunc thrower([](Args, RetValue*) { PORTCALL_THROW(KeyError) << "no such key"; });
  CHECK_EQ(Call(thrower.get(), {}).status, -1);
  CHECK_EQ(LastError(), "KeyError: no such key");
  CHECK(Contains(TVMGetLastBacktrace(), "test_c_api.cc"));
}

TEST("a function that fails without an error is an error with its name") {
  PackedFunc silent = FromC(FailSilently);
  TVMFFIErrorSetRaised(nullptr);
  CHECK_EQ(ErrorOf([&] { silent(); }), "RuntimeError: <anonymous>() failed (nonzero return) without setting an error");
  CHECK_EQ(Call(silent.get(), {}).status, -1);
  CHECK(Contains(LastError(), "failed (nonzero return) without setting an error"));
}

TEST("an old error that nobody took is not the reason of a later silent failure") {
  PackedFunc silent = FromC(FailSilently), fail = FromC(FailWith);
  CHECK_EQ(Call(fail.get(), {Str("ValueError: the old one")}).status, -1);
  CHECK_EQ(LastError(), "ValueError: the old one");
  CHECK_EQ(Call(silent.get(), {}).status, -1);
  CHECK(Contains(LastError(), "without setting an error"));
}

TEST("an error under way survives a call that cleans up") {
  PackedFunc outer = FromC([](TVMValue*, int*, int, TVMRetValueHandle, void*) {
    PackedFunc fail = FromC(FailWith), add = FromC(AddInts);
    if (Call(fail.get(), {Str("ValueError: the reason")}).status == 0) return 0;
    Call(add.get(), {Int(1)});
    return -1;
  });
  CHECK_EQ(Call(outer.get(), {}).status, -1);
  CHECK_EQ(LastError(), "ValueError: the reason");
  CHECK_EQ(ErrorOf([&] { outer(); }), "ValueError: the reason");
}

TEST("reading the last error takes nothing away, and its text stays where it is") {
  PackedFunc fail = FromC([](TVMValue*, int*, int, TVMRetValueHandle, void*) {
    TVMAPISetLastError("ValueError: first");
    CHECK_EQ(LastError(), "ValueError: first");
    return -1;
  });
  CHECK_EQ(ErrorOf([&] { fail(); }), "ValueError: first");
  CHECK_EQ(Call(fail.get(), {}).status, -1);
  const char* text = TVMGetLastError();
  CHECK_EQ(Echo(Int(1)).status, 0);
  CHECK(text == TVMGetLastError());
  CHECK_EQ(text, "ValueError: first");
}

TEST("the last error belongs to its thread and is never NULL") {
  TVMAPISetLastError("ValueError: of the main thread");
  std::thread([] { CHECK_EQ(TVMGetLastError(), ""); }).join();
  std::thread([] { CHECK_EQ(TVMGetLastBacktrace(), ""); }).join();
  CHECK_EQ(LastError(), "ValueError: of the main thread");
  TVMAPISetLastError(nullptr);
  CHECK_EQ(LastError(), "RuntimeError: an error without a text");
  CHECK_THROWS(TVMThrowLastError(), Error);
}

TEST("a front end's exception comes back as the same pointer, until another error or a drop") {
  int exception = 0;
  TVMAPISetLastPythonError(&exception);
  CHECK(TVMGetLastPythonError() == &exception);
  CHECK(TVMGetLastPythonError() == &exception);
  TVMDropLastPythonError();
  CHECK(TVMGetLastPythonError() == nullptr);
  TVMAPISetLastPythonError(&exception);
  TVMAPISetLastError("ValueError: another");
  CHECK(TVMGetLastPythonError() == nullptr);
  TVMDropLastPythonError();
  CHECK_EQ(LastError(), "ValueError: another");
  PackedFunc raise = FromC(
      [](TVMValue*, int*, int, TVMRetValueHandle, void* self) {
        TVMAPISetLastPythonError(self);
        return -1;
      },
      &exception);
  CHECK_EQ(Call(raise.get(), {}).status, -1);
  CHECK(TVMGetLastPythonError() == &exception);
  TVMDropLastPythonError();
  TVMFFIErrorSetRaised(nullptr);
}

// ---- Functions of classic libraries -------------------------------------------------------------------------------

TEST("a library function sees the classic code of every value it can take") {
  PackedFunc code = Library(LibraryFirstCode, "first_code");
  auto code_of = [&](const Any& value) { return code(value).cast<int>(); };
  CHECK_EQ(code().cast<int>(), -1);
  CHECK_EQ(code_of(nullptr), kTVMNullptr);
  CHECK_EQ(code_of(1), kTVMArgInt);
  CHECK_EQ(code_of(true), kTVMArgInt);
  CHECK_EQ(code_of(1.0), kTVMArgFloat);
  CHECK_EQ(code_of("abcdefghijkl"), kTVMStr);
  CHECK_EQ(code_of(Bytes("abc")), kTVMBytes);
  CHECK_EQ(code_of(code), kTVMPackedFuncHandle);
  Tensor tensor = Tensor::Empty({1}, DataTypeOf<float>());
  CHECK_EQ(code_of(tensor), kTVMDLTensorHandle);
  CHECK_EQ(code_of(const_cast<DLTensor*>(tensor.dl_tensor())), kTVMDLTensorHandle);
}

TEST("a library function refuses an object, by position") {
  PackedFunc code = Library(LibraryFirstCode, "first_code");
  CHECK(Contains(ErrorOf([&] { code(1, Shape{1}); }), "TypeError: first_code(): argument #1: expected int, float"));
  CHECK(Contains(ErrorOf([&] { code(Array<Any>{Any(1)}); }), "argument #0"));
  CHECK(Contains(ErrorOf([&] { code(Array<Any>{Any(1)}); }), "got Array"));
  CHECK(Contains(ErrorOf([&] { code(std::string("a\0b", 3)); }), "argument #0: expected text without NUL"));
}

TEST("a library function refuses a tensor that is not aligned") {
  alignas(64) float data[32];
  int64_t extent = 1;
  DLTensor tensor{&data[1], Cpu(), 1, DataTypeOf<float>(), &extent, nullptr, 0};
  PackedFunc code = Library(LibraryFirstCode, "first_code");
  CHECK(Contains(ErrorOf([&] { code(1, &tensor); }),
                 "TypeError: first_code(): argument #1: expected tensor data aligned to 64"));
  tensor.byte_offset = 60;
  CHECK_EQ(code(&tensor).cast<int>(), kTVMDLTensorHandle);
}

TEST("a library sees booleans as uint1; what it passes on or returns is the caller's tensor again") {
  Tensor tensor = Tensor::Empty({3}, {kDLBool, 8, 1});
  auto* borrowed = const_cast<DLTensor*>(tensor.dl_tensor());
  PackedFunc seen = Library(
      +[](TVMValue* args, int*, int, TVMValue* out, int* out_code, void*) {
        DLDataType dtype = static_cast<DLTensor*>(args[1].v_handle)->dtype;
        out->v_int64 = dtype.code * 100 + dtype.bits;
        *out_code = kTVMArgInt;
        return 0;
      },
      "bool_type");
  CHECK_EQ(seen(1, tensor).cast<int>(), kDLUInt * 100 + 1);
  CHECK_EQ(seen(1, borrowed).cast<int>(), kDLUInt * 100 + 1);
  CHECK_EQ(seen(1, Tensor::Empty({3}, {kDLUInt, 8, 1})).cast<int>(), kDLUInt * 100 + 8);
  CHECK(Library(LibraryReturnFirst, "first_of_bools")(tensor, tensor).cast<DLTensor*>() == borrowed);
  PackedFunc apply = Library(LibraryApply, "apply_bools");
  CHECK(apply(Registry::Get("testing.echo"), tensor).cast<DLTensor*>() == borrowed);
  PackedFunc type([](Args args, RetValue* rv) { *rv = ToString(args[0].cast<DLTensor*>()->dtype); });
  CHECK_EQ(apply(type, tensor).cast<std::string>(), "bool");
}

TEST("an array of classic booleans has a byte for each") {
  int64_t extent = 9;
  TVMArrayHandle array = nullptr;
  CHECK_EQ(TVMArrayAlloc(&extent, 1, kDLUInt, 1, 1, kDLCPU, 0, &array), 0);
  CHECK_EQ(NumBytes(*array), 9u);
  CHECK_EQ(TVMArrayFree(array), 0);
}

TEST("results of a library function: numbers, text, tensors, functions") {
  PackedFunc first = Library(LibraryReturnFirst, "first");
  CHECK_EQ(first(-1).cast<int>(), -1);
  CHECK_EQ(first(2.5).cast<double>(), 2.5);
  CHECK(first(nullptr) == nullptr);
  CHECK_EQ(first("abcdefghijkl").cast<std::string>(), "abcdefghijkl");
  PackedFunc made = Library(
      +[](TVMValue*, int*, int, TVMValue* out, int* out_code, void*) {
        out->v_handle = AllocFloats(3);
        *out_code = kTVMNDArrayHandle;
        return 0;
      },
      "make");
  Tensor tensor = made();
  CHECK(tensor.unique() && tensor.shape(0) == 3);
  PackedFunc strange = Library(LibraryReturnCode99, "strange");
  CHECK_EQ(ErrorOf([&] { strange(); }), "TypeError: strange(): its result has type code 99; expected one from 0 to 15");
}

TEST("a library function calls functions that it is given") {
  PackedFunc apply = Library(LibraryApply, "apply");
  CHECK_EQ(apply(FromC(AddInts), 1, 2).cast<int>(), 3);
  CHECK_EQ(apply(Registry::Get("testing.echo"), "a text that does not fit into a cell").cast<std::string>(),
           "a text that does not fit into a cell");
  Tensor tensor = Tensor::Empty({1}, DataTypeOf<float>());
  CHECK(apply(Registry::Get("testing.echo"), tensor).type_index() == kTVMFFIDLTensorPtr);
  CHECK_EQ(ErrorOf([&] { apply(FromC(FailWith), "IndexError: from within"); }), "IndexError: from within");
}

TEST("errors of a library function: its own, and the one it forgot") {
  PackedFunc fail = Library(LibraryFail, "forgetful");
  CHECK_EQ(ErrorOf([&] { fail("ValueError: negative element"); }), "ValueError: negative element");
  CHECK_EQ(ErrorOf([&] { fail("Assert fail: n is 2"); }), "RuntimeError: Assert fail: n is 2");
  CHECK_EQ(ErrorOf([&] { fail(); }), "RuntimeError: forgetful() failed (nonzero return) without setting an error");
}

TEST("a library function of three arguments has no result") {
  PackedFunc set = Library(Library06, "set");
  Tensor tensor = Tensor::Empty({1}, DataTypeOf<float>());
  CHECK(set(tensor, 5) == nullptr);
  CHECK_EQ(tensor.data<float>()[0], 5.0f);
  CHECK(Contains(ErrorOf([&] { set(5); }), "set() failed"));
}

TEST("a library function takes any number of arguments and tells what it is") {
  PackedFunc code = Library(LibraryFirstCode, "first_code");
  std::vector<Any> many(50, Any("x"));
  CHECK_EQ(code.CallPacked(reinterpret_cast<const TVMFFIAny*>(many.data()), 50).cast<int>(), kTVMStr);
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(code.get(), &info);
  CHECK_EQ(info.name, "first_code");
  CHECK(info.flags & kPortcallFunctionLibrary);
}

// ---- Arrays -------------------------------------------------------------------------------------------------------

TEST("an array is allocated, filled, read and freed") {
  int64_t shape[] = {2, 3};
  TVMArrayHandle array = nullptr;
  CHECK_EQ(TVMArrayAlloc(shape, 2, kDLFloat, 32, 1, kDLCPU, 0, &array), 0);
  CHECK(array->ndim == 2 && array->shape[1] == 3 && reinterpret_cast<uintptr_t>(array->data) % 64 == 0);
  float in[6] = {1, 2, 3, 4, 5, 6}, out[6] = {};
  CHECK_EQ(TVMArrayCopyFromBytes(array, in, sizeof(in)), 0);
  CHECK_EQ(TVMArrayCopyToBytes(array, out, sizeof(out)), 0);
  CHECK_EQ(std::memcmp(in, out, sizeof(in)), 0);
  CHECK_EQ(TVMArrayCopyFromBytes(array, in, sizeof(in) - 1), -1);
  CHECK_EQ(LastError(), "ValueError: the array has 24 bytes, got 23");
  CHECK_EQ(TVMArrayCopyToBytes(array, out, sizeof(out) + 1), -1);
  CHECK_EQ(TVMArrayFree(array), 0);
}

TEST("bytes are copied into and out of a strided description") {
  float data[6] = {0, 1, 2, 3, 4, 5}, out[3] = {};
  int64_t shape[] = {3}, strides[] = {2};
  DLTensor every_other{data, Cpu(), 1, DataTypeOf<float>(), shape, strides, 0};
  CHECK_EQ(TVMArrayCopyToBytes(&every_other, out, sizeof(out)), 0);
  CHECK(out[0] == 0 && out[1] == 2 && out[2] == 4);
  float in[3] = {7, 8, 9};
  CHECK_EQ(TVMArrayCopyFromBytes(&every_other, in, sizeof(in)), 0);
  CHECK(data[0] == 7 && data[1] == 1 && data[2] == 8 && data[4] == 9);
}

TEST("an array without elements is copied too") {
  TVMArrayHandle array = AllocFloats(0);
  CHECK_EQ(TVMArrayCopyFromBytes(array, nullptr, 0), 0);
  CHECK_EQ(TVMArrayCopyToBytes(array, nullptr, 0), 0);
  CHECK_EQ(TVMArrayFree(array), 0);
}

TEST("arrays are copied, and travel as DLPack and back") {
  TVMArrayHandle a = AllocFloats(4), b = AllocFloats(4), c = nullptr;
  float in[4] = {1, 2, 3, 4}, out[4] = {};
  CHECK_EQ(TVMArrayCopyFromBytes(a, in, sizeof(in)), 0);
  CHECK_EQ(TVMArrayCopyFromTo(a, b, nullptr), 0);
  DLManagedTensor* managed = nullptr;
  CHECK_EQ(TVMArrayToDLPack(b, &managed), 0);
  CHECK_EQ(TVMArrayFromDLPack(managed, &c), 0);
  CHECK(c != b && c->data == b->data);
  CHECK_EQ(TVMArrayFree(b), 0);  // c keeps the memory
  CHECK_EQ(TVMArrayCopyToBytes(c, out, sizeof(out)), 0);
  CHECK_EQ(out[3], 4.0f);
  CHECK_EQ(TVMArrayFree(c), 0);
  CHECK_EQ(TVMArrayToDLPack(a, &managed), 0);
  TVMDLManagedTensorCallDeleter(managed);
  TVMDLManagedTensorCallDeleter(nullptr);
  CHECK_EQ(TVMArrayFree(a), 0);
}

// ---- Modules ------------------------------------------------------------------------------------------------------

TEST("a module's functions are found, by way of its imports too") {
  Library(LibraryFirstCode, "first_code");
  Module module = SystemLibrary("classic_test_"), other = SystemLibrary("classic_other_");
  TVMFunctionHandle func = nullptr;
  CHECK_EQ(TVMModGetFunction(module.get(), "first_code", 0, &func), 0);
  CHECK_EQ(Call(func, {Float(1)}).result.value.v_int64, kTVMArgFloat);
  CHECK_EQ(TVMFuncFree(func), 0);
  CHECK_EQ(TVMModGetFunction(module.get(), "no_such_function", 1, &func), 0);
  CHECK(func == nullptr);
  CHECK_EQ(TVMModImport(other.get(), module.get()), 0);
  CHECK_EQ(TVMModGetFunction(other.get(), "first_code", 0, &func), 0);
  CHECK(func == nullptr);
  CHECK_EQ(TVMModGetFunction(other.get(), "first_code", 1, &func), 0);
  CHECK(func != nullptr);
  CHECK_EQ(TVMFuncFree(func), 0);
  CHECK_EQ(TVMModFree(Module(module).release()), 0);
}

TEST("a module is an argument and a result") {
  Module module = SystemLibrary("classic_test_");
  uint32_t before = module.use_count();
  Outcome out = Echo(Handle(module.get(), kTVMModuleHandle));
  CHECK(out.result.code == kTVMModuleHandle && out.result.value.v_handle == module.get());
  CHECK_EQ(TVMModFree(out.result.value.v_handle), 0);
  CHECK_EQ(module.use_count(), before);
  CHECK_EQ(FromC(FirstCode)(module).cast<int>(), kTVMModuleHandle);
}

TEST("a library that does not exist is an error with its path") {
  TVMModuleHandle module = nullptr;
  CHECK_EQ(TVMModLoadFromFile("/no/such/library.so", "so", &module), -1);
  CHECK(Contains(LastError(), "/no/such/library.so"));
  CHECK_EQ(TVMModLoadFromFile("/no/such/library.so", nullptr, &module), -1);
  CHECK_EQ(TVMModLoadFromFile("x", "cubin", &module), -1);
  CHECK_EQ(LastError(), "ValueError: no loader for the format 'cubin'; known are so, dso, dylib and dll");
}

// ---- Devices ------------------------------------------------------------------------------------------------------

namespace {

constexpr int kFake = 101;  // a kind that no other test takes
struct {
  void* current = nullptr;  // the stream of the last copy
  int streams = 0, synced = 0;
} fake;

int FakeAttr(void*, DLDevice, PortcallDeviceAttr, TVMFFIAny* out) {
  *out = Any(true).release();
  return 0;
}
int FakeAlloc(void*, DLDevice, size_t nbytes, size_t alignment, DLDataType, void** out) {
  return posix_memalign(out, alignment, nbytes);
}
int FakeFree(void*, DLDevice, void* ptr) {
  std::free(ptr);
  return 0;
}
int FakeCopy(void*, const void* from, size_t from_offset, DLDevice, void* to, size_t to_offset, DLDevice, size_t nbytes,
             void* stream) {
  fake.current = stream;
  std::memcpy(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset, nbytes);
  return 0;
}
int FakeCreateStream(void*, DLDevice, void** out) {
  ++fake.streams;
  *out = new int;
  return 0;
}
int FakeFreeStream(void*, DLDevice, void* stream) {
  --fake.streams;
  delete static_cast<int*>(stream);
  return 0;
}
int FakeSync(void*, DLDevice, void*) {
  ++fake.synced;
  return 0;
}

void RegisterFake() {
  static const bool once = [] {
    PortcallDeviceAPI api{};
    api.struct_size = sizeof(api);
    api.get_attr = FakeAttr;
    api.alloc = FakeAlloc;
    api.free = FakeFree;
    api.copy = FakeCopy;
    api.create_stream = FakeCreateStream;
    api.free_stream = FakeFreeStream;
    api.sync_stream = FakeSync;
    return PortcallDeviceRegister(kFake, &api) == 0;
  }();
  CHECK(once);
}

}  // namespace

TEST("streams are made, used by copies and freed") {
  RegisterFake();
  TVMStreamHandle stream = nullptr;
  CHECK_EQ(TVMStreamCreate(kFake, 0, &stream), 0);
  int64_t extent = 4;
  TVMArrayHandle array = nullptr, host = AllocFloats(4);
  CHECK_EQ(TVMArrayAlloc(&extent, 1, kDLFloat, 32, 1, kFake, 0, &array), 0);
  CHECK_EQ(TVMArrayCopyFromTo(host, array, stream), 0);
  CHECK(fake.current == stream);
  CHECK_EQ(TVMDeviceCopyDataFromTo(array, host, nullptr), 0);
  CHECK(fake.current == nullptr);
  CHECK_EQ(TVMSetStream(kFake, 0, stream), 0);
  CHECK_EQ(TVMDeviceCopyDataFromTo(array, host, nullptr), 0);
  CHECK(fake.current == stream);
  CHECK_EQ(TVMSetStream(kFake, 0, nullptr), 0);
  int before = fake.synced;
  CHECK_EQ(TVMSynchronize(kFake, 0, stream), 0);
  CHECK_EQ(TVMStreamStreamSynchronize(kFake, 0, stream, nullptr), 0);
  CHECK_EQ(fake.synced, before + 2);
  CHECK_EQ(TVMStreamFree(kFake, 0, stream), 0);
  CHECK_EQ(fake.streams, 0);
  CHECK_EQ(TVMArrayFree(array), 0);
  CHECK_EQ(TVMArrayFree(host), 0);
}

TEST("the host has one stream, which is NULL") {
  TVMStreamHandle stream = &stream;
  CHECK_EQ(TVMStreamCreate(kDLCPU, 0, &stream), 0);
  CHECK(stream == nullptr);
  CHECK_EQ(TVMStreamFree(kDLCPU, 0, stream), 0);
  CHECK_EQ(TVMSynchronize(kDLCPU, 0, nullptr), 0);
}

TEST("memory of a device is allocated and freed") {
  void* data = nullptr;
  CHECK_EQ(TVMDeviceAllocDataSpace(Cpu(), 100, 256, DataTypeOf<float>(), &data), 0);
  CHECK_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
  CHECK_EQ(TVMDeviceFreeDataSpace(Cpu(), data), 0);
  CHECK_EQ(TVMDeviceAllocDataSpace(Cpu(), 0, 0, DataTypeOf<float>(), &data), 0);
  CHECK(data != nullptr);
  CHECK_EQ(TVMDeviceFreeDataSpace(Cpu(), data), 0);
  int64_t shape[] = {4, 4};
  for (const char* scope : {static_cast<const char*>(nullptr), "", "global"}) {
    CHECK_EQ(TVMDeviceAllocDataSpaceWithScope(Cpu(), 2, shape, DataTypeOf<float>(), scope, &data), 0);
    std::memset(data, 0, 64);
    CHECK_EQ(TVMDeviceFreeDataSpace(Cpu(), data), 0);
  }
  CHECK_EQ(TVMDeviceAllocDataSpaceWithScope(Cpu(), 2, shape, DataTypeOf<float>(), "texture", &data), -1);
  CHECK(Contains(LastError(), "memory of the scope 'texture' on cpu:0"));
}

// ---- Objects ------------------------------------------------------------------------------------------------------

TEST("objects tell their type, and types their keys and parents") {
  Shape shape{1};
  unsigned index = 0, object = 0;
  CHECK_EQ(TVMObjectGetTypeIndex(shape.get(), &index), 0);
  CHECK_EQ(index, static_cast<unsigned>(kTVMFFIShape));
  char* key = nullptr;
  CHECK_EQ(TVMObjectTypeIndex2Key(index, &key), 0);
  CHECK_EQ(key, "ffi.Shape");
  std::free(key);
  CHECK_EQ(TVMObjectTypeKey2Index("ffi.Object", &object), 0);
  int derived = -1;
  CHECK_EQ(TVMObjectDerivedFrom(index, object, &derived), 0);
  CHECK_EQ(derived, 1);
  CHECK_EQ(TVMObjectDerivedFrom(object, index, &derived), 0);
  CHECK_EQ(derived, 0);
  CHECK_EQ(TVMObjectRetain(shape.get()), 0);
  CHECK_EQ(shape.use_count(), 2u);
  CHECK_EQ(TVMObjectFree(shape.get()), 0);
  CHECK(shape.unique());
}

// ---- Bad input ----------------------------------------------------------------------------------------------------

TEST("every wrong argument is an error with a text, and nothing else") {
  Shape shape{1};
  PackedFunc func = FromC(AddInts);
  void* shape_handle = shape.get();
  void* out = nullptr;
  alignas(8) char garbage[72] = "not an object";
  void* aligned = garbage;
  void* misaligned = garbage + 1;
  DLTensor tensor{};
  TVMArrayHandle array = AllocFloats(2), other = AllocFloats(3);
  int64_t extent = -1, huge[] = {INT64_MAX, INT64_MAX, 16};
  TVMValue value{};
  int code = kTVMArgInt, number = 0, bad_code = 42;
  unsigned index = 0;
  TVMByteArray bytes{};
  DLManagedTensor* managed = nullptr;
  const std::function<int()> calls[] = {
      [&] { return TVMFuncCall(nullptr, nullptr, nullptr, 0, &value, &code); },
      [&] { return TVMFuncCall(shape_handle, nullptr, nullptr, 0, &value, &code); },
      [&] { return TVMFuncCall(aligned, nullptr, nullptr, 0, &value, &code); },
      [&] { return TVMFuncCall(misaligned, nullptr, nullptr, 0, &value, &code); },
      [&] { return TVMFuncCall(func.get(), nullptr, nullptr, -1, &value, &code); },
      [&] { return TVMFuncCall(func.get(), nullptr, nullptr, 1, &value, &code); },
      [&] { return TVMFuncCall(func.get(), &value, nullptr, 1, &value, &code); },
      [&] { return TVMFuncCall(func.get(), &value, &code, 1, nullptr, &code); },
      [&] { return TVMFuncCall(func.get(), &value, &code, 1, &value, nullptr); },
      [&] { return TVMFuncCall(func.get(), &value, &bad_code, 1, &value, &code); },
      [&] { return TVMFuncFree(shape_handle); },
      [&] { return TVMFuncCreateFromCFunc(nullptr, nullptr, nullptr, &out); },
      [&] { return TVMFuncCreateFromCFunc(AddInts, nullptr, nullptr, nullptr); },
      [&] { return TVMCFuncSetReturn(nullptr, &value, &code, 1); },
      [&] { return TVMCFuncSetReturn(&out, nullptr, &code, 1); },
      [&] { return TVMCFuncSetReturn(&out, &value, nullptr, 1); },
      [&] { return TVMCFuncSetReturn(&out, &value, &code, 2); },
      [&] { return TVMCFuncSetReturn(&out, &value, &bad_code, 1); },
      [&] { return TVMCbArgToReturn(nullptr, &code); },
      [&] { return TVMCbArgToReturn(&value, nullptr); },
      [&] { return TVMCbArgToReturn(&value, &bad_code); },
      [&] { return TVMFuncRegisterGlobal(nullptr, func.get(), 0); },
      [&] { return TVMFuncRegisterGlobal("", func.get(), 0); },
      [&] { return TVMFuncRegisterGlobal("classic.bad", nullptr, 0); },
      [&] { return TVMFuncRegisterGlobal("classic.bad", shape_handle, 0); },
      [&] { return TVMFuncGetGlobal(nullptr, &out); },
      [&] { return TVMFuncGetGlobal("x", nullptr); },
      [&] { return TVMFuncListGlobalNames(nullptr, nullptr); },
      [&] { return TVMFuncRemoveGlobal(nullptr); },
      [&] { return TVMModLoadFromFile(nullptr, "so", &out); },
      [&] { return TVMModLoadFromFile("x.so", "so", nullptr); },
      [&] { return TVMModImport(nullptr, nullptr); },
      [&] { return TVMModImport(shape_handle, shape_handle); },
      [&] { return TVMModGetFunction(nullptr, "x", 0, &out); },
      [&] { return TVMModGetFunction(func.get(), "x", 0, &out); },
      [&] { return TVMModFree(func.get()); },
      [&] { return TVMArrayAlloc(nullptr, 1, kDLFloat, 32, 1, kDLCPU, 0, &array); },
      [&] { return TVMArrayAlloc(&extent, 1, kDLFloat, 32, 1, kDLCPU, 0, &array); },
      [&] { return TVMArrayAlloc(&extent, -1, kDLFloat, 32, 1, kDLCPU, 0, &array); },
      [&] { return TVMArrayAlloc(huge, 3, kDLFloat, 32, 1, kDLCPU, 0, &array); },
      [&] { return TVMArrayAlloc(nullptr, 0, -1, 32, 1, kDLCPU, 0, &array); },
      [&] { return TVMArrayAlloc(nullptr, 0, kDLFloat, 0, 1, kDLCPU, 0, &array); },
      [&] { return TVMArrayAlloc(nullptr, 0, kDLFloat, 32, 0, kDLCPU, 0, &array); },
      [&] { return TVMArrayAlloc(nullptr, 0, kDLFloat, 32, 70000, kDLCPU, 0, &array); },
      [&] { return TVMArrayAlloc(nullptr, 0, kDLFloat, 32, 1, 99, 0, &array); },
      [&] { return TVMArrayAlloc(nullptr, 0, kDLFloat, 32, 1, kDLCPU, 7, &array); },
      [&] { return TVMArrayAlloc(nullptr, 0, kDLFloat, 32, 1, kDLCPU, 0, nullptr); },
      [&] { return TVMArrayCopyFromBytes(nullptr, garbage, 1); },
      [&] { return TVMArrayCopyFromBytes(array, nullptr, 8); },
      [&] { return TVMArrayCopyFromBytes(array, garbage, 7); },
      [&] { return TVMArrayCopyToBytes(nullptr, garbage, 1); },
      [&] { return TVMArrayCopyToBytes(array, nullptr, 8); },
      [&] {
        tensor = {garbage, Cpu(), -1, DataTypeOf<float>(), nullptr, nullptr, 0};
        return TVMArrayCopyToBytes(&tensor, garbage, 4);
      },
      [&] {
        tensor = {garbage, Cpu(), 1, DataTypeOf<float>(), nullptr, nullptr, 0};
        return TVMArrayCopyToBytes(&tensor, garbage, 4);
      },
      [&] {
        tensor = {garbage, Cpu(), 1, DataTypeOf<float>(), &extent, nullptr, 0};
        return TVMArrayCopyToBytes(&tensor, garbage, 4);
      },
      [&] {
        tensor = {garbage, Cpu(), 3, DataTypeOf<float>(), huge, nullptr, 0};
        return TVMArrayCopyToBytes(&tensor, garbage, 4);
      },
      [&] {
        tensor = {nullptr, Cpu(), 0, DataTypeOf<float>(), nullptr, nullptr, 0};
        return TVMArrayCopyToBytes(&tensor, garbage, 4);
      },
      [&] { return TVMArrayCopyFromTo(array, other, nullptr); },
      [&] { return TVMArrayCopyFromTo(array, nullptr, nullptr); },
      [&] { return TVMArrayFromDLPack(nullptr, &array); },
      [&] { return TVMArrayToDLPack(nullptr, &managed); },
      [&] { return TVMArrayToDLPack(array, nullptr); },
      [&] { return TVMByteArrayFree(&bytes); },
      [&] { return TVMStreamCreate(99, 0, &out); },
      [&] { return TVMStreamCreate(kDLCPU, 0, nullptr); },
      [&] { return TVMStreamFree(99, 0, nullptr); },
      [&] { return TVMSetStream(99, 0, nullptr); },
      [&] { return TVMSynchronize(99, 0, nullptr); },
      [&] { return TVMStreamStreamSynchronize(99, 0, nullptr, nullptr); },
      [&] { return TVMDeviceAllocDataSpace({99, 0}, 1, 64, DataTypeOf<float>(), &out); },
      [&] { return TVMDeviceAllocDataSpace(Cpu(), 1, 3, DataTypeOf<float>(), &out); },
      [&] { return TVMDeviceAllocDataSpace(Cpu(), 1, 64, DataTypeOf<float>(), nullptr); },
      [&] { return TVMDeviceAllocDataSpaceWithScope(Cpu(), -1, nullptr, DataTypeOf<float>(), "", &out); },
      [&] { return TVMDeviceAllocDataSpaceWithScope(Cpu(), 1, nullptr, DataTypeOf<float>(), "", &out); },
      [&] { return TVMDeviceFreeDataSpace({99, 0}, nullptr); },
      [&] { return TVMDeviceCopyDataFromTo(nullptr, nullptr, nullptr); },
      [&] { return TVMObjectGetTypeIndex(nullptr, &index); },
      [&] { return TVMObjectGetTypeIndex(aligned, &index); },
      [&] { return TVMObjectGetTypeIndex(shape_handle, nullptr); },
      [&] { return TVMObjectTypeKey2Index(nullptr, &index); },
      [&] { return TVMObjectTypeKey2Index("no.such.Type", &index); },
      [&] { return TVMObjectTypeIndex2Key(63, reinterpret_cast<char**>(&out)); },
      [&] { return TVMObjectTypeIndex2Key(UINT_MAX, reinterpret_cast<char**>(&out)); },
      [&] { return TVMObjectDerivedFrom(63, 64, &number); },
      [&] { return TVMObjectDerivedFrom(64, UINT_MAX, &number); },
      [&] { return TVMObjectRetain(nullptr); },
      [&] { return TVMObjectFree(aligned); },
      [&] { return TVMExtTypeFree(nullptr, 17); },
  };
  int i = 0;
  for (const auto& call : calls) {
    TVMFFIErrorSetRaised(nullptr);
    if (call() != -1) check::Report(__FILE__, __LINE__, "bad call " + std::to_string(i) + " was not refused");
    TVMFFIObjectHandle error = nullptr;
    TVMFFIErrorMoveFromRaised(&error);
    if (!error || Error(ObjectRef::Steal(error)).message().empty()) {
      check::Report(__FILE__, __LINE__, "bad call " + std::to_string(i) + " gave no error");
    }
    ++i;
  }
  CHECK_EQ(Call(func.get(), {Int(1), Int(2)}).result.value.v_int64, 3);
  CHECK(shape.unique() && func.unique());
  CHECK_EQ(TVMArrayFree(array), 0);
  CHECK_EQ(TVMArrayFree(other), 0);
}

TEST("freeing NULL does nothing") {
  CHECK_EQ(TVMFuncFree(nullptr), 0);
  CHECK_EQ(TVMModFree(nullptr), 0);
  CHECK_EQ(TVMArrayFree(nullptr), 0);
  CHECK_EQ(TVMObjectFree(nullptr), 0);
  CHECK_EQ(TVMByteArrayFree(nullptr), 0);
  CHECK_EQ(TVMDeviceFreeDataSpace(Cpu(), nullptr), 0);
}

TEST("threads call through both doors at once") {
  TVMFuncRegisterGlobal("classic.threads", FromC(AddInts).get(), 1);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&wrong, t] {
      std::string text = "text of thread number " + std::to_string(t);
      std::string failure = "ValueError: of thread " + std::to_string(t);
      PackedFunc fail = FromC(FailWith);
      for (int i = 0; i < 200; ++i) {
        TVMFunctionHandle add = nullptr;
        if (TVMFuncGetGlobal("classic.threads", &add) != 0) ++wrong;
        if (Call(add, {Int(t), Int(i)}).result.value.v_int64 != t + i) ++wrong;
        if (Echo(Str(text.c_str())).result.value.v_str != text) ++wrong;
        if (Call(fail.get(), {Str(failure.c_str())}).status == 0 || LastError() != failure) ++wrong;
        TVMFuncFree(add);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  TVMFuncRemoveGlobal("classic.threads");
}
