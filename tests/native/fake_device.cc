// SPDX-License-Identifier: Apache-2.0
// A fake accelerator: two devices of kind ext_dev with memory of their own.
//
// Addresses lie in a range that is reserved and never readable, so code that takes device memory for the host's crashes
// at once; the bytes live elsewhere. Work on a stream is queued and done when somebody waits for the stream, so a
// missing wait shows as old data. Allocation can be limited, and copies can be made to fail.
#include <portcall/portcall.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

using namespace portcall;

namespace {

constexpr size_t kAddressSpace = size_t{1} << 36;
constexpr int kNumDevices = 2;

using Stream = std::vector<std::function<void()>>;

struct FakeDevice {
  std::mutex mutex;
  char* base = nullptr;
  size_t next = 0;
  std::map<uintptr_t, std::pair<int, std::vector<char>>> blocks;  // device address -> (device, bytes)
  Stream default_stream;
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  size_t capacity = size_t{64} << 20;
  bool fail_copies = false;
  std::map<std::string, int64_t> counts;

  FakeDevice() {
    base =
        static_cast<char*>(mmap(nullptr, kAddressSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }

  size_t Used(int device) const {
    size_t used = 0;
    for (const auto& [address, block] : blocks) used += block.first == device ? block.second.size() : 0;
    return used;
  }

  char* Bytes(const void* address, size_t offset, size_t nbytes, int device) {
    auto at = reinterpret_cast<uintptr_t>(address) + offset;
    auto it = blocks.upper_bound(at);
    PORTCALL_CHECK(it != blocks.begin(), DeviceError) << "address " << address << " is not on the device";
    --it;
    PORTCALL_CHECK(at + nbytes <= it->first + it->second.second.size(), DeviceError)
        << nbytes << " bytes at " << address << " + " << offset << " are beyond the block";
    PORTCALL_CHECK(it->second.first == device, DeviceError)
        << "address " << address << " is on device " << it->second.first << ", not " << device;
    return it->second.second.data() + (at - it->first);
  }

  Stream& StreamOf(void* stream) { return stream ? *static_cast<Stream*>(stream) : default_stream; }
  void Finish(Stream& stream) {
    for (auto& work : std::exchange(stream, {})) work();
  }
  void FinishAll() {
    Finish(default_stream);
    for (auto& [key, stream] : streams) Finish(*stream);
  }
};

FakeDevice& Fake() {
  static auto* fake = new FakeDevice();  // never destroyed: tensors are freed until the very end
  return *fake;
}

bool IsOurs(DLDevice device) { return device.device_type == kDLExtDev; }

// Each function of the table: under the lock, counted, errors raised.
template <typename Body> int Do(const char* what, Body body) {
  return Guard([&] {
    std::lock_guard<std::mutex> lock(Fake().mutex);
    ++Fake().counts[what];
    body(Fake());
  });
}

int SetDevice(void*, DLDevice device) {
  return Do("set_device", [&](FakeDevice& fake) { fake.counts["current"] = device.device_id; });
}

int GetAttr(void*, DLDevice device, PortcallDeviceAttr attr, TVMFFIAny* out) {
  return Do("get_attr", [&](FakeDevice& fake) {
    Any value;
    bool exists = device.device_id >= 0 && device.device_id < kNumDevices;
    switch (attr) {
      case kPortcallAttrExist:
        value = exists;
        break;
      case kPortcallAttrDeviceName:
        value = "fake accelerator";
        break;
      case kPortcallAttrComputeVersion:
        value = "9.0";
        break;
      case kPortcallAttrMaxThreadsPerBlock:
        value = 1024;
        break;
      case kPortcallAttrWarpSize:
        value = 32;
        break;
      case kPortcallAttrTotalGlobalMemory:
        value = static_cast<int64_t>(fake.capacity);
        break;
      case kPortcallAttrAvailableGlobalMemory:
        value = static_cast<int64_t>(fake.capacity - fake.Used(device.device_id));
        break;
      default:
        break;
    }
    *out = value.release();
  });
}

int Alloc(void*, DLDevice device, size_t nbytes, size_t alignment, DLDataType, void** out) {
  return Do("alloc", [&](FakeDevice& fake) {
    PORTCALL_CHECK(device.device_id >= 0 && device.device_id < kNumDevices, DeviceError)
        << "there is no device " << ToString(device) << "; there are " << kNumDevices;
    PORTCALL_CHECK(fake.Used(device.device_id) + nbytes <= fake.capacity, MemoryError)
        << ToString(device) << " has no " << nbytes << " bytes left";
    fake.next = (fake.next + alignment - 1) / alignment * alignment;
    char* address = fake.base + fake.next;
    fake.blocks[reinterpret_cast<uintptr_t>(address)] = {device.device_id, std::vector<char>(nbytes, '\xEE')};
    fake.next += nbytes + alignment;  // never reused: a stale address is always an error
    *out = address;
  });
}

int Free(void*, DLDevice device, void* address) {
  return Do("free", [&](FakeDevice& fake) {
    fake.FinishAll();
    fake.Bytes(address, 0, 0, device.device_id);
    fake.blocks.erase(reinterpret_cast<uintptr_t>(address));
  });
}

int Copy(void*, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
         DLDevice to_device, size_t nbytes, void* stream) {
  return Do("copy", [&](FakeDevice& fake) {
    PORTCALL_CHECK(!fake.fail_copies, DeviceError) << "the bus is on fire";
    PORTCALL_CHECK(IsOurs(from_device) || IsOurs(to_device), DeviceError) << "a copy that concerns other devices";
    const char* source = IsOurs(from_device) ? fake.Bytes(from, from_offset, nbytes, from_device.device_id)
                                             : static_cast<const char*>(from) + from_offset;
    char* target =
        IsOurs(to_device) ? fake.Bytes(to, to_offset, nbytes, to_device.device_id) : static_cast<char*>(to) + to_offset;
    fake.StreamOf(stream).push_back([=] { std::memcpy(target, source, nbytes); });
  });
}

int CreateStream(void*, DLDevice, void** out) {
  return Do("create_stream", [&](FakeDevice& fake) {
    auto stream = std::make_unique<Stream>();
    *out = stream.get();
    fake.streams[stream.get()] = std::move(stream);
  });
}

int FreeStream(void*, DLDevice, void* stream) {
  return Do("free_stream", [&](FakeDevice& fake) {
    fake.Finish(fake.StreamOf(stream));
    fake.streams.erase(static_cast<Stream*>(stream));
  });
}

int SyncStream(void*, DLDevice, void* stream) {
  return Do("sync_stream", [&](FakeDevice& fake) { fake.Finish(fake.StreamOf(stream)); });
}

const DeviceRegistration registration(kDLExtDev, [] {
  PortcallDeviceAPI api{};
  api.struct_size = sizeof(api);
  api.set_device = SetDevice;
  api.get_attr = GetAttr;
  api.alloc = Alloc;
  api.free = Free;
  api.copy = Copy;
  api.create_stream = CreateStream;
  api.free_stream = FreeStream;
  api.sync_stream = SyncStream;
  return api;
}());

// ---- What the tests ask and set -----------------------------------------------------------------------------------

PORTCALL_REGISTER_GLOBAL("portcall_test.fake.count").set_body_typed([](std::string what) {
  std::lock_guard<std::mutex> lock(Fake().mutex);
  if (what == "blocks") return static_cast<int64_t>(Fake().blocks.size());
  if (what == "streams") return static_cast<int64_t>(Fake().streams.size());
  if (what == "pending") {
    size_t pending = Fake().default_stream.size();
    for (auto& [key, stream] : Fake().streams) pending += stream->size();
    return static_cast<int64_t>(pending);
  }
  return Fake().counts[what];
});
PORTCALL_REGISTER_GLOBAL("portcall_test.fake.set_capacity").set_body_typed([](int64_t nbytes) {
  std::lock_guard<std::mutex> lock(Fake().mutex);
  Fake().capacity = static_cast<size_t>(nbytes);
});
PORTCALL_REGISTER_GLOBAL("portcall_test.fake.fail_copies").set_body_typed([](bool fail) {
  std::lock_guard<std::mutex> lock(Fake().mutex);
  Fake().fail_copies = fail;
});
// Creates a stream and makes it this thread's current one for a device; returns it.
PORTCALL_REGISTER_GLOBAL("portcall_test.fake.enter_stream").set_body_typed([](Device device) {
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  void* stream = nullptr;
  Check(api.create_stream(api.ctx, device, &stream));
  Check(TVMFFIEnvSetStream(device.device_type, device.device_id, stream, nullptr));
  return stream;
});
PORTCALL_REGISTER_GLOBAL("portcall_test.fake.leave_stream").set_body_typed([](Device device) {
  void* stream = nullptr;
  Check(TVMFFIEnvSetStream(device.device_type, device.device_id, nullptr, &stream));
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  Check(api.free_stream(api.ctx, device, stream));
});
PORTCALL_REGISTER_GLOBAL("portcall_test.fake.register_again").set_body_typed([] {
  const PortcallDeviceAPI& api = DeviceApiOf({kDLExtDev, 0});
  Check(PortcallDeviceRegister(kDLExtDev, &api));
});
PORTCALL_REGISTER_GLOBAL("portcall_test.fake.register_type")
    .set_body_typed([](int32_t device_type, int64_t struct_size) {
      PortcallDeviceAPI api = DeviceApiOf({kDLExtDev, 0});
      api.struct_size = static_cast<uint32_t>(struct_size);
      if (struct_size < 0) {
        api.struct_size = sizeof(api);
        api.copy = nullptr;
      }
      Check(PortcallDeviceRegister(device_type, &api));
    });

}  // namespace

// A kernel of the accelerator: y = x + 1, queued on the current stream.
PORTCALL_EXPORT_TYPED(add_one, [](TensorView x, TensorView y) {
  Device device = x.device();
  PORTCALL_CHECK(IsOurs(device) && device == y.device(), ValueError)
      << "expected tensors on one ext_dev device, got " << ToString(device) << " and " << ToString(y.device());
  std::lock_guard<std::mutex> lock(Fake().mutex);
  size_t n = x.numel();
  const auto* from = reinterpret_cast<const float*>(
      Fake().Bytes(x.dl_tensor()->data, x.dl_tensor()->byte_offset, n * sizeof(float), device.device_id));
  auto* to = reinterpret_cast<float*>(
      Fake().Bytes(y.dl_tensor()->data, y.dl_tensor()->byte_offset, n * sizeof(float), device.device_id));
  Fake().StreamOf(TVMFFIEnvGetStream(device.device_type, device.device_id)).push_back([=] {
    for (size_t i = 0; i < n; ++i) to[i] = from[i] + 1;
  });
})
// A tensor over part of another, at an offset in elements: what a sub-allocator hands out.
PORTCALL_EXPORT_TYPED(part_of, [](Tensor whole, int64_t first, int64_t n) {
  DLTensor view = *whole.dl_tensor();
  view.shape = &n;
  view.ndim = 1;
  view.strides = nullptr;
  view.byte_offset += NumBytes(view.dtype, static_cast<size_t>(first));
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(whole.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
})
