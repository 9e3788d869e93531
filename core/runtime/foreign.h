// SPDX-License-Identifier: Apache-2.0
// Another runtime of the same ABI (libtvm_ffi.so) may live in this process, with an error slot of its own. Libraries
// that are bound to it leave their errors there, and look there for those of the functions that they call. So where it
// is, its slot serves both runtimes.
#ifndef PORTCALL_RUNTIME_FOREIGN_H_
#define PORTCALL_RUNTIME_FOREIGN_H_

#include "portcall/c_api.h"

namespace portcall {

// The error in the foreign runtime's slot of this thread, owned by the caller; null when there is no such runtime.
TVMFFIObjectHandle TakeForeignError() noexcept;

// Puts the error into the foreign runtime's slot of this thread; false when there is no such runtime.
bool GiveForeignError(TVMFFIObjectHandle error) noexcept;

// Whether another runtime was loaded RTLD_GLOBAL: its functions then come before ours for every library.
bool IsForeignRuntimeGlobal() noexcept;

}  // namespace portcall
#endif  // PORTCALL_RUNTIME_FOREIGN_H_
