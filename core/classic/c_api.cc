// SPDX-License-Identifier: Apache-2.0
// The classic C API: every function checks what it was given and does its work through the modern one.
//
// Rules
//  * No function keeps state; what a thread reads (texts, names, bytes) is a copy in its storage.
//  * The error of a thread is the modern slot. Reading its text leaves it there.
#include "classic/adapter.h"

#include <cctype>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "portcall/module.h"
#include "portcall/tensor.h"

namespace portcall::classic {
namespace {

template <typename T> void CheckPointer(const T* pointer, const char* what) {
  PORTCALL_CHECK(pointer, ValueError) << what << " is NULL";
}

// ---- Errors -------------------------------------------------------------------------------------------------------

constexpr const char* kFrontEndKind = "FrontEndError";  // its extra context is an Array with one pointer, the exception

ObjectRef TakeRaised() {
  TVMFFIObjectHandle handle = nullptr;
  TVMFFIErrorMoveFromRaised(&handle);
  return ObjectRef::Steal(handle);
}

// The error in this thread's slot, which keeps it; null when it is empty.
ObjectRef PeekRaised() {
  ObjectRef error = TakeRaised();
  if (error.defined()) TVMFFIErrorSetRaised(error.get());
  return error;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Whether a word before a colon names a kind of error. Many messages start with another word and a colon, such as the
// name of a kernel ("add_one: num_args should be 2"); those must stay whole.
bool IsErrorKind(std::string_view word) {
  for (char c : word) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.') return false;
  }
  for (const char* end : {"Error", "Exception", "Warning", "Interrupt", "Exit", "Iteration"}) {
    if (EndsWith(word, end)) return true;
  }
  return false;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// "Kind: message\nStack trace:\n  frames" in its parts; all but the message may be absent.
Error ParseError(std::string_view text) {
  std::string_view backtrace;
  constexpr std::string_view kMark = "Stack trace:";
  for (size_t at = text.find(kMark); at != std::string_view::npos; at = text.find(kMark, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;  // not at the start of a line: a part of the message
    backtrace = text.substr(at + kMark.size());
    if (!backtrace.empty() && backtrace.front() == '\n') backtrace.remove_prefix(1);
    text = text.substr(0, at);
    break;
  }
  std::string_view kind = "RuntimeError";
  size_t colon = text.find(':');
  if (colon != std::string_view::npos && IsErrorKind(text.substr(0, colon))) {
    kind = text.substr(0, colon);
    text.remove_prefix(colon + 1);
  }
  return Error(kind, Trim(text), backtrace);
}

// Puts `now` into a thread's copy. An equal text stays where it is: the caller may still hold the pointer.
const char* Keep(std::string* kept, std::string now) {
  if (now != *kept) *kept = std::move(now);
  return kept->c_str();
}

// The exception in an error of TVMAPISetLastPythonError, NULL in any other. The kind comes first: errors of old foreign
// libraries have no extra context to look at.
void* PythonErrorOf(const ObjectRef& error) {
  if (!error.defined() || Error(error).kind() != kFrontEndKind) return nullptr;
  auto context = ObjectRef::Borrow(static_cast<ErrorObj*>(error.get())->cell.extra_context);
  if (context.type_index() != kTVMFFIArray) return nullptr;
  auto parts = ObjectRef::Borrow<Array<Any>>(context.get());
  return parts.empty() ? nullptr : parts.items()[0].try_cast<void*>().value_or(nullptr);
}

// ---- Calls --------------------------------------------------------------------------------------------------------

// The arguments of a classic call as cells.
class Cells {
 public:
  Cells(const TVMValue* values, const int* codes, int n, const char* function)
      : values_(values), cells_(n), tensors_(n) {
    for (int i = 0; i < n; ++i) {
      TVMFFIAny& cell = cells_.get()[i] = ViewOf(values[i], codes[i], i, function);
      if (cell.type_index != kTVMFFIDLTensorPtr) continue;
      cell.v_ptr = tensors_.WithType(i, static_cast<DLTensor*>(cell.v_ptr), kClassicBool, kModernBool);
    }
  }
  TVMFFIAny* get() noexcept { return cells_.get(); }
  // A result that may be an argument: the caller's tensor again, not our description of it.
  TVMFFIAny Original(TVMFFIAny result) noexcept {
    int32_t i = result.type_index == kTVMFFIDLTensorPtr ? tensors_.Find(result.v_ptr) : -1;
    if (i >= 0) result.v_ptr = values_[i].v_handle;
    return result;
  }

 private:
  const TVMValue* values_;
  Room<TVMFFIAny> cells_;
  BoolTensors tensors_;
};

void Call(TVMFunctionHandle func, const TVMValue* args, const int* codes, int n, TVMValue* ret, int* ret_code) {
  CallScope scope;
  if (scope.outermost()) TVMFFIErrorSetRaised(nullptr);  // an old error is not the reason why this call fails
  CheckHandle(func, kTVMFFIFunction, "function");
  PORTCALL_CHECK(n >= 0, ValueError) << "the number of arguments is " << n;
  PORTCALL_CHECK(n == 0 || (args && codes), ValueError) << "the arguments or their type codes are NULL";
  PORTCALL_CHECK(ret && ret_code, ValueError) << "the place for the result or its type code is NULL";
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(func, &info);
  Cells cells(args, codes, n, info.name);
  TVMFFIAny result;
  detail::SetCell(&result, kTVMFFINone);
  if (info.call(info.self, cells.get(), n, &result) != 0) ThrowFailure(info.name);
  GiveResult(Any::Steal(cells.Original(result)), ret, ret_code);
}

struct NameList {
  std::vector<std::string> names;
  std::vector<const char*> pointers;
};

// ---- Modules ------------------------------------------------------------------------------------------------------

Module CheckModule(TVMModuleHandle handle) {
  return ObjectRef::Borrow<Module>(CheckHandle(handle, kTVMFFIModule, "module"));
}

void CheckFormat(std::string_view format) {
  for (const char* known : {"", "so", "dso", "dylib", "dll"}) {
    if (format == known) return;
  }
  PORTCALL_THROW(ValueError) << "no loader for the format '" << format << "'; known are so, dso, dylib and dll";
}

// ---- Arrays and devices -------------------------------------------------------------------------------------------

// The size of what a DLTensor describes, once it is certain that it may be read.
size_t CheckTensor(const DLTensor* tensor, const char* what) {
  CheckPointer(tensor, what);
  PORTCALL_CHECK(tensor->ndim >= 0, ValueError) << what << " has " << tensor->ndim << " dimensions";
  PORTCALL_CHECK(tensor->ndim == 0 || tensor->shape, ValueError) << what << " has no shape";
  size_t bits = size_t{tensor->dtype.bits} * tensor->dtype.lanes;
  bool empty = false;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    PORTCALL_CHECK(tensor->shape[i] >= 0, ValueError)
        << what << ": extent " << tensor->shape[i] << " of axis " << i << " is negative";
    empty = empty || tensor->shape[i] == 0;
  }
  for (int32_t i = 0; i < tensor->ndim && !empty; ++i) {
    PORTCALL_CHECK(!__builtin_mul_overflow(bits, static_cast<size_t>(tensor->shape[i]), &bits), ValueError)
        << what << " is larger than memory can be";
  }
  size_t nbytes = NumBytes(*tensor);
  PORTCALL_CHECK(nbytes == 0 || tensor->data, ValueError) << what << " has no data";
  return nbytes;
}

// Compact host memory in the shape of a tensor.
DLTensor HostMemory(void* data, const DLTensor& like) {
  DLTensor host = like;
  host.data = data;
  host.device = Cpu();
  host.strides = nullptr;
  host.byte_offset = 0;
  return host;
}

void CheckSize(size_t expected, size_t given) {
  PORTCALL_CHECK(expected == given, ValueError) << "the array has " << expected << " bytes, got " << given;
}

// Makes a stream the current one of its device; NULL leaves what is.
class StreamScope {
 public:
  StreamScope(Device device, TVMStreamHandle stream) : device_(device), active_(stream != nullptr) {
    if (active_) Check(TVMFFIEnvSetStream(device.device_type, device.device_id, stream, &previous_));
  }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  ~StreamScope() {
    if (active_) TVMFFIEnvSetStream(device_.device_type, device_.device_id, previous_, nullptr);
  }

 private:
  Device device_;
  bool active_;
  void* previous_ = nullptr;
};

int CopyArrays(const DLTensor* from, const DLTensor* to, TVMStreamHandle stream) {
  return Guard([&] {
    CheckTensor(from, "the array to copy from");
    CheckTensor(to, "the array to copy to");
    StreamScope scope(from->device.device_type == kDLCPU ? to->device : from->device, stream);
    Check(PortcallTensorCopy(from, to));
  });
}

size_t CheckAlignment(size_t alignment) {
  PORTCALL_CHECK((alignment & (alignment - 1)) == 0, ValueError)
      << "alignment " << alignment << " is not a power of two";
  return alignment ? alignment : kTensorAlignment;
}

void* AllocateOn(Device device, size_t nbytes, size_t alignment, DLDataType hint) {
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  void* data = nullptr;
  Check(api.alloc(api.ctx, device, nbytes ? nbytes : 1, CheckAlignment(alignment), hint, &data));
  return data;
}

}  // namespace
}  // namespace portcall::classic

using namespace portcall;
using namespace portcall::classic;

// ---- Errors -------------------------------------------------------------------------------------------------------

void TVMAPISetLastError(const char* text) {
  Guard([&] { throw ParseError(text ? text : "an error without a text"); });
}

const char* TVMGetLastError() {
  thread_local std::string kept;
  try {
    ObjectRef raised = PeekRaised();
    return raised.defined() ? Keep(&kept, Error(raised).what()) : kept.c_str();
  } catch (...) {
    return "MemoryError: out of memory";
  }
}

const char* TVMGetLastBacktrace() {
  thread_local std::string kept;
  try {
    ObjectRef raised = PeekRaised();
    return raised.defined() ? Keep(&kept, std::string(Error(raised).backtrace())) : kept.c_str();
  } catch (...) {
    return "";
  }
}

void TVMAPISetLastPythonError(void* exception) {
  Guard([&] {
    CheckPointer(exception, "the exception");
    throw Error(kFrontEndKind, "an exception of the front end; TVMGetLastPythonError gives it", {}, nullptr,
                Array<Any>{Any(exception)});
  });
}

void* TVMGetLastPythonError() { return PythonErrorOf(PeekRaised()); }

void TVMDropLastPythonError() {
  ObjectRef raised = TakeRaised();
  if (raised.defined() && !PythonErrorOf(raised)) TVMFFIErrorSetRaised(raised.get());  // it is another one
}

void TVMThrowLastError() { ThrowRaised(); }

// ---- Functions ----------------------------------------------------------------------------------------------------

int TVMFuncCall(TVMFunctionHandle func, TVMValue* args, int* type_codes, int num_args, TVMValue* ret_val,
                int* ret_type_code) {
  return Guard([&] { Call(func, args, type_codes, num_args, ret_val, ret_type_code); });
}

int TVMFuncFree(TVMFunctionHandle func) {
  if (!func) return 0;
  return Guard([&] { Release(CheckHandle(func, kTVMFFIFunction, "function")); });
}

int TVMFuncCreateFromCFunc(TVMPackedCFunc func, void* resource, TVMPackedCFuncFinalizer fin, TVMFunctionHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(func, ValueError) << "the C function is NULL";
    CheckPointer(out, "the place for the function");
    *out = WrapCallback(func, resource, fin).release();
  });
}

int TVMCFuncSetReturn(TVMRetValueHandle ret, TVMValue* value, int* type_code, int num_ret) {
  return Guard([&] {
    CheckPointer(static_cast<Any*>(ret), "the place for the result");
    PORTCALL_CHECK(num_ret == 1, ValueError) << "a function has one result, got " << num_ret;
    PORTCALL_CHECK(value && type_code, ValueError) << "the result or its type code is NULL";
    *static_cast<Any*>(ret) = Any::Copy(ViewOf(*value, *type_code, -1, nullptr));
  });
}

int TVMCbArgToReturn(TVMValue* value, int* type_code) {
  return Guard([&] {
    PORTCALL_CHECK(value && type_code, ValueError) << "the argument or its type code is NULL";
    PORTCALL_CHECK(*type_code != kTVMStr && *type_code != kTVMBytes, TypeError)
        << "text and bytes cannot be kept, only copied: TVMCFuncSetReturn copies them";
    TVMFFIAny view = ViewOf(*value, *type_code, -1, nullptr);
    if (IsObject(view)) return Retain(view.v_obj);  // the same handle, now owned
    if (view.type_index == kTVMFFIObjectRValueRef) GiveResult(Any::Copy(view), value, type_code);
  });
}

int TVMFuncRegisterGlobal(const char* name, TVMFunctionHandle func, int can_override) {
  return Guard([&] {
    CheckPointer(name, "the name");
    auto function = ObjectRef::Borrow<PackedFunc>(CheckHandle(func, kTVMFFIFunction, "function"));
    Registry::Set(name, function, can_override != 0);
  });
}

int TVMFuncGetGlobal(const char* name, TVMFunctionHandle* out) {
  return Guard([&] {
    CheckPointer(name, "the name");
    CheckPointer(out, "the place for the function");
    *out = Registry::Get(name).release();
  });
}

int TVMFuncListGlobalNames(int* out_size, const char*** out_names) {
  thread_local NameList list;
  return Guard([&] {
    PORTCALL_CHECK(out_size && out_names, ValueError) << "the place for the names or their number is NULL";
    list.names = Registry::ListNames();
    list.pointers.clear();
    for (const std::string& name : list.names) list.pointers.push_back(name.c_str());
    *out_size = static_cast<int>(list.pointers.size());
    *out_names = list.pointers.data();
  });
}

int TVMFuncRemoveGlobal(const char* name) {
  return Guard([&] {
    CheckPointer(name, "the name");
    Registry::Remove(name);
  });
}

// ---- Modules ------------------------------------------------------------------------------------------------------

int TVMModLoadFromFile(const char* path, const char* format, TVMModuleHandle* out) {
  return Guard([&] {
    CheckPointer(path, "the path");
    CheckPointer(out, "the place for the module");
    CheckFormat(format ? format : "");
    *out = Module::LoadFromFile(path).release();
  });
}

int TVMModImport(TVMModuleHandle mod, TVMModuleHandle dependency) {
  return Guard([&] { CheckModule(mod).Import(CheckModule(dependency)); });
}

int TVMModGetFunction(TVMModuleHandle mod, const char* name, int query_imports, TVMFunctionHandle* out) {
  return Guard([&] {
    CheckPointer(name, "the name");
    CheckPointer(out, "the place for the function");
    *out = CheckModule(mod).GetFunction(name, query_imports != 0).release();
  });
}

int TVMModFree(TVMModuleHandle mod) {
  if (!mod) return 0;
  return Guard([&] { Release(CheckHandle(mod, kTVMFFIModule, "module")); });
}

// ---- Arrays -------------------------------------------------------------------------------------------------------

int TVMArrayAlloc(const tvm_index_t* shape, int ndim, int dtype_code, int dtype_bits, int dtype_lanes, int device_type,
                  int device_id, TVMArrayHandle* out) {
  return Guard([&] {
    CheckPointer(out, "the place for the array");
    PORTCALL_CHECK(ndim >= 0, ValueError) << "an array of " << ndim << " dimensions";
    PORTCALL_CHECK(ndim == 0 || shape, ValueError) << "the shape is NULL";
    PORTCALL_CHECK(dtype_code >= 0 && dtype_code <= UINT8_MAX && dtype_bits > 0 && dtype_bits <= UINT8_MAX &&
                       dtype_lanes > 0 && dtype_lanes <= UINT16_MAX,
                   ValueError)
        << "no data type has code " << dtype_code << ", " << dtype_bits << " bits and " << dtype_lanes << " lanes";
    DLDataType dtype{static_cast<uint8_t>(dtype_code), static_cast<uint8_t>(dtype_bits),
                     static_cast<uint16_t>(dtype_lanes)};
    if (dtype.code == kClassicBool.code && dtype.bits == kClassicBool.bits) {
      dtype.code = kModernBool.code;
      dtype.bits = kModernBool.bits;
    }
    Tensor tensor = Tensor::Empty(std::vector<int64_t>(shape, shape + ndim), dtype, {device_type, device_id});
    *out = &static_cast<TensorObj*>(tensor.release())->dl;
  });
}

int TVMArrayFree(TVMArrayHandle handle) {
  if (!handle) return 0;
  return Guard([&] { Release(CheckArray(handle)); });
}

int TVMArrayCopyFromBytes(TVMArrayHandle handle, void* data, size_t nbytes) {
  return Guard([&] {
    CheckSize(CheckTensor(handle, "the array"), nbytes);
    if (nbytes == 0) return;
    CheckPointer(static_cast<char*>(data), "the data");
    DLTensor host = HostMemory(data, *handle);
    Check(PortcallTensorCopy(&host, handle));
  });
}

int TVMArrayCopyToBytes(TVMArrayHandle handle, void* data, size_t nbytes) {
  return Guard([&] {
    CheckSize(CheckTensor(handle, "the array"), nbytes);
    if (nbytes == 0) return;
    CheckPointer(static_cast<char*>(data), "the data");
    DLTensor host = HostMemory(data, *handle);
    Check(PortcallTensorCopy(handle, &host));
  });
}

int TVMArrayCopyFromTo(TVMArrayHandle from, TVMArrayHandle to, TVMStreamHandle stream) {
  return CopyArrays(from, to, stream);
}

int TVMArrayFromDLPack(DLManagedTensor* from, TVMArrayHandle* out) {
  return Guard([&] {
    CheckPointer(from, "the tensor");
    CheckPointer(out, "the place for the array");
    TVMFFIObjectHandle tensor = nullptr;
    Check(TVMFFITensorFromDLPack(from, 0, 0, &tensor));
    *out = &static_cast<TensorObj*>(static_cast<TVMFFIObject*>(tensor))->dl;
  });
}

int TVMArrayToDLPack(TVMArrayHandle from, DLManagedTensor** out) {
  return Guard([&] {
    CheckPointer(out, "the place for the tensor");
    Check(TVMFFITensorToDLPack(CheckArray(from), out));
  });
}

void TVMDLManagedTensorCallDeleter(DLManagedTensor* tensor) {
  if (tensor && tensor->deleter) tensor->deleter(tensor);
}

int TVMByteArrayFree(TVMByteArray* bytes) {
  return Guard([&] {
    PORTCALL_CHECK(!bytes || IsBytesOfLastResult(bytes), ValueError)
        << "these bytes are not the result of a call in this thread";
  });
}

// ---- Devices and streams ------------------------------------------------------------------------------------------

int TVMStreamCreate(int device_type, int device_id, TVMStreamHandle* out) {
  return Guard([&] {
    CheckPointer(out, "the place for the stream");
    Device device{device_type, device_id};
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    TVMStreamHandle stream = nullptr;
    if (api.create_stream) Check(api.create_stream(api.ctx, device, &stream));
    *out = stream;
  });
}

int TVMStreamFree(int device_type, int device_id, TVMStreamHandle stream) {
  return Guard([&] {
    Device device{device_type, device_id};
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    if (stream && api.free_stream) Check(api.free_stream(api.ctx, device, stream));
  });
}

int TVMSetStream(int device_type, int device_id, TVMStreamHandle stream) {
  return Guard([&] {
    DeviceApiOf({device_type, device_id});
    Check(TVMFFIEnvSetStream(device_type, device_id, stream, nullptr));
  });
}

int TVMSynchronize(int device_type, int device_id, TVMStreamHandle stream) {
  return PortcallDeviceSync({device_type, device_id}, stream);
}

int TVMStreamStreamSynchronize(int device_type, int device_id, TVMStreamHandle src, TVMStreamHandle dst) {
  return Guard([&] {
    Device device{device_type, device_id};
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    if (api.sync_streams) return Check(api.sync_streams(api.ctx, device, src, dst));
    Check(PortcallDeviceSync(device, src));  // waiting here orders the two as well
  });
}

int TVMDeviceAllocDataSpace(DLDevice device, size_t nbytes, size_t alignment, DLDataType type_hint, void** out) {
  return Guard([&] {
    CheckPointer(out, "the place for the memory");
    *out = AllocateOn(device, nbytes, alignment, type_hint);
  });
}

int TVMDeviceAllocDataSpaceWithScope(DLDevice device, int ndim, const int64_t* shape, DLDataType dtype,
                                     const char* mem_scope, void** out) {
  return Guard([&] {
    CheckPointer(out, "the place for the memory");
    std::string_view scope = mem_scope ? mem_scope : "";
    PORTCALL_CHECK(scope.empty() || scope == "global", ValueError)
        << "memory of the scope '" << scope << "' on " << ToString(device) << "; only 'global' is known";
    DLTensor description{};
    description.data = &description;  // CheckTensor wants data, which is what comes of this
    description.ndim = ndim;
    description.shape = const_cast<int64_t*>(shape);
    description.dtype = dtype;
    *out = AllocateOn(device, CheckTensor(&description, "the memory"), 0, dtype);
  });
}

int TVMDeviceFreeDataSpace(DLDevice device, void* ptr) {
  return Guard([&] {
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    if (ptr) Check(api.free(api.ctx, device, ptr));
  });
}

int TVMDeviceCopyDataFromTo(DLTensor* from, DLTensor* to, TVMStreamHandle stream) {
  return CopyArrays(from, to, stream);
}

// ---- Objects ------------------------------------------------------------------------------------------------------

int TVMObjectGetTypeIndex(TVMObjectHandle obj, unsigned* out) {
  return Guard([&] {
    CheckPointer(out, "the place for the type index");
    *out = static_cast<unsigned>(CheckHandle(obj, kTVMFFIObject, "object")->type_index);
  });
}

int TVMObjectTypeKey2Index(const char* type_key, unsigned* out) {
  return Guard([&] {
    CheckPointer(type_key, "the type key");
    CheckPointer(out, "the place for the type index");
    TVMFFIByteArray key = ToByteArray(type_key);
    int32_t index = 0;
    Check(TVMFFITypeKeyToIndex(&key, &index));
    *out = static_cast<unsigned>(index);
  });
}

int TVMObjectTypeIndex2Key(unsigned type_index, char** out) {
  return Guard([&] {
    CheckPointer(out, "the place for the type key");
    const TVMFFITypeInfo* info = type_index <= INT_MAX ? TVMFFIGetTypeInfo(static_cast<int32_t>(type_index)) : nullptr;
    PORTCALL_CHECK(info, IndexError) << "no type has the index " << type_index;
    auto* key = static_cast<char*>(std::malloc(info->type_key.size + 1));
    if (!key) throw std::bad_alloc();
    std::memcpy(key, info->type_key.data, info->type_key.size);
    key[info->type_key.size] = '\0';
    *out = key;
  });
}

int TVMObjectDerivedFrom(uint32_t child_type_index, uint32_t parent_type_index, int* is_derived) {
  return Guard([&] {
    CheckPointer(is_derived, "the place for the answer");
    auto child = static_cast<int32_t>(child_type_index), parent = static_cast<int32_t>(parent_type_index);
    PORTCALL_CHECK(TVMFFIGetTypeInfo(child), IndexError) << "no type has the index " << child_type_index;
    PORTCALL_CHECK(TVMFFIGetTypeInfo(parent), IndexError) << "no type has the index " << parent_type_index;
    *is_derived = IsInstance(child, parent) ? 1 : 0;
  });
}

int TVMObjectRetain(TVMObjectHandle obj) {
  return Guard([&] { Retain(CheckHandle(obj, kTVMFFIObject, "object")); });
}

int TVMObjectFree(TVMObjectHandle obj) {
  if (!obj) return 0;
  return Guard([&] { Release(CheckHandle(obj, kTVMFFIObject, "object")); });
}

int TVMExtTypeFree(void*, int type_code) {
  return Guard([&] { PORTCALL_THROW(TypeError) << "there are no extension types; got type code " << type_code; });
}
