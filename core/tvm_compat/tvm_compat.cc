// SPDX-License-Identifier: Apache-2.0
// TVM's C++ classes on libportcall. A program that uses tvm/runtime/{module,packed_func,registry,ndarray}.h compiles this
// file with its own TVM headers (0.8 to 0.19), and links with libportcall in place of libtvm_runtime.
//
// What is TVM's on this side (PackedFunc, Module, NDArray) stands for a handle of portcall's classic C API, to which
// values are translated: numbers, text, bytes, arrays, modules and functions. Other objects of TVM are refused.
#include <tvm/runtime/c_runtime_api.h>
#ifdef TVM_ATTRIBUTE_UNUSED  // moved there by 0.12
#define DSO_EXPORTABLE_IS_INLINE
#endif
#include <tvm/runtime/container/shape_tuple.h>
#include <tvm/runtime/module.h>
#include <tvm/runtime/ndarray.h>
#include <tvm/runtime/packed_func.h>
#include <tvm/runtime/registry.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tvm::runtime {
namespace {

void Check(int code) {
  if (code) throw Error(TVMGetLastError());
}

template <typename T> T NameOf(const PackedFunc* (*)(const T&));
using Name = decltype(NameOf(&Registry::Get));  // std::string, from 0.13 on String
using Shared = std::shared_ptr<void>;
void Call(void* function, TVMArgs args, TVMRetValue* result);
int Trampoline(TVMValue* args, int* codes, int count, TVMRetValueHandle ret, void* resource);

PackedFunc FunctionOf(TVMFunctionHandle handle) {  // which it takes over
  if (!handle) return PackedFunc();
  Shared own(handle, TVMFuncFree);
  return PackedFunc([own](TVMArgs args, TVMRetValue* result) { Call(own.get(), args, result); });
}

Shared HandleOf(const PackedFunc& function) {
  auto body = std::make_unique<PackedFunc>(function);
  TVMFunctionHandle handle = nullptr;
  Check(
      TVMFuncCreateFromCFunc(Trampoline, body.get(), [](void* own) { delete static_cast<PackedFunc*>(own); }, &handle));
  body.release();
  return Shared(handle, TVMFuncFree);
}

struct Library final : ModuleNode {
  explicit Library(TVMModuleHandle module) : handle(module, TVMModFree) {}
  const char* type_key() const final { return "portcall"; }
  PackedFunc GetFunction(const Name& name, const ObjectPtr<Object>&) final {
    return ModuleNode::GetFunction(name, false);
  }
  Shared handle;
};

void* HandleOf(ModuleNode* node) {
  auto* library = dynamic_cast<Library*>(node);
  if (!library) throw Error(std::string("a module of type ") + node->type_key() + " is not portcall's");
  return library->handle.get();
}

NDArray ArrayOf(DLTensor* handle) {  // which it takes over
  auto* array = new NDArray::Container(handle->data, ShapeTuple(handle->shape, handle->shape + handle->ndim),
                                       handle->dtype, handle->device);
  array->dl_tensor.byte_offset = handle->byte_offset;
  array->dl_tensor.strides = IsContiguous(*handle) ? nullptr : handle->strides;
  array->manager_ctx = handle;
  array->SetDeleter([](Object* object) {
    auto* own = static_cast<NDArray::Container*>(object);
    TVMArrayFree(static_cast<DLTensor*>(own->manager_ctx));
    delete own;
  });
  return NDArray(GetObjectPtr<Object>(array));
}

DLTensor* HandleOf(const NDArray::ContainerBase* array) { return static_cast<DLTensor*>(array->manager_ctx); }

// Makes a value of TVM's one of portcall, which lives as long as `texts` and `functions`.
void Give(TVMValue* value, int* code, std::deque<std::string>* texts, std::vector<Shared>* functions) {
  if (*code == kTVMObjectRValueRefArg) {
    value->v_handle = *static_cast<Object**>(value->v_handle);
    *code = kTVMObjectHandle;
  }
  if (*code == kTVMNDArrayHandle) {
    value->v_handle = HandleOf(static_cast<NDArray::ContainerBase*>(value->v_handle));
  } else if (*code == kTVMModuleHandle) {
    value->v_handle = HandleOf(static_cast<ModuleNode*>(static_cast<Object*>(value->v_handle)));
  } else if (*code == kTVMPackedFuncHandle) {
    functions->push_back(HandleOf(TVMArgValue(*value, *code).operator PackedFunc()));
    value->v_handle = functions->back().get();
  } else if (*code == kTVMObjectHandle) {
    auto* object = static_cast<Object*>(value->v_handle);
    if (!object->IsInstance<StringObj>()) {
      throw Error("TypeError: portcall takes no object of TVM's type " + std::to_string(object->type_index()));
    }
    value->v_str = texts->emplace_back(TVMArgValue(*value, *code).operator std::string()).c_str();
    *code = kTVMStr;
  }
}

// A value of portcall, whose handle is taken over.
void Take(TVMValue value, int code, TVMRetValue* to) {
  if (code == kTVMNDArrayHandle) {
    *to = ArrayOf(static_cast<DLTensor*>(value.v_handle));
  } else if (code == kTVMModuleHandle) {
    *to = Module(make_object<Library>(value.v_handle));
  } else if (code == kTVMPackedFuncHandle) {
    *to = FunctionOf(value.v_handle);
  } else if (code == kTVMObjectHandle) {
    TVMObjectFree(value.v_handle);
    throw Error("TypeError: an object of portcall is no value of TVM's headers");
  } else {
    *to = TVMArgValue(value, code);
  }
}

void Call(void* function, TVMArgs args, TVMRetValue* result) {
  std::vector<TVMValue> values(args.values, args.values + args.num_args);
  std::vector<int> codes(args.type_codes, args.type_codes + args.num_args);
  std::deque<std::string> texts;
  std::vector<Shared> functions;
  for (int i = 0; i < args.num_args; ++i) Give(&values[i], &codes[i], &texts, &functions);
  TVMValue value;
  int code = kTVMNullptr;
  Check(TVMFuncCall(function, values.data(), codes.data(), args.num_args, &value, &code));
  Take(value, code, result);
}

int Trampoline(TVMValue* args, int* codes, int count, TVMRetValueHandle ret, void* resource) {
  try {
    std::vector<TVMRetValue> owned(count);  // arguments with handles
    std::vector<TVMValue> values(args, args + count);
    std::vector<int> kinds(codes, codes + count);
    for (int i = 0; i < count; ++i) {
      if (kinds[i] < kTVMObjectHandle || kinds[i] == kTVMStr || kinds[i] == kTVMBytes) continue;
      Check(TVMCbArgToReturn(&values[i], &kinds[i]));
      Take(values[i], kinds[i], &owned[i]);
      TVMArgsSetter(values.data(), kinds.data())(i, owned[i]);
    }
    TVMRetValue result;
    static_cast<PackedFunc*>(resource)->CallPacked(TVMArgs(values.data(), kinds.data(), count), &result);
    const bool binary = result.type_code() == kTVMBytes;
    const std::string text = binary ? result.operator std::string() : "";
    TVMByteArray bytes{text.data(), text.size()};
    TVMValue value;
    int code = kTVMBytes;
    value.v_handle = &bytes;
    if (!binary) TVMArgsSetter(&value, &code)(0, result);
    std::deque<std::string> texts;
    std::vector<Shared> functions;
    Give(&value, &code, &texts, &functions);
    return TVMCFuncSetReturn(ret, &value, &code, 1);
  } catch (const std::exception& error) {
    TVMAPISetLastError(error.what());
    return -1;
  }
}

// What this side has made: the types of its objects, by index with key and parent, and what Registry gave out.
struct Made {
  std::mutex mutex;
  std::map<uint32_t, std::pair<std::string, uint32_t>> types{{0, {"runtime.Object", 0}}};
  uint32_t next_type = TypeIndex::kStaticIndexEnd;
  std::map<TVMFunctionHandle, PackedFunc> found;
  std::map<std::string, Registry> registered;
};

template <typename F> auto WithMade(F use) {
  static auto* made = new Made();  // for functions that are called while the process ends
  std::lock_guard<std::mutex> lock(made->mutex);
  return use(*made);
}

}  // namespace

uint32_t Object::GetOrAllocRuntimeTypeIndex(const std::string& key, uint32_t fixed, uint32_t parent, uint32_t slots,
                                            bool) {
  return WithMade([&](Made& made) {
    for (const auto& [index, type] : made.types) {
      if (type.first == key) return index;
    }
    const uint32_t index = fixed == TypeIndex::kDynamic ? made.next_type : fixed;
    if (fixed == TypeIndex::kDynamic) made.next_type += slots + 1;
    made.types[index] = {key, parent};
    return index;
  });
}

bool Object::DerivedFrom(uint32_t parent) const {
  return WithMade([&](Made& made) {
    uint32_t index = type_index_;
    while (index != parent && index != 0) index = made.types[index].second;
    return index == parent;
  });
}

std::string Object::TypeIndex2Key(uint32_t index) {
  return WithMade([&](Made& made) { return made.types[index].first; });
}

// ---- Modules ------------------------------------------------------------------------------------------------------

Module Module::LoadFromFile(const Name& path, const Name& format) {
  TVMModuleHandle handle = nullptr;
  Check(TVMModLoadFromFile(path.c_str(), format.c_str(), &handle));
  return Module(make_object<Library>(handle));
}

PackedFunc ModuleNode::GetFunction(const Name& name, bool imports) {
  TVMFunctionHandle found = nullptr;
  Check(TVMModGetFunction(HandleOf(this), name.c_str(), imports, &found));
  return FunctionOf(found);
}
void ModuleNode::Import(Module other) {
  Check(TVMModImport(HandleOf(this), HandleOf(other.operator->())));
  imports_.push_back(std::move(other));
}
void ModuleNode::SaveToFile(const Name&, const Name&) { throw Error("a module of portcall is a file already"); }
void ModuleNode::SaveToBinary(dmlc::Stream*) { SaveToFile("", ""); }
Name ModuleNode::GetSource(const Name&) { return ""; }
#if __has_include(<tvm/runtime/debug.h>)  // from 0.9 on
Name ModuleNode::GetFormat() { return ""; }
bool ModuleNode::ImplementsFunction(const String& name, bool imports) { return GetFunction(name, imports) != nullptr; }
#ifndef DSO_EXPORTABLE_IS_INLINE
bool ModuleNode::IsDSOExportable() const { return false; }
#endif
#endif

// ---- Arrays -------------------------------------------------------------------------------------------------------

NDArray NDArray::Empty(ShapeTuple shape, DLDataType dtype, Device device, Optional<String> scope) {
  if (scope) throw Error("an array of portcall has no memory scope");
  DLTensor* handle = nullptr;
  Check(TVMArrayAlloc(shape.data(), static_cast<int>(shape.size()), dtype.code, dtype.bits, dtype.lanes,
                      device.device_type, device.device_id, &handle));
  return ArrayOf(handle);
}
NDArray NDArray::FromDLPack(DLManagedTensor* tensor) {
  DLTensor* handle = nullptr;
  Check(TVMArrayFromDLPack(tensor, &handle));
  return ArrayOf(handle);
}
DLManagedTensor* NDArray::ToDLPack() const {
  DLManagedTensor* tensor = nullptr;
  Check(TVMArrayToDLPack(HandleOf(get_mutable()), &tensor));
  return tensor;
}
void NDArray::CopyFromTo(const DLTensor* from, DLTensor* to, TVMStreamHandle stream) {
  Check(TVMDeviceCopyDataFromTo(const_cast<DLTensor*>(from), to, stream));
}
void NDArray::CopyFromBytes(const void* data, size_t size) {
  Check(TVMArrayCopyFromBytes(HandleOf(get_mutable()), const_cast<void*>(data), size));
}
void NDArray::CopyToBytes(void* data, size_t size) const {
  Check(TVMArrayCopyToBytes(HandleOf(get_mutable()), data, size));
}
#if __has_include(<tvm/runtime/nvtx.h>)  // from 0.16 on; inline before
NDArray NDArray::CopyTo(const Device& device, Optional<String> scope) const {
  NDArray made = Empty(Shape(), operator->()->dtype, device, scope);
  CopyTo(made);
  return made;
}
#endif
ShapeTuple NDArray::Shape() const { return ShapeTuple(operator->()->shape, operator->()->shape + operator->()->ndim); }
runtime::DataType NDArray::DataType() const { return runtime::DataType(operator->()->dtype); }

// ---- Global functions ---------------------------------------------------------------------------------------------

Registry& Registry::Register(const Name& name, bool override) {
  Registry* made = WithMade([&](Made& all) { return &all.registered[name]; });
  made->name_ = name;
  made->func_ = override ? PackedFunc([](TVMArgs, TVMRetValue*) {}) : PackedFunc();  // says so to set_body
  return *made;
}
Registry& Registry::set_body(PackedFunc function) {
  Check(TVMFuncRegisterGlobal(name_.c_str(), HandleOf(function).get(), func_ != nullptr));
  return *this;
}
const PackedFunc* Registry::Get(const Name& name) {
  TVMFunctionHandle found = nullptr;
  Check(TVMFuncGetGlobal(name.c_str(), &found));
  if (!found) return nullptr;
  PackedFunc function = FunctionOf(found);
  return WithMade([&](Made& made) { return &made.found.emplace(found, std::move(function)).first->second; });
}
bool Registry::Remove(const Name& name) { return TVMFuncRemoveGlobal(name.c_str()) == 0; }
std::vector<Name> Registry::ListNames() {
  int count = 0;
  const char** names = nullptr;
  Check(TVMFuncListGlobalNames(&count, &names));
  return std::vector<Name>(names, names + count);
}

// ---- Messages -----------------------------------------------------------------------------------------------------

std::string Backtrace() { return ""; }
std::string GetCustomTypeName(uint8_t code) { throw Error("unknown type code " + std::to_string(code)); }
uint8_t ParseCustomDatatype(const std::string& text, const char**) { throw Error("unknown type " + text); }
namespace detail {
#if __has_include(<tvm/runtime/name_transforms.h>)  // from 0.11 on
const char* LogMessage::level_strings_[] = {": Debug: ", ": ", ": Warning: ", ": Error: "};
#endif
LogFatal::Entry& LogFatal::GetEntry() {
  thread_local Entry entry;
  return entry;
}
}  // namespace detail

}  // namespace tvm::runtime
