// SPDX-License-Identifier: Apache-2.0
// Modules where there is no dlopen: code that is linked into the core, and libraries that JavaScript placed in the core's
// memory and table. Both are tables of symbols; the address of a function is its place in the table.
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "loader/library_module.h"
#include "loader/module.h"
#include "loader/symbols.h"
#include "portcall/function.h"
#include "web/web.h"

namespace portcall::loader {
namespace {

using Symbols = std::map<std::string, void*>;

constexpr const char* kPrefix = "__tvm_ffi_";     // in front of exported functions
constexpr const char* kReserved = "__tvm_ffi__";  // in front of names that belong to the compiler
constexpr const char* kContext = "__tvm_ffi__library_ctx";
constexpr const char* kEmbedded = "__tvm_ffi__library_bin";

class SymbolModule : public ModuleNode {
 public:
  SymbolModule(const char* kind, std::shared_ptr<const Symbols> symbols, std::string prefix)
      : kind_(kind), symbols_(std::move(symbols)), prefix_(std::move(prefix)) {}
  const char* kind() const override { return kind_; }
  std::string EntryName() override { return "main"; }

  PackedFunc GetFunction(const std::string& name, const Module& self) override {
    FillContext(self);
    for (const std::string& symbol : {kPrefix + prefix_ + name, kPrefix + name}) {
      if (symbol.rfind(kReserved, 0) == 0) continue;
      if (void* address = Find(symbol)) return Wrap(address, self, name);
    }
    return nullptr;
  }

  std::vector<std::string> FunctionNames() override {
    std::vector<std::string> names;
    for (const auto& [symbol, address] : *symbols_) {
      if (symbol.rfind(kPrefix, 0) == 0 && symbol.rfind(kReserved, 0) != 0) names.push_back(symbol.substr(10));
    }
    return names;
  }

  void* Find(const std::string& symbol) const {
    auto it = symbols_->find(symbol);
    return it == symbols_->end() ? nullptr : it->second;
  }
  void* FindSpecial(const char* symbol) const {
    void* address = Find(prefix_ + symbol);
    return address ? address : Find(symbol);
  }

  // Tells compiled code where its own module is. Linked code may register itself after somebody asked for this one.
  void FillContext(const Module& self) const {
    if (auto* slot = static_cast<void**>(FindSpecial(kContext))) *slot = self.get();
  }

 private:
  // The symbol itself is the function; what it gets as its closure is the module that it keeps alive.
  PackedFunc Wrap(void* address, const Module& self, const std::string& name) const {
    TVMFFIObjectHandle handle = nullptr;
    auto release = [](void* module) { Release(static_cast<TVMFFIObject*>(module)); };
    int32_t flags = kPortcallFunctionLibrary;
    if (!Find("portcall_abi_version")) flags |= kPortcallFunctionGenerated;
    Check(PortcallFunctionCreate(self.get(), reinterpret_cast<TVMFFISafeCallType>(address), release, flags,
                                 name.c_str(), &handle));
    Retain(self.get());
    return ObjectRef::Steal<PackedFunc>(handle);
  }

  const char* kind_;
  std::shared_ptr<const Symbols> symbols_;
  std::string prefix_;
};

// The root: the module, or what a compiler embedded in it.
Module MakeRoot(std::unique_ptr<SymbolModule> node) {
  SymbolModule* symbols = node.get();
  Module module(std::move(node));
  symbols->FillContext(module);
  auto* blob = static_cast<const char*>(symbols->FindSpecial(kEmbedded));
  if (!blob) return module;
  uint64_t nbytes = 0;
  std::memcpy(&nbytes, blob, sizeof(nbytes));
  return MakeEmbedded(blob + sizeof(nbytes), static_cast<size_t>(nbytes), false, module);
}

const std::shared_ptr<Symbols>& LinkedSymbols() {  // constructors of other objects may come first
  static auto* symbols = new std::shared_ptr<Symbols>(std::make_shared<Symbols>());
  return *symbols;
}

}  // namespace

// Compiled code finds the core's functions when JavaScript links it.
std::vector<ContextSymbol> ContextSymbols() { return {}; }

// There is no folder beside the core, so no plug-in is in it.
std::string BesideCore(const char*) { return {}; }

Module LoadLibrary(const std::string& path) {
  PORTCALL_THROW(ModuleLoadError) << "cannot load '" << path << "': WebAssembly has no shared libraries; load a .wasm";
}

Module SystemLibrary(const std::string& prefix) {
  static auto* modules = new std::map<std::string, Module>();
  auto it = modules->find(prefix);
  if (it != modules->end()) return it->second;
  Module root = MakeRoot(std::make_unique<SymbolModule>("system_lib", LinkedSymbols(), prefix));
  return modules->emplace(prefix, root).first->second;
}

}  // namespace portcall::loader

using namespace portcall;
using namespace portcall::loader;

int PortcallWebModule(const TVMFFIByteArray* names, void* const* addresses, int32_t count, TVMFFIObjectHandle* out) {
  return Guard([&] {
    auto symbols = std::make_shared<Symbols>();
    for (int32_t i = 0; i < count; ++i) (*symbols)[std::string(names[i].data, names[i].size)] = addresses[i];
    *out = MakeRoot(std::make_unique<SymbolModule>("library", std::move(symbols), "")).release();
  });
}

int TVMFFIEnvModRegisterSystemLibSymbol(const char* name, void* symbol) {
  return Guard([&] { (*LinkedSymbols())[name] = symbol; });
}

int TVMBackendRegisterSystemLibSymbol(const char* name, void* symbol) {
  return TVMFFIEnvModRegisterSystemLibSymbol(name, symbol);
}

// Libraries import the runtime's functions by name: none has variables for them.
int TVMFFIEnvModRegisterContextSymbol(const char*, void*) { return 0; }

int PortcallModuleFailLoad() { return -1; }
