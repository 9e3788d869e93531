// SPDX-License-Identifier: Apache-2.0
// Each file registers its operations as global functions; portcall/ir.h calls them by name.
#include "portcall/ir.h"

// A loader refuses libraries without a function.
PORTCALL_EXPORT_TYPED(version, [] { return std::string(PORTCALL_VERSION); })

const char* PortcallIrVersion() { return PORTCALL_VERSION; }
