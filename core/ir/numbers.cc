// SPDX-License-Identifier: Apache-2.0
// Doubles in JSON, where the standard library has them; core/web/numbers.cc is the same in WebAssembly.
#include <charconv>

#include "ir/text.h"

namespace portcall::ir {

void AppendDouble(double value, std::string* out) {
  char digits[32];
  out->append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

bool ReadDouble(std::string_view text, double* out) {
  return std::from_chars(text.data(), text.data() + text.size(), *out).ec == std::errc();
}

}  // namespace portcall::ir
