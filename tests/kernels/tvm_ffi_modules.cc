// SPDX-License-Identifier: Apache-2.0
// A library on tvm-ffi's headers with a class of modules of its own, and functions that use modules of any class. With
// EMBEDDED it brings such a module along, which it imports.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdint>
#include <memory>
#include <string>

namespace {

namespace ffi = tvm::ffi;

int64_t num_alive = 0;

class CounterModule : public ffi::ModuleObj {
 public:
  explicit CounterModule(int64_t start) : count_(std::make_shared<int64_t>(start)) { ++num_alive; }
  ~CounterModule() { --num_alive; }
  const char* kind() const final { return "counter"; }
  int GetPropertyMask() const final { return ffi::Module::kRunnable; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    if (name == "add") return ffi::Function::FromTyped([count = count_](int64_t x) { return *count += x; });
    if (name == "fail") TVM_FFI_THROW(ValueError) << "no function is named fail";
    return std::nullopt;
  }
  ffi::String InspectSource(const ffi::String& format) const final { return ffi::String("a counter as ") + format; }

 private:
  std::shared_ptr<int64_t> count_;
};

class Named : public CounterModule {  // of a class that is not derived directly
 public:
  using CounterModule::CounterModule;
};

ffi::Module Make(int64_t start) { return ffi::Module(ffi::make_object<Named>(start)); }
int64_t Alive() { return num_alive; }
ffi::String KindOf(ffi::Module module) { return module->kind(); }
ffi::Any Call(ffi::Module module, ffi::String name, ffi::Any argument) {
  ffi::Optional<ffi::Function> function = module->GetFunction(name);
  return function != nullptr ? (*function)(argument) : ffi::Any();
}
ffi::Any CallDeep(ffi::Module module, ffi::String name, ffi::Any argument) {
  ffi::Optional<ffi::Function> function = module->GetFunction(name, true);
  return function != nullptr ? (*function)(argument) : ffi::Any();
}
void ImportInto(ffi::Module module, ffi::Module other) { module->ImportModule(other); }
void ClearImports(ffi::Module module) { module->ClearImports(); }
ffi::Array<ffi::Any> Imports(ffi::Module module) { return module->imports(); }
ffi::String Source(ffi::Module module) { return module->InspectSource("text"); }
ffi::Bytes ToBytes(ffi::Module module) { return module->SaveToBytes(); }
ffi::Array<ffi::Any> Facts(ffi::Module module) {
  return {module->GetPropertyMask(), module->ImplementsFunction("add"), module->GetFunctionDoc("add"),
          module->GetFunctionMetadata("add"), static_cast<int64_t>(module->GetWriteFormats().size())};
}
ffi::Module Load(ffi::String path) { return ffi::Module::LoadFromFile(path); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(make, Make);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(alive, Alive);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kind_of, KindOf);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(call, Call);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(call_deep, CallDeep);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(import_into, ImportInto);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(clear_imports_of, ClearImports);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(imports_of, Imports);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(source_of, Source);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(to_bytes, ToBytes);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(facts_of, Facts);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(load, Load);

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def("ffi.Module.load_from_bytes.counter",
                                   [](ffi::Bytes payload) { return Make(static_cast<int64_t>(payload.size())); });
}

}  // namespace

#ifdef EMBEDDED
extern "C" {
struct __attribute__((packed)) Blob {
  uint64_t bytes = sizeof(Blob) - sizeof(uint64_t);
  uint64_t num_rows = 3, rows[3] = {0, 1, 1}, num_children = 1, children[1] = {1};  // the library imports the counter
  uint64_t library_bytes = 4;
  char library[4] = {'_', 'l', 'i', 'b'};
  uint64_t kind_bytes = 7;
  char kind[7] = {'c', 'o', 'u', 'n', 't', 'e', 'r'};
  uint64_t payload_bytes = 3;
  char payload[3] = {'a', 'b', 'c'};
};
__attribute__((visibility("default"))) Blob __tvm_ffi__library_bin;
__attribute__((visibility("default"))) void* __tvm_ffi__library_ctx = nullptr;

// As compiled code does it: what it calls is found in what its module imports.
__attribute__((visibility("default"))) int __tvm_ffi_count(void*, const TVMFFIAny* args, int32_t num_args,
                                                           TVMFFIAny* result) {
  TVMFFIObjectHandle add = nullptr;
  int status = TVMFFIEnvModLookupFromImports(__tvm_ffi__library_ctx, "add", &add);
  return status != 0 ? status : TVMFFIFunctionCall(add, const_cast<TVMFFIAny*>(args), num_args, result);
}
}
#endif
