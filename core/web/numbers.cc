// SPDX-License-Identifier: Apache-2.0
// Doubles in JSON, in place of core/ir/numbers.cc: emscripten's std::to_chars knows whole numbers only.
#include <cmath>
#include <cstdlib>

#include "ir/text.h"

namespace portcall::ir {

void AppendDouble(double value, std::string* out) { *out += ShortestDouble(value); }

bool ReadDouble(std::string_view text, double* out) {
  *out = std::strtod(std::string(text).c_str(), nullptr);
  return std::isfinite(*out);
}

}  // namespace portcall::ir
