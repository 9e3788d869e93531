// SPDX-License-Identifier: Apache-2.0
#include "foreign.h"

#include <dlfcn.h>

namespace portcall {
namespace {

// Calls `use` with the address of a function of the foreign runtime. Looked up each time, on error paths only: that
// runtime may be loaded later.
template <typename Function, typename Use> void WithForeign(const char* name, Use&& use) noexcept {
  void* library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (!library) return;
  if (void* address = dlsym(library, name)) use(reinterpret_cast<Function>(address));
  dlclose(library);  // gives back the reference that this dlopen added
}

}  // namespace

TVMFFIObjectHandle TakeForeignError() noexcept {
  TVMFFIObjectHandle error = nullptr;
  WithForeign<void (*)(TVMFFIObjectHandle*)>("TVMFFIErrorMoveFromRaised", [&](auto move) { move(&error); });
  return error;
}

void RaiseForeignError(const char* kind, const char* message) noexcept {
  WithForeign<void (*)(const char*, const char*)>("TVMFFIErrorSetRaisedFromCStr",
                                                  [&](auto raise) { raise(kind, message); });
}

bool IsForeignRuntimePresent() noexcept {
  void* library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != nullptr;
}

bool IsForeignRuntimeGlobal() noexcept {
  // The global scope is searched before this library's own.
  return dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaised") != reinterpret_cast<void*>(&TVMFFIErrorSetRaised);
}

}  // namespace portcall
