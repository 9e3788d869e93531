// SPDX-License-Identifier: Apache-2.0
#include "devices/cuda_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "portcall/error.h"
#include "portcall/function.h"

namespace portcall::cuda {
namespace {

std::string Describe(const Api& api, Status status) {
  const char *name = nullptr, *text = nullptr;
  if (api.cuGetErrorName) api.cuGetErrorName(status, &name);
  if (api.cuGetErrorString) api.cuGetErrorString(status, &text);
  return (name ? name : "status " + std::to_string(status)) + (text ? std::string(" (") + text + ")" : "");
}

std::string Initialize(const Api& api) {
  const Status status = api.cuInit(0);
  if (status == kSuccess) return {};
  std::string text = "cuInit failed with " + Describe(api, status);
  if (status == kNotInitialized) text += ": was this process forked from one that used CUDA?";
  return text;
}

Api Open() {
  Api api;
  const char* path = std::getenv("PORTCALL_LIBCUDA");
  void* handle = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    api.missing = why ? why : "libcuda.so.1 is not there";
    return api;
  }
#define PORTCALL_CUDA_FIND(name, arguments) api.name = reinterpret_cast<decltype(api.name)>(dlsym(handle, #name));
  PORTCALL_CUDA_FUNCTIONS(PORTCALL_CUDA_FIND)
  PORTCALL_CUDA_NEWER_FUNCTIONS(PORTCALL_CUDA_FIND)
#undef PORTCALL_CUDA_FIND
#define PORTCALL_CUDA_NEED(name, arguments) \
  if (!api.name) api.missing = "the driver is older than CUDA 11: it lacks " #name;
  PORTCALL_CUDA_FUNCTIONS(PORTCALL_CUDA_NEED)
#undef PORTCALL_CUDA_NEED
  if (api.missing.empty()) api.missing = Initialize(api);
  return api;
}

// Errors after which the driver refuses all work of the process, from "ECC uncorrectable" to "launch failure".
bool IsFinal(Status status) {
  constexpr Status kFinal[] = {214, 700, 702, 710, 714, 715, 716, 717, 718, 719};
  return std::find(std::begin(kFinal), std::end(kFinal), status) != std::end(kFinal);
}

// A session of a server ends then, after its answers.
void TellThatDeviceFailed() {
  PackedFunc ends_session = Registry::Get("portcall.DeviceFailed");
  if (ends_session.defined()) ends_session();
}

}  // namespace

const Api& Cu() {
  static std::atomic<const Api*> opened{nullptr};  // never destroyed: memory is released until the very end
  if (const Api* api = opened.load(std::memory_order_acquire)) return *api;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (const Api* api = opened.load()) return *api;
  thread_local Api failed;
  failed = Open();
  if (!failed.missing.empty()) return failed;
  opened.store(new Api(failed), std::memory_order_release);
  return *opened.load();
}

void CheckStatus(Status status, const char* function) {
  if (status == kSuccess) return;
  const std::string text = std::string(function) + " failed with " + Describe(Cu(), status);
  PORTCALL_CHECK(status != kOutOfMemory, MemoryError) << "out of memory on the CUDA device: " << text;
  if (IsFinal(status)) {
    TellThatDeviceFailed();
    PORTCALL_THROW(DeviceError) << text
                                << "; a kernel before this call went wrong, and CUDA works no more in this process: "
                                << "start a new one, or open a new session";
  }
  PORTCALL_THROW(DeviceError) << text;
}

}  // namespace portcall::cuda
