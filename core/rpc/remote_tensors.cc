// SPDX-License-Identifier: Apache-2.0
// Tensors and devices of a session, as Python uses them.
#include <algorithm>

#include "portcall/container.h"
#include "rpc/remote_objects.h"
#include "rpc/remote_values.h"

namespace portcall::rpc {
namespace {

RemoteTensor EmptyInScope(Module root, std::vector<int64_t> shape, DLDataType dtype, int32_t type, int32_t id,
                          std::optional<std::string> scope) {
  auto tensor = Make<RemoteTensor>();
  tensor->session = SessionOf(root);
  tensor->wire.device = {type, id};
  tensor->wire.dtype = dtype;
  tensor->wire.shape = std::move(shape);
  tensor->wire.NumBytes();
  tensor->wire.data = Opened(tensor->session)->Alloc(tensor->wire, scope);
  tensor->owner = std::make_shared<OwnedMemory>(tensor->session, tensor->wire.device, tensor->wire.data);
  return tensor;
}

RemoteTensor EmptyTensor(Module root, std::vector<int64_t> shape, DLDataType dtype, int32_t type, int32_t id) {
  return EmptyInScope(std::move(root), std::move(shape), dtype, type, id, std::nullopt);
}

RemoteTensor ViewTensor(RemoteTensor base, std::vector<int64_t> shape, DLDataType dtype, uint64_t byte_offset) {
  auto view = Make<RemoteTensor>();
  view->session = base->session;
  view->owner = base->owner;
  view->wire = base->wire;
  view->wire.shape = std::move(shape);
  view->wire.dtype = dtype;
  view->wire.byte_offset += byte_offset;
  uint64_t size = base->wire.NumBytes(), nbytes = view->wire.NumBytes();
  PORTCALL_CHECK(byte_offset <= size && nbytes <= size - byte_offset, ValueError)
      << "a view of " << nbytes << " bytes at offset " << byte_offset << " goes past the end of " << size << " bytes";
  return view;
}

void CheckSame(const std::vector<int64_t>& shape, DLDataType dtype, const WireTensor& wire) {
  PORTCALL_CHECK(shape == wire.shape, ValueError)
      << "a copy needs equal shapes: " << ToString(Shape(shape)) << " and " << ToString(Shape(wire.shape));
  PORTCALL_CHECK(dtype == wire.dtype, TypeError)
      << "a copy needs equal data types: " << ToString(dtype) << " and " << ToString(wire.dtype);
}
void CheckSame(const RemoteTensor& remote, const Tensor& local) {
  if (!local.defined()) ThrowNone(TensorObj::kTypeKey);
  const DLTensor& dl = *local.dl_tensor();
  CheckSame(std::vector<int64_t>(dl.shape, dl.shape + dl.ndim), dl.dtype, remote->wire);
}

bool IsDirect(const Tensor& tensor) { return tensor.device().device_type == kDLCPU && tensor.is_contiguous(); }

Tensor CompactLike(const Tensor& tensor) {
  const DLTensor& dl = *tensor.dl_tensor();
  return Tensor::Empty(std::vector<int64_t>(dl.shape, dl.shape + dl.ndim), dl.dtype);
}

void CopyToRemote(RemoteTensor remote, Tensor local) {
  CheckSame(remote, local);
  Tensor source = local;
  if (!IsDirect(local)) {
    source = CompactLike(local);
    source.CopyFrom(local);
  }
  Opened(remote->session)->CopyTo(remote->wire, source.raw_data(), remote->wire.NumBytes());
}

void CopyFromRemote(RemoteTensor remote, Tensor local) {
  CheckSame(remote, local);
  PORTCALL_CHECK(!local.is_read_only(), ValueError) << "the array to copy into is read-only";
  Tensor target = IsDirect(local) ? local : CompactLike(local);
  Opened(remote->session)->CopyFrom(remote->wire, target.raw_data(), remote->wire.NumBytes());
  if (!target.same_as(local)) local.CopyFrom(target);
}

void CopyAmong(RemoteTensor from, RemoteTensor to) {
  CheckOpen(from->session);
  PORTCALL_CHECK(from->session == to->session, ValueError)
      << "the tensors belong to two sessions, with " << NameOf(from->session) << " and with " << NameOf(to->session)
      << "; copy through the host: target.copyfrom(source.numpy())";
  CheckSame(from->wire.shape, from->wire.dtype, to->wire);
  Opened(from->session)->CopyAmong(from->wire, to->wire, 0);
}

PORTCALL_REGISTER_GLOBAL("portcall.rpc.Empty").set_body_typed(EmptyTensor);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.EmptyInScope").set_body_typed(EmptyInScope);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.View").set_body_typed(ViewTensor);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.CopyTo").set_body_typed(CopyToRemote);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.CopyFrom").set_body_typed(CopyFromRemote);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.CopyAmong").set_body_typed(CopyAmong);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.TensorShape").set_body_typed([](RemoteTensor t) {
  return Shape(t->wire.shape);
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.TensorDtype").set_body_typed([](RemoteTensor t) { return t->wire.dtype; });
PORTCALL_REGISTER_GLOBAL("portcall.rpc.TensorDevice").set_body_typed([](RemoteTensor t) {
  return DeviceOf(t->session, t->wire.device);
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.TensorSession").set_body_typed([](RemoteTensor t) {
  return RootModule(t->session);
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.Device").set_body_typed([](Module root, int32_t type, int32_t id) {
  return DeviceOf(SessionOf(root), {type, id});
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.DeviceParts").set_body_typed([](RemoteDevice d) {
  return Array<Any>({Any(RootModule(d->session)), Any(d->device)});
});

}  // namespace
}  // namespace portcall::rpc
