// SPDX-License-Identifier: Apache-2.0
// The machine that this code is for, as ELF files name it, and its folder for temporary files.
#ifndef PORTCALL_BYTES_THIS_MACHINE_H_
#define PORTCALL_BYTES_THIS_MACHINE_H_

#include <elf.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace portcall {

#if defined(__x86_64__)
constexpr uint16_t kThisMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kThisMachine = EM_AARCH64;
#elif defined(__arm__)
constexpr uint16_t kThisMachine = EM_ARM;
#elif defined(__riscv)
constexpr uint16_t kThisMachine = EM_RISCV;
#elif defined(__s390x__)
constexpr uint16_t kThisMachine = EM_S390;
#elif defined(__wasm__)
constexpr uint16_t kThisMachine = EM_NONE;  // no ELF files are for it
#else
#error "portcall does not know this machine"
#endif

inline std::string TemporaryFolder() {
#ifdef __ANDROID__
  const char* system = "/data/local/tmp";
#else
  const char* system = "/tmp";
#endif
  const char* given = std::getenv("TMPDIR");
  return given && *given ? given : system;
}

}  // namespace portcall
#endif  // PORTCALL_BYTES_THIS_MACHINE_H_
