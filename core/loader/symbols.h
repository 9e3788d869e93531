// SPDX-License-Identifier: Apache-2.0
// How a library finds the runtime. The core is never loaded RTLD_GLOBAL, because its names are also those of other
// runtimes; so each library gets it into its own scope.
#ifndef PORTCALL_LOADER_SYMBOLS_H_
#define PORTCALL_LOADER_SYMBOLS_H_

#include <string>
#include <string_view>
#include <vector>

namespace portcall::loader {

// Whether a name belongs to this family of runtimes ("TVM…", "Portcall…").
bool IsRuntimeSymbol(std::string_view name);

// Maps a library with the runtime in its scope, so that its constructors too find it there: a generated library of a few
// hundred bytes needs both, and what one dlopen brings in shares one scope. Every symbol is bound before it returns.
// `ir_library` is in the scope too, unless it is "".
// Returns the handle of the generated library, which owns the mapping, or null with dlerror() set.
void* OpenWithRuntime(const std::string& path, const std::string& ir_library);

// The path of a library in the core's folder; "" where the core is a part of the program, which such a library cannot use.
std::string BesideCore(const char* library);

// What libraries on tvm-ffi's headers need of C++.
constexpr const char* kTvmFfiLibrary = "libportcall_tvm_ffi.so";

// The path of libportcall_ir, beside the core, when one of these symbols is not the core's own; of the above when one is of
// tvm-ffi's C++; else "".
std::string IrLibraryFor(const std::vector<std::string>& undefined);

// Names and addresses that a loader stores into variables `__X` of a library. Thread-safe.
struct ContextSymbol {
  std::string name;
  void* address;
};
std::vector<ContextSymbol> ContextSymbols();
void AddContextSymbol(const char* name, void* address);

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_SYMBOLS_H_
