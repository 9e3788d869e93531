// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_SRC_LIBRARY_MODULE_H_
#define PORTCALL_SRC_LIBRARY_MODULE_H_

#include <string>

#include "portcall/module.h"

namespace portcall {

// Maps the library, binds it to this runtime and returns its root module. The same library gives the same module while
// that is alive. Throws ModuleLoadError.
Module LoadLibrary(const std::string& path);

// The functions that statically linked code registered under `prefix`; one module a prefix, for ever.
Module SystemLibrary(const std::string& prefix);

// Makes the modules that a compiler embedded in a library (embedded.h). `library` is the one they are embedded in.
// Returns the root.
Module MakeEmbedded(const char* data, size_t nbytes, bool classic, const Module& library);

// What compiled code looks up by name: the imports of the module, then the global table. Borrowed: it lives as long as
// the module. Throws when nothing has the name.
PackedFunc LookupFromImports(const Module& module, const std::string& name);

}  // namespace portcall
#endif  // PORTCALL_SRC_LIBRARY_MODULE_H_
