// SPDX-License-Identifier: Apache-2.0
#include "loader/abi.h"

#include <algorithm>

#include "loader/symbols.h"
#include "portcall/container.h"
#include "portcall/function.h"

namespace portcall::loader {
namespace {

struct Mark {
  Abi abi;
  const char* name;
};

// What only libraries of one era define.
constexpr Mark kMarks[] = {
    {Abi::kModern21, "__tvm_ffi_library_ctx"}, {Abi::kModern21, "__tvm_ffi_library_bin"},
    {Abi::kModern21, "__TVMFFIFunctionCall"},  {Abi::kModern21, "__TVMFFIErrorSetRaisedFromCStr"},
    {Abi::kClassic, "__tvm_module_ctx"},       {Abi::kClassic, "__tvm_dev_mblob"},
    {Abi::kClassic, "__tvm_main__"},           {Abi::kClassic, "__TVMFuncCall"},
    {Abi::kClassic, "__TVMAPISetLastError"},
};

bool StartsWith(const std::string& name, const char* prefix) { return name.rfind(prefix, 0) == 0; }

}  // namespace

Abi AbiOf(const std::vector<std::string>& functions, const std::vector<std::string>& objects) {
  auto any = [&](auto holds) {
    return std::any_of(functions.begin(), functions.end(), holds) || std::any_of(objects.begin(), objects.end(), holds);
  };
  auto marked = [&](Abi abi) {
    return any([&](const std::string& name) {
      return std::any_of(std::begin(kMarks), std::end(kMarks),
                         [&](const Mark& mark) { return mark.abi == abi && name == mark.name; });
    });
  };
  // Libraries of TVM 0.22 have variables of 0.21 too, but functions with a prefix.
  bool prefixed = std::any_of(functions.begin(), functions.end(), [](const std::string& name) {
    return StartsWith(name, kPrefix) && !IsReserved(name);
  });
  if (!prefixed && marked(Abi::kModern21)) return Abi::kModern21;
  if (any([](const std::string& name) { return StartsWith(name, kPrefix); })) return Abi::kModern;
  return marked(Abi::kClassic) ? Abi::kClassic : Abi::kPlain;
}

// For whoever looks into a library without loading it: the same rules, and the same names.
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
