// SPDX-License-Identifier: Apache-2.0
#include "loader/abi.h"

#include "loader/symbols.h"
#include "portcall/container.h"
#include "portcall/function.h"

namespace portcall::loader {
namespace {

// What only libraries of one era define. Text in place: pointers to it would be relocated when the core is loaded.
struct Mark {
  Abi abi;
  char name[31];
};
constexpr Mark kMarks[] = {
    {Abi::kModern21, "__tvm_ffi_library_ctx"}, {Abi::kModern21, "__tvm_ffi_library_bin"},
    {Abi::kModern21, "__TVMFFIFunctionCall"},  {Abi::kModern21, "__TVMFFIErrorSetRaisedFromCStr"},
    {Abi::kClassic, "__tvm_module_ctx"},       {Abi::kClassic, "__tvm_dev_mblob"},
    {Abi::kClassic, "__tvm_main__"},           {Abi::kClassic, "__TVMFuncCall"},
    {Abi::kClassic, "__TVMAPISetLastError"},
};

}  // namespace

Abi AbiOf(const std::vector<std::string>& functions, const std::vector<std::string>& objects) {
  bool prefix = false, modern = false, modern21 = false, classic = false;
  for (const std::vector<std::string>* names : {&functions, &objects}) {
    for (const std::string& name : *names) {
      if (name.rfind(kPrefix, 0) == 0) {
        prefix = true;
        modern |= names == &functions && !IsReserved(name);
      }
      for (const Mark& mark : kMarks) {
        if (name == mark.name) (mark.abi == Abi::kClassic ? classic : modern21) = true;
      }
    }
  }
  // Libraries of TVM 0.22 have some variables of 0.21 too, but functions with a prefix.
  if (modern21 && !modern) return Abi::kModern21;
  return prefix ? Abi::kModern : classic ? Abi::kClassic : Abi::kPlain;
}

// For what looks into a library without loading it: the same rules, and the same names.
PORTCALL_REGISTER_GLOBAL("portcall.loader.Abi")
    .set_body_typed([](Array<std::string> functions, Array<std::string> objects) {
      static constexpr const char* kNames[] = {"modern", "modern 0.21", "classic", "plain"};
      return kNames[static_cast<int>(AbiOf(functions.vector(), objects.vector()))];
    });
PORTCALL_REGISTER_GLOBAL("portcall.loader.ContextNames").set_body_typed([]() {
  std::vector<Any> names(std::begin(kModuleContexts), std::end(kModuleContexts));
  for (const ContextSymbol& symbol : ContextSymbols()) names.emplace_back(symbol.name);
  return Array<Any>(names);
});

}  // namespace portcall::loader
