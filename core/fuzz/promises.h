// SPDX-License-Identifier: Apache-2.0
// What the fuzzed functions promise: an answer, or an error of one class.
#pragma once

#include "portcall/error.h"

namespace portcall {

/// Traps, which the fuzzer takes for a crash, if a promise was not kept.
inline void Promise(bool kept) {
  if (!kept) __builtin_trap();
}

/// Runs `action`; any error but one of this class breaks a promise.
template <typename Action> void MayFail(const char* kind, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    Promise(error.kind() == kind);
  }
}

}  // namespace portcall
