// SPDX-License-Identifier: Apache-2.0
// The optional functions of a table of devices: its clock, its views, and what its flags say.
#include <cstring>

#include "portcall/portcall.h"
#include "runtime/time_evaluator.h"
#include "tests/check.h"

using namespace portcall;

namespace {

// What the functions below were called with.
struct Calls {
  int64_t nanoseconds = 0;
  int started = 0, stopped = 0, dropped = 0, freed = 0;
  size_t offset = 0, nbytes = 0;
} calls;

char memory[4096];
constexpr int32_t kWithViews = 100, kPlain = 103;  // kinds of this file

int GetAttr(void*, DLDevice, PortcallDeviceAttr, TVMFFIAny* out) {
  *out = Any(true).release();
  return 0;
}
int AllocOf(void*, DLDevice, size_t, size_t, DLDataType, void** out) {
  *out = memory;
  return 0;
}
int FreeOf(void*, DLDevice, void*) {
  ++calls.freed;
  return 0;
}
int Copy(void*, const void*, size_t, DLDevice, void*, size_t, DLDevice, size_t, void*) { return 0; }
int StartTimer(void*, DLDevice, void*, void** timer) {
  ++calls.started;
  *timer = &calls;
  return 0;
}
int StopTimer(void*, DLDevice, void*, void* timer, int64_t* nanoseconds) {
  CHECK(timer == &calls);
  ++(nanoseconds ? calls.stopped : calls.dropped);
  if (nanoseconds) *nanoseconds = calls.nanoseconds;
  return 0;
}
int View(void*, DLDevice, void* data, size_t offset, size_t nbytes, void** out) {
  calls.offset = offset;
  calls.nbytes = nbytes;
  *out = static_cast<char*>(data) + 2048;
  return 0;
}

// A device of that kind, with these flags; one without addresses that are numbers has views.
Device Registered(int32_t kind, uint64_t flags) {
  calls = {};
  const PortcallDeviceAPI* known = nullptr;
  if (PortcallDeviceGetAPI(kind, &known) == 0) return {kind, 0};
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  Release(static_cast<TVMFFIObject*>(error));
  PortcallDeviceAPI api{};
  api.struct_size = sizeof(api);
  api.get_attr = GetAttr;
  api.alloc = AllocOf;
  api.free = FreeOf;
  api.copy = Copy;
  api.flags = flags;
  api.start_timer = StartTimer;
  api.stop_timer = StopTimer;
  if (!(flags & kPortcallDevicePlainAddresses)) api.view = View;
  Check(PortcallDeviceRegister(kind, &api));
  return {kind, 0};
}

Tensor PartOf(const Tensor& base, int64_t extent, uint64_t byte_offset) {
  DLTensor part = *base.dl_tensor();
  part.shape = &extent;
  part.byte_offset = byte_offset;
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &part, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

Tensor Floats(Device device) { return Tensor::Empty({64}, {kDLFloat, 32, 1}, device); }

TEST("the time evaluator takes the time of the device's own clock") {
  Device device = Registered(kWithViews, 0);
  calls.nanoseconds = 3000;
  TimingOptions options;
  options.number = 3;
  options.repeat = 2;
  auto bytes = TimeEvaluator(PackedFunc([](Args, RetValue*) {}, "nothing"), device, options)().cast<Bytes>();
  CHECK_EQ(bytes.size(), 2 * sizeof(double));
  double seconds[2];
  std::memcpy(seconds, bytes.data(), sizeof(seconds));
  CHECK(seconds[0] > 0.9e-6 && seconds[0] < 1.1e-6);
  CHECK_EQ(calls.started, 2);
  CHECK_EQ(calls.stopped, 2);
  CHECK_EQ(calls.dropped, 0);
}

TEST("a timer is given back when the timed function throws") {
  Device device = Registered(kWithViews, 0);
  int left = 2;  // the untimed call, and the first one of a loop
  PackedFunc func([&](Args, RetValue*) { PORTCALL_CHECK(--left, RuntimeError) << "enough"; }, "fails");
  CHECK_THROWS(TimeEvaluator(func, device, TimingOptions())(), Error);
  CHECK_EQ(calls.stopped, 0);
  CHECK_EQ(calls.dropped, 1);
}

TEST("a view is memory that the device makes, and is freed before its base") {
  Device device = Registered(kWithViews, 0);
  Tensor base = Floats(device);
  Tensor part = PartOf(base, 16, 128);
  CHECK_EQ(calls.offset, 128u);
  CHECK_EQ(calls.nbytes, 64u);
  CHECK(part.dl_tensor()->data == memory + 2048);
  CHECK_EQ(part.dl_tensor()->byte_offset, 0u);
  base = Tensor();
  CHECK_EQ(calls.freed, 0);
  part = Tensor();
  CHECK_EQ(calls.freed, 2);
}

TEST("a view at the begin of its base needs no memory of its own") {
  Device device = Registered(kWithViews, 0);
  Tensor part = PartOf(Floats(device), 16, 0);
  CHECK(part.dl_tensor()->data == memory);
  CHECK_EQ(calls.nbytes, 0u);
}

TEST("where addresses are numbers, the offset of a view is added to its address") {
  Device device = Registered(kPlain, kPortcallDevicePlainAddresses);
  Tensor part = PartOf(Floats(device), 16, 128);
  CHECK(part.dl_tensor()->data == memory + 128);
  CHECK_EQ(part.dl_tensor()->byte_offset, 0u);
}

TEST("a view on a kind that nothing supports keeps its offset") {
  DLTensor foreign{};
  int64_t extent = 64;
  foreign.data = memory;
  foreign.device = {kDLMetal, 0};
  foreign.ndim = 1;
  foreign.dtype = {kDLFloat, 32, 1};
  foreign.shape = &extent;
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallTensorFromMemory(&foreign, 0, nullptr, [](void*) {}, &handle));
  Tensor part = PartOf(ObjectRef::Steal<Tensor>(handle), 16, 128);
  CHECK(part.dl_tensor()->data == memory);
  CHECK_EQ(part.dl_tensor()->byte_offset, 128u);
}

}  // namespace
