// SPDX-License-Identifier: Apache-2.0
// Kinds of devices that are JavaScript's, such as WebGPU's: one function of it does everything, and all its arguments are
// ints. Memory has a number there, not an address.
#include <chrono>
#include <initializer_list>

#include "portcall/device.h"
#include "portcall/function.h"

namespace portcall {
namespace {

// The first argument, with the others (js/src/core/webgpu.ts).
enum Command : uint8_t {
  kGetAttr,  // index, attribute: a value
  kAlloc,    // index, bytes: a number
  kFree,     // index, number
  kCopy,     // kind, number or address, offset; the same of the target; bytes
  kWait,     // index, whether the caller depends on it
};

using Arguments = std::initializer_list<int64_t>;

int Ask(void* ctx, Command command, Arguments rest, TVMFFIAny* out) {
  TVMFFIAny cells[8];
  int32_t n = 0;
  auto add = [&](int64_t number) {
    detail::SetCell(&cells[n], kTVMFFIInt);
    cells[n++].v_int64 = number;
  };
  add(command);
  for (int64_t number : rest) add(number);
  return TVMFFIFunctionCall(ctx, cells, n, out);
}

int Tell(void* ctx, Command command, Arguments rest) {
  TVMFFIAny nothing{};
  return Ask(ctx, command, rest, &nothing);
}

int64_t NumberOf(const void* pointer) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)); }

int64_t Nanoseconds() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

int GetAttr(void* ctx, DLDevice device, PortcallDeviceAttr attr, TVMFFIAny* out) {
  return Ask(ctx, kGetAttr, {device.device_id, attr}, out);
}

int Alloc(void* ctx, DLDevice device, size_t nbytes, size_t, DLDataType, void** out) {
  TVMFFIAny number{};
  const int status = Ask(ctx, kAlloc, {device.device_id, static_cast<int64_t>(nbytes)}, &number);
  *out = reinterpret_cast<void*>(static_cast<uintptr_t>(number.v_int64));
  return status;
}

int Free(void* ctx, DLDevice device, void* data) { return Tell(ctx, kFree, {device.device_id, NumberOf(data)}); }

int Copy(void* ctx, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
         DLDevice to_device, size_t nbytes, void*) {
  return Tell(ctx, kCopy,
              {from_device.device_type, NumberOf(from), static_cast<int64_t>(from_offset), to_device.device_type,
               NumberOf(to), static_cast<int64_t>(to_offset), static_cast<int64_t>(nbytes)});
}

// A copy to the host waits by itself.
int SyncStream(void* ctx, DLDevice device, void*) { return Tell(ctx, kWait, {device.device_id, 0}); }

int StartTimer(void* ctx, DLDevice device, void*, void** timer) {
  const int status = Tell(ctx, kWait, {device.device_id, 1});
  if (!status) *timer = new int64_t(Nanoseconds());
  return status;
}

int StopTimer(void* ctx, DLDevice device, void*, void* timer, int64_t* nanoseconds) {
  const int64_t start = *static_cast<int64_t*>(timer);
  delete static_cast<int64_t*>(timer);
  if (!nanoseconds) return 0;
  const int status = Tell(ctx, kWait, {device.device_id, 1});
  *nanoseconds = Nanoseconds() - start;
  return status;
}

PORTCALL_REGISTER_GLOBAL("portcall.AddJSDevice").set_body([](Args args, RetValue*) {
  PortcallDeviceAPI api{};
  api.struct_size = sizeof(api);
  api.ctx = args[1].cast<PackedFunc>().release();  // kinds are never unregistered
  api.get_attr = GetAttr;
  api.alloc = Alloc;
  api.free = Free;
  api.copy = Copy;
  api.sync_stream = SyncStream;
  api.start_timer = StartTimer;
  api.stop_timer = StopTimer;
  Check(PortcallDeviceRegister(args[0].cast<int>(), &api));
});

}  // namespace
}  // namespace portcall
