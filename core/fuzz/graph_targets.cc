// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>

#include "fuzz/targets.h"
#include "graph/bundle.h"

using namespace portcall;
using namespace portcall::graph;

namespace {

// Any bytes give an answer or GraphError.
template <typename Body> void Expect(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != "GraphError") __builtin_trap();
  }
}

constexpr uint8_t kBlobBegins = 0xB7;

bool LiesWithin(std::string_view part, std::string_view whole) {
  return part.empty() || (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

}  // namespace

void FuzzGraphParams(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (size < 2) return;
  size_t index_bytes = std::min(size, size_t{data[0]} << 8 | data[1]);
  Expect([&] {
    for (const Param& param : data[0] == kBlobBegins ? ReadParams(bytes) : ReadBundleIndex(bytes, index_bytes).params) {
      if (!LiesWithin(param.name, bytes) || !LiesWithin(param.data, bytes)) __builtin_trap();
      Tensor copy = param.Copy();
      if (NumBytes(*copy.dl_tensor()) != param.data.size()) __builtin_trap();
    }
  });
}
