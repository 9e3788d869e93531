// SPDX-License-Identifier: Apache-2.0
// The facts that the loader reads from a shared library before it is mapped. Any bytes give an answer or ModuleLoadError.
#ifndef PORTCALL_LOADER_ELF_FILE_H_
#define PORTCALL_LOADER_ELF_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace portcall::loader {

struct ElfFile {
  std::vector<std::string> needed;     // DT_NEEDED
  std::vector<std::string> undefined;  // symbols that somebody else must provide (weak ones are not listed)
  std::vector<std::string> functions;  // functions that it defines and exports
  std::vector<std::string> objects;    // variables that it defines and exports
  bool bind_now = false;               // every symbol must be there at load time
  // The library is the file's first bytes. What follows it in a bundle, docs/graph.md says; its index is empty elsewhere.
  uint64_t library_bytes = 0;
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;

  bool Needs(const char* library) const;
  bool Imports(const char* symbol) const;
  bool Defines(const char* symbol) const;
};

// Throws ModuleLoadError when the file is missing, is not a shared library, or is for another machine.
ElfFile ReadElfFile(const std::string& path);

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_ELF_FILE_H_
