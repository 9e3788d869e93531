// SPDX-License-Identifier: Apache-2.0
#include "runtime/foreign.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

namespace portcall {
namespace {

struct Runtime {
  void (*set_raised)(TVMFFIObjectHandle);
  void (*move_from_raised)(TVMFFIObjectHandle*);
};

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

// dlopen would look for a file before it says that the library is not mapped.
std::string PathOfMapped(std::string_view name) {
  struct Search {
    std::string_view name;
    std::string path;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        std::string_view path = info->dlpi_name ? info->dlpi_name : "";
        if (path.substr(path.rfind('/') + 1) != wanted->name) return 0;
        wanted->path = path;
        return 1;
      },
      &search);
  return search.path;
}

const Runtime* FindRuntime() noexcept {
  try {
    const std::string path = PathOfMapped("libtvm_ffi.so");
    // Not closed: from here on the library stays.
    void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) return nullptr;
    static Runtime runtime;
    runtime.set_raised = reinterpret_cast<void (*)(TVMFFIObjectHandle)>(dlsym(library, "TVMFFIErrorSetRaised"));
    runtime.move_from_raised =
        reinterpret_cast<void (*)(TVMFFIObjectHandle*)>(dlsym(library, "TVMFFIErrorMoveFromRaised"));
    return runtime.set_raised && runtime.move_from_raised ? &runtime : nullptr;
  } catch (...) {  // out of memory
    return nullptr;
  }
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

}  // namespace

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

bool IsForeignRuntimeGlobal() noexcept {
  // Its names come before this library's own. Asked of the program, because RTLD_DEFAULT would begin with this library:
  // it is linked with -Bsymbolic.
  void* program = dlopen(nullptr, RTLD_LAZY | RTLD_LOCAL);
  void* first = program ? dlsym(program, "TVMFFIErrorSetRaised") : nullptr;
  if (program) dlclose(program);
  return first && first != reinterpret_cast<void*>(&TVMFFIErrorSetRaised);
}

}  // namespace portcall
