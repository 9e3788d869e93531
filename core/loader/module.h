// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_LOADER_MODULE_H_
#define PORTCALL_LOADER_MODULE_H_

#include "portcall/module.h"

namespace portcall::loader {

// Makes the modules that a compiler embedded in a library (embedded.h). `library` is the one they are embedded in.
// Returns the root.
Module MakeEmbedded(const char* data, size_t nbytes, bool classic, const Module& library);

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_MODULE_H_
