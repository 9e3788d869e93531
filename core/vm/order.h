// SPDX-License-Identifier: Apache-2.0
// The order of elements of any type, and tensors seen along one axis.
#pragma once

#include <functional>
#include <vector>

#include "vm/builtin.h"

namespace portcall::vm {

// Reads elements as numbers whose order is that of the elements: zeros of both signs are equal, NaN comes last.
class Keys {
 public:
  explicit Keys(const DLTensor& tensor);  // TypeError for elements without an order
  uint64_t operator[](int64_t i) const;
  bool IsNan(uint64_t key) const { return kind_ == kFloat && key == kNan; }
  size_t element_bytes() const { return bytes_; }
  const char* At(int64_t i) const { return data_ + static_cast<size_t>(i) * bytes_; }

 private:
  static constexpr uint64_t kNan = ~uint64_t{0};
  const char* data_;
  size_t bytes_;
  enum Kind { kUnsigned, kSigned, kFloat } kind_;
  uint64_t infinity_ = 0;
};

// Element k of row (outer, inner) is number (outer * extent + k) * inner_extent + inner.
struct Axis {
  int64_t outer = 1, extent = 1, inner = 1;
  Axis(const char* function, const DLTensor& tensor, int64_t axis);
  int64_t Element(int64_t row, int64_t k) const { return (row / inner * extent + k) * inner + row % inner; }
  int64_t rows() const { return outer * inner; }
};

// Sorts numbers by a function that returns less than, equal to or more than 0; equal ones by themselves.
void SortPlaces(std::vector<int64_t>* places, const std::function<int(int64_t, int64_t)>& compare);

// A tensor argument that is compact and in the host's memory.
const DLTensor& HostTensor(const Arguments& args, int32_t i);
// Writes a whole number as element i; TypeError for element types that hold none.
void WriteNumber(const DLTensor& tensor, int64_t i, int64_t value);

}  // namespace portcall::vm
