// SPDX-License-Identifier: Apache-2.0
// What machine this is.
#ifndef PORTCALL_BOARD_MACHINE_H_
#define PORTCALL_BOARD_MACHINE_H_

#include <elf.h>

#include <cstdint>
#include <string>

namespace portcall::board {

#if defined(__x86_64__)
constexpr uint16_t kThisMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kThisMachine = EM_AARCH64;
#elif defined(__arm__)
constexpr uint16_t kThisMachine = EM_ARM;
#elif defined(__riscv)
constexpr uint16_t kThisMachine = EM_RISCV;
#else
#error "the server does not know this machine"
#endif

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
#else
  const char* libc = "-linux-musl";
#endif
  return MachineName() + libc + (kThisMachine == EM_ARM ? "eabihf" : "");
}

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_MACHINE_H_
