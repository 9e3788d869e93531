// SPDX-License-Identifier: Apache-2.0
// What every module can do, as global functions; embedded modules; look-ups of compiled code.
#include "loader/module.h"

#include <functional>
#include <mutex>
#include <set>
#include <unordered_map>

#include "loader/embedded.h"
#include "loader/plugins.h"
#include "loader/symbols.h"
#include "runtime/node.h"

namespace portcall::loader {
namespace {

// A module of a kind that this process cannot run. It keeps its bytes and says so when it is asked for a function.
class UnknownNode : public ModuleNode {
 public:
  UnknownNode(std::string kind, std::string payload) : kind_(std::move(kind)), payload_(std::move(payload)) {}
  const char* kind() const override { return kind_.c_str(); }
  PackedFunc GetFunction(const std::string&, const Module&) override { return nullptr; }
  std::string GetSource(const std::string& format) override {
    if (format.empty() || format == "bytes") return payload_;
    return ModuleNode::GetSource(format);
  }

 private:
  std::string kind_;
  std::string payload_;
};

// Before a module lies what classes of C++ have there: the address of a table of virtual functions. The library that
// knows of tvm-ffi's class of modules fills it (tvm_ffi/modules.cc), and `stand_in` after it: the module of this runtime
// that stands for a module of such a class, as long as that lives; the module itself, where it is none.
struct {
  void* description[2];
  void* functions[12];
  TVMFFIObject* (*stand_in)(TVMFFIObject*);
} virtual_table;

struct Functions {
  void** functions = virtual_table.functions;
};

struct ModuleImpl final : Functions, Object {
  static constexpr int32_t kTypeIndex = kTVMFFIModule;
  static constexpr bool kHoldsObjects = true;
  // Here tvm-ffi's headers read it.
  Array<Any> imports;
  std::unique_ptr<ModuleNode> impl;
  std::mutex mutex;                                       // guards the imports and what is below
  std::unordered_map<std::string, PackedFunc> env_cache;  // what compiled code looked up, and borrows from here
};

ModuleImpl* NodeOf(const Module& module) {
  PORTCALL_CHECK(module.defined(), TypeError) << "the module is None";
  TVMFFIObject* found = module.get();
  if (found->deleter != DeleteCountedNode<ModuleImpl> && virtual_table.stand_in) found = virtual_table.stand_in(found);
  // A module of another runtime has a body that only that runtime can read.
  PORTCALL_CHECK(found->deleter == DeleteCountedNode<ModuleImpl>, TypeError)
      << "this module belongs to another runtime of the process";
  return static_cast<ModuleImpl*>(found);
}

bool IsRunnable(const Module& module) { return !dynamic_cast<UnknownNode*>(NodeOf(module)->impl.get()); }

Array<Any> ImportsOf(const Module& module) {
  ModuleImpl* node = NodeOf(module);
  std::lock_guard<std::mutex> lock(node->mutex);
  return node->imports;
}

Module AsModule(const Any& import) { return ObjectRef::Borrow<Module>(import.cell().v_obj); }

// Depth first, each module once; `visit` returns true to stop.
bool Walk(const Module& module, const std::function<bool(const Module&)>& visit, std::set<const void*>* seen) {
  if (!seen->insert(module.get()).second) return false;
  if (visit(module)) return true;
  for (const Any& import : ImportsOf(module)) {
    if (Walk(AsModule(import), visit, seen)) return true;
  }
  return false;
}

bool Walk(const Module& module, const std::function<bool(const Module&)>& visit) {
  std::set<const void*> seen;
  return Walk(module, visit, &seen);
}

PackedFunc GetFunction(const Module& module, const std::string& name, bool query_imports) {
  PackedFunc found = NodeOf(module)->impl->GetFunction(name, module);
  if (found.defined() || !query_imports) return found;
  Walk(module, [&](const Module& inner) {
    if (!inner.same_as(module)) found = NodeOf(inner)->impl->GetFunction(name, inner);
    return found.defined();
  });
  return found;
}

bool Reaches(const Module& module, const Module& wanted) {
  return Walk(module, [&](const Module& inner) { return inner.same_as(wanted); });
}

void ImportModule(const Module& module, const Module& other) {
  NodeOf(other);  // which may not be None
  if (NodeOf(module)->impl->Import(other)) return;
  PORTCALL_CHECK(!Reaches(other, module), ValueError) << "a module cannot import itself, not even through others";
  ModuleImpl* node = NodeOf(module);
  std::lock_guard<std::mutex> lock(node->mutex);
  node->imports.push_back(other);
}

// ---- Embedded modules ---------------------------------------------------------------------------------------------

Module MakeModule(const std::string& kind, std::string_view payload) {
  std::string loader = "ffi.Module.load_from_bytes." + kind;
  PackedFunc load = Registry::Get(loader);
  if (!load.defined()) {
    LoadPlugin(kind);
    load = Registry::Get(loader);
  }
  if (load.defined()) {  // the bytes are lent: they may be many
    TVMFFIByteArray bytes = ToByteArray(payload);
    TVMFFIAny lent;
    detail::SetCell(&lent, kTVMFFIByteArrayPtr);
    lent.v_ptr = &bytes;
    return load.CallPacked(&lent, 1).cast<Module>();
  }
  return Module(std::make_unique<UnknownNode>(kind, std::string(payload)));
}

// Functions of any language under names.
class FunctionsNode : public ModuleNode {
 public:
  explicit FunctionsNode(Map<String, Any> functions) : functions_(std::move(functions)) {}
  const char* kind() const override { return "functions"; }
  PackedFunc GetFunction(const std::string& name, const Module&) override {
    std::optional<Any> found = functions_.find(name);
    return found ? found->cast<PackedFunc>() : PackedFunc();
  }
  std::vector<std::string> FunctionNames() override {
    std::vector<std::string> names;
    for (const auto& [name, func] : functions_) names.push_back(name.str());
    return names;
  }

 private:
  Map<String, Any> functions_;
};

// ---- The names by which everybody calls modules -------------------------------------------------------------------

PORTCALL_REGISTER_GLOBAL("ffi.ModuleGetKind").set_body_typed([](Module m) {
  return std::string(NodeOf(m)->impl->kind());
});
PORTCALL_REGISTER_GLOBAL("ffi.ModuleGetFunction").set_body_typed(GetFunction);
PORTCALL_REGISTER_GLOBAL("ffi.ModuleImplementsFunction")
    .set_body_typed([](Module m, std::string name, bool query_imports) {
      return GetFunction(m, name, query_imports).defined();
    });
PORTCALL_REGISTER_GLOBAL("ffi.ModuleImportModule").set_body_typed(ImportModule);
PORTCALL_REGISTER_GLOBAL("ffi.ModuleInspectSource").set_body_typed([](Module m, std::string format) {
  return Bytes(NodeOf(m)->impl->GetSource(format));
});
PORTCALL_REGISTER_GLOBAL("ffi.ModuleImports").set_body_typed(ImportsOf);
PORTCALL_REGISTER_GLOBAL("ffi.ModuleClearImports").set_body_typed([](Module m) {
  ModuleImpl* node = NodeOf(m);
  if (node->impl->Import(nullptr)) return;
  std::lock_guard<std::mutex> lock(node->mutex);
  node->imports.clear();
});
PORTCALL_REGISTER_GLOBAL("portcall.ModuleEntryName").set_body_typed([](Module m) {
  return NodeOf(m)->impl->EntryName();
});
PORTCALL_REGISTER_GLOBAL("portcall.ModuleFunctionNames").set_body_typed([](Module m) {
  return NodeOf(m)->impl->FunctionNames();
});
PORTCALL_REGISTER_GLOBAL("portcall.ModuleOfFunctions").set_body([](Args args, RetValue* rv) {
  *rv = Module(std::make_unique<FunctionsNode>(args[0].cast<Map<String, Any>>()));
});
PORTCALL_REGISTER_GLOBAL("portcall.ModuleIsRunnable").set_body_typed(IsRunnable);

}  // namespace

Module MakeEmbedded(const char* data, size_t nbytes, bool classic, const Module& library) {
  std::vector<EmbeddedModule> decoded = DecodeEmbedded(data, nbytes, classic);
  std::vector<Module> modules;
  for (const EmbeddedModule& module : decoded) {
    modules.push_back(module.kind == kLibraryKind ? library : MakeModule(module.kind, module.payload));
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    for (size_t import : decoded[i].imports) ImportModule(modules[i], modules[import]);
  }
  return modules[0];
}

namespace {

// What compiled code looks up by name: the imports of the module, then the global table. Borrowed: it lives as long as
// the module. Throws when nothing has the name.
PackedFunc LookupFromImports(const Module& module, const std::string& name) {
  ModuleImpl* node = NodeOf(module);
  {
    std::lock_guard<std::mutex> lock(node->mutex);
    auto it = node->env_cache.find(name);
    if (it != node->env_cache.end()) return it->second;
  }
  PackedFunc found;
  for (const Any& import : ImportsOf(module)) {
    found = GetFunction(AsModule(import), name, true);
    if (found.defined()) break;
  }
  if (!found.defined()) found = Registry::Get(name);
  if (!found.defined()) {
    std::string idle;
    Walk(module, [&](const Module& inner) {
      if (!IsRunnable(inner)) idle.append(idle.empty() ? "" : ", ").append(NodeOf(inner)->impl->kind());
      return false;
    });
    PORTCALL_THROW(RuntimeError) << "compiled code needs the function '" << name
                                 << "', which no imported module has and which is not registered; "
                                 << (idle.empty()
                                         ? ""
                                         : "it may be in a module of a type that cannot run here (" + idle + "), or ")
                                 << "register it with register_func(\"" << name << "\", …)";
  }
  std::lock_guard<std::mutex> lock(node->mutex);
  return node->env_cache.emplace(name, found).first->second;
}

}  // namespace
}  // namespace portcall::loader

using namespace portcall;
using namespace portcall::loader;

int PortcallModuleCreate(void* module_node, TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(module_node, ValueError) << "a module needs a node";
    auto* module = NewCountedNode<ModuleImpl>(0);
    module->impl.reset(static_cast<ModuleNode*>(module_node));
    *out = static_cast<TVMFFIObject*>(module);
  });
}

void* PortcallModuleGetNode(TVMFFIObjectHandle module) {
  auto* obj = static_cast<TVMFFIObject*>(module);
  if (!obj || obj->deleter != DeleteCountedNode<ModuleImpl>) return nullptr;
  return static_cast<ModuleImpl*>(obj)->impl.get();
}

int TVMFFIEnvModLookupFromImports(TVMFFIObjectHandle library_ctx, const char* name, TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(library_ctx, RuntimeError)
        << "compiled code asked for '" << name << "' before its library was loaded";
    *out = LookupFromImports(ObjectRef::Borrow<Module>(library_ctx), name).get();  // borrowed from the module's cache
  });
}

int TVMBackendGetFuncFromEnv(void* library_ctx, const char* name, void** out) {
  return TVMFFIEnvModLookupFromImports(library_ctx, name, out);
}
