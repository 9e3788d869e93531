// SPDX-License-Identifier: Apache-2.0
// Kinds of devices, and the current stream of a thread.
#include "portcall/device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "portcall/function.h"
#include "runtime/device_table.h"

namespace portcall {
namespace {

constexpr int32_t kMaxDeviceType = 128;

struct DeviceTable {
  std::mutex mutex;
  std::atomic<const PortcallDeviceAPI*> apis[kMaxDeviceType] = {};
};

DeviceTable& Devices() {
  static auto* table = new DeviceTable();  // never destroyed: tensors are freed until the very end
  return *table;
}

const PortcallDeviceAPI* Registered(int32_t device_type) {
  return device_type > 0 && device_type < kMaxDeviceType ? Devices().apis[device_type].load() : nullptr;
}

// Null, after a search for a plug-in, if there is none. Throws what loading the plug-in throws.
const PortcallDeviceAPI* FindApi(int32_t device_type) {
  const PortcallDeviceAPI* api = Registered(device_type);
  if (api || device_type <= 0 || device_type > kDLTrn) return api;
  Registry::Get("portcall.LoadPlugin")(DeviceKindName(device_type));
  return Registered(device_type);
}

using DeviceKey = std::pair<int32_t, int32_t>;
thread_local std::map<DeviceKey, void*> streams;

// What a binding does with streams; each is its address, 0 the default one. In one function, which is small.
enum class StreamCommand : int8_t { kCreate, kFree, kSetCurrent, kSync, kWait, kCurrent, kSyncCurrent };

int64_t CommandStream(int command, Device device, int64_t stream, int64_t other) {
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  auto *handle = reinterpret_cast<void*>(stream), *second = reinterpret_cast<void*>(other);
  void* result = nullptr;
  switch (static_cast<StreamCommand>(command)) {
    case StreamCommand::kCreate:
      if (api.create_stream) Check(api.create_stream(api.ctx, device, &result));
      break;
    case StreamCommand::kFree:
      if (api.free_stream) Check(api.free_stream(api.ctx, device, handle));
      break;
    case StreamCommand::kSetCurrent:
      Check(TVMFFIEnvSetStream(device.device_type, device.device_id, handle, &result));
      break;
    case StreamCommand::kSync:
      Check(PortcallDeviceSync(device, handle));
      break;
    case StreamCommand::kWait:  // `stream`, for `other`
      if (api.sync_streams) Check(api.sync_streams(api.ctx, device, second, handle));
      else Check(PortcallDeviceSync(device, second));
      break;
    case StreamCommand::kCurrent:
      result = TVMFFIEnvGetStream(device.device_type, device.device_id);
      break;
    case StreamCommand::kSyncCurrent:
      Check(PortcallDeviceSync(device, TVMFFIEnvGetStream(device.device_type, device.device_id)));
      break;
  }
  return reinterpret_cast<int64_t>(result);  // of kCreate and kCurrent the stream, of kSetCurrent the one before
}

// Makes these the current streams of this thread, and returns what they were: kind, index and address of each.
std::vector<int64_t> SwapStreams(const std::vector<int64_t>& given) {
  std::vector<int64_t> before;
  for (const auto& [device, stream] : streams) {
    before.insert(before.end(), {device.first, device.second, reinterpret_cast<int64_t>(stream)});
  }
  streams.clear();
  for (size_t i = 0; i + 2 < given.size(); i += 3) {
    DeviceKey device{static_cast<int32_t>(given[i]), static_cast<int32_t>(given[i + 1])};
    streams[device] = reinterpret_cast<void*>(given[i + 2]);
  }
  return before;
}

PORTCALL_REGISTER_GLOBAL("portcall.DeviceStream").set_body_typed(CommandStream);
PORTCALL_REGISTER_GLOBAL("portcall.CurrentStreams").set_body_typed([]() {
  std::vector<int64_t> now = SwapStreams({});
  SwapStreams(now);
  return now;
});
PORTCALL_REGISTER_GLOBAL("portcall.SwapStreams").set_body_typed(SwapStreams);
PORTCALL_REGISTER_GLOBAL("runtime.GetDeviceAttr").set_body_typed([](int32_t type, int32_t id, int32_t attr) {
  Device device{type, id};
  if (attr == kPortcallAttrExist && !FindDeviceApi(type)) return Any(false);
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  Any value;
  if (attr < kPortcallAttrExist || attr > kPortcallAttrImagePitchAlignment) return value;  // it is not known
  Check(api.get_attr(api.ctx, device, static_cast<PortcallDeviceAttr>(attr), value.out()));
  return value;
});
PORTCALL_REGISTER_GLOBAL("portcall.DeviceKindName").set_body_typed(DeviceKindName);
PORTCALL_REGISTER_GLOBAL("portcall.DeviceTypes").set_body_typed([]() {
  std::vector<int64_t> types;
  for (int32_t i = 0; i < kMaxDeviceType; ++i) {
    if (Registered(i)) types.push_back(i);
  }
  return types;
});
PORTCALL_REGISTER_GLOBAL("__tvm_set_device").set_body_typed([](int32_t type, int32_t id) {
  Device device{type, id};
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  if (api.set_device) Check(api.set_device(api.ctx, device));
});

}  // namespace

const PortcallDeviceAPI* FindDeviceApi(int32_t device_type) {
  try {
    return FindApi(device_type);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace portcall

using namespace portcall;

int PortcallDeviceRegister(int32_t device_type, const PortcallDeviceAPI* api) {
  return Guard([&] {
    PORTCALL_CHECK(device_type > 0 && device_type < kMaxDeviceType, ValueError)
        << "device type " << device_type << " is not between 1 and " << kMaxDeviceType - 1;
    PORTCALL_CHECK(api && api->struct_size >= offsetof(PortcallDeviceAPI, create_stream), ValueError)
        << "the table of " << DeviceKindName(device_type)
        << " is too short: set struct_size to sizeof(PortcallDeviceAPI)";
    PORTCALL_CHECK(api->get_attr && api->alloc && api->free && api->copy, ValueError)
        << "the table of " << DeviceKindName(device_type) << " lacks get_attr, alloc, free or copy";
    auto copy = std::make_unique<PortcallDeviceAPI>();
    std::memcpy(copy.get(), api, std::min<size_t>(api->struct_size, sizeof(PortcallDeviceAPI)));
    std::lock_guard<std::mutex> lock(Devices().mutex);
    PORTCALL_CHECK(!Devices().apis[device_type].load(), AlreadyRegisteredError)
        << "the device kind " << DeviceKindName(device_type) << " is already registered";
    Devices().apis[device_type].store(copy.release());
  });
}

int PortcallDeviceGetAPI(int32_t device_type, const PortcallDeviceAPI** out) {
  return Guard([&] {
    const PortcallDeviceAPI* api = FindApi(device_type);
    PORTCALL_CHECK(api, DeviceError) << "this process has no support for device kind '" << DeviceKindName(device_type)
                                     << "'; load a plug-in for it";
    *out = api;
  });
}

int PortcallDeviceSync(DLDevice device, void* stream) {
  return Guard([&] {
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    if (api.sync_stream) Check(api.sync_stream(api.ctx, device, stream));
  });
}

int TVMFFIEnvSetStream(int32_t device_type, int32_t device_id, void* stream, void** opt_out_original) {
  return Guard([&] {
    void*& current = streams[{device_type, device_id}];
    if (opt_out_original) *opt_out_original = current;
    current = stream;
  });
}

void* TVMFFIEnvGetStream(int32_t device_type, int32_t device_id) {
  auto it = streams.find({device_type, device_id});
  return it == streams.end() ? nullptr : it->second;
}
