// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "fuzz/targets.h"
#include "graph/params.h"

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

bool LiesWithin(std::string_view part, std::string_view whole) {
  return part.empty() || (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

}  // namespace

void FuzzGraphParams(const uint8_t* data, size_t size) {
  std::string_view blob(reinterpret_cast<const char*>(data), size);
  Expect([&] {
    for (const Param& param : ReadParams(blob)) {
      if (!LiesWithin(param.name, blob) || !LiesWithin(param.data, blob)) __builtin_trap();
      Tensor copy = param.Copy();
      if (NumBytes(*copy.dl_tensor()) != param.data.size()) __builtin_trap();
    }
  });
}
