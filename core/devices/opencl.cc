// SPDX-License-Identifier: Apache-2.0
// OpenCL as a plug-in: devices of kind "opencl". Memory: opencl_memory.cc; modules: opencl_module.cc.
//
//  * `data` of a tensor is its cl_mem, as DLPack has it. A view that begins inside of one is a sub-buffer.
//  * Each device has one context and one in-order queue. A stream is a further in-order queue.
//  * Nothing of OpenCL is touched before a device is used: drivers start threads, which do not survive a fork.
#include <memory>
#include <utility>
#include <vector>

#include "devices/opencl_device.h"
#include "portcall/value.h"
#include "portcall/visible.h"

namespace portcall::opencl {
namespace {

// ---- Devices --------------------------------------------------------------------------------------------------------

using ClDevices = std::vector<std::unique_ptr<ClDevice>>;

ClDevices FindDevices() {
  ClDevices found;
  if (!Cl().missing.empty()) return found;
  Number count = 0;
  if (Cl().GetPlatformIDs(0, nullptr, &count) != kSuccess) return found;  // no driver is installed
  std::vector<Platform> platforms(count);
  if (count) PORTCALL_CL(GetPlatformIDs, count, platforms.data(), nullptr);
  for (Platform platform : platforms) {
    if (Cl().GetDeviceIDs(platform, kAnyDevice, 0, nullptr, &count) != kSuccess || count == 0) continue;
    std::vector<DeviceId> ids(count);
    PORTCALL_CL(GetDeviceIDs, platform, kAnyDevice, count, ids.data(), nullptr);
    for (DeviceId id : ids) found.push_back(std::make_unique<ClDevice>(id));
  }
  return found;
}

const ClDevices& Devices() {
  static const auto* devices = [] {
    ClDevices all = FindDevices(), visible;
    for (const size_t number : VisibleDevices("opencl", all.size())) visible.push_back(std::move(all[number]));
    return new ClDevices(std::move(visible));
  }();
  return *devices;
}

bool Exists(int32_t index) { return index >= 0 && static_cast<size_t>(index) < Devices().size(); }

thread_local int32_t current_device = 0;  // what __tvm_set_device chose

int SetDevice(void*, DLDevice device) {
  return Guard([&] {
    DeviceAt(device.device_id);
    current_device = device.device_id;
  });
}

Any Attribute(const ClDevice& device, PortcallDeviceAttr attr) {
  switch (attr) {
    case kPortcallAttrMaxThreadsPerBlock:
      return static_cast<int64_t>(device.Info<size_t>(kMaxWorkGroupSize));
    case kPortcallAttrWarpSize:
      return 1;  // what TVM's own runtime says; a kernel may not rely on more
    case kPortcallAttrMaxSharedMemoryPerBlock:
      return static_cast<int64_t>(device.Info<uint64_t>(kLocalMemory));
    case kPortcallAttrDeviceName:
      return device.Text(kName);
    case kPortcallAttrMaxClockRate:
      return int64_t{device.Info<Number>(kClockFrequency)} * 1000;  // kHz, as everywhere
    case kPortcallAttrMultiProcessorCount:
      return int64_t{device.Info<Number>(kComputeUnits)};
    case kPortcallAttrMaxThreadDimensions: {
      struct Sizes {
        size_t of[8];
      } sizes = device.Info<Sizes>(kMaxWorkItemSizes);
      return "[" + std::to_string(sizes.of[0]) + ", " + std::to_string(sizes.of[1]) + ", " +
             std::to_string(sizes.of[2]) + "]";
    }
    case kPortcallAttrApiVersion:
      return device.Text(kVersion);
    case kPortcallAttrDriverVersion:
      return device.Text(kDriverVersion);
    case kPortcallAttrTotalGlobalMemory:
      return static_cast<int64_t>(device.Info<uint64_t>(kGlobalMemory));
    case kPortcallAttrL2CacheSizeBytes:
      return static_cast<int64_t>(device.Info<uint64_t>(kGlobalCache));
    case kPortcallAttrImagePitchAlignment:
      try {
        return int64_t{device.Info<Number>(kImagePitchAlignment)};
      } catch (const Error&) {
        return nullptr;  // a driver before OpenCL 2.0
      }
    default:
      return nullptr;  // OpenCL has no word for it
  }
}

int GetAttr(void*, DLDevice device, PortcallDeviceAttr attr, TVMFFIAny* out) {
  return Guard([&] {
    Any value =
        attr == kPortcallAttrExist ? Any(Exists(device.device_id)) : Attribute(DeviceAt(device.device_id), attr);
    *out = value.release();
  });
}

// ---- Timing ---------------------------------------------------------------------------------------------------------

int64_t TimeOf(Event event, Number moment) {
  uint64_t nanoseconds = 0;
  PORTCALL_CL(GetEventProfilingInfo, event, moment, sizeof(nanoseconds), &nanoseconds, nullptr);
  return static_cast<int64_t>(nanoseconds);
}

// From the start of the first command that this thread enqueues to the end of the last.
struct Timer {
  Event first = nullptr, last = nullptr;

  ~Timer() {
    for (Event event : {first, last}) {
      if (event) Cl().ReleaseEvent(event);
    }
  }
  void Add(Event event) {
    Event& place = first ? last : first;
    if (place) Cl().ReleaseEvent(place);
    place = event;
  }
  int64_t Nanoseconds() const {
    return first ? TimeOf(last ? last : first, kCommandEnd) - TimeOf(first, kCommandStart) : 0;
  }
};
thread_local Timer* running = nullptr;

int StartTimer(void*, DLDevice device, void* stream, void** out) {
  return Guard([&] {
    PORTCALL_CHECK(!running, RuntimeError) << "a timer of this thread runs already on " << ToString(device);
    PORTCALL_CL(Finish, QueueOf(device.device_id, stream));
    *out = running = new Timer();
  });
}

int StopTimer(void*, DLDevice device, void* stream, void* opaque, int64_t* nanoseconds) {
  std::unique_ptr<Timer> timer(static_cast<Timer*>(opaque));
  running = nullptr;
  if (!nanoseconds) return 0;
  return Guard([&] {
    PORTCALL_CL(Finish, QueueOf(device.device_id, stream));
    *nanoseconds = timer->Nanoseconds();
  });
}

// ---- Streams ---------------------------------------------------------------------------------------------------------

int CreateStream(void*, DLDevice device, void** out) {
  return Guard([&] { *out = DeviceAt(device.device_id).NewQueue(); });
}
int FreeStream(void*, DLDevice, void* stream) {
  return Guard([&] { PORTCALL_CL(ReleaseCommandQueue, static_cast<Queue>(stream)); });
}
int SyncStream(void*, DLDevice device, void* stream) {
  return Guard([&] { PORTCALL_CL(Finish, QueueOf(device.device_id, stream)); });
}
int SyncStreams(void*, DLDevice device, void* from, void* to) {
  return Guard([&] {
    Event done = nullptr;
    PORTCALL_CL(EnqueueMarkerWithWaitList, QueueOf(device.device_id, from), 0, nullptr, &done);
    Status status = Cl().EnqueueBarrierWithWaitList(QueueOf(device.device_id, to), 1, &done, nullptr);
    Cl().ReleaseEvent(done);
    CheckStatus(status, "clEnqueueBarrierWithWaitList");
    PORTCALL_CL(Flush, QueueOf(device.device_id, from));
  });
}

// ---- Events ---------------------------------------------------------------------------------------------------------

// The marker that was recorded last, which another thread may replace while this one waits for it.
struct Mark {
  std::mutex mutex;
  Event event = nullptr;
};
Mark* MarkOf(void* event) { return static_cast<Mark*>(event); }

class Recorded {
 public:
  explicit Recorded(void* event) {
    std::lock_guard<std::mutex> lock(MarkOf(event)->mutex);
    PORTCALL_CHECK(MarkOf(event)->event, ValueError) << "the event has not been recorded";
    PORTCALL_CL(RetainEvent, MarkOf(event)->event);
    marker_ = MarkOf(event)->event;
  }
  ~Recorded() { Cl().ReleaseEvent(marker_); }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  const Event& get() const { return marker_; }

 private:
  Event marker_ = nullptr;
};

int CreateEvent(void*, DLDevice device, void** out) {
  return Guard([&] {
    DeviceAt(device.device_id);
    *out = new Mark();
  });
}
int FreeEvent(void*, DLDevice, void* event) {
  std::unique_ptr<Mark> mark(MarkOf(event));
  return mark->event ? Guard([&] { PORTCALL_CL(ReleaseEvent, mark->event); }) : 0;
}
int RecordEvent(void*, DLDevice device, void* event, void* stream) {
  return Guard([&] {
    Event marker = nullptr;
    Queue queue = QueueOf(device.device_id, stream);
    PORTCALL_CL(EnqueueMarkerWithWaitList, queue, 0, nullptr, &marker);
    {
      std::lock_guard<std::mutex> lock(MarkOf(event)->mutex);
      std::swap(MarkOf(event)->event, marker);
    }
    if (marker) Cl().ReleaseEvent(marker);
    PORTCALL_CL(Flush, queue);
  });
}
int WaitEvent(void*, DLDevice device, void* event, void* stream) {
  return Guard([&] {
    const Recorded marker(event);
    PORTCALL_CL(EnqueueBarrierWithWaitList, QueueOf(device.device_id, stream), 1, &marker.get(), nullptr);
  });
}
int SyncEvent(void*, DLDevice, void* event) {
  return Guard([&] {
    const Recorded marker(event);
    PORTCALL_CL(WaitForEvents, 1, &marker.get());
  });
}
int EventTime(void*, DLDevice, void* from, void* to, int64_t* nanoseconds) {
  return Guard([&] {
    const Recorded start(from), end(to);
    const Event markers[] = {start.get(), end.get()};
    PORTCALL_CL(WaitForEvents, 2, markers);
    *nanoseconds = TimeOf(end.get(), kCommandEnd) - TimeOf(start.get(), kCommandEnd);
  });
}

// ---- Registration ---------------------------------------------------------------------------------------------------

const DeviceRegistration registration(kDLOpenCL, [] {
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
  api.sync_streams = SyncStreams;
  api.start_timer = StartTimer;
  api.stop_timer = StopTimer;
  api.view = MakeView;
  api.alloc_scope = AllocScope;
  api.create_event = CreateEvent;
  api.free_event = FreeEvent;
  api.record_event = RecordEvent;
  api.wait_event = WaitEvent;
  api.sync_event = SyncEvent;
  api.event_time = EventTime;
  return api;
}());

}  // namespace

size_t DeviceCount() { return Devices().size(); }

const ClDevice& DeviceAt(int32_t index) {
  PORTCALL_CHECK(Cl().missing.empty(), DeviceError)
      << "there is no OpenCL here: " << Cl().missing << "; install a driver and its loader, such as the packages "
      << "pocl-opencl-icd and ocl-icd-libopencl1";
  PORTCALL_CHECK(Exists(index), DeviceError)
      << "there is no device opencl:" << index << "; there are " << Devices().size() << " (clinfo lists them)";
  return *Devices()[static_cast<size_t>(index)];
}

Queue QueueOf(int32_t index, void* stream) { return stream ? static_cast<Queue>(stream) : DeviceAt(index).queue(); }

int32_t CurrentDevice() { return current_device; }

Timed::~Timed() {
  if (event_) running->Add(event_);
}
Event* Timed::out() { return running ? &event_ : nullptr; }

}  // namespace portcall::opencl
