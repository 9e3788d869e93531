// SPDX-License-Identifier: Apache-2.0
#include "vm/order.h"

#include <algorithm>
#include <cstring>

namespace portcall::vm {

Keys::Keys(const DLTensor& tensor)
    : data_(static_cast<const char*>(tensor.data) + tensor.byte_offset), bytes_(tensor.dtype.bits / 8u) {
  uint8_t code = tensor.dtype.code, bits = tensor.dtype.bits;
  bool whole = (bits == 8 || bits == 16 || bits == 32 || bits == 64) && tensor.dtype.lanes == 1;
  kind_ = code == kDLInt ? kSigned : code == kDLUInt || code == kDLBool ? kUnsigned : kFloat;
  if (kind_ == kFloat) {
    whole = whole && (code == kDLFloat || code == kDLBfloat) && bits >= 16;
    infinity_ = code == kDLBfloat ? 0x7F80 : bits == 16 ? 0x7C00 : bits == 32 ? 0x7F800000 : 0x7FF0000000000000;
  }
  if (!whole) Throw("TypeError", {"elements of ", ToString(tensor.dtype), " cannot be sorted"});
}

uint64_t Keys::operator[](int64_t i) const {
  constexpr uint64_t kMiddle = uint64_t{1} << 63;
  uint64_t value = 0;
  std::memcpy(&value, At(i), bytes_);
  if (kind_ == kUnsigned) return value;
  uint64_t sign = uint64_t{1} << (8 * bytes_ - 1);
  if (kind_ == kSigned) return kMiddle + value - 2 * (value & sign);
  uint64_t magnitude = value & (sign - 1);
  if (magnitude > infinity_) return kNan;
  return value & sign ? kMiddle - magnitude : kMiddle + magnitude;
}

Axis::Axis(const char* function, const DLTensor& tensor, int64_t axis) {
  if (axis < 0) axis += tensor.ndim;
  if (axis < 0 || axis >= tensor.ndim)
    Throw("ValueError", {function, "(): there is no axis ", axis, " in a tensor of ", tensor.ndim, " dimensions"});
  for (int32_t i = 0; i < tensor.ndim; ++i) (i < axis ? outer : i == axis ? extent : inner) *= tensor.shape[i];
}

const DLTensor& HostTensor(const Arguments& args, int32_t i) {
  const DLTensor& tensor = args.TensorAt(i);
  if (tensor.device.device_type != kDLCPU || !IsContiguous(tensor)) args.Fail(i, "a compact Tensor on the CPU");
  return tensor;
}

void SortPlaces(std::vector<int64_t>* places, const std::function<int(int64_t, int64_t)>& compare) {
  std::sort(places->begin(), places->end(), [&](int64_t a, int64_t b) {
    int order = compare(a, b);
    return order != 0 ? order < 0 : a < b;
  });
}

void WriteNumber(const DLTensor& tensor, int64_t i, int64_t value) {
  char* data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  uint8_t code = tensor.dtype.code, bits = tensor.dtype.bits;
  if (code == kDLFloat && bits == 32) {
    reinterpret_cast<float*>(data)[i] = static_cast<float>(value);
  } else if (code == kDLFloat && bits == 64) {
    reinterpret_cast<double*>(data)[i] = static_cast<double>(value);
  } else {
    bool integer = (code == kDLInt || code == kDLUInt) && bits >= 8 && bits % 8 == 0 && bits <= 64;
    if (!integer) Throw("TypeError", {"indices cannot be elements of ", ToString(tensor.dtype)});
    std::memcpy(data + static_cast<size_t>(i) * (bits / 8u), &value, bits / 8u);
  }
}

}  // namespace portcall::vm
