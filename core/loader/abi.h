// SPDX-License-Identifier: Apache-2.0
// How the functions of a library are called, as the names that it defines tell.
#ifndef PORTCALL_LOADER_ABI_H_
#define PORTCALL_LOADER_ABI_H_

#include <string>
#include <vector>

namespace portcall::loader {

constexpr const char* kPrefix = "__tvm_ffi_";  // in front of exported functions
constexpr const char* kDoc = "_doc_";  // in front of a function's name: a function that returns its documentation
constexpr const char* kReserved = "__tvm_ffi__";  // in front of names that belong to the compiler
// Variables for the library's own module, by era.
constexpr const char* kModuleContexts[] = {"__tvm_ffi__library_ctx", "__tvm_ffi_library_ctx", "__tvm_module_ctx"};

enum class Abi {
  kModern,    // TVM 0.22 and later, tvm-ffi, portcall: __tvm_ffi_<name>
  kModern21,  // TVM 0.21: <name>, called like the above
  kClassic,   // TVM 0.6 to 0.20
  kPlain,     // no name of it tells
};

// A name of a function may begin with underscores itself: `__vmtir__main` of a virtual machine.
inline bool IsReserved(const std::string& symbol) {
  return symbol.rfind(kReserved, 0) == 0 && symbol.compare(11, 1, "_") != 0;
}

Abi AbiOf(const std::vector<std::string>& functions, const std::vector<std::string>& objects);

}  // namespace portcall::loader
#endif  // PORTCALL_LOADER_ABI_H_
