// SPDX-License-Identifier: Apache-2.0
// Small services of compiled code: once-only initialisation, signals, lists of a virtual machine.
#include <atomic>
#include <mutex>

#include "portcall/container.h"
#include "portcall/error.h"
#include "portcall/tensor.h"

using namespace portcall;

namespace {

std::recursive_mutex once_mutex;  // an initialiser may initialise something else
std::atomic<int (*)()> check_signals{nullptr};
using CreateBytes = int (*)(size_t size, char** data, TVMFFIAny* out);
std::atomic<CreateBytes> create_bytes{nullptr};

// Bytes in memory of the host device: in large pages, where there are some.
struct HostBytes final : Object {
  static constexpr int32_t kTypeIndex = BytesObj::kTypeIndex;
  TVMFFIByteArray bytes;
  Tensor memory;
};

Any& ItemOf(void* list, int index) { return static_cast<Any*>(list)[index]; }

}  // namespace

int TVMFFIHandleInitOnce(void** slot, int (*init)(void** result)) {
  if (__atomic_load_n(slot, __ATOMIC_ACQUIRE)) return 0;
  return Guard([&] {
    std::lock_guard<std::recursive_mutex> lock(once_mutex);
    if (__atomic_load_n(slot, __ATOMIC_ACQUIRE)) return;
    void* result = nullptr;
    Check(init(&result));
    PORTCALL_CHECK(result, RuntimeError) << "an initialiser of compiled code returned no handle";
    __atomic_store_n(slot, result, __ATOMIC_RELEASE);
  });
}

int TVMFFIHandleDeinitOnce(void** slot, int (*deinit)(void* handle)) {
  void* handle = __atomic_exchange_n(slot, nullptr, __ATOMIC_ACQ_REL);
  return handle ? deinit(handle) : 0;
}

int TVMFFIEnvCheckSignals() {
  auto check = check_signals.load();
  return check ? check() : 0;
}

int TVMFFIEnvRegisterCAPI(const char* name, void* symbol) {
  if (std::string_view(name) == "PyErr_CheckSignals") check_signals.store(reinterpret_cast<int (*)()>(symbol));
  if (std::string_view(name) == "PortcallBytesCreate") create_bytes.store(reinterpret_cast<CreateBytes>(symbol));
  return 0;  // other names have no use here
}

int PortcallBytesCreate(size_t size, char** data, TVMFFIAny* out) {
  if (CreateBytes create = create_bytes.load()) return create(size, data, out);
  return Guard([&] {
    auto memory = Tensor::Empty({static_cast<int64_t>(size + 1)}, {kDLUInt, 8, 1});
    *data = static_cast<char*>(memory.raw_data());
    (*data)[size] = '\0';
    auto* made = NewNode<HostBytes>();
    made->bytes = {*data, size};
    made->memory = std::move(memory);
    detail::SetCell(out, kTVMFFIBytes);
    out->v_obj = made;
  });
}

int TVMBackendRegisterEnvCAPI(const char* name, void* symbol) { return TVMFFIEnvRegisterCAPI(name, symbol); }

// Static data of classic code: `f` runs once for the handle.
int TVMBackendRunOnce(void** handle, int (*f)(void*), void* cdata, int) {
  std::lock_guard<std::recursive_mutex> lock(once_mutex);
  if (*handle) return 0;
  int status = f(cdata);
  if (status == 0) *handle = static_cast<void*>(handle);  // anything but null: "done"
  return status;
}

int TVMBackendAnyListSetPackedArg(void* list, int index, TVMFFIAny* args, int arg_offset) {
  args[arg_offset] = ItemOf(list, index).cell();
  return 0;
}

int TVMBackendAnyListMoveFromPackedReturn(void* list, int index, TVMFFIAny* args, int ret_offset) {
  ItemOf(list, index) = Any::Steal(args[ret_offset]);
  args[ret_offset].type_index = kTVMFFINone;
  args[ret_offset].v_int64 = 0;
  return 0;
}

int TVMBackendAnyListResetItem(void* list, int index) {
  ItemOf(list, index).reset();
  return 0;
}
