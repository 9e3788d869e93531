// SPDX-License-Identifier: Apache-2.0
// What shared libraries say of themselves, read without loading them. Any bytes give an answer or ModuleLoadError.
#ifndef PORTCALL_LOADER_ELF_FILE_H_
#define PORTCALL_LOADER_ELF_FILE_H_

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "loader/mapped_file.h"

namespace portcall::loader {

// Names of the variable that holds embedded modules, and whether its format is that of TVM before 0.7.
constexpr std::pair<const char*, bool> kBlobs[] = {
    {"__tvm_ffi__library_bin", false}, {"__tvm_ffi_library_bin", true}, {"__tvm_dev_mblob", true}};

struct ElfFile {
  std::vector<std::string> needed;     // DT_NEEDED
  std::vector<std::string> undefined;  // symbols that somebody else must provide (weak ones are not listed)
  std::vector<std::string> functions;  // functions that it defines and exports
  std::vector<std::string> objects;    // variables, and all else, that it defines and exports
  bool bind_now = false;               // every symbol must be there at load time
  std::vector<std::pair<uint64_t, uint64_t>> mapped;  // parts of the file that mapping it needs: where, how many bytes
  // Where in the file the modules lie that a compiler embedded, their length in front; 0 where that is not known.
  uint64_t blob_offset = 0;
  uint64_t blob_bytes = 0;
  uint64_t symbol_bytes[std::size(kBlobs)] = {};  // of each of kBlobs, as its symbol says; 0 for none
  // The library is the file's first bytes. What follows it in a bundle, docs/graph.md says; its index is empty elsewhere.
  uint64_t library_bytes = 0;
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;

  bool Needs(const char* library) const;
  bool Imports(const char* symbol) const;
  bool Defines(const char* symbol) const;
};

// Throws ModuleLoadError when the file is not a shared library, or is for another machine. Symbols take longest.
ElfFile ReadElfFile(const MappedFile& file, bool symbols = true);

// What only the dynamic linker needs to know of a library.
struct LinkerFacts {
  std::string soname, runpath;        // empty for none
  std::vector<std::string> versions;  // of the symbols that it defines
};
LinkerFacts ReadLinkerFacts(const MappedFile& file);

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_ELF_FILE_H_
