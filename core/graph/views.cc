// SPDX-License-Identifier: Apache-2.0
#include "graph/views.h"

#include <algorithm>

#include "runtime/tensor_view.h"

namespace portcall::graph {
namespace {

std::string Describe(const DLTensor& tensor) {
  return DescribeTensor(tensor.dtype, tensor.shape, static_cast<size_t>(tensor.ndim));
}

}  // namespace

bool HasPlainAddresses(Device device) { return DeviceApiOf(device).flags & kPortcallDevicePlainAddresses; }

Tensor AllocBytes(uint64_t nbytes, Device device) {
  return Tensor::Empty({static_cast<int64_t>(nbytes)}, {kDLUInt, 8, 1}, device);
}

Tensor View(const Tensor& base, uint64_t offset, const Entry& entry, bool flat) {
  DLTensor view = *base.dl_tensor();
  view.byte_offset += offset;
  int64_t size = 1;
  view.dtype = entry.dtype;
  view.ndim = static_cast<int32_t>(entry.shape.size());
  view.shape = const_cast<int64_t*>(entry.shape.data());
  view.strides = nullptr;
  if (flat) {
    size = static_cast<int64_t>(NumElements(view));
    view.ndim = 1;
    view.shape = &size;
  }
  return ViewOf(base, view);
}

std::string Describe(const Entry& entry) { return DescribeTensor(entry.dtype, entry.shape.data(), entry.shape.size()); }

void CheckFits(const Entry& entry, const DLTensor& tensor, const std::string& what) {
  bool same = tensor.dtype == entry.dtype && static_cast<size_t>(tensor.ndim) == entry.shape.size() &&
              std::equal(entry.shape.begin(), entry.shape.end(), tensor.shape);
  if (!same) ThrowGraphError({what, " is ", Describe(entry), ", got ", Describe(tensor)});
}

std::string WhyNotInPlace(const Entry& entry, const DLTensor& tensor, Device device) {
  std::string why;
  auto add = [&](const std::string& reason) { why += (why.empty() ? "" : ", and ") + reason; };
  if (!(tensor.device == device)) add("it lies on " + ToString(tensor.device) + ", not on " + ToString(device));
  if (!IsContiguous(tensor)) {
    add("it is not compact: its strides are " + ToString(Shape(tensor.strides, static_cast<size_t>(tensor.ndim))));
  }
  if (HasPlainAddresses(tensor.device)) {
    auto off = (reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset) % kTensorAlignment;
    if (off) add("its address is " + std::to_string(off) + " bytes off a multiple of 64");
  }
  if (NumBytes(tensor) < entry.bytes) add("its elements share bytes, where the graph gives each a byte");
  return why;
}

void CheckInPlace(const Entry& entry, const DLTensor& tensor, Device device, const std::string& what) {
  CheckFits(entry, tensor, what);
  std::string why = WhyNotInPlace(entry, tensor, device);
  if (!why.empty()) ThrowGraphError({"the tensor cannot be used in place as ", what, ": ", why});
}

Tensor ReadOnlyView(const Tensor& tensor) {
  return ViewInto(tensor, *tensor.dl_tensor(), DLPACK_FLAG_BITMASK_READ_ONLY);
}

}  // namespace portcall::graph
