// SPDX-License-Identifier: Apache-2.0
// Streams of a session's devices, for bindings.
#include "portcall/module.h"
#include "rpc/remote_objects.h"
#include "rpc/session.h"

namespace portcall::rpc {
namespace {

PORTCALL_REGISTER_GLOBAL("portcall.rpc.DeviceSync").set_body_typed([](Module root, int32_t type, int32_t id) {
  SessionOf(root)->SyncStream({type, id}, 0);
});
// As portcall.DeviceStream. The wire has no word for one stream that waits for another: we do.
PORTCALL_REGISTER_GLOBAL("portcall.rpc.DeviceStream")
    .set_body_typed([](Module root, int command, DLDevice device, int64_t stream, int64_t other) {
      auto session = SessionOf(root);
      const auto handle = static_cast<uint64_t>(stream);
      uint64_t result = 0;
      if (command == 0) result = session->CreateStream(device);
      if (command == 1) session->FreeStream(device, handle);
      if (command == 2) result = session->GetStream(device);
      if (command == 2) session->SetStream(device, handle);
      if (command == 3) session->SyncStream(device, handle);
      if (command == 4) session->SyncStream(device, static_cast<uint64_t>(other));
      return static_cast<int64_t>(result);
    });

}  // namespace
}  // namespace portcall::rpc
