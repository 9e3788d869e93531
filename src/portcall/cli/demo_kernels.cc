// SPDX-License-Identifier: Apache-2.0
// The kernels of `portcall demo`: C++ functions that take tensors. Each check of an argument is a Python exception.
#include <portcall/portcall.h>

#include <algorithm>

using portcall::TensorView;

namespace {

void AddOne(TensorView x, TensorView y) {
  const float* from = x.data<float>();
  float* to = y.data<float>();
  PORTCALL_CHECK(x.numel() == y.numel(), ValueError)
      << "add_one: x has " << x.numel() << " elements, y has " << y.numel();
  std::transform(from, from + x.numel(), to, [](float value) { return value + 1.0f; });
}

// c = a b, in blocks that fit into the first-level cache.
void Matmul(TensorView a, TensorView b, TensorView c) {
  constexpr int64_t kBlock = 64;
  int64_t rows = a.shape(0), depth = a.shape(1), columns = b.shape(1);
  PORTCALL_CHECK(b.shape(0) == depth && c.shape(0) == rows && c.shape(1) == columns, ValueError)
      << "matmul: expected b[" << depth << ", n] and c[" << rows << ", n]";
  const float* pa = a.data<float>();
  const float* pb = b.data<float>();
  float* pc = c.data<float>();
  std::fill(pc, pc + rows * columns, 0.0f);
  for (int64_t k0 = 0; k0 < depth; k0 += kBlock) {
    int64_t k1 = std::min(depth, k0 + kBlock);
    for (int64_t j0 = 0; j0 < columns; j0 += kBlock) {
      int64_t j1 = std::min(columns, j0 + kBlock);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t k = k0; k < k1; ++k) {
          float factor = pa[i * depth + k];
          for (int64_t j = j0; j < j1; ++j) pc[i * columns + j] += factor * pb[k * columns + j];
        }
      }
    }
  }
}

}  // namespace

PORTCALL_EXPORT_TYPED(nothing, [] {})
PORTCALL_EXPORT_TYPED(add_one, AddOne)
PORTCALL_EXPORT_TYPED(matmul, Matmul)
