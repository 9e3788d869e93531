// SPDX-License-Identifier: Apache-2.0
// What a compiler embedded in a library: other modules as bytes, and who imports whom. Any bytes give an answer or
// ModuleLoadError.
#ifndef PORTCALL_LOADER_EMBEDDED_H_
#define PORTCALL_LOADER_EMBEDDED_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace portcall::loader {

struct EmbeddedModule {
  std::string kind;             // kLibraryKind: the library itself
  std::string_view payload;     // points into the bytes: it may be large
  std::vector<size_t> imports;  // positions in the list; never circular
};
constexpr const char* kLibraryKind = "_lib";

// Decodes `nbytes` at `data`, without the leading length. The first module is the root; there is at least one.
std::vector<EmbeddedModule> DecodeEmbedded(const char* data, size_t nbytes, bool classic);

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_EMBEDDED_H_
