// SPDX-License-Identifier: Apache-2.0
// OpenCL as a plug-in: devices of kind "opencl", and modules of kind "opencl".
//
//  * `data` of a tensor is its cl_mem, as DLPack has it. A view that begins inside of one is a sub-buffer.
//  * Each device has one context and one in-order queue. A stream is a further in-order queue.
//  * Nothing of OpenCL is touched before a device is used: drivers start threads, which do not survive a fork.
//  * Kernels are built when they are first called on a device.
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/binary_cache.h"
#include "devices/kernel_module.h"
#include "devices/opencl_api.h"
#include "devices/visible.h"
#include "portcall/device.h"

namespace portcall::opencl {
namespace {

// ---- Devices --------------------------------------------------------------------------------------------------------

class ClDevice {
 public:
  explicit ClDevice(DeviceId id) : id_(id) {}

  DeviceId id() const { return id_; }
  Context context() const { return (Open(), context_); }
  Queue queue() const { return (Open(), queue_); }
  Queue NewQueue() const {
    Status status = kSuccess;
    Queue queue = Cl().CreateCommandQueue(context(), id_, kProfiling, &status);
    CheckStatus(status, "clCreateCommandQueue");
    return queue;
  }
  template <typename T> T Info(Number what) const {
    T value{};
    PORTCALL_CL(GetDeviceInfo, id_, what, sizeof(value), &value, nullptr);
    return value;
  }
  std::string Text(Number what) const {
    size_t size = 0;
    PORTCALL_CL(GetDeviceInfo, id_, what, 0, nullptr, &size);
    std::string text(size, '\0');
    PORTCALL_CL(GetDeviceInfo, id_, what, size, text.data(), nullptr);
    return text.c_str();
  }

 private:
  void Open() const {
    std::call_once(opened_, [this] {
      Status status = kSuccess;
      context_ = Cl().CreateContext(nullptr, 1, &id_, nullptr, nullptr, &status);
      CheckStatus(status, "clCreateContext");
      queue_ = Cl().CreateCommandQueue(context_, id_, kProfiling, &status);
      CheckStatus(status, "clCreateCommandQueue");
    });
  }

  DeviceId id_;
  mutable std::once_flag opened_;
  mutable Context context_ = nullptr;
  mutable Queue queue_ = nullptr;
};

using ClDevices = std::vector<std::unique_ptr<ClDevice>>;

ClDevices FindDevices() {
  ClDevices found;
  if (!Cl().missing.empty()) return found;
  Number count = 0;
  if (Cl().GetPlatformIDs(0, nullptr, &count) != kSuccess) return found;  // no driver is installed
  std::vector<Platform> platforms(count);
  PORTCALL_CL(GetPlatformIDs, count, platforms.data(), nullptr);
  for (Platform platform : platforms) {
    if (Cl().GetDeviceIDs(platform, kAnyDevice, 0, nullptr, &count) != kSuccess) continue;
    std::vector<DeviceId> ids(count);
    PORTCALL_CL(GetDeviceIDs, platform, kAnyDevice, count, ids.data(), nullptr);
    for (DeviceId id : ids) found.push_back(std::make_unique<ClDevice>(id));
  }
  return found;
}

const ClDevices& Devices() {
  static const auto* devices = new ClDevices(devices::VisibleOf("opencl", FindDevices()));
  return *devices;
}

bool Exists(int32_t index) { return index >= 0 && static_cast<size_t>(index) < Devices().size(); }

const ClDevice& DeviceAt(int32_t index) {
  PORTCALL_CHECK(Cl().missing.empty(), DeviceError)
      << "there is no OpenCL here: " << Cl().missing << "; install a driver and its loader, such as the packages "
      << "pocl-opencl-icd and ocl-icd-libopencl1";
  PORTCALL_CHECK(Exists(index), DeviceError)
      << "there is no device opencl:" << index << "; there are " << Devices().size() << " (clinfo lists them)";
  return *Devices()[static_cast<size_t>(index)];
}

Queue QueueOf(int32_t index, void* stream) { return stream ? static_cast<Queue>(stream) : DeviceAt(index).queue(); }

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

// ---- Memory ---------------------------------------------------------------------------------------------------------

int Alloc(void*, DLDevice device, size_t nbytes, size_t, DLDataType, void** out) {
  return Guard([&] {
    Status status = kSuccess;
    *out = Cl().CreateBuffer(DeviceAt(device.device_id).context(), kReadWrite, std::max<size_t>(nbytes, 1), nullptr,
                             &status);
    CheckStatus(status, "clCreateBuffer");
  });
}

int Free(void*, DLDevice, void* data) {
  return Guard([&] { PORTCALL_CL(ReleaseMemObject, static_cast<Memory>(data)); });
}

int MakeView(void*, DLDevice device, void* data, size_t offset, size_t nbytes, void** out) {
  return Guard([&] {
    Status status = kSuccess;
    Region region{offset, std::max<size_t>(nbytes, 1)};
    *out = Cl().CreateSubBuffer(static_cast<Memory>(data), kReadWrite, kRegion, &region, &status);
    PORTCALL_CHECK(status != kMisalignedSubBufferOffset, ValueError)
        << ToString(device) << " cannot view memory at byte " << offset << ": views begin at multiples of "
        << DeviceAt(device.device_id).Info<Number>(kAddressAlignBits) / 8;
    CheckStatus(status, "clCreateSubBuffer");
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

// Where a command leaves its event while a timer of this thread runs.
class Timed {
 public:
  Event* out() { return running ? &event_ : nullptr; }
  ~Timed() {
    if (event_) running->Add(event_);
  }

 private:
  Event event_ = nullptr;
};

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

// ---- Copies and streams ---------------------------------------------------------------------------------------------

bool IsOurs(DLDevice device) { return device.device_type == kDLOpenCL; }

int Copy(void* ctx, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
         DLDevice to_device, size_t nbytes, void* stream) {
  return Guard([&] {
    if (nbytes == 0) return;
    auto source = static_cast<Memory>(const_cast<void*>(from));
    auto target = static_cast<Memory>(to);
    Timed timed;
    if (IsOurs(from_device) && IsOurs(to_device) && from_device.device_id != to_device.device_id) {
      std::vector<char> bytes(nbytes);  // two contexts share no memory
      Check(Copy(ctx, from, from_offset, from_device, bytes.data(), 0, Cpu(), nbytes, nullptr));
      Check(Copy(ctx, bytes.data(), 0, Cpu(), to, to_offset, to_device, nbytes, stream));
    } else if (IsOurs(from_device) && IsOurs(to_device)) {
      PORTCALL_CL(EnqueueCopyBuffer, QueueOf(to_device.device_id, stream), source, target, from_offset, to_offset,
                  nbytes, 0, nullptr, timed.out());
    } else if (IsOurs(to_device)) {  // they wait: the host's memory may go as soon as this returns
      PORTCALL_CL(EnqueueWriteBuffer, QueueOf(to_device.device_id, stream), target, 1, to_offset, nbytes,
                  static_cast<const char*>(from) + from_offset, 0, nullptr, timed.out());
    } else {
      PORTCALL_CL(EnqueueReadBuffer, QueueOf(from_device.device_id, stream), source, 1, from_offset, nbytes,
                  static_cast<char*>(to) + to_offset, 0, nullptr, timed.out());
    }
  });
}

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

// The marker that was recorded last.
struct Mark {
  Event event = nullptr;

  Event Recorded() const {
    PORTCALL_CHECK(event, ValueError) << "the event has not been recorded";
    return event;
  }
};

Mark* MarkOf(void* event) { return static_cast<Mark*>(event); }

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
    std::swap(MarkOf(event)->event, marker);
    if (marker) Cl().ReleaseEvent(marker);
    PORTCALL_CL(Flush, queue);
  });
}
int WaitEvent(void*, DLDevice device, void* event, void* stream) {
  return Guard([&] {
    Event marker = MarkOf(event)->Recorded();
    PORTCALL_CL(EnqueueBarrierWithWaitList, QueueOf(device.device_id, stream), 1, &marker, nullptr);
  });
}
int SyncEvent(void*, DLDevice, void* event) {
  return Guard([&] {
    Event marker = MarkOf(event)->Recorded();
    PORTCALL_CL(WaitForEvents, 1, &marker);
  });
}
int EventTime(void*, DLDevice, void* from, void* to, int64_t* nanoseconds) {
  return Guard([&] {
    const Event markers[] = {MarkOf(from)->Recorded(), MarkOf(to)->Recorded()};
    PORTCALL_CL(WaitForEvents, 2, markers);
    *nanoseconds = TimeOf(markers[1], kCommandEnd) - TimeOf(markers[0], kCommandEnd);
  });
}

// ---- Modules --------------------------------------------------------------------------------------------------------

class ClModuleNode : public devices::KernelModuleNode {
 public:
  using KernelModuleNode::KernelModuleNode;
  ~ClModuleNode() override {
    for (auto& [key, built] : built_) {
      Cl().ReleaseKernel(built->kernel);
      Cl().ReleaseProgram(built->program);
    }
  }

  const char* kind() const override { return "opencl"; }
  PackedFunc GetFunction(const std::string& name, const Module& self) override;

 private:
  struct Built {
    Program program = nullptr;
    Kernel kernel = nullptr;
    std::mutex mutex;  // a kernel's arguments are its state
  };

  std::string SourceOf(const std::string& name) const;
  Program BuildFromSource(const std::string& name, const ClDevice& device) const;
  Program MakeProgram(const std::string& name, const ClDevice& device) const;
  Built* Build(const std::string& name, int32_t index);
  static void Launch(const payload::Kernel& kernel, Built* built, Args args);

  std::mutex mutex_;
  std::map<std::pair<std::string, int32_t>, std::unique_ptr<Built>> built_;
};

PackedFunc ClModuleNode::GetFunction(const std::string& name, const Module& self) {
  const payload::Kernel* kernel = FindKernel(name);
  if (!kernel) return nullptr;
  PORTCALL_CHECK(!kernel->dynamic_shared, ModuleLoadError)
      << "the kernel '" << name << "' uses dynamic shared memory (scope shared.dyn), which TVM's OpenCL code makes "
      << "private to each thread: its results would be wrong; compile it with the scope 'shared'";
  PORTCALL_CHECK(SourceOf(name).find("image2d_") == std::string::npos, ModuleLoadError)
      << "the kernel '" << name << "' uses images (scope global.texture), which portcall does not make; compile it for "
      << "buffers";
  // A slot for each device: a launch finds its kernel without a lock once it has been built.
  auto slots = std::make_shared<std::vector<std::atomic<Built*>>>(std::max<size_t>(Devices().size(), 1));
  return PackedFunc(
      [this, self, name, kernel, slots](Args args, RetValue*) {
        DeviceAt(current_device);
        std::atomic<Built*>& slot = (*slots)[static_cast<size_t>(current_device)];
        Built* built = slot.load(std::memory_order_acquire);
        if (!built) slot.store(built = Build(name, current_device), std::memory_order_release);
        Launch(*kernel, built, args);
      },
      name);
}

// A line "// Function: NAME" stands before each kernel with all that it needs, since TVM 0.8. Older source is one part.
std::string ClModuleNode::SourceOf(const std::string& name) const {
  const std::string mark = "// Function: ", line = mark + name + "\n";
  size_t begin = payload().code.find(line);
  if (begin == std::string::npos) return payload().code;
  begin += line.size();
  return payload().code.substr(begin, payload().code.find(mark, begin) - begin);
}

// Null where the driver refuses it.
Program ProgramOfBinary(const ClDevice& device, const std::string& binary) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  const DeviceId id = device.id();
  Status status = kSuccess;
  Program program = Cl().CreateProgramWithBinary(device.context(), 1, &id, &size, &bytes, nullptr, &status);
  if (status != kSuccess) return nullptr;
  if (Cl().BuildProgram(program, 1, &id, "", nullptr, nullptr) == kSuccess) return program;
  Cl().ReleaseProgram(program);
  return nullptr;
}

// Empty where the driver does not give it.
std::string BinaryOf(Program program) {
  size_t size = 0;
  if (Cl().GetProgramInfo(program, kBinarySizes, sizeof(size), &size, nullptr) != kSuccess) return {};
  std::string binary(size, '\0');
  char* data = binary.data();
  if (Cl().GetProgramInfo(program, kBinaries, sizeof(data), static_cast<void*>(&data), nullptr) != kSuccess) return {};
  return binary;
}

Program ClModuleNode::BuildFromSource(const std::string& name, const ClDevice& device) const {
  const std::string code = SourceOf(name),
                    key = devices::CacheKey({"opencl", device.Text(kVendor), device.Text(kName), device.Text(kVersion),
                                             device.Text(kDriverVersion), code});
  const std::string binary = devices::FindBinary(key);
  if (Program program = binary.empty() ? nullptr : ProgramOfBinary(device, binary)) return program;
  const char* text = code.data();
  const size_t size = code.size();
  const DeviceId id = device.id();
  Status status = kSuccess;
  Program program = Cl().CreateProgramWithSource(device.context(), 1, &text, &size, &status);
  CheckStatus(status, "clCreateProgramWithSource");
  if (Cl().BuildProgram(program, 1, &id, "", nullptr, nullptr) == kSuccess) {
    devices::KeepBinary(key, BinaryOf(program));
    return program;
  }
  size_t length = 0;
  Cl().GetProgramBuildInfo(program, id, kBuildLog, 0, nullptr, &length);
  std::string log(length, '\0');
  Cl().GetProgramBuildInfo(program, id, kBuildLog, length, log.data(), nullptr);
  Cl().ReleaseProgram(program);
  PORTCALL_THROW(CompileError) << "the OpenCL driver cannot build the kernel '" << name << "' for "
                               << device.Text(kName) << ":\n"
                               << log.c_str();
}

Program ClModuleNode::MakeProgram(const std::string& name, const ClDevice& device) const {
  if (payload().format == "cl") return BuildFromSource(name, device);
  Program program = ProgramOfBinary(device, payload().code);
  PORTCALL_CHECK(program, CompileError) << "the OpenCL driver refuses the binary (" << payload().format
                                        << ") of the kernel '" << name << "' for " << device.Text(kName);
  return program;
}

ClModuleNode::Built* ClModuleNode::Build(const std::string& name, int32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = built_.find({name, index});
  if (found != built_.end()) return found->second.get();
  auto built = std::make_unique<Built>();
  built->program = MakeProgram(name, DeviceAt(index));
  Status status = kSuccess;
  built->kernel = Cl().CreateKernel(built->program, name.c_str(), &status);
  if (status != kSuccess) Cl().ReleaseProgram(built->program);
  CheckStatus(status, "clCreateKernel");
  return built_.emplace(std::pair(name, index), std::move(built)).first->second.get();
}

void ClModuleNode::Launch(const payload::Kernel& kernel, Built* built, Args args) {
  payload::Launch launch = payload::ReadLaunch(kernel, args);
  payload::ArgumentAddresses addresses(kernel, args);
  size_t* local = launch.extents + payload::Launch::kBlock;
  for (int i = 0; i < 3; ++i) launch.extents[i] *= local[i];  // OpenCL counts work items, not groups
  Queue queue = QueueOf(current_device, TVMFFIEnvGetStream(kDLOpenCL, current_device));
  std::lock_guard<std::mutex> lock(built->mutex);
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    const bool buffer = kernel.arguments[i] == payload::Argument::kBuffer;
    const size_t size = payload::ArgumentAddresses::IsNarrow(kernel, i) ? 4 : buffer ? sizeof(Memory) : 8;
    PORTCALL_CL(SetKernelArg, built->kernel, static_cast<Number>(i), size, addresses.data()[i]);
  }
  Timed timed;
  PORTCALL_CL(EnqueueNDRangeKernel, queue, built->kernel, kernel.work_dim, nullptr, launch.extents, local, 0, nullptr,
              timed.out());
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
  api.create_event = CreateEvent;
  api.free_event = FreeEvent;
  api.record_event = RecordEvent;
  api.wait_event = WaitEvent;
  api.sync_event = SyncEvent;
  api.event_time = EventTime;
  return api;
}());

// Host code asks for memory of other scopes by these names, before it calls the kernels.
void RefuseScopes(Args args, RetValue*) {
  PORTCALL_THROW(DeviceError) << args.function()
                              << "(): the library wants images (scope global.texture), which portcall "
                              << "does not make; compile it for buffers";
}
PORTCALL_REGISTER_GLOBAL("device_api.opencl.alloc_nd").set_body(RefuseScopes);
PORTCALL_REGISTER_GLOBAL("device_api.opencl.free_nd").set_body(RefuseScopes);

PORTCALL_REGISTER_GLOBAL("ffi.Module.load_from_bytes.opencl").set_body_typed([](Bytes bytes) {
  return Module(std::make_unique<ClModuleNode>(payload::Decode(bytes.view())));
});

}  // namespace
}  // namespace portcall::opencl
