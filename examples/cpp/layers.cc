// SPDX-License-Identifier: Apache-2.0
// Kernels of a small model. Each takes its inputs, then its outputs, as kernels of compilers do.
//
//   python -c 'from portcall import toolchain; toolchain.create_shared("examples/cpp/layers.cc", "layers.so")'
#include <portcall/portcall.h>

#include <algorithm>

using namespace portcall;

// y[m, n] = x[m, k] w[n, k]' + b[n]
static void Dense(Tensor x, Tensor w, Tensor b, Tensor y) {
  int64_t m = x.shape(0), k = x.shape(1), n = w.shape(0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = b.data<float>()[j];
      for (int64_t p = 0; p < k; ++p) sum += x.data<float>()[i * k + p] * w.data<float>()[j * k + p];
      y.data<float>()[i * n + j] = sum;
    }
  }
}

static void Relu(Tensor x, Tensor y) {
  for (size_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = std::max(x.data<float>()[i], 0.0F);
}

PORTCALL_EXPORT_TYPED(dense, Dense)
PORTCALL_EXPORT_TYPED(relu, Relu)
