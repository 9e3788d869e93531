// SPDX-License-Identifier: Apache-2.0
// Another runtime of the same ABI (libtvm_ffi.so) may live in this process, with its own error slot. Libraries
// that are bound to it leave their errors there, and look there for those of the functions that they call. So where it
// is, its slot serves both runtimes.
// Its types have its own indexes: those of this runtime begin above them (kPortcallDynObjectBegin), so that an object
// tells which of the two it belongs to.
#ifndef PORTCALL_RUNTIME_FOREIGN_H_
#define PORTCALL_RUNTIME_FOREIGN_H_

#include <string>

#include "portcall/c_api.h"

namespace portcall {

// The error in the foreign runtime's slot of this thread, owned by the caller; null when there is no such runtime.
TVMFFIObjectHandle TakeForeignError() noexcept;

// Puts the error into the foreign runtime's slot of this thread; false when there is no such runtime.
bool GiveForeignError(TVMFFIObjectHandle error) noexcept;

// The key of a type of the foreign runtime, with the name of that; empty when it knows none of this index.
std::string ForeignTypeKey(int32_t type_index);

// Whether code at this address is of a library that uses the foreign runtime.
bool IsForeignCode(const void* address) noexcept;

// Whether a library that needs libtvm_ffi.so gets this runtime: it, or a forwarder to it, is mapped under that name.
bool IsForeignNameOwn() noexcept;

// Whether another runtime was loaded RTLD_GLOBAL: its functions then come before ours for every library.
bool IsForeignRuntimeGlobal() noexcept;

}  // namespace portcall
#endif  // PORTCALL_RUNTIME_FOREIGN_H_
