// SPDX-License-Identifier: Apache-2.0
// Rules
//  * Nothing that the other side sends is used as an address. Memory is named by a handle, and every access is checked
//    against the extent of what the handle names.
//  * Functions see ordinary values: tensors are views of the session's memory, which they may keep.
#include "rpc/local_session.h"

#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "portcall/device.h"
#include "portcall/module.h"
#include "portcall/tensor.h"
#include "runtime/tensor_view.h"

namespace portcall::rpc {
namespace {

constexpr uint64_t kMaxAlignment = 4096;

// Memory of a device, by whatever its API calls an address.
struct Block {
  DLDevice device;
  void* data;
};

void ReleaseBlock(void* owner) {
  std::unique_ptr<Block> block(static_cast<Block*>(owner));
  const PortcallDeviceAPI& api = DeviceApiOf(block->device);  // kinds are never unregistered
  api.free(api.ctx, block->device, block->data);
}

// A tensor of the bytes of a block, which it owns.
Tensor BytesOf(std::unique_ptr<Block> block, uint64_t nbytes) {
  auto extent = static_cast<int64_t>(nbytes);
  DLTensor description{};
  description.data = block->data;
  description.device = block->device;
  description.ndim = 1;
  description.dtype = {kDLUInt, 8, 1};
  description.shape = &extent;
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallTensorFromMemory(&description, 0, block.get(), ReleaseBlock, &handle));
  (void)block.release();
  return ObjectRef::Steal<Tensor>(handle);
}

Tensor AllocBlock(DLDevice device, uint64_t nbytes, uint64_t alignment, DLDataType hint) {
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  auto block = std::make_unique<Block>(Block{device, nullptr});
  Check(api.alloc(api.ctx, device, std::max<uint64_t>(nbytes, 1), std::max<uint64_t>(alignment, kTensorAlignment), hint,
                  &block->data));
  return BytesOf(std::move(block), nbytes);
}

class LocalSession : public Session {
 public:
  LocalSession(std::vector<std::string> patterns, bool by_value, facts::Call* record, SeeResult see_result)
      : patterns_(std::move(patterns)), by_value_(by_value), record_(record), see_result_(std::move(see_result)) {}
  ~LocalSession() override { FreeStreams(); }

  uint64_t GetFunction(std::string_view name) override {
    std::string key(name);
    if (uint64_t handle = handles_.AddNamed(key)) return handle;
    PackedFunc func = Registry::Get(key);
    if (!func.defined()) return 0;
    PORTCALL_CHECK(Offers(key), PermissionError)
        << "the function '" << key << "' is not offered to sessions; the server's --expose adds names";
    return handles_.AddNamed(key, func);
  }

  void Call(uint64_t function, const Sequence& args, CallResult* result) override {
    PackedFunc func = handles_.Get(function, HandleTable::kFunction).cast<PackedFunc>();
    std::vector<Any> cells;
    cells.reserve(args.size());
    PortcallFunctionInfo info;
    PortcallFunctionGetInfo(func.get(), &info);
    for (const WireValue& arg : args) cells.push_back(Argument(arg, info.flags & kPortcallFunctionLibrary));
    const auto* values = reinterpret_cast<const TVMFFIAny*>(cells.data());
    Recording recording{record_};
    if (record_) BeginCall(record_, info.name, values, cells.size());
    Any value = CallOf(func, info, values, static_cast<int32_t>(cells.size()));
    if (see_result_) see_result_(value);
    SetResult(std::move(value), result,
              info.flags & kPortcallFunctionPython ? Save::kWherePossible : Save::kWithoutTensors);
  }

  static Any CallOf(const PackedFunc& func, const PortcallFunctionInfo& info, const TVMFFIAny* args, int32_t size) {
    try {
      if (!(info.flags & kPortcallFunctionForeign)) return func.CallPacked(args, size);
      Any value;  // info.call refuses objects that the other runtime cannot read
      Check(info.call(info.self, args, size, reinterpret_cast<TVMFFIAny*>(&value)));
      return value;
    } catch (const std::exception&) {
      throw;
    } catch (...) {  // from a library whose functions let it through
      PORTCALL_THROW(RuntimeError) << info.name << "() threw a C++ exception that is not a std::exception";
    }
  }

  void Free(uint64_t handle) override {
    if (handle) handles_.Free(handle, HandleTable::kObject);
  }

  uint64_t Alloc(const WireTensor& like, std::optional<std::string_view> scope) override {
    if (!scope || scope->empty() || *scope == "global") {
      return AllocData(like.device, like.NumBytes(), kTensorAlignment, like.dtype);
    }
    Any tensor = Registry::Get("runtime.TVMTensorAllocWithScope")(Shape(like.shape), like.dtype, like.device, *scope);
    return handles_.Add(HandleTable::kMemory, std::move(tensor));
  }

  uint64_t AllocData(DLDevice device, uint64_t nbytes, uint64_t alignment, DLDataType hint) override {
    PORTCALL_CHECK(alignment <= kMaxAlignment && (alignment & (alignment - 1)) == 0, ValueError)
        << "alignment " << alignment << " is not a power of two up to " << kMaxAlignment;
    PORTCALL_CHECK(nbytes < std::min<uint64_t>(uint64_t{1} << 62, SIZE_MAX / 2), ValueError)
        << "cannot allocate " << nbytes << " bytes";
    return handles_.Add(HandleTable::kMemory, AllocBlock(device, nbytes, alignment, hint));
  }

  void FreeData(DLDevice, uint64_t data) override {
    if (data) handles_.Free(data, HandleTable::kMemory);
  }

  void CopyTo(const WireTensor& to, const void* from, uint64_t nbytes) override {
    Tensor target = Bytes(to, nbytes);
    DLTensor source = HostBytes(from, target);
    target.CopyFrom(source);
  }

  void CopyFrom(const WireTensor& from, void* to, uint64_t nbytes) override {
    Tensor source = Bytes(from, nbytes);
    DLTensor target = HostBytes(to, source);
    Check(PortcallTensorCopy(source.dl_tensor(), &target));
  }

  void CopyAmong(const WireTensor& from, const WireTensor& to, uint64_t) override {
    uint64_t nbytes = from.NumBytes();
    PORTCALL_CHECK(nbytes == to.NumBytes(), ValueError)
        << "a copy needs tensors of one size: " << nbytes << " bytes to " << to.NumBytes();
    if (nbytes == 0) return;
    Bytes(to, nbytes).CopyFrom(Bytes(from, nbytes));
  }

  void* Address(const WireTensor& tensor, uint64_t nbytes, Access access, Any* owner) override {
    if (nbytes == 0) return nullptr;
    Tensor bytes = Bytes(tensor, nbytes);
    PORTCALL_CHECK(access == Access::kRead || !bytes.is_read_only(), ValueError) << "the tensor is read-only";
    if (bytes.device().device_type != kDLCPU) return nullptr;
    *owner = bytes;
    return bytes.raw_data();
  }

  WireValue GetAttr(DLDevice device, int64_t attr, Any* owner) override {
    PackedFunc get = Registry::Get("runtime.GetDeviceAttr");
    *owner = get(device.device_type, device.device_id, attr);
    CallResult result;
    SetResult(std::move(*owner), &result);
    // The field writes whether a device exists as an int.
    if (result.type == kTVMFFIBool) return WireValue::Int(result.value.v_int64);
    *owner = std::move(result.owner);
    if (auto text = TryString(owner->cell())) return WireValue::Text(*text);  // a short one lies in the cell itself
    return std::move(result.value);
  }

  void SetDevice(DLDevice device) override {
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    if (api.set_device) Check(api.set_device(api.ctx, device));
  }

  uint64_t CreateStream(DLDevice device) override {
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    if (!api.create_stream) return 0;
    void* stream = nullptr;
    Check(api.create_stream(api.ctx, device, &stream));
    if (!stream) return 0;
    uint64_t handle = handles_.Add(HandleTable::kStream, stream);
    std::lock_guard<std::mutex> lock(streams_mutex_);
    stream_devices_.emplace(handle, device);
    return handle;
  }
  void FreeStream(DLDevice device, uint64_t stream) override {
    if (!stream) return;
    void* native = StreamOf(device, stream);
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    if (GetStream(device) == stream) SetStream(device, 0);
    handles_.Free(stream, HandleTable::kStream);
    {
      std::lock_guard<std::mutex> lock(streams_mutex_);
      stream_devices_.erase(stream);
    }
    if (api.free_stream) Check(api.free_stream(api.ctx, device, native));
  }
  void SetStream(DLDevice device, uint64_t stream) override {
    Check(TVMFFIEnvSetStream(device.device_type, device.device_id, StreamOf(device, stream), nullptr));
    std::lock_guard<std::mutex> lock(streams_mutex_);
    current_streams_[{device.device_type, device.device_id}] = stream;
  }
  uint64_t GetStream(DLDevice device) override {
    std::lock_guard<std::mutex> lock(streams_mutex_);
    auto it = current_streams_.find({device.device_type, device.device_id});
    return it == current_streams_.end() ? 0 : it->second;
  }
  void SyncStream(DLDevice device, uint64_t stream) override {
    Check(PortcallDeviceSync(
        device, stream ? StreamOf(device, stream) : TVMFFIEnvGetStream(device.device_type, device.device_id)));
  }

  bool calls_back() const override { return true; }
  uint64_t Lend(const Any&) override { return 0; }
  Any Import(const WireValue& value) override { return Argument(value, false); }
  void Export(Any value, CallResult* out) override { SetResult(std::move(value), out, Save::kWherePossible); }
  bool by_value() const override { return by_value_; }
  bool runs_here() const override { return true; }

  void Close() override {
    closed_ = true;
    FreeStreams();
    handles_.Clear();
  }
  bool closed() const override { return closed_; }

 private:
  struct Recording {
    facts::Call* record;
    ~Recording() {
      if (record) EndCall(record);
    }
  };

  bool Offers(const std::string& name) const {
    return std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
  }

  // What the device calls the stream. A stream of another device would be an address of somebody else's to it.
  void* StreamOf(DLDevice device, uint64_t stream) const {
    if (!stream) return nullptr;
    void* native = handles_.Get(stream, HandleTable::kStream).cast<void*>();
    std::lock_guard<std::mutex> lock(streams_mutex_);
    auto it = stream_devices_.find(stream);
    PORTCALL_CHECK(it != stream_devices_.end() && it->second == device, ValueError)
        << "the stream " << stream << " is not one of " << ToString(device);
    return native;
  }

  void FreeStreams() {
    std::map<uint64_t, DLDevice> streams;
    {
      std::lock_guard<std::mutex> lock(streams_mutex_);
      streams = stream_devices_;
    }
    for (const auto& [stream, device] : streams) {
      try {
        FreeStream(device, stream);
      } catch (const Error&) {  // the device fails, and there is no caller left to tell
      }
    }
  }

  // A view of the memory that a tensor names, after a check that it lies within it. Copies take an offset on a device;
  // functions do not.
  Tensor View(const WireTensor& tensor, const std::vector<int64_t>& shape, DLDataType dtype, uint64_t nbytes,
              bool for_copy) const {
    Tensor block = handles_.GetMemory(tensor.data).cast<Tensor>();
    const DLTensor& dl = *block.dl_tensor();
    uint64_t size = portcall::NumBytes(dl);
    PORTCALL_CHECK(tensor.byte_offset <= size && nbytes <= size - tensor.byte_offset, ValueError)
        << nbytes << " bytes at offset " << tensor.byte_offset << " go past the end of memory of " << size << " bytes";
    DLTensor view = dl;
    view.byte_offset += tensor.byte_offset;
    view.ndim = static_cast<int32_t>(shape.size());
    view.shape = const_cast<int64_t*>(shape.data());
    view.strides = nullptr;
    view.dtype = dtype;
    const bool as_it_is = for_copy && dl.device.device_type != kDLCPU;
    return as_it_is ? ViewInto(block, view, PortcallTensorGetFlags(block.get())) : ViewOf(block, view);
  }
  Tensor Bytes(const WireTensor& tensor, uint64_t nbytes) const {
    return View(tensor, {static_cast<int64_t>(nbytes)}, {kDLUInt, 8, 1}, nbytes, true);
  }
  static DLTensor HostBytes(const void* data, const Tensor& like) {
    DLTensor host = *like.dl_tensor();
    host.data = const_cast<void*>(data);
    host.byte_offset = 0;
    host.device = Cpu();
    return host;
  }

  Any Argument(const WireValue& value, bool library) const {
    if (Any plain; TakePlain(value, &plain)) return plain;
    switch (value.type) {
      case kTVMFFIFunction:
        return handles_.Get(value.v_handle, HandleTable::kFunction);
      case kTVMFFIModule:
        return handles_.Get(value.v_handle, HandleTable::kModule);
      case kRemoteObject:
        return handles_.GetObject(value.v_handle);
      case kClientFunction:
        return value.object;
      case kByValue:
        if (!by_value_) ThrowProtocolError("an object by value, which was not agreed upon");
        return FromValueBytes(value.object != nullptr ? value.object : Any(portcall::Bytes(value.text)));
      case kTVMFFIDLTensorPtr: {
        const WireTensor& tensor = *value.tensor;
        uint64_t nbytes = tensor.NumBytes();
        if (tensor.data == 0 && nbytes == 0) return Tensor::Empty(tensor.shape, tensor.dtype, tensor.device);
        return View(tensor, tensor.shape, tensor.dtype, nbytes, false);
      }
      default:
        return Pointer(value.v_handle, library);
    }
  }
  // Memory of the session arrives as its address; compiled code gets no other pointer.
  Any Pointer(uint64_t value, bool library) const {
    if (value && handles_.Has(value)) return handles_.GetMemory(value).cast<Tensor>().raw_data();
    PORTCALL_CHECK(!library || value == 0, ValueError) << "the pointer " << value << " names no memory of this session";
    return reinterpret_cast<void*>(value);
  }

  void SetResult(Any value, CallResult* out, Save save = Save::kWithoutTensors) {
    out->type = value.type_index();
    out->owner = std::move(value);  // text of a few bytes lies in the cell itself
    bool borrowed = out->type == kTVMFFIRawStr || out->type == kTVMFFIByteArrayPtr;  // no result may be borrowed
    if (!borrowed && GivePlain(out->owner.cell(), &out->value)) return;
    value = std::move(out->owner);
    switch (out->type) {
      case kTVMFFIFunction:
        out->value = WireValue::Pointer(handles_.Add(HandleTable::kFunction, value));
        break;
      case kTVMFFIModule:
        out->value = WireValue::Pointer(handles_.Add(HandleTable::kModule, value));
        break;
      case kTVMFFITensor:
        SetTensorResult(value, out);
        break;
      default:
        PORTCALL_CHECK(IsObject(value.cell()), TypeError)
            << "a result of type " << DescribeType(out->type) << " cannot leave the session";
        if (by_value_ && SetByValue(value, save, out)) return;
        out->value = WireValue::Pointer(handles_.Add(HandleTable::kObject, value));
    }
  }

  // The first byte of the bytes says whether there are objects in them whose type the other side may not know.
  bool SetByValue(const Any& value, Save save, CallResult* out) {
    Any bytes = ToValueBytes(value.cell(), save);
    if (bytes == nullptr) return false;
    out->owner = std::move(bytes);
    out->value = WireValue::ByValue(*TryBytes(out->owner.cell()));
    if (!out->value.text.empty() && out->value.text[0]) out->handle = handles_.Add(HandleTable::kObject, value);
    return true;
  }

  // Strides do not travel: a tensor that has some is copied first.
  void SetTensorResult(const Any& value, CallResult* out) {
    Tensor tensor = value.cast<Tensor>();
    std::vector<int64_t> shape(tensor.dl_tensor()->shape, tensor.dl_tensor()->shape + tensor.ndim());
    if (!tensor.is_contiguous()) {
      Tensor compact = Tensor::Empty(shape, tensor.dtype(), tensor.device());
      compact.CopyFrom(tensor);
      tensor = std::move(compact);
    }
    WireTensor wire;
    wire.data = out->handle = handles_.Add(HandleTable::kTensor, tensor);
    wire.device = tensor.device();
    wire.dtype = tensor.dtype();
    wire.shape = std::move(shape);
    out->value = WireValue::Tensor(std::move(wire));
  }

  std::vector<std::string> patterns_;
  bool by_value_;
  facts::Call* record_;
  SeeResult see_result_;
  HandleTable handles_;
  mutable std::mutex streams_mutex_;
  std::map<uint64_t, DLDevice> stream_devices_;
  std::map<std::pair<int32_t, int32_t>, uint64_t> current_streams_;
  std::atomic<bool> closed_{false};
};

}  // namespace

std::shared_ptr<Session> MakeLocalSession(std::vector<std::string> patterns, bool by_value, facts::Call* record,
                                          SeeResult see_result) {
  return std::make_shared<LocalSession>(std::move(patterns), by_value, record, std::move(see_result));
}

Any ToValueBytes(const TVMFFIAny& value, Save save, int position) {
  PackedFunc to_bytes = Registry::Get("portcall.rpc.ValueToBytes");
  return to_bytes.defined() ? to_bytes(Any::Copy(value), static_cast<int32_t>(save), position) : Any(nullptr);
}

Any FromValueBytes(const Any& bytes) {
  PackedFunc load = Registry::Get("portcall.rpc.ValueFromBytes");
  PORTCALL_CHECK(load.defined(), RuntimeError) << "this process cannot read objects by value: import portcall.rpc";
  return load(bytes);
}

}  // namespace portcall::rpc
