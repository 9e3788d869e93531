// SPDX-License-Identifier: Apache-2.0
// Modules made of machine code: shared libraries, and code that is linked into the program.
//
// A library is mapped once and shared by its module and functions. One whose code a kernel compiler generated is
// unmapped with the last of them; others may have given out objects that only their own code can free, or their own
// addresses, so they stay.
//
// A library of which the loader fills variables must be ours alone: another runtime that loads the same file would fill them
// too. So it is mapped from a separate copy.
#include "loader/library_module.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "classic/adapter.h"
#include "loader/abi.h"
#include "loader/elf_file.h"
#include "loader/mapped_file.h"
#include "loader/module.h"
#include "loader/private_file.h"
#include "loader/symbols.h"
#include "runtime/foreign.h"
#include "runtime/library_globals.h"

namespace portcall::loader {
namespace {

using Identity = std::tuple<dev_t, ino_t, off_t, int64_t>;

Identity IdentityOf(const struct stat& info) {
  return {info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec};
}

// A system library: its constructors, which run once for a mapping, tell one runtime about it.
bool RegistersItself(const ElfFile& elf) {
  return elf.Imports("TVMFFIEnvModRegisterSystemLibSymbol") || elf.Imports("TVMBackendRegisterSystemLibSymbol");
}

// A library that was linked with another runtime uses that one, unless this one has taken its name.
bool BelongsToForeignRuntime(const ElfFile& elf) {
  return (elf.Needs("libtvm_ffi.so") && !IsForeignNameOwn()) || elf.Needs("libtvm_runtime.so");
}

// ---- One mapped library -------------------------------------------------------------------------------------------

class Library {
 public:
  // `owner` holds the mapping of the library, which lies at `mapped_path`; `registered` is what its constructors did.
  Library(std::string path, ElfFile elf, void* owner, const std::string& mapped_path,
          std::vector<std::string> registered)
      : path_(std::move(path)),
        elf_(std::move(elf)),
        registered_(std::move(registered)),
        owner_(owner),
        handle_(dlopen(mapped_path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)) {
    std::sort(elf_.functions.begin(), elf_.functions.end());
    std::sort(elf_.objects.begin(), elf_.objects.end());
    Classify();
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    dlclose(handle_);
    dlclose(owner_);
  }

  // Others may hold addresses of it forever.
  bool stays() const { return !(flags_ & kPortcallFunctionGenerated) || RegistersItself(elf_); }

  // The address of something that this library itself defines, or null.
  void* Find(const std::string& name) const {
    bool defined = std::binary_search(elf_.functions.begin(), elf_.functions.end(), name) ||
                   std::binary_search(elf_.objects.begin(), elf_.objects.end(), name);
    return defined ? dlsym(handle_, name.c_str()) : nullptr;
  }
  // The same, but never data: a variable may have a function's prefix.
  void* FindFunction(const std::string& name) const {
    bool defined = std::binary_search(elf_.functions.begin(), elf_.functions.end(), name);
    return defined ? dlsym(handle_, name.c_str()) : nullptr;
  }
  const ElfFile& elf() const { return elf_; }
  const std::string& path() const { return path_; }
  Abi abi() const { return abi_; }
  int32_t flags() const { return flags_; }
  bool has_functions() const { return marked_; }
  // Names of global functions and of types. What a library tells another runtime is not known here: it may be any.
  const std::vector<std::string>& registered() const { return registered_; }
  bool registers() const { return !registered_.empty() || (flags_ & kPortcallFunctionForeign); }

 private:
  void Classify() {
    abi_ = AbiOf(elf_.functions, elf_.objects);
    marked_ = abi_ != Abi::kPlain || Find("portcall_abi_version");
    flags_ = kPortcallFunctionLibrary;
    if (Find("portcall_abi_version")) return;
    // In place, like the marks in abi.cc.
    static constexpr char kOfGenerators[][36] = {"TVMFFIErrorSetRaisedFromCStr",
                                                 "TVMFFIErrorSetRaisedFromCStrParts",
                                                 "TVMFFIFunctionCall",
                                                 "TVMFFIEnvModLookupFromImports",
                                                 "TVMFFIHandleInitOnce",
                                                 "TVMFFIHandleDeinitOnce",
                                                 "TVMFFIEnvModRegisterSystemLibSymbol",
                                                 "TVMBackendRegisterSystemLibSymbol"};
    bool generated = std::all_of(elf_.undefined.begin(), elf_.undefined.end(), [](const std::string& name) {
      return !IsRuntimeSymbol(name) || name.rfind("TVMBackend", 0) == 0 ||
             std::find(std::begin(kOfGenerators), std::end(kOfGenerators), name) != std::end(kOfGenerators);
    });
    if (generated) flags_ |= kPortcallFunctionGenerated;
    if (BelongsToForeignRuntime(elf_)) {
      flags_ |= kPortcallFunctionForeign;
    } else if (!generated) {  // on tvm-ffi's headers: what it does with modules needs more than the core
      try {
        LoadLibrary(BesideCore(kTvmFfiLibrary));
      } catch (const Error&) {  // a program may have the core alone
      }
    }
  }

  std::string path_;
  ElfFile elf_;
  std::vector<std::string> registered_;
  void* owner_;
  void* handle_;
  Abi abi_ = Abi::kModern;
  int32_t flags_ = 0;
  bool marked_ = false;
};

class LibraryNode : public ModuleNode {
 public:
  explicit LibraryNode(std::shared_ptr<Library> library) : library_(std::move(library)) {}

  const char* kind() const override { return "library"; }

  PackedFunc GetFunction(const std::string& name, const Module& self) override {
    if (is_empty()) return nullptr;
    if (library_->abi() == Abi::kClassic || library_->abi() == Abi::kPlain) return GetClassic(name, self);
    std::string symbol = library_->abi() == Abi::kModern21 ? name : kPrefix + name;
    if (IsReserved(symbol) && name.rfind(kDoc, 0) != 0) return nullptr;
    void* address = library_->FindFunction(symbol);
    if (!address) return nullptr;
    auto call = reinterpret_cast<TVMFFISafeCallType>(address);
    auto* text = static_cast<const char*>(library_->Find(kReserved + ("signature_" + name)));
    if (text) return Wrap(call, self, library_->flags() | kPortcallFunctionSigned, text + detail::kExportMark.size());
    void* metadata = library_->FindFunction(kReserved + ("metadata_" + name));  // of tvm-ffi's headers: it returns JSON
    if (!metadata) return Wrap(call, self, library_->flags(), name.c_str());
    PackedFunc tell = Wrap(reinterpret_cast<TVMFFISafeCallType>(metadata), self, library_->flags(), name.c_str());
    std::string whole;
    try {
      whole = name + '\0' + tell().cast<std::string>();
    } catch (const Error&) {  // a function can be called without its description
      return Wrap(call, self, library_->flags(), name.c_str());
    }
    return Wrap(call, self, library_->flags() | kPortcallFunctionSigned, whole.c_str());
  }

  std::string EntryName() override {
    if (library_->abi() == Abi::kModern) return "main";
    auto* name = static_cast<const char*>(library_->Find("__tvm_main__"));
    return name ? name : "";
  }

  std::vector<std::string> FunctionNames() override {
    std::vector<std::string> names;
    if (is_empty()) return names;
    for (const std::string& symbol : library_->elf().functions) {
      if (library_->abi() == Abi::kModern) {
        if (symbol.rfind(kPrefix, 0) == 0 && !IsReserved(symbol)) names.push_back(symbol.substr(10));
      } else if (symbol[0] != '_') {
        names.push_back(symbol);
      }
    }
    return names;
  }

  const std::shared_ptr<Library>& library() const { return library_; }

  // The symbol itself is the function; what it gets as its closure is the module that it keeps alive.
  static PackedFunc Wrap(TVMFFISafeCallType symbol, const Module& module, int32_t flags, const char* name) {
    TVMFFIObjectHandle handle = nullptr;
    auto release = [](void* self) { Release(static_cast<TVMFFIObject*>(self)); };
    Check(PortcallFunctionCreate(module.get(), symbol, release, flags, name, &handle));
    Retain(module.get());
    return ObjectRef::Steal<PackedFunc>(handle);
  }

 private:
  // It was loaded for what it registers: how to call anything else that it exports is not known.
  bool is_empty() const { return !library_->has_functions() && library_->registers(); }

  PackedFunc GetClassic(const std::string& name, const Module& self) {
    std::string symbol = name == "__tvm_main__" || name == "main" ? EntryName() : name;
    if (symbol.empty()) symbol = name;
    bool hidden = symbol[0] == '_' && symbol != "_lookup_linked_param";  // graph executors look for that one
    void* address = hidden ? nullptr : library_->FindFunction(symbol);
    return address ? classic::WrapSymbol(address, self, name) : nullptr;
  }

  std::shared_ptr<Library> library_;
};

// ---- Loading ------------------------------------------------------------------------------------------------------

[[noreturn]] void FailToLoad(const std::string& path, const std::string& why) {
  throw Error("ModuleLoadError", "cannot load '" + path + "': " + why);
}

bool ImportsRuntime(const ElfFile& elf) {
  return std::any_of(elf.undefined.begin(), elf.undefined.end(), IsRuntimeSymbol);
}

// What dlopen says, with what to do about it.
std::string Advice(const std::string& why) {
  constexpr std::string_view kUndefined = "undefined symbol: ";
  if (size_t at = why.find(kUndefined); at != std::string::npos) {
    return "it needs the symbol '" + why.substr(at + kUndefined.size()) +
           "', which no library provides; link the library that defines it";
  }
  for (const char* name : {"libtvm_ffi.so", "libtvm_runtime.so"}) {
    if (why.find(name) == std::string::npos) continue;
    const char* package = name[6] == '_' && name[7] == 'f' ? "apache-tvm-ffi" : "apache-tvm";
    return why + "; it was linked with " + name + ": install " + package + ", or link it without";
  }
  return why;
}

// What to do where files may not be mapped as code; empty where they may.
std::string AdviceOnPlace(const std::string& file) {
  struct statvfs place;
  if (statvfs(file.c_str(), &place) != 0 || (place.f_flag & ST_NOEXEC) == 0) return {};
  const std::string folder = file.substr(0, file.find_last_of('/') + 1);
  return "; nothing in '" + folder +
         "' can be run, whose file system is mounted noexec: put the library into another " +
         "folder, and for temporary files, as those of sessions, set TMPDIR to one";
}

// The load that this thread is at. Constructors of the library leave the first error here: an exception would have
// nobody to catch it.
class LoadScope {
 public:
  LoadScope() : outer_(std::exchange(current_, this)) {}
  ~LoadScope() { current_ = outer_; }
  static LoadScope* current() { return current_; }
  ObjectRef error;

 private:
  LoadScope* outer_;
  static thread_local LoadScope* current_;
};
thread_local LoadScope* LoadScope::current_ = nullptr;

// What is left of a library whose load is refused: it stays mapped, and what its constructors did stays too.
std::string WithWhatIsLeft(std::string why, const std::vector<std::string>& registered) {
  for (size_t i = 0; i < registered.size(); ++i) {
    why += (i == 0 ? "; it has registered, and that stays: '" : ", '") + registered[i] + "'";
  }
  return why;
}

// Maps the library at `path` from `mapped`, a copy of it perhaps; the result owns the mapping.
void* Open(const std::string& path, const std::string& mapped, const ElfFile& elf,
           std::vector<std::string>* registered) {
  bool ours = ImportsRuntime(elf) && !BelongsToForeignRuntime(elf);
  std::string ir_library = ours ? IrLibraryFor(elf.undefined) : std::string();
  if (!ir_library.empty()) LoadLibrary(ir_library);  // its constructors come first
  LoadScope scope;
  LibraryGlobals globals(path);
  void* owner = ours ? OpenWithRuntime(mapped, ir_library) : dlopen(mapped.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!owner) {
    const char* reason = dlerror();
    std::string why = reason ? reason : "unknown reason";
    if (size_t at = why.find(mapped); at != std::string::npos) why.replace(at, mapped.size(), path);
    FailToLoad(path, Advice(why) + AdviceOnPlace(mapped));
  }
  // It stays mapped: what its constructors did before refers to its code.
  *registered = globals.registered();
  if (scope.error.defined()) FailToLoad(path, WithWhatIsLeft(std::string(Error(scope.error).message()), *registered));
  globals.RemoveOlder();
  return owner;
}

// Tells compiled code where the runtime's functions and its own module are.
void FillContext(const Library& library, const Module& module) {
  for (const ContextSymbol& symbol : ContextSymbols()) {
    if (auto* slot = static_cast<void**>(library.Find(symbol.name))) *slot = symbol.address;
  }
  for (const char* name : kModuleContexts) {
    if (auto* slot = static_cast<void**>(library.Find(name))) *slot = module.get();
  }
}

bool HasContext(const ElfFile& elf) {
  auto defined = [&](const char* name) { return elf.Defines(name); };
  if (std::any_of(std::begin(kModuleContexts), std::end(kModuleContexts), defined)) return true;
  if (RegistersItself(elf)) return true;
  std::vector<ContextSymbol> symbols = ContextSymbols();
  return std::any_of(symbols.begin(), symbols.end(),
                     [&](const ContextSymbol& symbol) { return elf.Defines(symbol.name.c_str()); });
}

// `file`: where the embedded modules are, if not in the mapping.
Module AttachEmbedded(const Library& library, const MappedFile* file, const Module& module) {
  for (size_t i = 0; i < std::size(kBlobs); ++i) {
    const auto& [name, classic] = kBlobs[i];
    auto* blob = static_cast<const char*>(library.Find(name));
    if (!blob) continue;
    uint64_t nbytes = 0;
    const uint64_t size = library.elf().symbol_bytes[i];
    if (file) blob = file->At<char>(library.elf().blob_offset, size);
    if (!blob) FailToLoad(library.path(), "its file was changed meanwhile");
    if (size >= 8 || size == 0) std::memcpy(&nbytes, blob, 8);
    if (size && (size < 8 || nbytes > size - 8))
      FailToLoad(library.path(), std::string(name) + " is damaged: it is shorter than it says");
    try {
      return MakeEmbedded(blob + 8, nbytes, classic, module);
    } catch (const Error& error) {
      if (error.kind() != "ModuleLoadError") throw;  // what the loader of an embedded kind had to say
      FailToLoad(library.path(), std::string(error.message()));
    }
  }
  return module;
}

// What follows the library in a bundle; its loader is registered by the part of the core that knows of it.
Module AttachBundle(const std::string& path, const ElfFile& elf, const Module& root) {
  try {
    return Registry::Get("portcall.OpenBundle")(path, elf.index_offset, elf.index_bytes, root).cast<Module>();
  } catch (const Error& error) {
    if (error.kind() != "GraphError") throw;
    FailToLoad(path, std::string(error.message()));
  }
}

// What is mapped: which file it was then, and its root module while that is alive.
struct Mapped {
  Identity identity;
  std::weak_ptr<Library> library;
  WeakRef root;
};

std::recursive_mutex load_mutex;  // the loader of an embedded module may load another library

std::map<std::string, Mapped>& MappedTable() {
  static auto* table = new std::map<std::string, Mapped>();
  return *table;
}

void KeepForEver(const std::shared_ptr<Library>& library) {
  static auto* kept = new std::vector<std::shared_ptr<Library>>();
  kept->push_back(library);
}

std::string RealPath(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  std::string text = real ? real : path;
  std::free(real);
  return text;
}

bool IsMapped(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle) dlclose(handle);
  return handle != nullptr;
}

// A copy of what is mapped of a library, but zeros in place of the embedded modules: they may be most of a file, and are
// read from there. Its header promises no table of sections, which comes after that: debuggers and the traces of
// sanitizers read it wherever the header says.
std::unique_ptr<PrivateFile> Copied(const MappedFile& file, const ElfFile& elf) {
  uint64_t blob = elf.blob_offset, after = blob + elf.blob_bytes, total = 0;
  for (const auto& [at, nbytes] : elf.mapped) total += nbytes;
  std::string name = file.path().substr(file.path().rfind('/') + 1);
  auto copy = std::make_unique<PrivateFile>(name.substr(0, name.rfind('.')), total - elf.blob_bytes);
  for (const auto& [at, nbytes] : elf.mapped) {
    const char* data = file.At<char>(at, nbytes);
    uint64_t end = at + nbytes, first = std::clamp(blob, at, end), second = std::clamp(after, at, end);
    copy->Write(at, data, first - at);
    copy->Write(second, data + (second - at), end - second);
  }
  ElfW(Ehdr) header = *file.At<ElfW(Ehdr)>(0);
  header.e_shoff = header.e_shnum = header.e_shstrndx = 0;
  copy->Write(0, &header, sizeof(header));
  return copy;
}

// ---- Code linked into the program ---------------------------------------------------------------------------------

struct SystemTable {
  std::mutex mutex;
  std::map<std::string, void*> symbols;
  std::map<std::string, Module> modules;
};

SystemTable& System() {  // constructors of other objects may come first
  static auto* table = new SystemTable();
  return *table;
}

class SystemNode : public ModuleNode {
 public:
  explicit SystemNode(std::string prefix) : prefix_(std::move(prefix)) {}
  const char* kind() const override { return "system_lib"; }
  std::string EntryName() override { return "main"; }

  PackedFunc GetFunction(const std::string& name, const Module& self) override {
    FillContext(self);
    for (const std::string& symbol : {kPrefix + prefix_ + name, kPrefix + name}) {
      if (void* address = Find(symbol)) {
        return LibraryNode::Wrap(reinterpret_cast<TVMFFISafeCallType>(address), self,
                                 kPortcallFunctionLibrary | kPortcallFunctionGenerated, name.c_str());
      }
    }
    if (name.rfind("__", 0) == 0) return nullptr;
    for (const std::string& symbol : {prefix_ + name, name}) {  // classic code registers plain names
      if (void* address = Find(symbol)) return classic::WrapSymbol(address, self, name);
    }
    return nullptr;
  }

  std::vector<std::string> FunctionNames() override {
    std::lock_guard<std::mutex> lock(System().mutex);
    std::vector<std::string> names;
    for (const auto& [symbol, address] : System().symbols) {
      bool modern = symbol.rfind(kPrefix, 0) == 0 && !IsReserved(symbol);
      std::string name = modern ? symbol.substr(10) : symbol;
      if (!modern && symbol.find("__") != std::string::npos) continue;
      if (name.rfind(prefix_, 0) == 0) names.push_back(name);
    }
    return names;
  }

  static void* Find(const std::string& symbol) {
    std::lock_guard<std::mutex> lock(System().mutex);
    auto it = System().symbols.find(symbol);
    return it == System().symbols.end() ? nullptr : it->second;
  }
  void* FindSpecial(const std::string& name) const {
    void* address = Find(prefix_ + name);
    return address ? address : Find(name);
  }

  // Not once for all: code may register itself after somebody has asked for this module.
  void FillContext(const Module& self) const {
    for (const char* name : {"__tvm_ffi__library_ctx", "__tvm_module_ctx"}) {
      if (auto* slot = static_cast<void**>(FindSpecial(name))) __atomic_store_n(slot, self.get(), __ATOMIC_RELEASE);
    }
  }

 private:
  std::string prefix_;
};

}  // namespace

Module LoadLibrary(const std::string& path) {
  std::lock_guard<std::recursive_mutex> lock(load_mutex);
  MappedFile file(path);
  ElfFile elf = ReadElfFile(file);
  std::string real = RealPath(path);
  Identity identity = IdentityOf(file.info());
  auto known = MappedTable().find(real);
  bool same = known != MappedTable().end() && known->second.identity == identity;
  if (same) {
    if (ObjectRef root = known->second.root.lock()) return ObjectRef::Borrow<Module>(root.get());
  }
  // What fills variables of the library belongs to one module; another one needs another mapping.
  bool has_context = HasContext(elf);
  std::shared_ptr<Library> library = same && !has_context ? known->second.library.lock() : nullptr;
  bool without_blob = false;
  if (!library) {
    // What is mapped already is not ours, or was another file; and another runtime may map this one later, and fill
    // the same variables with what is its own.
    // A library that is linked with this runtime belongs to it, even if another mapped it first.
    bool ours = known == MappedTable().end() && elf.Needs("libportcall.so");
    bool alone = !has_context && (ours || !IsMapped(real));
    std::unique_ptr<PrivateFile> copy;
    if (!alone) copy = Copied(file, elf);
    without_blob = copy && elf.blob_bytes > 0;
    const std::string& mapped = copy ? copy->path() : real;
    std::vector<std::string> registered;
    void* owner = Open(real, mapped, elf, &registered);
    library = std::make_shared<Library>(real, std::move(elf), owner, mapped, std::move(registered));
    if (library->stays()) KeepForEver(library);
  }
  Module module(std::make_unique<LibraryNode>(library));
  FillContext(*library, module);
  Module root = module;
  try {
    root = AttachEmbedded(*library, without_blob ? &file : nullptr, module);
    if (library->elf().index_bytes) root = AttachBundle(real, library->elf(), root);
  } catch (const Error& error) {
    if (error.kind() != "ModuleLoadError" || library->registered().empty()) throw;
    throw Error("ModuleLoadError", WithWhatIsLeft(std::string(error.message()), library->registered()));
  }
  MappedTable()[real] = {identity, library, WeakRef(root)};
  if (!library->has_functions() && !library->registers() && root.same_as(module)) {
    FailToLoad(path,
               "it exports no function of TVM, tvm-ffi or portcall (names start with __tvm_ffi_), and registers none; "
               "export some with PORTCALL_EXPORT_TYPED, or compile it with a kernel compiler");
  }
  return root;
}

Module SystemLibrary(const std::string& prefix) {
  SystemTable& system = System();
  // One thread at a time makes a module: its code has one context. Not the table's own lock, because a loader of an
  // embedded module may ask for symbols, and for other system libraries.
  static auto* making = new std::recursive_mutex();
  std::lock_guard<std::recursive_mutex> one(*making);
  {
    std::lock_guard<std::mutex> lock(system.mutex);
    auto it = system.modules.find(prefix);
    if (it != system.modules.end()) return it->second;
  }
  auto node = std::make_unique<SystemNode>(prefix);
  SystemNode* impl = node.get();
  Module module(std::move(node));
  impl->FillContext(module);
  Module root = module;
  if (auto* blob = static_cast<const char*>(impl->FindSpecial("__tvm_ffi__library_bin"))) {
    uint64_t nbytes = 0;
    std::memcpy(&nbytes, blob, 8);
    root = MakeEmbedded(blob + 8, nbytes, false, module);
  }
  std::lock_guard<std::mutex> lock(system.mutex);
  return system.modules.emplace(prefix, root).first->second;
}

}  // namespace portcall::loader

using namespace portcall;
using namespace portcall::loader;

// The loaded libraries that are bound to another runtime, and registered with that what they register.
PORTCALL_REGISTER_GLOBAL("portcall.loader.ForeignLibraries").set_body_typed([]() {
  std::lock_guard<std::recursive_mutex> lock(load_mutex);
  std::vector<std::string> paths;
  for (const auto& [path, mapped] : MappedTable()) {
    std::shared_ptr<Library> library = mapped.library.lock();
    if (library && (library->flags() & kPortcallFunctionForeign)) paths.push_back(path);
  }
  return Array<std::string>(paths);
});

// The file of a module that is a shared library; "" of any other.
PORTCALL_REGISTER_GLOBAL("portcall.LibraryPath").set_body_typed([](Module module) {
  auto* node = dynamic_cast<LibraryNode*>(static_cast<ModuleNode*>(PortcallModuleGetNode(module.get())));
  return node ? node->library()->path() : std::string();
});

// What a library's constructors registered: names of global functions and types, in order.
PORTCALL_REGISTER_GLOBAL("portcall.LibraryRegistered").set_body_typed([](Module module) {
  auto* node = dynamic_cast<LibraryNode*>(static_cast<ModuleNode*>(PortcallModuleGetNode(module.get())));
  return Array<std::string>(node ? node->library()->registered() : std::vector<std::string>());
});

int TVMFFIEnvModRegisterSystemLibSymbol(const char* name, void* symbol) {
  return Guard([&] {
    std::lock_guard<std::mutex> lock(System().mutex);
    System().symbols[name] = symbol;
  });
}

int TVMBackendRegisterSystemLibSymbol(const char* name, void* symbol) {
  return TVMFFIEnvModRegisterSystemLibSymbol(name, symbol);
}

int PortcallModuleFailLoad() {
  LoadScope* scope = LoadScope::current();
  if (!scope) return -1;
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (!scope->error.defined()) {
    scope->error = ObjectRef::Steal(error);
  } else {
    TVMFFIObjectDecRef(error);
  }
  return 0;
}
