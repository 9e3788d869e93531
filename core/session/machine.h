// SPDX-License-Identifier: Apache-2.0
// What machine this is.
#ifndef PORTCALL_SESSION_MACHINE_H_
#define PORTCALL_SESSION_MACHINE_H_

#include <string>

#include "bytes/this_machine.h"

namespace portcall::session {

// As in a compiler's target.
inline std::string MachineName() {
  switch (kThisMachine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_ARM:
      return "arm";
    default:
      return "riscv" + std::to_string(8 * sizeof(void*));
  }
}

// The target of compilers.
inline std::string Target() {
#ifdef __GLIBC__
  const char* libc = "-linux-gnu";
#elif defined(__ANDROID__)
  const char* libc = "-linux-android";
#else
  const char* libc = "-linux-musl";
#endif
  return MachineName() + libc + (kThisMachine == EM_ARM ? "eabihf" : "");
}

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_MACHINE_H_
