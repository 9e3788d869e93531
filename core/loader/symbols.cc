// SPDX-License-Identifier: Apache-2.0
#include "loader/symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "loader/private_file.h"
#include "portcall/classic_api.h"
#include "portcall/error.h"
#include "runtime/foreign.h"

namespace portcall::loader {
namespace {

Dl_info OwnImage() {  // this library, as it is mapped
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&TVMFFIGetVersion), &info);
  return info;
}

// The smallest shared library: it holds nothing and needs up to three others.
std::string ScopeLibrary(const std::vector<std::string>& needed) {
  struct Image {
    ElfW(Ehdr) header;
    ElfW(Phdr) segments[3];
    ElfW(Dyn) dynamic[9];
    ElfW(Sym) symbols[1];
    uint32_t hash[4];  // of no names: musl's loader asks every library for one
  } image{};
  std::string strings;
  strings.push_back('\0');
  auto add = [&](const std::string& text) {
    size_t at = strings.size();
    strings.append(text).push_back('\0');
    return at;
  };
  size_t entry = 0;
  for (const std::string& path : needed) image.dynamic[entry++] = {DT_NEEDED, {add(path)}};
  size_t total = sizeof(image) + strings.size();

  std::memcpy(image.header.e_ident, ELFMAG, SELFMAG);
  image.header.e_ident[EI_CLASS] = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
  image.header.e_ident[EI_DATA] = ELFDATA2LSB;
  image.header.e_ident[EI_VERSION] = EV_CURRENT;
  image.header.e_type = ET_DYN;
  const auto* own = static_cast<const ElfW(Ehdr)*>(OwnImage().dli_fbase);
  image.header.e_machine = own->e_machine;
  image.header.e_flags = own->e_flags;
  image.header.e_version = EV_CURRENT;
  image.header.e_phoff = offsetof(Image, segments);
  image.header.e_ehsize = sizeof(ElfW(Ehdr));
  image.header.e_phentsize = sizeof(ElfW(Phdr));
  image.header.e_phnum = 3;
  auto segment = [](uint32_t type, size_t at, size_t size, size_t align) {
    ElfW(Phdr) made{};  // with 32 bits the fields have another order
    made.p_type = type;
    made.p_flags = PF_R | PF_W;
    made.p_offset = made.p_vaddr = made.p_paddr = at;
    made.p_filesz = made.p_memsz = size;
    made.p_align = align;
    return made;
  };
  image.segments[0] = segment(PT_LOAD, 0, total, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  image.segments[1] = segment(PT_DYNAMIC, offsetof(Image, dynamic), sizeof(image.dynamic), sizeof(void*));
  image.segments[2] = segment(PT_GNU_STACK, 0, 0, 16);
  image.dynamic[entry++] = {DT_STRTAB, {sizeof(image)}};
  image.dynamic[entry++] = {DT_STRSZ, {strings.size()}};
  image.dynamic[entry++] = {DT_SYMTAB, {offsetof(Image, symbols)}};
  image.dynamic[entry++] = {DT_SYMENT, {sizeof(ElfW(Sym))}};
  image.dynamic[entry++] = {DT_HASH, {offsetof(Image, hash)}};
  image.hash[0] = image.hash[1] = 1;  // one bucket, which is empty; one symbol, the null one
  return std::string(reinterpret_cast<const char*>(&image), sizeof(image)) + strings;
}

std::mutex context_mutex;

std::vector<ContextSymbol>& ContextTable() {
#define PORTCALL_CONTEXT_SYMBOL(name)            \
  {                                              \
    "__" #name, reinterpret_cast<void*>(&(name)) \
  }
  struct Known {
    char name[36];  // in place, like the marks in abi.cc
    void* address;
  };
  static const Known known[] = {
      PORTCALL_CONTEXT_SYMBOL(TVMFFIFunctionCall),
      PORTCALL_CONTEXT_SYMBOL(TVMFFIErrorSetRaisedFromCStr),
      PORTCALL_CONTEXT_SYMBOL(TVMFFIErrorSetRaisedFromCStrParts),
      PORTCALL_CONTEXT_SYMBOL(TVMFFIEnvModLookupFromImports),
      PORTCALL_CONTEXT_SYMBOL(TVMFFIHandleInitOnce),
      PORTCALL_CONTEXT_SYMBOL(TVMFFIHandleDeinitOnce),
      PORTCALL_CONTEXT_SYMBOL(TVMBackendAllocWorkspace),
      PORTCALL_CONTEXT_SYMBOL(TVMBackendFreeWorkspace),
      PORTCALL_CONTEXT_SYMBOL(TVMBackendParallelLaunch),
      PORTCALL_CONTEXT_SYMBOL(TVMBackendParallelBarrier),
      PORTCALL_CONTEXT_SYMBOL(TVMBackendGetFuncFromEnv),
      PORTCALL_CONTEXT_SYMBOL(TVMFuncCall),
      PORTCALL_CONTEXT_SYMBOL(TVMAPISetLastError),
  };
#undef PORTCALL_CONTEXT_SYMBOL
  static auto* table = new std::vector<ContextSymbol>();
  if (table->empty()) {
    for (const Known& each : known) table->push_back({each.name, each.address});
  }
  return *table;
}

}  // namespace

std::string OwnPath() {
  Dl_info info = OwnImage();
  return info.dli_fname ? info.dli_fname : "";
}

// Whether the core is a part of the program: its names are then in the scope that every library looks into first.
static bool IsPartOfProgram() {
  constexpr uintptr_t kPage = 4096;        // the program's headers are in its first one
  const void* own = OwnImage().dli_fbase;  // null in a static program
  return !own || (getauxval(AT_PHDR) & -kPage) == reinterpret_cast<uintptr_t>(own);
}

std::string BesideCore(const char* library) {
  if (IsPartOfProgram()) return {};
  std::string core = OwnPath();
  return core.substr(0, core.rfind('/') + 1) + library;
}

std::string IrLibraryFor(const std::vector<std::string>& undefined) {
  const char* library = nullptr;
  void* handle = nullptr;
  for (const std::string& name : undefined) {
    if (name.find("N3tvm3ffi") != name.npos) library = kTvmFfiLibrary;
    if (name.rfind("Portcall", 0) != 0) continue;
    if (!handle) handle = dlopen(OwnPath().c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle && !dlsym(handle, name.c_str())) library = "libportcall_ir.so";
  }
  if (handle) dlclose(handle);
  return library ? BesideCore(library) : std::string();
}

bool IsRuntimeSymbol(std::string_view name) { return name.substr(0, 3) == "TVM" || name.substr(0, 8) == "Portcall"; }

void* OpenWithRuntime(const std::string& path, const std::string& ir_library) {
  if (IsPartOfProgram()) return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::vector<std::string> needed{OwnPath()};
  if (!ir_library.empty()) needed.push_back(ir_library);
  needed.push_back(path);
  std::string image = ScopeLibrary(needed);
  PrivateFile scope("portcall-scope", image.size());
  scope.Write(0, image.data(), image.size());
  int flags = RTLD_NOW | RTLD_LOCAL;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their runtimes refuse the flag
#ifdef RTLD_DEEPBIND                                                 // musl has none
  // Another runtime's names come first for everybody: this library's own scope must come before.
  if (IsForeignRuntimeGlobal()) flags |= RTLD_DEEPBIND;
#endif
#endif
  return dlopen(scope.path().c_str(), flags);
}

std::vector<ContextSymbol> ContextSymbols() {
  std::lock_guard<std::mutex> lock(context_mutex);
  return ContextTable();
}

void AddContextSymbol(const char* name, void* address) {
  std::lock_guard<std::mutex> lock(context_mutex);
  ContextTable().push_back({name, address});
}

}  // namespace portcall::loader

using namespace portcall;
using namespace portcall::loader;

int TVMFFIEnvModRegisterContextSymbol(const char* name, void* symbol) {
  return Guard([&] { AddContextSymbol(name, symbol); });
}
