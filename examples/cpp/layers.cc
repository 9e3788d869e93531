// SPDX-License-Identifier: Apache-2.0
// Kernels of a small model. Each takes its inputs, then its outputs, as kernels of compilers do.
//
//   python -c 'from portcall import toolchain; toolchain.create_shared("examples/cpp/layers.cc", "layers.so")'
#include <portcall/portcall.h>

#include <algorithm>
#include <vector>

using namespace portcall;

// y[m, n] = x[m, k] w[n, k]' + b[n]
static void Dense(TensorView x, TensorView w, TensorView b, TensorView y) {
  int64_t m = x.shape(0), k = x.shape(1), n = w.shape(0);
  PORTCALL_CHECK(x.ndim() == 2 && w.shape() == (std::vector{n, k}) && b.shape() == std::vector{n}, ValueError)
      << "dense: expected x[m, k], w[n, k] and b[n]";
  PORTCALL_CHECK(y.shape() == (std::vector{m, n}), ValueError) << "dense: expected y[" << m << ", " << n << "]";
  const float *from = x.data<float>(), *weights = w.data<float>(), *bias = b.data<float>();
  float* to = y.data<float>();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = bias[j];
      for (int64_t p = 0; p < k; ++p) sum += from[i * k + p] * weights[j * k + p];
      to[i * n + j] = sum;
    }
  }
}

static void Relu(TensorView x, TensorView y) {
  PORTCALL_CHECK(x.shape() == y.shape(), ValueError) << "relu: x and y have different shapes";
  const float* from = x.data<float>();
  std::transform(from, from + x.numel(), y.data<float>(), [](float value) { return std::max(value, 0.0F); });
}

PORTCALL_EXPORT_TYPED(dense, Dense)
PORTCALL_EXPORT_TYPED(relu, Relu)
