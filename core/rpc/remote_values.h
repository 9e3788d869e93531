// SPDX-License-Identifier: Apache-2.0
// References to what a session owns: handles, memory, tensors, objects and devices. Each frees its handle when it goes;
// that never waits for the peer.
#ifndef PORTCALL_RPC_REMOTE_VALUES_H_
#define PORTCALL_RPC_REMOTE_VALUES_H_

#include <memory>
#include <string>
#include <utility>

#include "portcall/tensor.h"
#include "rpc/remote_session.h"
#include "rpc/running_callback.h"

namespace portcall::rpc {

using SessionPtr = std::shared_ptr<Session>;

// The session, unless it is this process and was closed; a remote one says itself how it ended.
inline Session* Opened(const SessionPtr& session) {
  PORTCALL_CHECK(!session->closed() || dynamic_cast<RemoteSession*>(session.get()), SessionClosedError)
      << "the session with this process is closed";
  return session.get();
}

// Throws what became of a session that is over.
inline void CheckOpen(const SessionPtr& session) {
  auto* remote = dynamic_cast<RemoteSession*>(Opened(session));
  if (remote && remote->closed()) remote->Sync();
}

// A handle that is given back with its last user: outside of callbacks where it was made there, since requests there may
// use it that wait for the callback.
class OwnedHandle {
 public:
  OwnedHandle(SessionPtr session, uint64_t value) : session_(std::move(session)), value_(value) {}
  OwnedHandle(const OwnedHandle&) = delete;
  OwnedHandle& operator=(const OwnedHandle&) = delete;
  ~OwnedHandle() {
    FreeingOutside outside(outer_);
    try {
      if (value_ && !session_->closed()) session_->Free(value_);
    } catch (const Error&) {  // the session is gone, and the handle with it
    }
  }
  const SessionPtr& session() const { return session_; }
  uint64_t value() const { return value_; }
  void Disown() { value_ = 0; }  // somebody else gives it back

 private:
  SessionPtr session_;
  uint64_t value_;
  const bool outer_ = !InCallback();
};
using HandlePtr = std::shared_ptr<OwnedHandle>;

// Memory that was allocated, rather than returned.
class OwnedMemory {
 public:
  OwnedMemory(SessionPtr session, DLDevice device, uint64_t data)
      : session_(std::move(session)), device_(device), data_(data) {}
  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;
  ~OwnedMemory() {
    FreeingOutside outside(outer_);
    try {
      if (!session_->closed()) session_->FreeData(device_, data_);
    } catch (const Error&) {  // the session is gone, and the memory with it
    }
  }

 private:
  SessionPtr session_;
  DLDevice device_;
  uint64_t data_;
  const bool outer_ = !InCallback();
};

[[noreturn]] inline void ThrowNone(const char* type_key) {
  throw Error("TypeError", std::string("None was given where an object of type ") + type_key + " is needed");
}

// A reference that a caller gives, and that may be None: to use that is an error.
template <typename NodeType> class Given : public ObjectRef {
 public:
  using NodeClass = NodeType;
  Given() noexcept = default;
  Given(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor)
  NodeType* operator->() const {
    if (!defined()) ThrowNone(NodeType::kTypeKey);
    return static_cast<NodeType*>(ptr_);
  }
};

struct RemoteTensorObj : Object {
  static constexpr const char* kTypeKey = "portcall.rpc.Tensor";
  SessionPtr session;
  WireTensor wire;
  std::shared_ptr<void> owner;  // an OwnedHandle or OwnedMemory; views share it
};
using RemoteTensor = Given<RemoteTensorObj>;

struct RemoteObjectObj : Object {
  static constexpr const char* kTypeKey = "portcall.rpc.Object";
  HandlePtr handle;
  int32_t remote_type = 0;
};
using RemoteObject = Given<RemoteObjectObj>;

// A device of a session. A plain device that is sent means a device of the server; other sessions refuse this one.
struct RemoteDeviceObj : Object {
  static constexpr const char* kTypeKey = "portcall.rpc.Device";
  SessionPtr session;
  DLDevice device{};
};
using RemoteDevice = Given<RemoteDeviceObj>;

inline RemoteDevice DeviceOf(SessionPtr session, DLDevice value) {
  auto device = Make<RemoteDevice>();
  device->session = std::move(session);
  device->device = value;
  return device;
}

inline std::string NameOf(const SessionPtr& session) {
  auto* remote = dynamic_cast<RemoteSession*>(session.get());
  return remote ? remote->options().name : "this process";
}

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_REMOTE_VALUES_H_
