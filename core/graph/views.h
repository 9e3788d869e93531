// SPDX-License-Identifier: Apache-2.0
// Tensors that show a part of other memory, and what must hold for memory to be used in place.
#ifndef PORTCALL_GRAPH_VIEWS_H_
#define PORTCALL_GRAPH_VIEWS_H_

#include <string>

#include "graph/plan.h"
#include "portcall/tensor.h"

namespace portcall::graph {

// Whether an address on such a device is a number that one may add to. Others name whole allocations.
bool HasPlainAddresses(Device device);
Tensor AllocBytes(uint64_t nbytes, Device device);

// The value of an entry in `base` at `offset`, with one dimension if `flat`. Kernels take no offsets, so it goes into the
// address where it can.
Tensor View(const Tensor& base, uint64_t offset, const Entry& entry, bool flat);
Tensor ReadOnlyView(const Tensor& tensor);

std::string Describe(const Entry& entry);
// Throws a GraphError that begins with `what` if the tensor is not of the entry's type and shape.
void CheckFits(const Entry& entry, const DLTensor& tensor, const std::string& what);
// Why kernels cannot use the memory of a tensor that fits otherwise; "" if they can.
std::string WhyNotInPlace(const Entry& entry, const DLTensor& tensor, Device device);
void CheckInPlace(const Entry& entry, const DLTensor& tensor, Device device, const std::string& what);

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_VIEWS_H_
