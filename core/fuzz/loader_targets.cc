// SPDX-License-Identifier: Apache-2.0
// The promise of the loader's readers: any bytes give an answer or ModuleLoadError.
#include "fuzz/targets.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "fuzz/promises.h"
#include "loader/elf_file.h"
#include "loader/embedded.h"

using namespace portcall;
using namespace portcall::loader;

void FuzzLoaderElf(const uint8_t* data, size_t size) {
  int fd = static_cast<int>(syscall(SYS_memfd_create, "fuzz", 0));  // a function of glibc 2.27
  if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size)) __builtin_trap();
  MayFail("ModuleLoadError", [&] {
    ElfFile elf = ReadElfFile(MappedFile("/proc/self/fd/" + std::to_string(fd)));
    if (elf.library_bytes + elf.index_bytes > size || elf.index_offset + elf.index_bytes > size) __builtin_trap();
    for (const std::string& name : elf.undefined) {
      if (name.empty() || !elf.Imports(name.c_str())) __builtin_trap();
    }
    for (const std::string& name : elf.functions) {
      if (name.empty() || !elf.Defines(name.c_str())) __builtin_trap();
    }
  });
  close(fd);
}

void FuzzLoaderEmbedded(const uint8_t* data, size_t size) {
  if (size == 0) return;
  MayFail("ModuleLoadError", [&] {
    std::vector<EmbeddedModule> modules =
        DecodeEmbedded(reinterpret_cast<const char*>(data) + 1, size - 1, (data[0] & 1) != 0);
    if (modules.empty()) __builtin_trap();
    for (const EmbeddedModule& module : modules) {
      if (module.payload.size() > size) __builtin_trap();
      for (size_t import : module.imports) {
        if (import >= modules.size()) __builtin_trap();
      }
    }
  });
}
