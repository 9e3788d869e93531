// SPDX-License-Identifier: Apache-2.0
// The table through which bindings call the core, and its version.
#include "portcall/c_api.h"

const PortcallCore* PortcallGetCore() {
  static const PortcallCore core = {sizeof(PortcallCore), PORTCALL_VERSION,
#define PORTCALL_CORE_ENTRY(name, function) function,
                                    PORTCALL_CORE_FUNCTIONS(PORTCALL_CORE_ENTRY)
#undef PORTCALL_CORE_ENTRY
  };
  return &core;
}

void TVMFFIGetVersion(TVMFFIVersion* out) {
  *out = {0, 1, 13};  // of the ABI that this runtime follows, not of portcall
}
