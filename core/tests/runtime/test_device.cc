// SPDX-License-Identifier: Apache-2.0
// Kinds of devices: registration, attributes, streams, and the allocator that an array library may bring.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/fake_device.h"
#include "tests/helpers.h"

using namespace portcall;

namespace {

constexpr int32_t kSpare = 90;  // this and the kinds that follow belong to this file

PortcallDeviceAPI MinimalTable() {
  PortcallDeviceAPI api{};
  api.struct_size = sizeof(api);
  api.get_attr = [](void*, DLDevice, PortcallDeviceAttr, TVMFFIAny* out) {
    *out = Any(true).release();
    return 0;
  };
  api.alloc = [](void*, DLDevice, size_t, size_t, DLDataType, void**) {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "it has no memory");
    return -1;
  };
  api.free = [](void*, DLDevice, void*) { return 0; };
  api.copy = [](void*, const void*, size_t, DLDevice, void*, size_t, DLDevice, size_t, void*) { return 0; };
  return api;
}

Any Attr(Device device, int attr) {
  return Registry::Get("runtime.GetDeviceAttr")(device.device_type, device.device_id, attr);
}

}  // namespace

TEST("a device is shown by kind and index") {
  CHECK_EQ(ToString(Cpu()), "cpu:0");
  CHECK_EQ(ToString(Device{kDLExtDev, 3}), "ext_dev:3");
  CHECK_EQ(ToString(Device{77, 1}), "device(77):1");
  CHECK(Cpu(1) == (Device{kDLCPU, 1}));
  CHECK(!(Cpu(1) == Cpu(0)));
}

namespace elsewhere {
// Operators of C's types are found from any namespace.
bool Same(DLDevice a, DLDevice b) { return a == b && !(a != b); }
bool Same(DLDataType a, DLDataType b) { return a == b && !(a != b); }
}  // namespace elsewhere

TEST("devices and data types are compared and printed") {
  CHECK(elsewhere::Same(Cpu(1), Cpu(1)) && !elsewhere::Same(Cpu(), Cpu(1)));
  CHECK(elsewhere::Same(DataTypeOf<float>(), DataTypeFromString("float32")));
  std::ostringstream out;
  out << Cpu() << ' ' << DataTypeOf<float>() << ' ' << Shape{2, 3};
  CHECK_EQ(out.str(), "cpu:0 float32 (2, 3)");
}

TEST("the name of a device reads back as the device") {
  for (int32_t kind : {kDLCPU, kDLCUDA, kDLExtDev, kDLTrn}) {
    Device device{kind, 3};
    CHECK(DeviceFromString(ToString(device)) == device);
  }
  CHECK(DeviceFromString("cuda") == (Device{kDLCUDA, 0}));
  CHECK(DeviceFromString("cpu:999999999") == Cpu(999999999));
  for (const char* text : {"", ":", "gpu", "cpu:", "cpu:-1", "cpu:1x", "cpu: 1", "cpu:9999999999", "CPU"}) {
    CHECK_EQ(Thrown([&] { DeviceFromString(text); }), std::string("ValueError: no device is called '") + text +
                                                          "': a device is a kind and an index, as cpu:0 or cuda:1");
  }
}

TEST("a kind is registered once") {
  PortcallDeviceAPI api = MinimalTable();
  CHECK_EQ(PortcallDeviceRegister(kSpare, &api), 0);
  CHECK_EQ(PortcallDeviceRegister(kSpare, &api), -1);
  CHECK_EQ(Raised(), "AlreadyRegisteredError: the device kind device(90) is already registered");
  CHECK_EQ(PortcallDeviceRegister(kDLCPU, &api), -1);
  CHECK_EQ(Raised(), "AlreadyRegisteredError: the device kind cpu is already registered");
  CHECK_THROWS(DeviceRegistration(kSpare, api), Error);
}

TEST("a kind outside the table is refused") {
  PortcallDeviceAPI api = MinimalTable();
  for (int32_t kind : {-1, 0, 128, 1 << 30}) {
    CHECK_EQ(PortcallDeviceRegister(kind, &api), -1);
    CHECK_EQ(Raised(), "ValueError: device type " + std::to_string(kind) + " is not between 1 and 127");
  }
}

TEST("a table that is too short or lacks a function is refused") {
  PortcallDeviceAPI api = MinimalTable();
  api.struct_size = 0;
  CHECK_EQ(PortcallDeviceRegister(kSpare + 1, &api), -1);
  CHECK(Contains(Raised(), "is too short: set struct_size"));
  CHECK_EQ(PortcallDeviceRegister(kSpare + 1, nullptr), -1);
  CHECK(Contains(Raised(), "is too short"));
  for (int missing = 0; missing < 4; ++missing) {
    api = MinimalTable();
    if (missing == 0) api.get_attr = nullptr;
    if (missing == 1) api.alloc = nullptr;
    if (missing == 2) api.free = nullptr;
    if (missing == 3) api.copy = nullptr;
    CHECK_EQ(PortcallDeviceRegister(kSpare + 1, &api), -1);
    CHECK(Contains(Raised(), "lacks get_attr, alloc, free or copy"));
  }
}

TEST("a table of an older caller is taken as far as it goes") {
  PortcallDeviceAPI api = MinimalTable();
  api.struct_size = offsetof(PortcallDeviceAPI, create_stream);
  api.sync_stream = [](void*, DLDevice, void*) {
    CHECK(false);  // beyond the end
    return -1;
  };
  CHECK_EQ(PortcallDeviceRegister(kSpare + 2, &api), 0);
  CHECK_EQ(PortcallDeviceSync({kSpare + 2, 0}, nullptr), 0);
  CHECK(DeviceApiOf({kSpare + 2, 0}).create_stream == nullptr);
}

TEST("a kind that nobody registered is an error that names it") {
  const PortcallDeviceAPI* api = nullptr;
  CHECK_EQ(PortcallDeviceGetAPI(kDLMetal, &api), -1);
  CHECK(Contains(Raised(), "DeviceError: this process has no support for device kind 'metal'"));
  CHECK_EQ(PortcallDeviceGetAPI(-3, &api), -1);
  CHECK(Contains(Raised(), "device(-3)"));
  CHECK_EQ(PortcallDeviceSync({kDLMetal, 0}, nullptr), -1);
  CHECK(Contains(Raised(), "DeviceError"));
  CHECK(Contains(Thrown([] { Tensor::Empty({1}, DataTypeFromString("int8"), {kDLMetal, 0}); }), "DeviceError"));
  CHECK(Contains(Thrown([] { Registry::Get("__tvm_set_device")(kDLMetal, 0); }), "DeviceError"));
}

TEST("whether a device exists is never an error") {
  CHECK_EQ(Attr({kDLMetal, 0}, kPortcallAttrExist).cast<bool>(), false);
  CHECK_EQ(Attr(Cpu(), kPortcallAttrExist).cast<bool>(), true);
  CHECK_EQ(Attr(Cpu(1), kPortcallAttrExist).cast<bool>(), false);
  CHECK_EQ(Attr({-1, 0}, kPortcallAttrExist).cast<bool>(), false);
  CHECK(Contains(Thrown([] { Attr({kDLMetal, 0}, kPortcallAttrDeviceName); }), "DeviceError"));
}

TEST("the host tells what it has, and None for what makes no sense there") {
  CHECK(Attr(Cpu(), kPortcallAttrMultiProcessorCount).cast<int>() > 0);
  CHECK(Attr(Cpu(), kPortcallAttrTotalGlobalMemory).cast<int64_t>() > 0);
  CHECK(!Attr(Cpu(), kPortcallAttrDeviceName).cast<std::string>().empty());
  CHECK(Attr(Cpu(), kPortcallAttrWarpSize) == nullptr);
  for (int unknown : {16, 100, -1}) CHECK(Attr(Cpu(), unknown) == nullptr);
}

TEST("an accelerator is asked by its kind") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  CHECK(Attr(fake.device(), kPortcallAttrExist).cast<bool>());
  CHECK(!Attr(fake.device(7), kPortcallAttrExist).cast<bool>());
  CHECK_EQ(Attr(fake.device(), kPortcallAttrDeviceName).cast<String>(), "a fake accelerator");
  size_t before = fake.chosen().size();
  Registry::Get("__tvm_set_device")(kDLExtDev, 1);
  CHECK_EQ(fake.chosen().size(), before + 1);
  CHECK_EQ(fake.chosen().back(), 1);
  CHECK(Contains(Thrown([] { Registry::Get("__tvm_set_device")(kDLExtDev, 5); }), "DeviceError: there are two"));
  auto types = Registry::Get("portcall.DeviceTypes")().cast<std::vector<int64_t>>();
  for (int64_t type : {kDLCPU, kDLExtDev}) CHECK_EQ(std::count(types.begin(), types.end(), type), 1);
}

TEST("the error of a device's table arrives as it was raised") {
  PortcallDeviceAPI api = MinimalTable();
  CHECK_EQ(PortcallDeviceRegister(kSpare + 3, &api), 0);
  int64_t before = LiveNodes("ffi.Tensor");
  CHECK_EQ(Thrown([] { Tensor::Empty({1}, DataTypeFromString("int8"), {kSpare + 3, 0}); }),
           "MemoryError: it has no memory");
  CHECK_EQ(LiveNodes("ffi.Tensor"), before);
}

TEST("kinds are registered from many threads, each by one of them") {
  PortcallDeviceAPI api = MinimalTable();
  std::atomic<int> won{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int32_t kind = 110; kind < 120; ++kind) {
        if (PortcallDeviceRegister(kind, &api) == 0) ++won;
        Raised();
        CHECK(DeviceApiOf({kind, 0}).copy == api.copy);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(won, 10);
}

// ---- Streams ------------------------------------------------------------------------------------------------------

TEST("each thread has a current stream for each device, none at first") {
  int a = 0, b = 0;
  void* old = &a;
  CHECK(TVMFFIEnvGetStream(kDLExtDev, 5) == nullptr);
  CHECK_EQ(TVMFFIEnvSetStream(kDLExtDev, 5, &a, &old), 0);
  CHECK(old == nullptr);
  CHECK(TVMFFIEnvGetStream(kDLExtDev, 5) == &a);
  CHECK(TVMFFIEnvGetStream(kDLExtDev, 4) == nullptr);
  CHECK(TVMFFIEnvGetStream(kDLCUDA, 5) == nullptr);
  std::thread([] { CHECK(TVMFFIEnvGetStream(kDLExtDev, 5) == nullptr); }).join();
  CHECK_EQ(TVMFFIEnvSetStream(kDLExtDev, 5, &b, nullptr), 0);
  CHECK_EQ(TVMFFIEnvSetStream(kDLExtDev, 5, nullptr, &old), 0);
  CHECK(old == &b);
}

TEST("work waits in its stream until it is synchronized") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  Tensor a = Tensor::Empty({16}, DataTypeFromString("uint8"), fake.device());
  Tensor b = Tensor::Empty({16}, DataTypeFromString("uint8"), fake.device());
  void* stream = fake.CreateStream();
  CHECK_EQ(TVMFFIEnvSetStream(kDLExtDev, 0, stream, nullptr), 0);
  b.CopyFrom(a);  // within the device: queued
  CHECK_EQ(fake.pending(), 1);
  CHECK_EQ(PortcallDeviceSync(fake.device(), nullptr), 0);  // another stream
  CHECK_EQ(fake.pending(), 1);
  Registry::Get("portcall.DeviceStream")(6, fake.device(), 0, 0);  // the current one
  CHECK_EQ(fake.pending(), 0);
  CHECK_EQ(TVMFFIEnvSetStream(kDLExtDev, 0, nullptr, nullptr), 0);
  fake.FreeStream(stream);
}

TEST("the host is always in step") { CHECK_EQ(PortcallDeviceSync(Cpu(), nullptr), 0); }

// ---- The allocator of an array library ----------------------------------------------------------------------------

namespace {

std::atomic<int> managed_alive{0};

struct Managed {
  DLManagedTensorVersioned tensor{};
  std::vector<int64_t> shape;
  std::vector<char> memory;
};

int AllocManaged(DLTensor* prototype, DLManagedTensorVersioned** out, void*,
                 void (*)(void*, const char*, const char*)) {
  auto* managed = new Managed();
  managed->shape.assign(prototype->shape, prototype->shape + prototype->ndim);
  managed->memory.resize(NumBytes(*prototype));
  managed->tensor.version = {DLPACK_MAJOR_VERSION, 0};
  managed->tensor.manager_ctx = managed;
  managed->tensor.deleter = [](DLManagedTensorVersioned* self) {
    --managed_alive;
    delete static_cast<Managed*>(self->manager_ctx);
  };
  managed->tensor.dl_tensor = *prototype;
  managed->tensor.dl_tensor.data = managed->memory.data();
  managed->tensor.dl_tensor.shape = managed->shape.data();
  managed->tensor.dl_tensor.strides = nullptr;
  managed->tensor.dl_tensor.byte_offset = 0;
  ++managed_alive;
  *out = &managed->tensor;
  return 0;
}

int AllocOfTheFuture(DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
                     void (*set_error)(void*, const char*, const char*)) {
  AllocManaged(prototype, out, context, set_error);
  (*out)->version.major = 99;
  return 0;
}

int RefuseWithWords(DLTensor*, DLManagedTensorVersioned**, void* context,
                    void (*set_error)(void*, const char*, const char*)) {
  set_error(context, "MemoryError", "the pool is empty");
  return -1;
}

int RefuseSilently(DLTensor*, DLManagedTensorVersioned**, void*, void (*)(void*, const char*, const char*)) {
  return -1;
}
int GiveNothing(DLTensor*, DLManagedTensorVersioned**, void*, void (*)(void*, const char*, const char*)) { return 0; }

// A tensor by way of the environment, or the error.
std::string EnvAlloc(Tensor* out) {
  int64_t shape[2] = {2, 3};
  DLTensor prototype{};
  prototype.device = Cpu();
  prototype.ndim = 2;
  prototype.dtype = {kDLFloat, 32, 1};
  prototype.shape = shape;
  TVMFFIObjectHandle handle = nullptr;
  if (TVMFFIEnvTensorAlloc(&prototype, &handle) != 0) return Raised();
  *out = ObjectRef::Steal<Tensor>(handle);
  return "";
}

// Sets this thread's allocator for a scope.
class WithAllocator {
 public:
  explicit WithAllocator(DLPackManagedTensorAllocator allocator) {
    TVMFFIEnvSetDLPackManagedTensorAllocator(allocator, 0, &old_);
  }
  WithAllocator(const WithAllocator&) = delete;
  WithAllocator& operator=(const WithAllocator&) = delete;
  ~WithAllocator() { TVMFFIEnvSetDLPackManagedTensorAllocator(old_, 0, nullptr); }

 private:
  DLPackManagedTensorAllocator old_ = nullptr;
};

}  // namespace

TEST("compiled code gets the device's memory where no array library brought its own") {
  CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr);
  Tensor tensor;
  CHECK_EQ(EnvAlloc(&tensor), "");
  CHECK_EQ(tensor.numel(), 6);
  CHECK(tensor.is_contiguous());
}

TEST("an array library's allocator is used, and its memory goes back to it") {
  {
    WithAllocator scope(AllocManaged);
    CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == AllocManaged);
    Tensor tensor;
    CHECK_EQ(EnvAlloc(&tensor), "");
    CHECK_EQ(managed_alive, 1);
    CHECK(tensor.shape(0) == 2 && tensor.shape(1) == 3);
    std::memset(tensor.data<float>(), 0, 24);
  }
  CHECK_EQ(managed_alive, 0);
  CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr);
}

TEST("an allocator belongs to its thread unless it is set for all") {
  std::thread([] {
    WithAllocator scope(AllocManaged);
    std::thread([] { CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr); }).join();
  }).join();
  TVMFFIEnvSetDLPackManagedTensorAllocator(AllocManaged, 1, nullptr);
  std::thread([] {
    CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == AllocManaged);
    WithAllocator scope(GiveNothing);
    CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == GiveNothing);
  }).join();
  TVMFFIEnvSetDLPackManagedTensorAllocator(nullptr, 1, nullptr);
  CHECK(TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr);
}

TEST("an allocator that fails is an error, with its words or without, and leaves nothing behind") {
  Tensor tensor;
  {
    WithAllocator scope(RefuseWithWords);
    CHECK_EQ(EnvAlloc(&tensor), "MemoryError: the pool is empty");
  }
  {
    WithAllocator scope(RefuseSilently);
    CHECK_EQ(EnvAlloc(&tensor), "RuntimeError: the tensor allocator failed without saying why");
  }
  {
    WithAllocator scope(GiveNothing);
    CHECK_EQ(EnvAlloc(&tensor), "RuntimeError: the tensor allocator returned no tensor");
  }
  {
    WithAllocator scope(AllocOfTheFuture);
    CHECK(Contains(EnvAlloc(&tensor), "BufferError: the tensor uses DLPack99.0"));
    CHECK_EQ(managed_alive, 0);
  }
}
