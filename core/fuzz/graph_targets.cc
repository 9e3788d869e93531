// SPDX-License-Identifier: Apache-2.0
// The promise of the readers of parameters and bundles: any bytes give an answer or GraphError.
#include <algorithm>
#include <string_view>

#include "fuzz/promises.h"
#include "fuzz/targets.h"
#include "graph/bundle.h"

using namespace portcall;
using namespace portcall::graph;

namespace {

constexpr uint8_t kBlobBegins = 0xB7;

bool LiesWithin(std::string_view part, std::string_view whole) {
  return part.empty() || (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

}  // namespace

void FuzzGraphParams(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (size < 2) return;
  size_t index_bytes = std::min(size, size_t{data[0]} << 8 | data[1]);
  MayFail("GraphError", [&] {
    for (const Param& param : data[0] == kBlobBegins ? ReadParams(bytes) : ReadBundleIndex(bytes, index_bytes).params) {
      if (!LiesWithin(param.name, bytes) || !LiesWithin(param.data, bytes)) __builtin_trap();
      Tensor copy = param.Copy();
      if (NumBytes(*copy.dl_tensor()) != param.data.size()) __builtin_trap();
    }
  });
}
