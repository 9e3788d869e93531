// SPDX-License-Identifier: Apache-2.0
#include "rpc/codec.h"

#include "portcall/container.h"
#include "portcall/function.h"

namespace portcall::rpc {
namespace {

constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 62;

}  // namespace

void ThrowProtocolError(const std::string& what) { throw Error("RemoteProtocolError", what); }

std::string TextOf(const Error& error) {
  auto* extra = static_cast<TVMFFIObject*>(static_cast<ErrorObj*>(error.ref().get())->cell.extra_context);
  if (extra && extra->type_index == kTVMFFIArray) {
    auto facts = ObjectRef::Borrow<Array<Any>>(extra);
    const Any tag = facts.empty() ? Any() : facts[0];
    if (auto text = TryString(tag.cell()); text && *text == kArgumentErrorTag) {
      return "ArgumentError: " + std::string(error.message());
    }
  }
  return error.what();
}

uint64_t WireTensor::NumBytes() const {
  uint64_t bits = uint64_t{dtype.bits} * dtype.lanes;
  uint64_t count = 1;
  for (int64_t extent : shape) {
    if (extent < 0) ThrowProtocolError("a tensor has a negative extent");
    if (extent != 0 && count > kMaxTensorBytes / static_cast<uint64_t>(extent))
      ThrowProtocolError("a tensor is too large");
    count *= static_cast<uint64_t>(extent);
  }
  if (bits != 0 && count > kMaxTensorBytes / bits) ThrowProtocolError("a tensor is too large");
  return (count * bits + 7) / 8;
}

// ---- Values -------------------------------------------------------------------------------------------------------

WireValue WireValue::Int(int64_t value) {
  WireValue out;
  out.type = kTVMFFIInt;
  out.v_int64 = value;
  return out;
}
WireValue WireValue::Bool(bool value) {
  WireValue out = Int(value ? 1 : 0);
  out.type = kTVMFFIBool;
  return out;
}
WireValue WireValue::Float(double value) {
  WireValue out;
  out.type = kTVMFFIFloat;
  out.v_float64 = value;
  return out;
}
WireValue WireValue::Handle(int32_t type, uint64_t value) {
  WireValue out;
  out.type = type;
  out.v_handle = value;
  return out;
}
WireValue WireValue::Pointer(uint64_t value) { return Handle(kTVMFFIOpaquePtr, value); }
WireValue WireValue::Dtype(DLDataType value) {
  WireValue out;
  out.type = kTVMFFIDataType;
  out.v_dtype = value;
  return out;
}
WireValue WireValue::OfDevice(DLDevice value) {
  WireValue out;
  out.type = kTVMFFIDevice;
  out.v_device = value;
  return out;
}
WireValue WireValue::Text(std::string_view value) {
  WireValue out;
  out.type = kTVMFFIRawStr;
  out.text = value;
  return out;
}
WireValue WireValue::Bytes(std::string_view value) {
  WireValue out = Text(value);
  out.type = kTVMFFIByteArrayPtr;
  return out;
}
WireValue WireValue::ByValue(std::string_view bytes) {
  WireValue out = Text(bytes);
  out.type = kByValue;
  return out;
}
WireValue WireValue::Tensor(WireTensor value) {
  WireValue out;
  out.type = kTVMFFIDLTensorPtr;
  out.tensor = std::make_unique<WireTensor>(std::move(value));
  return out;
}

bool TakePlain(const WireValue& value, Any* out) {
  switch (value.type) {
    case kTVMFFINone:
      *out = nullptr;
      return true;
    case kTVMFFIInt:
      *out = value.v_int64;
      return true;
    case kTVMFFIBool:
      *out = value.v_int64 != 0;
      return true;
    case kTVMFFIFloat:
      *out = value.v_float64;
      return true;
    case kTVMFFIDataType:
      *out = value.v_dtype;
      return true;
    case kTVMFFIDevice:
      *out = value.v_device;
      return true;
    case kTVMFFIRawStr:
      *out = String(value.text);
      return true;
    case kTVMFFIByteArrayPtr:
      *out = value.object != nullptr ? value.object : Any(Bytes(value.text));
      return true;
    default:
      return false;
  }
}

bool GivePlain(const TVMFFIAny& value, WireValue* out) {
  if (auto text = TryString(value)) {
    *out = WireValue::Text(*text);
    return true;
  }
  if (auto bytes = TryBytes(value)) {
    *out = WireValue::Bytes(*bytes);
    return true;
  }
  switch (value.type_index) {
    case kTVMFFIBool:
      *out = WireValue::Bool(value.v_int64 != 0);
      return true;
    case kTVMFFINone:
    case kTVMFFIInt:
    case kTVMFFIFloat:
    case kTVMFFIOpaquePtr:
    case kTVMFFIDataType:
    case kTVMFFIDevice:
      *out = WireValue::Handle(value.type_index, value.v_uint64);  // all lie in the same 8 bytes
      return true;
    default:
      return false;
  }
}

[[gnu::cold]] Error RemoteErrorOf(std::string_view body, std::string_view peer) {
  Reader reader(body);
  Sequence values = reader.Values();
  reader.ExpectEnd();
  if (values.empty() || values[0].type != kTVMFFIRawStr) ThrowProtocolError("an Exception without a message");
  bool traceback = values.size() > 1 && values[1].type == kTVMFFIRawStr;
  return Error("RemoteError", values[0].text, traceback ? values[1].text : std::string_view{}, nullptr,
               Array<Any>({Any("portcall.RPCError"), Any(String(peer))}));
}

// ---- Writing ------------------------------------------------------------------------------------------------------

void Writer::Content(std::string_view bytes) {
  if (!insets_ || bytes.size() < kInsetBytes) {
    out_->append(bytes);
  } else {
    insets_->push_back({out_->size(), bytes});
    inset_bytes_ += bytes.size();
  }
}

void Writer::Begin(Code code, uint64_t callback) {
  start_ = out_->size();
  inset_bytes_ = 0;
  Put<uint64_t>(0);
  Put<int32_t>(static_cast<int32_t>(code) | (callback ? kNested : 0));
  if (callback) Put<uint64_t>(callback);
}

void Writer::BeginPosted(Code code, uint64_t target, uint64_t callback) {
  Begin(static_cast<Code>(static_cast<int32_t>(code) | kPosted), callback);
  Put<uint64_t>(target);
}

void Writer::End() {
  uint64_t length = Ordered(out_->size() - start_ - sizeof(uint64_t) + inset_bytes_);
  std::memcpy(out_->data() + start_, &length, sizeof(length));
}

void Writer::Tensor(const WireTensor& tensor) {
  Put<uint64_t>(tensor.data);
  Put<DLDevice>(tensor.device);
  Put<int32_t>(static_cast<int32_t>(tensor.shape.size()));
  Put<DLDataType>(tensor.dtype);
  for (int64_t extent : tensor.shape) Put<int64_t>(extent);
  Put<uint64_t>(tensor.byte_offset);
}

void Writer::Value(const WireValue& value, Form form) {
  if (value.type == kByValue || value.type == kClientFunction) {
    Put<int32_t>(value.type);
    Put<int32_t>(value.type);
    return value.type == kByValue ? Text(value.text) : Put<uint64_t>(value.v_handle);
  }
  bool text = value.type == kTVMFFIRawStr, bytes = value.type == kTVMFFIByteArrayPtr;
  if (value.type == kRemoteObject || (text && form == Form::kInitServer) || (bytes && form != Form::kReply)) {
    // ANY: an outer index that tells the sender's own form of the value, then the plain one.
    int32_t small = text ? kTVMFFISmallStr : kTVMFFISmallBytes, large = text ? kTVMFFIStr : kTVMFFIBytes;
    bool object = value.type == kRemoteObject;
    Put<int32_t>(object ? kRemoteObject : value.text.size() <= 7 ? small : large);
    Put<int32_t>(object ? kRemoteObject : large);
    return object ? Put<uint64_t>(value.v_handle) : Text(value.text);
  }
  Put<int32_t>(value.type);
  switch (value.type) {
    case kTVMFFINone:
      return;
    case kTVMFFIRawStr:
    case kTVMFFIByteArrayPtr:
      return Text(value.text);
    case kTVMFFIDLTensorPtr:
      return Tensor(*value.tensor);
    case kTVMFFIDataType:
      Put<DLDataType>(value.v_dtype);
      return Put<int32_t>(0);
    case kTVMFFIDevice:
      return Put<DLDevice>(value.v_device);
    default:
      return Put<uint64_t>(value.v_handle);  // int, bool, float, pointer, function, module: 8 bytes
  }
}

void Writer::Values(const Sequence& values, Form form) {
  Put<int32_t>(static_cast<int32_t>(values.size()));
  for (const WireValue& value : values) Value(value, form);
}

// ---- Reading ------------------------------------------------------------------------------------------------------

WireTensor Reader::Tensor() {
  WireTensor tensor;
  tensor.data = Take<uint64_t>();
  tensor.device = Take<DLDevice>();
  auto ndim = Take<int32_t>();
  if (ndim < 0 || ndim > kMaxDimensions) ThrowProtocolError("a tensor has " + std::to_string(ndim) + " dimensions");
  tensor.dtype = Take<DLDataType>();
  for (int32_t i = 0; i < ndim; ++i) tensor.shape.push_back(Take<int64_t>());
  tensor.byte_offset = Take<uint64_t>();
  return tensor;
}

WireValue Reader::Blob() {
  auto size = Take<uint64_t>();
  if (content_ && size > left()) {
    if (content_->object != nullptr && content_->at == at_) {
      WireValue value = WireValue::Bytes(*TryBytes(content_->object.cell()));
      value.object = std::move(content_->object);
      return value;
    }
    content_->at = at_;
    content_->size = size;
  }
  return WireValue::Bytes(Bytes(size));
}

WireValue Reader::AnyValue() {
  auto inner = Take<int32_t>();
  if (inner == kTVMFFIStr) return WireValue::Text(Text());
  if (inner == kTVMFFIBytes) return Blob();
  if (inner == kRemoteObject || inner == kClientFunction) return WireValue::Handle(inner, Take<uint64_t>());
  if (inner == kByValue) {
    WireValue value = Blob();
    value.type = kByValue;
    return value;
  }
  ThrowProtocolError("a value of type " + std::to_string(inner) + " cannot be sent inside another");
}

WireValue Reader::Value() {
  auto type = Take<int32_t>();
  switch (type) {
    case kTVMFFINone:
      return WireValue::None();
    case kTVMFFIInt:
      return WireValue::Int(Take<int64_t>());
    case kTVMFFIBool:
      return WireValue::Bool(Take<int64_t>() != 0);
    case kTVMFFIFloat:
      return WireValue::Float(Take<double>());
    case kTVMFFIOpaquePtr:
    case kTVMFFIFunction:
    case kTVMFFIModule:
      return WireValue::Handle(type, Take<uint64_t>());
    case kTVMFFIDataType: {
      WireValue value = WireValue::Dtype(Take<DLDataType>());
      Take<int32_t>();
      return value;
    }
    case kTVMFFIDevice:
      return WireValue::OfDevice(Take<DLDevice>());
    case kTVMFFIDLTensorPtr:
      return WireValue::Tensor(Tensor());
    case kTVMFFIRawStr:
      return WireValue::Text(Text());
    case kTVMFFIByteArrayPtr:
      return Blob();
    default:
      break;
  }
  bool any = type == kTVMFFISmallStr || type == kTVMFFISmallBytes || type >= kTVMFFIStaticObjectBegin;
  if (!any) ThrowProtocolError("no value has type index " + std::to_string(type));
  return AnyValue();
}

Sequence Reader::Values() {
  auto count = Take<int32_t>();
  if (count < 0 || count > kMaxValues || !CanHold(static_cast<uint64_t>(count), sizeof(int32_t))) {
    ThrowProtocolError("a sequence of " + std::to_string(count) + " values in " + std::to_string(left()) + " bytes");
  }
  Sequence values;
  values.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) values.push_back(Value());
  return values;
}

}  // namespace portcall::rpc
