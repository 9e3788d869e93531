// SPDX-License-Identifier: Apache-2.0
#include "runtime/foreign.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "portcall/container.h"
#include "portcall/function.h"

namespace portcall {
namespace {

struct Runtime {
  void (*set_raised)(TVMFFIObjectHandle);
  void (*move_from_raised)(TVMFFIObjectHandle*);
  int (*get_global)(const TVMFFIByteArray* name, TVMFFIObjectHandle* out);
  int (*index_of)(const TVMFFIByteArray* type_key, int32_t* out);
};

constexpr const char* kForeignRuntime = "libtvm_ffi.so";

// How many libraries were ever mapped into this process.
unsigned long long NumMapped() noexcept {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<unsigned long long*>(out) = info->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

// The mapped libraries of this name. dlopen would look for a file before it says that none is mapped.
std::vector<std::string> PathsOfMapped(std::string_view name) {
  struct Search {
    std::string_view name;
    std::vector<std::string> paths;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        std::string_view path = info->dlpi_name ? info->dlpi_name : "";
        if (path.substr(path.rfind('/') + 1) == wanted->name) wanted->paths.emplace_back(path);
        return 0;
      },
      &search);
  return search.paths;
}

bool IsOwn(const void* set_raised) { return set_raised == reinterpret_cast<void*>(&TVMFFIErrorSetRaised); }

const Runtime* FindRuntime() noexcept {
  try {
    for (const std::string& path : PathsOfMapped(kForeignRuntime)) {
      void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
      if (!library) continue;
      // This library may have that name too, or one that has it may hand out this one's functions.
      void* set_raised = dlsym(library, "TVMFFIErrorSetRaised");
      if (!set_raised || IsOwn(set_raised)) {
        dlclose(library);
        continue;
      }
      // Not closed: from here on the library stays.
      static Runtime runtime;
      runtime.set_raised = reinterpret_cast<void (*)(TVMFFIObjectHandle)>(set_raised);
      runtime.move_from_raised =
          reinterpret_cast<void (*)(TVMFFIObjectHandle*)>(dlsym(library, "TVMFFIErrorMoveFromRaised"));
      runtime.get_global = reinterpret_cast<decltype(runtime.get_global)>(dlsym(library, "TVMFFIFunctionGetGlobal"));
      runtime.index_of = reinterpret_cast<decltype(runtime.index_of)>(dlsym(library, "TVMFFITypeKeyToIndex"));
      if (runtime.move_from_raised && runtime.get_global && runtime.index_of) return &runtime;
    }
  } catch (...) {  // out of memory
  }
  return nullptr;
}

// The foreign runtime or null. Looked for again when something was mapped since: it may come at any time.
const Runtime* Foreign() noexcept {
  static std::atomic<const Runtime*> found{nullptr};
  static std::atomic<unsigned long long> searched{0};
  static std::mutex mutex;
  if (const Runtime* runtime = found.load(std::memory_order_acquire)) return runtime;
  const unsigned long long mapped = NumMapped();
  if (mapped == searched.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  if (!found.load(std::memory_order_relaxed)) found.store(FindRuntime(), std::memory_order_release);
  searched.store(mapped, std::memory_order_release);
  return found.load(std::memory_order_relaxed);
}

struct Image {
  uintptr_t address;
  bool needs_foreign;
};

// Whether a mapped library is the foreign runtime, or was linked with it.
bool NeedsForeign(const dl_phdr_info& info) noexcept {
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    }
  }
  const char* names = nullptr;
  for (const ElfW(Dyn)* entry = dynamic; entry && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag != DT_STRTAB) continue;
    const uintptr_t at = entry->d_un.d_ptr;  // glibc has added the address of the library
    names = reinterpret_cast<const char*>(at < info.dlpi_addr ? at + info.dlpi_addr : at);
  }
  for (const ElfW(Dyn)* entry = dynamic; names && entry->d_tag != DT_NULL; ++entry) {
    bool named = entry->d_tag == DT_NEEDED || entry->d_tag == DT_SONAME;
    if (named && std::string_view(names + entry->d_un.d_val) == kForeignRuntime) return true;
  }
  return false;
}

}  // namespace

// The foreign runtime ends the process when it is asked for the type of an index that it does not know. So it is asked
// for all keys, and for the index of each.
std::string ForeignTypeKey(int32_t type_index) {
  const Runtime* runtime = Foreign();
  if (!runtime) return {};
  TVMFFIObjectHandle list = nullptr;
  TVMFFIByteArray name = ToByteArray("ffi.GetRegisteredTypeKeys");
  if (runtime->get_global(&name, &list) != 0 || !list) return {};
  Any keys = ObjectRef::Steal<PackedFunc>(list)();
  for (const auto& key : keys.cast<Array<std::string>>()) {
    int32_t index = -1;
    TVMFFIByteArray text = ToByteArray(key);
    if (runtime->index_of(&text, &index) == 0 && index == type_index) return key + " (of " + kForeignRuntime + ")";
  }
  return {};
}

bool IsForeignCode(const void* address) noexcept {
  if (!Foreign()) return false;
  Image image{reinterpret_cast<uintptr_t>(address), false};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* image = static_cast<Image*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) & segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          if (image->address - (info->dlpi_addr + segment.p_vaddr) >= segment.p_memsz) continue;
          image->needs_foreign = NeedsForeign(*info);
          return 1;
        }
        return 0;
      },
      &image);
  return image.needs_foreign;
}

TVMFFIObjectHandle TakeForeignError() noexcept {
  TVMFFIObjectHandle error = nullptr;
  if (const Runtime* runtime = Foreign()) runtime->move_from_raised(&error);
  return error;
}

bool GiveForeignError(TVMFFIObjectHandle error) noexcept {
  const Runtime* runtime = Foreign();
  if (runtime) runtime->set_raised(error);
  return runtime != nullptr;
}

bool IsForeignNameOwn() noexcept {
  void* library = dlopen(kForeignRuntime, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  const bool own = library && IsOwn(dlsym(library, "TVMFFIErrorSetRaised"));
  if (library) dlclose(library);
  return own;
}

bool IsForeignRuntimeGlobal() noexcept {
  // Its names come before this library's own. Asked of the program, because RTLD_DEFAULT would begin with this library:
  // it is linked with -Bsymbolic.
  void* program = dlopen(nullptr, RTLD_LAZY | RTLD_LOCAL);
  void* first = program ? dlsym(program, "TVMFFIErrorSetRaised") : nullptr;
  if (program) dlclose(program);
  return first && !IsOwn(first);
}

}  // namespace portcall
