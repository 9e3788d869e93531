// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_LOADER_LIBRARY_MODULE_H_
#define PORTCALL_LOADER_LIBRARY_MODULE_H_

#include <string>

#include "portcall/module.h"

namespace portcall::loader {

// Maps the library, binds it to this runtime and returns its root module. The same library gives the same module while
// that is alive. Throws ModuleLoadError.
Module LoadLibrary(const std::string& path);

// The functions that statically linked code registered under `prefix`; one module a prefix, forever.
Module SystemLibrary(const std::string& prefix);

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_LIBRARY_MODULE_H_
