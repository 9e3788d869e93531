// SPDX-License-Identifier: Apache-2.0
// What this machine is, and what of a library's needs it has not, as clients ask before they upload (docs/wire.md,
// section 7).
#ifndef PORTCALL_BOARD_MACHINE_H_
#define PORTCALL_BOARD_MACHINE_H_

#include <elf.h>

#include <cstdint>
#include <string>
#include <string_view>

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

std::string MachineName();  // as in a compiler's target
std::string Target();       // the target of compilers
// The answer as JSON. `needs` are those of a library that lies in `folder`, or will, as JSON; empty for the machine alone.
// Throws ValueError for other questions.
std::string DescribeMachine(const std::string& folder, std::string_view needs);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_MACHINE_H_
