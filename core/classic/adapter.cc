// SPDX-License-Identifier: Apache-2.0
// The two ABIs' values, one into the other, and functions of one as functions of the other.
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "classic/adapter.h"
#include "portcall/module.h"
#include "portcall/tensor.h"

namespace portcall::classic {

static_assert(sizeof(TVMValue) == 8 && alignof(TVMValue) == 8, "one word, like the payload of a cell");
constexpr bool k64 = sizeof(void*) == 8;
static_assert(!k64 || (sizeof(TVMByteArray) == 16 && offsetof(TVMByteArray, size) == 8), "pointer, then size");
static_assert(offsetof(TVMFFIAny, v_int64) == 8 && sizeof(TVMFFIAny) == 16, "a payload is a classic value");
static_assert(!k64 || (sizeof(TVMFFIObject) == 24 && sizeof(DLTensor) == 48 && sizeof(TensorObj) == 72),
              "an array handle is a tensor's address + 24");
static_assert(!k64 || (offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, byte_offset) == 40), "as DLPack has it");
static_assert(sizeof(DLDataType) == 4 && sizeof(DLDevice) == 8, "both fit into one value");

namespace {

constexpr int32_t kTypeIndexLimit = 1 << 24;  // far above any index that a runtime gives; a larger one is not an object

const char* NameOrAnonymous(const char* function) { return function && *function ? function : "<anonymous>"; }

[[noreturn]] void RefuseCode(int code, int position, const char* function) {
  if (position >= 0) detail::ThrowArgumentError(function, position, "a type code from 0 to 15", std::to_string(code));
  throw Error("TypeError", std::string(NameOrAnonymous(function)) + "(): its result has type code " +
                               std::to_string(code) + "; expected one from 0 to 15");
}

enum class Receiver : uint8_t { kLibrary, kCallback };

// The arguments of a modern call in classic form. They borrow from the cells.
class ClassicArgs {
 public:
  ClassicArgs(Args args, Receiver receiver)
      : args_(args),
        receiver_(receiver),
        values_(args.size()),
        codes_(args.size()),
        bytes_(args.size()),
        tensors_(args.size()) {
    for (int i = 0; i < args.size(); ++i) Set(i, args.cells()[i]);
  }

  TVMValue* values() noexcept { return values_.get(); }
  int* codes() noexcept { return codes_.get(); }
  // A result that may be an argument: the caller's tensor again, not our description of it.
  TVMValue Original(TVMValue value, int code) noexcept {
    int32_t i = code == kTVMDLTensorHandle ? tensors_.Find(value.v_handle) : -1;
    if (i >= 0) value.v_handle = TryDLTensor(args_.cells()[i]);
    return value;
  }

 private:
  void Set(int i, const TVMFFIAny& cell) {
    switch (cell.type_index) {
      case kTVMFFINone:
        return Put(i, kTVMNullptr, nullptr);
      case kTVMFFIInt:
      case kTVMFFIBool:
        return PutPayload(i, kTVMArgInt, cell);
      case kTVMFFIFloat:
        return PutPayload(i, kTVMArgFloat, cell);
      case kTVMFFIOpaquePtr:
        return PutPayload(i, kTVMOpaqueHandle, cell);
      case kTVMFFIDataType:
        return PutPayload(i, kTVMDataType, cell);
      case kTVMFFIDevice:
        return PutPayload(i, kDLDevice, cell);
      case kTVMFFIDLTensorPtr:
        return PutTensor(i, kTVMDLTensorHandle, cell);
      case kTVMFFIRawStr:
      case kTVMFFISmallStr:
      case kTVMFFIStr:
        return PutText(i, *TryString(cell));
      case kTVMFFIByteArrayPtr:
        return Put(i, kTVMBytes, cell.v_ptr);
      case kTVMFFIBytes:
        return Put(i, kTVMBytes, &static_cast<BytesObj*>(cell.v_obj)->bytes);
      case kTVMFFISmallBytes:
        bytes_.get()[i] = ToByteArray(*TryBytes(cell));
        return Put(i, kTVMBytes, &bytes_.get()[i]);
      case kTVMFFITensor:
        return PutTensor(i, receiver_ == Receiver::kLibrary ? kTVMDLTensorHandle : kTVMNDArrayHandle, cell);
      case kTVMFFIFunction:
        return Put(i, kTVMPackedFuncHandle, cell.v_obj);
      case kTVMFFIModule:
        return Put(i, kTVMModuleHandle, cell.v_obj);
      case kTVMFFIObjectRValueRef:
        return SetReferent(i, *static_cast<TVMFFIObject**>(cell.v_ptr));
      default:
        return PutObject(i, cell);
    }
  }

  void Put(int i, TVMArgTypeCode code, const void* pointer) {
    values_.get()[i].v_handle = const_cast<void*>(pointer);
    codes_.get()[i] = code;
  }
  void PutPayload(int i, TVMArgTypeCode code, const TVMFFIAny& cell) {
    values_.get()[i].v_int64 = cell.v_int64;
    codes_.get()[i] = code;
  }
  void PutText(int i, std::string_view text) {
    if (std::memchr(text.data(), '\0', text.size())) {
      detail::ThrowArgumentError(args_.function(), i, "text without NUL, which would end a C string", "text with one");
    }
    Put(i, kTVMStr, text.data());
  }
  void PutTensor(int i, TVMArgTypeCode code, const TVMFFIAny& cell) {
    DLTensor* tensor = TryDLTensor(cell);
    if (receiver_ == Receiver::kLibrary && tensor) {
      CheckAlignment(i, *tensor);
      tensor = tensors_.WithType(i, tensor, kModernBool, kClassicBool);
    }
    Put(i, code, tensor);
  }
  // Compiled code moves data with aligned instructions and does not look first.
  void CheckAlignment(int i, const DLTensor& tensor) const {
    uintptr_t excess = (reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset) % kTensorAlignment;
    if (excess == 0 || tensor.device.device_type != kDLCPU) return;
    std::string alignment = std::to_string(kTensorAlignment);
    detail::ThrowArgumentError(args_.function(), i,
                               "tensor data aligned to " + alignment + " bytes, as compiled kernels assume",
                               "data at " + std::to_string(excess) + " modulo " + alignment);
  }
  // The classic callee may move from such a variable too, but need not: it gets a plain view of the object.
  void SetReferent(int i, TVMFFIObject* obj) {
    TVMFFIAny cell;
    detail::SetCell(&cell, obj ? obj->type_index : static_cast<int32_t>(kTVMFFINone));
    if (obj) cell.v_obj = obj;
    Set(i, cell);
  }
  void PutObject(int i, const TVMFFIAny& cell) {
    if (receiver_ == Receiver::kCallback && IsObject(cell)) return Put(i, kTVMObjectHandle, cell.v_obj);
    detail::ThrowArgumentError(
        args_.function(), i, "int, float, bool, str, bytes, None, a Tensor, pointer, dtype, Device, Function or Module",
        DescribeType(cell.type_index));
  }

  Args args_;
  Receiver receiver_;
  Room<TVMValue> values_;
  Room<int> codes_;
  Room<TVMFFIByteArray> bytes_;  // where small bytes have their description
  BoolTensors tensors_;
};

// Text and bytes of this thread's last results. Plain strings: no object is left behind in a thread.
struct ResultStorage {
  std::string text;
  std::string content;
  TVMByteArray bytes{};
};

ResultStorage& Storage() {
  thread_local ResultStorage storage;
  return storage;
}

void GiveText(std::string text, TVMValue* value, int* code) {
  Storage().text = std::move(text);
  value->v_str = Storage().text.c_str();
  *code = kTVMStr;
}

void GiveBytes(std::string content, TVMValue* value, int* code) {
  ResultStorage& storage = Storage();
  storage.content = std::move(content);
  storage.bytes = ToByteArray(storage.content);
  value->v_handle = &storage.bytes;
  *code = kTVMBytes;
}

// The reference passes to the caller with the handle.
void GiveObject(Any result, TVMValue* value, int* code) {
  switch (result.type_index()) {
    case kTVMFFIFunction:
      *code = kTVMPackedFuncHandle;
      break;
    case kTVMFFIModule:
      *code = kTVMModuleHandle;
      break;
    case kTVMFFITensor:
      *code = kTVMNDArrayHandle;
      break;
    default:
      *code = kTVMObjectHandle;
  }
  value->v_handle = *code == kTVMNDArrayHandle ? static_cast<void*>(TryDLTensor(result.cell()))
                                               : static_cast<void*>(result.cell().v_obj);
  result.release();
}

struct Callback {
  TVMPackedCFunc func;
  void* resource;
  TVMPackedCFuncFinalizer fin = nullptr;

  ~Callback() {
    if (fin) fin(resource);
  }
};

void CallCallback(const Callback& callback, Args args, RetValue* rv) {
  CallScope scope;
  ClassicArgs classic(args, Receiver::kCallback);
  if (callback.func(classic.values(), classic.codes(), args.size(), rv, callback.resource) != 0) {
    ThrowFailure(args.function());
  }
}

void CallSymbol(TVMBackendPackedCFunc symbol, Args args, RetValue* rv) {
  CallScope scope;
  ClassicArgs classic(args, Receiver::kLibrary);
  TVMValue value{};
  int code = kTVMNullptr;
  if (symbol(classic.values(), classic.codes(), args.size(), &value, &code, nullptr) != 0)
    ThrowFailure(args.function());
  *rv = TakeResult(classic.Original(value, code), code, args.function());
}

}  // namespace

TVMFFIObject* CheckHandle(void* handle, int32_t type_index, const char* what) {
  PORTCALL_CHECK(handle, ValueError) << "the " << what << " handle is NULL";
  auto* obj = static_cast<TVMFFIObject*>(handle);
  bool is_object = reinterpret_cast<uintptr_t>(handle) % alignof(TVMFFIObject) == 0 &&
                   (__atomic_load_n(&obj->combined_ref_count, __ATOMIC_RELAXED) & kStrongMask) != 0 &&
                   IsObjectIndex(obj->type_index) && obj->type_index < kTypeIndexLimit && obj->padding == 0;
  PORTCALL_CHECK(is_object, TypeError) << "the " << what << " handle is not that of a living object";
  PORTCALL_CHECK(IsInstance(obj->type_index, type_index), TypeError)
      << "the " << what << " handle is that of a " << DescribeType(obj->type_index);
  return obj;
}

TVMFFIObject* CheckArray(const void* handle) {
  PORTCALL_CHECK(handle, ValueError) << "the array handle is NULL";
  return CheckHandle(const_cast<char*>(static_cast<const char*>(handle)) - sizeof(TVMFFIObject), kTVMFFITensor,
                     "array");
}

TVMFFIAny ViewOf(const TVMValue& value, int code, int position, const char* function) {
  TVMFFIAny cell;
  auto payload = [&](int32_t type_index) {
    detail::SetCell(&cell, type_index);
    cell.v_int64 = value.v_int64;
    return cell;
  };
  auto object = [&](TVMFFIObject* obj) {
    detail::SetCell(&cell, obj->type_index);
    cell.v_obj = obj;
    return cell;
  };
  // NULL of any kind is None.
  if (code >= kTVMDLTensorHandle && code <= kTVMNDArrayHandle && !value.v_handle) code = kTVMNullptr;
  switch (code) {
    case kTVMArgInt:
      return payload(kTVMFFIInt);
    case kTVMArgFloat:
      return payload(kTVMFFIFloat);
    case kTVMOpaqueHandle:
      return payload(kTVMFFIOpaquePtr);
    case kTVMNullptr:
      detail::SetCell(&cell, kTVMFFINone);
      return cell;
    case kTVMDataType:
      detail::SetCell(&cell, kTVMFFIDataType);  // four of the eight bytes: the others are zero in a cell
      cell.v_dtype = value.v_type;
      return cell;
    case kDLDevice:
      return payload(kTVMFFIDevice);
    case kTVMDLTensorHandle:
      return payload(kTVMFFIDLTensorPtr);
    case kTVMObjectHandle:
      return object(CheckHandle(value.v_handle, kTVMFFIObject, "object"));
    case kTVMModuleHandle:
      return object(CheckHandle(value.v_handle, kTVMFFIModule, "module"));
    case kTVMPackedFuncHandle:
      return object(CheckHandle(value.v_handle, kTVMFFIFunction, "function"));
    case kTVMStr:
      return payload(kTVMFFIRawStr);
    case kTVMBytes:
      return payload(kTVMFFIByteArrayPtr);
    case kTVMNDArrayHandle:
      return object(CheckArray(value.v_handle));
    case kTVMObjectRValueRefArg:
      PORTCALL_CHECK(value.v_handle, ValueError)
          << NameOrAnonymous(function) << "(): argument #" << position << ": the variable to move from is NULL";
      return payload(kTVMFFIObjectRValueRef);
    case kTVMArgBool:
      detail::SetCell(&cell, kTVMFFIBool);
      cell.v_int64 = value.v_int64 != 0;
      return cell;
    default:
      RefuseCode(code, position, function);
  }
}

Any TakeResult(const TVMValue& value, int code, const char* function) {
  TVMFFIAny view = ViewOf(value, code, -1, function);
  return IsObject(view) ? Any::Steal(view) : Any::Copy(view);
}

void GiveResult(Any result, TVMValue* value, int* code) {
  const TVMFFIAny& cell = result.cell();
  value->v_int64 = cell.v_int64;
  switch (cell.type_index) {
    case kTVMFFINone:
      *code = kTVMNullptr;
      return;
    case kTVMFFIInt:
    case kTVMFFIBool:
      *code = kTVMArgInt;
      return;
    case kTVMFFIFloat:
      *code = kTVMArgFloat;
      return;
    case kTVMFFIOpaquePtr:
      *code = kTVMOpaqueHandle;
      return;
    case kTVMFFIDevice:
      *code = kDLDevice;
      return;
    case kTVMFFIDLTensorPtr:
      *code = kTVMDLTensorHandle;
      return;
    case kTVMFFIDataType:
      return GiveText(ToString(cell.v_dtype), value, code);
    case kTVMFFIRawStr:
    case kTVMFFISmallStr:
    case kTVMFFIStr:
      return GiveText(std::string(*TryString(cell)), value, code);
    case kTVMFFIByteArrayPtr:
    case kTVMFFISmallBytes:
    case kTVMFFIBytes:
      return GiveBytes(std::string(*TryBytes(cell)), value, code);
    default:
      break;
  }
  PORTCALL_CHECK(IsObject(cell), TypeError)
      << "a result of type " << DescribeType(cell.type_index) << " has no form in the classic ABI";
  GiveObject(std::move(result), value, code);
}

bool IsBytesOfLastResult(const TVMByteArray* bytes) noexcept { return bytes == &Storage().bytes; }

void ThrowFailure(const char* function) {
  TVMFFIObjectHandle handle = nullptr;
  TVMFFIErrorMoveFromRaised(&handle);
  if (handle) throw Error(ObjectRef::Steal(handle));
  throw Error("RuntimeError",
              std::string(NameOrAnonymous(function)) + "() failed (nonzero return) without setting an error");
}

PackedFunc WrapCallback(TVMPackedCFunc func, void* resource, TVMPackedCFuncFinalizer fin) {
  auto callback = std::make_shared<Callback>(Callback{func, resource});
  PackedFunc wrapped([callback](Args args, RetValue* rv) { CallCallback(*callback, args, rv); });
  callback->fin = fin;  // last: a failure before this leaves the resource to the caller
  return wrapped;
}

PackedFunc WrapSymbol(void* symbol, ObjectRef keep_alive, const std::string& name) {
  PORTCALL_CHECK(symbol, ValueError) << "the library function '" << name << "' has no address";
  // Not kPortcallFunctionGenerated: unlike modern generated code, classic code is handed functions and modules too,
  // and the checks that it needs are made while its arguments are laid out.
  auto call = reinterpret_cast<TVMBackendPackedCFunc>(symbol);
  return PackedFunc([call, keep_alive = std::move(keep_alive)](Args args, RetValue* rv) { CallSymbol(call, args, rv); },
                    name, kPortcallFunctionLibrary);
}

}  // namespace portcall::classic
