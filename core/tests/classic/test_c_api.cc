// SPDX-License-Identifier: Apache-2.0
// The classic C API and the adapters between the two ABIs. Functions here are called as a classic C program would.
#include <string>
#include <thread>
#include <vector>

#include "tests/classic/c_api.h"

using namespace portcall;
using namespace portcall::tests;

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
  CHECK(Contains(Thrown([&] { keep("abc"); }), "TypeError: text and bytes cannot be kept"));
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
  CHECK_EQ(Thrown([&] { fail("ValueError: too small"); }), "ValueError: too small");
  PackedFunc thrower([](Args, RetValue*) { PORTCALL_THROW(KeyError) << "no such key"; });
  CHECK_EQ(Call(thrower.get(), {}).status, -1);
  CHECK_EQ(LastError(), "KeyError: no such key");
  CHECK(Contains(TVMGetLastBacktrace(), "test_c_api.cc"));
}

TEST("a function that fails without an error is an error with its name") {
  PackedFunc silent = FromC(FailSilently);
  TVMFFIErrorSetRaised(nullptr);
  CHECK_EQ(Thrown([&] { silent(); }), "RuntimeError: <anonymous>() failed (nonzero return) without setting an error");
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
  CHECK_EQ(Thrown([&] { outer(); }), "ValueError: the reason");
}

TEST("reading the last error takes nothing away, and its text stays where it is") {
  PackedFunc fail = FromC([](TVMValue*, int*, int, TVMRetValueHandle, void*) {
    TVMAPISetLastError("ValueError: first");
    CHECK_EQ(LastError(), "ValueError: first");
    return -1;
  });
  CHECK_EQ(Thrown([&] { fail(); }), "ValueError: first");
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
#ifndef PORTCALL_TEST_STATIC_CXX  // an exception leaves no library that has a C++ runtime of its own
  CHECK_THROWS(TVMThrowLastError(), Error);
#endif
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
  CHECK(Contains(Thrown([&] { code(1, Shape{1}); }), "TypeError: first_code(): argument #1: expected int, float"));
  CHECK(Contains(Thrown([&] { code(Array<Any>{Any(1)}); }), "argument #0"));
  CHECK(Contains(Thrown([&] { code(Array<Any>{Any(1)}); }), "got Array"));
  CHECK(Contains(Thrown([&] { code(std::string("a\0b", 3)); }), "argument #0: expected text without NUL"));
}

TEST("a library function refuses a tensor that is not aligned") {
  alignas(64) float data[32];
  int64_t extent = 1;
  DLTensor tensor{&data[1], Cpu(), 1, DataTypeOf<float>(), &extent, nullptr, 0};
  PackedFunc code = Library(LibraryFirstCode, "first_code");
  CHECK(Contains(Thrown([&] { code(1, &tensor); }),
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
  CHECK_EQ(Thrown([&] { strange(); }), "TypeError: strange(): its result has type code 99; expected one from 0 to 15");
}

TEST("a library function calls functions that it is given") {
  PackedFunc apply = Library(LibraryApply, "apply");
  CHECK_EQ(apply(FromC(AddInts), 1, 2).cast<int>(), 3);
  CHECK_EQ(apply(Registry::Get("testing.echo"), "a text that does not fit into a cell").cast<std::string>(),
           "a text that does not fit into a cell");
  Tensor tensor = Tensor::Empty({1}, DataTypeOf<float>());
  CHECK(apply(Registry::Get("testing.echo"), tensor).type_index() == kTVMFFIDLTensorPtr);
  CHECK_EQ(Thrown([&] { apply(FromC(FailWith), "IndexError: from within"); }), "IndexError: from within");
}

TEST("errors of a library function: its own, and the one it forgot") {
  PackedFunc fail = Library(LibraryFail, "forgetful");
  CHECK_EQ(Thrown([&] { fail("ValueError: negative element"); }), "ValueError: negative element");
  CHECK_EQ(Thrown([&] { fail("Assert fail: n is 2"); }), "RuntimeError: Assert fail: n is 2");
  CHECK_EQ(Thrown([&] { fail(); }), "RuntimeError: forgetful() failed (nonzero return) without setting an error");
}

TEST("a library function of three arguments has no result") {
  PackedFunc set = Library(Library06, "set");
  Tensor tensor = Tensor::Empty({1}, DataTypeOf<float>());
  CHECK(set(tensor, 5) == nullptr);
  CHECK_EQ(tensor.data<float>()[0], 5.0f);
  CHECK(Contains(Thrown([&] { set(5); }), "set() failed"));
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
