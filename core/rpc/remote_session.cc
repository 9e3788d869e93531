// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote_session.h"

#include <algorithm>

#include "rpc/requests.h"

namespace portcall::rpc {

thread_local const Session* pipelined_session = nullptr;

namespace {

// A call whose answer comes later.
struct LaterCall : Pending {
  CallResult result;
};

class RemoteSessionImpl : public RemoteSession, public std::enable_shared_from_this<RemoteSessionImpl> {
 public:
  RemoteSessionImpl(std::unique_ptr<Channel> channel, RemoteOptions options)
      : options_(std::move(options)), requests_(std::make_shared<Requests>(std::move(channel), options_)) {}
  ~RemoteSessionImpl() override { requests_->Release(); }

  void InitServer(const std::vector<Any>& constructor_args) override {
    requests_->Do(Code::kInitServer, [&](Writer& out) {
      out.Text(kProtocolVersion);
      Sequence args;
      for (const Any& arg : constructor_args) args.push_back(Plain(arg));
      out.Values(args, Form::kInitServer);
    });
  }

  uint64_t GetFunction(std::string_view name) override {
    Sequence args;
    args.push_back(WireValue::Text(name));
    return SysCallPointer(Code::kGetGlobalFunc, args);
  }

  void Call(uint64_t function, const Sequence& args, CallResult* result) override {
    requests_->Do(
        Code::kCallFunc,
        [&](Writer& out) {
          out.Put<uint64_t>(function);
          out.Values(args, Form::kRequest);
        },
        [&](Reader body) { ReadResult(body, result); });
  }

  std::shared_ptr<Pending> CallLater(uint64_t function, const Sequence& args, Deadline deadline) override {
    auto call = std::make_shared<LaterCall>();
    call->deadline = deadline;
    call->code = Code::kCallFunc;
    call->read = [requests = requests_.get(), call = call.get()](Reader body) {
      ReadResult(body, &call->result);
      if (call->self.use_count() > 1) return;  // else no caller waits for it
      requests->FreeLater(Code::kFreeHandle, {}, call->result.handle ? call->result.handle : HandleIn(call->result));
    };
    requests_->Send(call, [&](Writer& out) {
      out.Put<uint64_t>(function);
      out.Values(args, Form::kRequest);
    });
    return call;
  }
  CallResult* WaitFor(Pending* call, Deadline until) override {
    return requests_->Wait(call, until) ? &static_cast<LaterCall*>(call)->result : nullptr;
  }
  bool IsDone(const Pending* call) override { return requests_->Done(call); }
  bool posting() const override { return pipelined_session == this && requests_->posts(); }
  uint64_t PostCall(uint64_t function, const Sequence& args, Deadline deadline) override {
    auto write = [&](Writer& out) {
      out.Put<uint64_t>(function);
      out.Values(args, Form::kRequest);
    };
    return Post(Code::kCallFunc, write, deadline);
  }
  void Fetch(uint64_t handle, CallResult* result) override {
    Sequence args;
    args.push_back(WireValue::Pointer(handle));
    requests_->Do(
        Code::kFetch, [&](Writer& out) { out.Values(args, Form::kRequest); },
        [&](Reader body) { ReadResult(body, result); });
  }
  void Sync() override {
    if (requests_->posts()) requests_->Sync();
  }
  void set_posts(bool on) override {
    requests_->set_posts(on);
    if (requests_->posts()) packet_limit_ = 0;  // a server that takes them has none
  }
  bool pipelined() const override { return requests_->pipelined(); }
  void set_pipelined(bool on) override { requests_->set_pipelined(on); }

  void Free(uint64_t handle) override { requests_->FreeLater(Code::kFreeHandle, {}, handle); }
  void FreeData(DLDevice device, uint64_t data) override { requests_->FreeLater(Code::kDevFreeData, device, data); }

  uint64_t Alloc(const WireTensor& like, std::optional<std::string_view> scope) override {
    Sequence args;
    WireTensor copy = like;
    copy.data = 0;
    args.push_back(WireValue::Tensor(std::move(copy)));
    args.push_back(scope ? WireValue::Text(*scope) : WireValue::None());
    if (posting()) {
      return Post(Code::kDevAllocDataWithScope, [&](Writer& out) { out.Values(args, Form::kRequest); });
    }
    return SysCallPointer(Code::kDevAllocDataWithScope, args);
  }
  uint64_t AllocData(DLDevice device, uint64_t nbytes, uint64_t alignment, DLDataType hint) override {
    Sequence args;
    args.push_back(WireValue::OfDevice(device));
    args.push_back(WireValue::Int(static_cast<int64_t>(nbytes)));
    args.push_back(WireValue::Int(static_cast<int64_t>(alignment)));
    args.push_back(WireValue::Dtype(hint));
    return SysCallPointer(Code::kDevAllocData, args);
  }

  void CopyTo(const WireTensor& to, const void* from, uint64_t nbytes) override {
    std::string ordered;
    if constexpr (kBigEndian) {
      ordered.assign(static_cast<const char*>(from), nbytes);
      OrderElements(ordered.data(), nbytes, to.dtype);
      from = ordered.data();
    }
    Blocks(to, nbytes, [&](const WireTensor& block, uint64_t offset, uint64_t size) {
      auto write = [&](Writer& out) {
        out.Tensor(block);
        out.Text({static_cast<const char*>(from) + offset, static_cast<size_t>(size)});
      };
      posting() ? requests_->Post(Code::kCopyToRemote, 0, write) : requests_->Do(Code::kCopyToRemote, write);
    });
  }
  void CopyFrom(const WireTensor& from, void* to, uint64_t nbytes) override {
    Blocks(from, nbytes, [&](const WireTensor& block, uint64_t offset, uint64_t size) {
      requests_->Do(
          Code::kCopyFromRemote,
          [&](Writer& out) {
            out.Tensor(block);
            out.Put<uint64_t>(size);
          },
          {}, static_cast<char*>(to) + offset, size);
    });
    OrderElements(to, nbytes, from.dtype);
  }
  void CopyAmong(const WireTensor& from, const WireTensor& to, uint64_t stream) override {
    Sequence args;
    args.push_back(WireValue::Tensor(from));
    args.push_back(WireValue::Tensor(to));
    args.push_back(WireValue::Pointer(stream));
    if (!posting()) return SysCall(Code::kCopyAmongRemote, args);
    requests_->Post(Code::kCopyAmongRemote, 0, [&](Writer& out) { out.Values(args, Form::kRequest); });
  }
  void* Address(const WireTensor&, uint64_t, Access, Any*) override { return nullptr; }

  WireValue GetAttr(DLDevice device, int64_t attr, Any* owner) override {
    Sequence args;
    args.push_back(WireValue::OfDevice(device));
    args.push_back(WireValue::Int(attr));
    WireValue value;
    SysCall(Code::kDevGetAttr, args, [&](WireValue&& answer) {
      value = std::move(answer);
      Keep(&value, owner);
    });
    return value;
  }
  void SetDevice(DLDevice device) override { StreamCall(Code::kDevSetDevice, device, {}); }
  uint64_t CreateStream(DLDevice device) override { return StreamCall(Code::kDevCreateStream, device, {}); }
  void FreeStream(DLDevice device, uint64_t stream) override { StreamCall(Code::kDevFreeStream, device, stream); }
  void SetStream(DLDevice device, uint64_t stream) override { StreamCall(Code::kDevSetStream, device, stream); }
  uint64_t GetStream(DLDevice device) override { return StreamCall(Code::kDevGetCurrentStream, device, {}); }
  void SyncStream(DLDevice device, uint64_t stream) override { StreamCall(Code::kDevStreamSync, device, stream); }

  void Close() override {
    requests_->Close();
    if (requests_->IsOurs()) requests_->callbacks().TakeBackAll();
  }
  bool closed() const override { return requests_->closed(); }

  const RemoteOptions& options() const override { return options_; }
  SessionStats stats() const override { return requests_->stats(); }
  Activity activity() const override { return requests_->activity(); }
  size_t on_their_way() const override { return requests_->on_their_way(); }
  void set_call_timeout(double seconds) override { requests_->set_call_timeout(seconds); }
  void set_silence(double seconds) override { requests_->set_silence(seconds); }
  void set_explain(PackedFunc explain) override { requests_->set_explain(std::move(explain)); }
  void set_by_value(bool allowed) override { by_value_ = allowed; }
  void set_calls_back(bool allowed) override { requests_->set_calls_back(allowed); }
  void set_cancels(bool allowed) override { requests_->set_cancels(allowed); }
  bool calls_back() const override { return requests_->calls_back(); }
  uint64_t Lend(const Any& function) override {
    if (!calls_back()) ThrowNoFunctions();
    return requests_->callbacks().Lend(function.cast<PackedFunc>());
  }
  void TakeBack(uint64_t function) override { requests_->callbacks().TakeBack(function); }
  void RunCallbacksBy(CallbackRunner runner) {
    requests_->callbacks().set_run(
        [self = weak_from_this(), runner](const PackedFunc& func, const std::string& body, Writer* out) {
          std::shared_ptr<RemoteSessionImpl> session = self.lock();
          PORTCALL_CHECK(session && runner, SessionClosedError) << "the session is closed";
          std::vector<CallResult> args = session->CallbackArguments(body);
          return runner(session, func, &args, [&](const Sequence& values) { out->Values(values, Form::kRequest); });
        });
  }
  bool by_value() const override { return by_value_; }
  void set_output(PackedFunc output) override { requests_->set_output(std::move(output)); }

 private:
  static constexpr uint64_t kUnknown = UINT64_MAX;

  static WireValue Plain(const Any& value) {
    int32_t type = value.type_index();
    bool refused = type == kTVMFFIOpaquePtr || type == kTVMFFIDataType || type == kTVMFFIDevice;
    WireValue plain;
    PORTCALL_CHECK(!refused && GivePlain(value.cell(), &plain), TypeError)
        << "a session constructor takes None, numbers, text and bytes, not " << DescribeType(type);
    return plain;
  }

  // Text of an answer points into the receive buffer: what outlives the request has its own.
  static void Keep(WireValue* value, Any* owner) {
    if (value->type == kTVMFFIRawStr) {
      *owner = String(value->text);
      value->text = *TryString(owner->cell());
    } else if (value->type == kTVMFFIByteArrayPtr || value->type == kByValue) {
      *owner = value->object != nullptr ? std::move(value->object) : Any(Bytes(value->text));
      value->text = *TryBytes(owner->cell());
    }
  }

  static void ReadResult(Reader reader, CallResult* result) {
    Sequence values = reader.Values();
    reader.ExpectEnd();
    TakeResult(values.data(), values.size(), result);
    Keep(&result->value, &result->owner);
  }

  // Of a callback: type, value and handle of each.
  std::vector<CallResult> CallbackArguments(std::string_view body) {
    Reader reader(body);
    Sequence values = reader.Values();
    reader.ExpectEnd();
    if (values.size() % 3) ThrowProtocolError("a callback has arguments that are not whole");
    std::vector<CallResult> args(values.size() / 3);
    for (size_t i = 0; i < args.size(); ++i) TakeResult(&values[3 * i], 3, &args[i]);
    for (CallResult& arg : args) {
      if (!arg.value.text.empty() || arg.value.type == kTVMFFIRawStr) arg.owner = Own(arg.value);
    }
    return args;
  }
  static void TakeResult(WireValue* values, size_t count, CallResult* result) {
    if (count < 2 || values[0].type != kTVMFFIInt) ThrowProtocolError("the answer to a call has no result");
    result->type = static_cast<int32_t>(values[0].v_int64);
    result->value = std::move(values[1]);
    if (result->value.tensor) result->value.tensor->NumBytes();  // throws for an invalid shape
    if (count > 2) {
      if (values[2].type != kTVMFFIOpaquePtr) ThrowProtocolError("the third value of a result is not a handle");
      result->handle = values[2].v_handle;
    }
  }
  static Any Own(const WireValue& value) {
    return value.type == kTVMFFIRawStr ? Any(String(value.text)) : Any(Bytes(value.text));
  }

  // The handle to free of a result that is not a tensor; 0 for a plain value.
  static uint64_t HandleIn(const CallResult& result) {
    bool object = result.value.type == kTVMFFIOpaquePtr && result.type != kTVMFFIOpaquePtr;
    return object ? result.value.v_handle : 0;
  }

  uint64_t Post(Code code, const WriteBody& write, Deadline deadline = kNoDeadline) {
    uint64_t target = next_chosen_++;
    requests_->Post(code, target, write, deadline);
    return target;
  }

  uint64_t StreamCall(Code code, DLDevice device, std::optional<uint64_t> stream) {
    Sequence args;
    args.push_back(WireValue::OfDevice(device));
    if (stream) args.push_back(WireValue::Pointer(*stream));
    uint64_t handle = 0;
    SysCall(code, args, [&](WireValue&& answer) { handle = answer.type == kTVMFFIOpaquePtr ? answer.v_handle : 0; });
    return handle;
  }
  uint64_t SysCallPointer(Code code, const Sequence& args) {
    uint64_t handle = 0;
    SysCall(code, args, [&](WireValue&& answer) {
      if (answer.type != kTVMFFIOpaquePtr) ThrowProtocolError("the answer is not a handle");
      handle = answer.v_handle;
    });
    return handle;
  }
  void SysCall(Code code, const Sequence& args, const std::function<void(WireValue&&)>& take = {}) {
    requests_->Do(
        code, [&](Writer& out) { out.Values(args, Form::kRequest); },
        [&](Reader reader) {
          Sequence values = reader.Values();
          reader.ExpectEnd();
          if (values.size() != 1) ThrowProtocolError("the answer has " + std::to_string(values.size()) + " values");
          if (take) take(std::move(values[0]));
        });
  }

  // Large copies go in blocks where the server says that its packets are limited. Of whole elements, if any fits: a
  // server with another byte order knows them by the type that comes with each block.
  template <typename Copy> void Blocks(const WireTensor& tensor, uint64_t nbytes, Copy&& copy) {
    if (nbytes == 0) return;
    uint64_t limit = PacketLimit();
    uint64_t head = 44 + 8 * tensor.shape.size();
    uint64_t block = limit == 0 ? nbytes : limit > head ? limit - head : 1;
    uint64_t element = std::max<uint64_t>((uint64_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8, 1);
    if (block > element) block -= block % element;
    WireTensor part = tensor;
    for (uint64_t offset = 0; offset < nbytes; offset += block) {
      part.byte_offset = tensor.byte_offset + offset;
      copy(part, offset, std::min(block, nbytes - offset));
    }
  }
  // Asked once; 0: there is none.
  uint64_t PacketLimit() {
    uint64_t known = packet_limit_;
    if (known != kUnknown) return known;
    uint64_t function = GetFunction("tvm.rpc.server.GetCRTMaxPacketSize");
    uint64_t limit = 0;
    if (function) {
      CallResult result;
      Call(function, {}, &result);
      Free(function);
      if (result.value.type != kTVMFFIInt || result.value.v_int64 <= 0) ThrowProtocolError("an invalid packet limit");
      limit = static_cast<uint64_t>(result.value.v_int64);
    }
    packet_limit_ = limit;
    return limit;
  }

  const RemoteOptions options_;
  std::shared_ptr<Requests> requests_;
  bool by_value_ = false;
  std::atomic<uint64_t> packet_limit_{kUnknown}, next_chosen_{kClientHandles + 1};
};

}  // namespace

std::shared_ptr<RemoteSession> MakeRemoteSession(std::unique_ptr<Channel> channel, RemoteOptions options,
                                                 CallbackRunner runner) {
  auto session = std::make_shared<RemoteSessionImpl>(std::move(channel), std::move(options));
  session->RunCallbacksBy(runner);
  return session;
}

}  // namespace portcall::rpc
