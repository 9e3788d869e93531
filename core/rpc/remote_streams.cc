// SPDX-License-Identifier: Apache-2.0
// Streams of a session's devices, for bindings.
#include "portcall/module.h"
#include "rpc/remote_objects.h"
#include "rpc/session.h"

namespace portcall::rpc {
namespace {

// As portcall.DeviceStream. The wire has no word for one stream that waits for another: events do that.
PORTCALL_REGISTER_GLOBAL("portcall.rpc.DeviceStream")
    .set_body_typed([](Module root, int command, DLDevice device, int64_t stream, int64_t /*other*/) {
      auto session = SessionOf(root);
      const auto handle = static_cast<uint64_t>(stream);
      uint64_t result = 0;
      switch (command) {
        case 0:
          return static_cast<int64_t>(session->CreateStream(device));
        case 1:
          session->FreeStream(device, handle);
          return int64_t{0};
        case 2:
          result = session->GetStream(device);
          session->SetStream(device, handle);
          break;
        default:  // of the stream, of the current one
          session->SyncStream(device, command == 3 ? handle : 0);
      }
      return static_cast<int64_t>(result);
    });

}  // namespace
}  // namespace portcall::rpc
