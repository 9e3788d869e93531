// SPDX-License-Identifier: Apache-2.0
// Arrays, modules, devices and objects of the classic C API, and its answers to bad input.
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/classic/c_api.h"

using namespace portcall;
using namespace portcall::tests;

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
