// SPDX-License-Identifier: Apache-2.0
// What the core's own readers say of bytes, for the tests that compare them with Python's. Compiled with -I core.
#include "loader/elf_file.cc"     // NOLINT
#include "loader/mapped_file.cc"  // NOLINT
#include "portcall/portcall.h"

namespace {

using portcall::Any;
using portcall::Array;

// Array(needed, undefined, functions, objects), or why the file is refused.
Any ElfFacts(const std::string& path) {
  try {
    portcall::loader::ElfFile file = portcall::loader::ReadElfFile(portcall::loader::MappedFile(path));
    return Array<Any>{Array<std::string>(file.needed), Array<std::string>(file.undefined),
                      Array<std::string>(file.functions), Array<std::string>(file.objects)};
  } catch (const portcall::Error& error) {
    return std::string(error.kind()) + ": " + std::string(error.message());
  }
}

}  // namespace

PORTCALL_EXPORT_TYPED(elf_facts, ElfFacts)
