// SPDX-License-Identifier: Apache-2.0
// What the dynamic linker reads of a library: its name, the versions of its symbols.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string>

#include "loader/elf_file.h"
#include "tests/check.h"

using namespace portcall::loader;

TEST("the name of a library and the versions of its symbols are read as the dynamic linker has them") {
  link_map* map = nullptr;
  void* handle = dlopen("libc.so.6", RTLD_LAZY);
  CHECK(handle && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
  const MappedFile file(map->l_name);
  dlclose(handle);
  const LinkerFacts facts = ReadLinkerFacts(file);
  CHECK_EQ(facts.soname, "libc.so.6");
  CHECK(std::any_of(facts.versions.begin(), facts.versions.end(),
                    [](const std::string& version) { return version.compare(0, 8, "GLIBC_2.") == 0; }));
  CHECK(ReadElfFile(file).Defines("malloc") && ReadElfFile(file, false).functions.empty());
}
