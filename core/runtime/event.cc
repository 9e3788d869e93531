// SPDX-License-Identifier: Apache-2.0
// Events, for bindings and for clients of sessions: points in the work of a device. An event is recorded on the thread's
// current stream, and has it wait, so no function takes a stream from a peer. On a device without events, the host waits
// when one is recorded, and the clock is the host's.
#include <chrono>

#include "portcall/device.h"
#include "portcall/function.h"

namespace portcall {
namespace {

struct EventObj : Object {
  static constexpr const char* kTypeKey = "portcall.Event";

  Device device{};
  void* handle = nullptr;  // the device's own
  bool recorded = false;
  int64_t host_nanoseconds = 0;

  ~EventObj() {
    if (!handle) return;
    try {
      const PortcallDeviceAPI& api = DeviceApiOf(device);
      Check(api.free_event(api.ctx, device, handle));
    } catch (const Error&) {  // the device has failed for good
    }
  }
};

class Event : public ObjectRef {
 public:
  using NodeClass = EventObj;
  Event() noexcept = default;
  Event(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor)
  EventObj* operator->() const {
    PORTCALL_CHECK(defined(), TypeError) << "None was given where an event is expected";
    return static_cast<EventObj*>(ptr_);
  }
};

const PortcallDeviceAPI& ApiOf(const Event& event) { return DeviceApiOf(event->device); }
void* StreamOf(const Event& event) { return TVMFFIEnvGetStream(event->device.device_type, event->device.device_id); }

void CheckRecorded(const Event& event) {
  PORTCALL_CHECK(event->recorded, ValueError) << "the event has not been recorded";
}

Event Create(Device device) {
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  auto event = Make<Event>();
  event->device = device;
  if (api.create_event) Check(api.create_event(api.ctx, device, &event->handle));
  return event;
}

void Record(Event event) {
  if (event->handle) {
    Check(ApiOf(event).record_event(ApiOf(event).ctx, event->device, event->handle, StreamOf(event)));
  } else {
    Check(PortcallDeviceSync(event->device, StreamOf(event)));
    event->host_nanoseconds = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  event->recorded = true;
}

void Wait(Event event) {
  CheckRecorded(event);
  if (event->handle) Check(ApiOf(event).wait_event(ApiOf(event).ctx, event->device, event->handle, StreamOf(event)));
}

void Sync(Event event) {
  CheckRecorded(event);
  if (event->handle) Check(ApiOf(event).sync_event(ApiOf(event).ctx, event->device, event->handle));
}

int64_t NanosecondsUntil(Event from, Event to) {
  CheckRecorded(from);
  CheckRecorded(to);
  PORTCALL_CHECK(from->device == to->device, ValueError)
      << "no time lies between events of " << from->device << " and of " << to->device;
  if (!from->handle) return to->host_nanoseconds - from->host_nanoseconds;
  int64_t nanoseconds = 0;
  Check(ApiOf(from).event_time(ApiOf(from).ctx, from->device, from->handle, to->handle, &nanoseconds));
  return nanoseconds;
}

PORTCALL_REGISTER_GLOBAL("portcall.EventCreate").set_body_typed(Create);
PORTCALL_REGISTER_GLOBAL("portcall.EventRecord").set_body_typed(Record);
PORTCALL_REGISTER_GLOBAL("portcall.EventWait").set_body_typed(Wait);
PORTCALL_REGISTER_GLOBAL("portcall.EventSync").set_body_typed(Sync);
PORTCALL_REGISTER_GLOBAL("portcall.EventNanosecondsUntil").set_body_typed(NanosecondsUntil);

}  // namespace
}  // namespace portcall
