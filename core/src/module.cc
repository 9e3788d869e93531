// SPDX-License-Identifier: Apache-2.0
// What every module can do, as global functions; embedded modules; look-ups of compiled code.
#include "portcall/module.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "library_module.h"
#include "node.h"

namespace portcall {
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

struct ModuleImpl final : Object {
  static constexpr const char* kTypeKey = "ffi.Module";
  static constexpr int32_t kTypeIndex = kTVMFFIModule;
  std::unique_ptr<ModuleNode> impl;
  std::mutex mutex;  // guards the two below
  std::vector<Module> imports;
  std::unordered_map<std::string, PackedFunc> env_cache;  // what compiled code looked up, and borrows from here
};

ModuleImpl* NodeOf(const Module& module) {
  PORTCALL_CHECK(module.defined(), TypeError) << "the module is None";
  // A module of another runtime has a body that only that runtime can read.
  PORTCALL_CHECK(module.get()->deleter == DeleteCountedNode<ModuleImpl>, TypeError)
      << "this module belongs to another runtime of the process";
  return static_cast<ModuleImpl*>(module.get());
}

bool IsRunnable(const Module& module) { return !dynamic_cast<UnknownNode*>(NodeOf(module)->impl.get()); }

std::vector<Module> ImportsOf(const Module& module) {
  ModuleImpl* node = NodeOf(module);
  std::lock_guard<std::mutex> lock(node->mutex);
  return node->imports;
}

// Depth first; `visit` returns true to stop.
bool Walk(const Module& module, const std::function<bool(const Module&)>& visit) {
  if (visit(module)) return true;
  for (const Module& import : ImportsOf(module)) {
    if (Walk(import, visit)) return true;
  }
  return false;
}

PackedFunc GetFunction(const Module& module, const std::string& name, bool query_imports) {
  PackedFunc found = NodeOf(module)->impl->GetFunction(name, module);
  if (found.defined() || !query_imports) return found;
  for (const Module& import : ImportsOf(module)) {
    found = GetFunction(import, name, true);
    if (found.defined()) return found;
  }
  return found;
}

bool Reaches(const Module& module, const Module& wanted) {
  return Walk(module, [&](const Module& inner) { return inner.same_as(wanted); });
}

void ImportModule(const Module& module, const Module& other) {
  NodeOf(other);
  PORTCALL_CHECK(!Reaches(other, module), ValueError) << "a module cannot import itself, not even through others";
  ModuleImpl* node = NodeOf(module);
  std::lock_guard<std::mutex> lock(node->mutex);
  node->imports.push_back(other);
}

// ---- Embedded modules ---------------------------------------------------------------------------------------------

class BlobReader {
 public:
  BlobReader(const char* data, size_t size) : data_(data), size_(size) {}

  bool done() const { return size_ == 0; }
  uint64_t U64() {
    uint64_t value;
    std::memcpy(&value, Take(8).data(), 8);
    return value;
  }
  std::string Text() { return std::string(Take(U64())); }
  std::vector<uint64_t> Numbers() {
    uint64_t count = U64();
    PORTCALL_CHECK(count <= size_ / 8, ModuleLoadError) << kDamaged;
    std::vector<uint64_t> numbers;
    for (uint64_t i = 0; i < count; ++i) numbers.push_back(U64());
    return numbers;
  }
  std::string Rest() { return std::string(Take(size_)); }

 private:
  static constexpr const char* kDamaged = "the modules embedded in the library are damaged: a length goes past the end";

  std::string_view Take(uint64_t n) {
    PORTCALL_CHECK(n <= size_, ModuleLoadError) << kDamaged;
    std::string_view part(data_, n);
    data_ += n;
    size_ -= n;
    return part;
  }

  const char* data_;
  size_t size_;
};

Module MakeEmbedded(const std::string& kind, std::string payload) {
  if (PackedFunc load = Registry::Get("ffi.Module.load_from_bytes." + kind); load.defined()) {
    return load(Bytes(payload)).cast<Module>();
  }
  return Module(std::make_unique<UnknownNode>(kind, std::move(payload)));
}

// Imports by compressed rows: the children of module i are children[rows[i] .. rows[i + 1]].
void Connect(const std::vector<Module>& modules, const std::vector<uint64_t>& rows,
             const std::vector<uint64_t>& children) {
  PORTCALL_CHECK(rows.size() == modules.size() + 1 && rows.back() <= children.size(), ModuleLoadError)
      << "the import tree of the embedded modules is damaged";
  for (size_t i = 0; i < modules.size(); ++i) {
    PORTCALL_CHECK(rows[i] <= rows[i + 1] && rows[i + 1] <= children.size(), ModuleLoadError)
        << "the import tree of the embedded modules is damaged";
    for (uint64_t k = rows[i]; k < rows[i + 1]; ++k) {
      PORTCALL_CHECK(children[k] < modules.size(), ModuleLoadError)
          << "the import tree of the embedded modules names module " << children[k] << " of " << modules.size();
      PORTCALL_CHECK(!Reaches(modules[children[k]], modules[i]), ModuleLoadError)
          << "the import tree of the embedded modules has a cycle";
      ImportModule(modules[i], modules[children[k]]);
    }
  }
}

Module DecodeModern(BlobReader reader, const Module& library) {
  std::vector<uint64_t> rows = reader.Numbers();
  std::vector<uint64_t> children = reader.Numbers();
  PORTCALL_CHECK(rows.size() > 1, ModuleLoadError) << "the library embeds no module";
  std::vector<Module> modules;
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    std::string kind = reader.Text();
    modules.push_back(kind == "_lib" ? library : MakeEmbedded(kind, reader.Text()));
  }
  Connect(modules, rows, children);
  return modules[0];
}

// Payloads have no length: only their own kind's loader, which needs the old runtime's C++ streams, can tell where one
// ends. So the first one takes all that follows, and is kept as an import.
Module DecodeClassic(BlobReader reader, const Module& library) {
  std::vector<Module> modules;
  uint64_t count = reader.U64();
  for (uint64_t i = 0; i < count && !reader.done(); ++i) {
    std::string key = reader.Text();
    if (key == "_lib") {
      modules.push_back(library);
    } else if (key == "_import_tree") {
      std::vector<uint64_t> rows = reader.Numbers();
      Connect(modules, rows, reader.Numbers());
      return modules[0];
    } else {
      modules.push_back(MakeEmbedded(key, reader.Rest()));
    }
  }
  for (const Module& module : modules) {
    if (!module.same_as(library)) ImportModule(library, module);
  }
  return library;
}

// ---- The names by which everybody calls modules -------------------------------------------------------------------

Module LoadFromFile(const std::string& path) {
  std::string suffix = std::filesystem::path(path).extension().string();
  suffix.erase(0, 1);
  bool library = suffix == "so" || suffix == "dll" || suffix == "dylib" || suffix == "dso";
  if (!library && path.find(".so.") != std::string::npos) library = true;  // libfoo.so.1.2
  if (library) return LoadLibrary(path);
  PackedFunc load = Registry::Get("ffi.Module.load_from_file." + suffix);
  PORTCALL_CHECK(load.defined(), ModuleLoadError)
      << "cannot load '" << path << "': no loader for "
      << (suffix.empty() ? "a file without suffix" : "'." + suffix + "'") << "; a shared library ends in .so";
  return load(path).cast<Module>();
}

PORTCALL_REGISTER_GLOBAL("ffi.ModuleLoadFromFile").set_body_typed(LoadFromFile);
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
PORTCALL_REGISTER_GLOBAL("portcall.ModuleEntryName").set_body_typed([](Module m) {
  return NodeOf(m)->impl->EntryName();
});
PORTCALL_REGISTER_GLOBAL("portcall.ModuleFunctionNames").set_body_typed([](Module m) {
  return NodeOf(m)->impl->FunctionNames();
});
PORTCALL_REGISTER_GLOBAL("portcall.ModuleIsRunnable").set_body_typed(IsRunnable);

PORTCALL_REGISTER_GLOBAL("ffi.SystemLib").set_body([](Args args, RetValue* rv) {
  *rv = SystemLibrary(args.size() > 0 ? args[0].cast<std::string>() : std::string());
});

}  // namespace

Module DecodeEmbedded(const char* data, size_t nbytes, bool classic, const Module& library) {
  BlobReader reader(data, nbytes);
  return classic ? DecodeClassic(reader, library) : DecodeModern(reader, library);
}

PackedFunc LookupFromImports(const Module& module, const std::string& name) {
  ModuleImpl* node = NodeOf(module);
  {
    std::lock_guard<std::mutex> lock(node->mutex);
    auto it = node->env_cache.find(name);
    if (it != node->env_cache.end()) return it->second;
  }
  PackedFunc found;
  for (const Module& import : ImportsOf(module)) {
    found = GetFunction(import, name, true);
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
                                 << "', which no imported module has and nobody registered; "
                                 << (idle.empty()
                                         ? ""
                                         : "it may be in a module of a type that cannot run here (" + idle + "), or ")
                                 << "register it with register_func(\"" << name << "\", …)";
  }
  std::lock_guard<std::mutex> lock(node->mutex);
  return node->env_cache.emplace(name, found).first->second;
}

}  // namespace portcall

using namespace portcall;

int PortcallModuleCreate(void* module_node, TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(module_node, ValueError) << "a module needs a node";
    auto* module = NewCountedNode<ModuleImpl>(0);
    module->impl.reset(static_cast<ModuleNode*>(module_node));
    *out = module;
  });
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
