// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote_session.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>

namespace portcall::rpc {
namespace {

constexpr size_t kMaxPendingFrees = 256;  // more are sent with a request of their own thread's next use

// An answer, or a place for the bytes of a copy.
struct Answer {
  Code code = Code::kNone;
  std::string_view body;   // of a message
  void* target = nullptr;  // where a CopyAck goes
  uint64_t target_size = 0;
};

// The error that an Exception message stands for.
[[noreturn]] void ThrowRemote(std::string_view body) {
  Reader reader(body);
  Sequence values = reader.Values();
  reader.ExpectEnd();
  if (values.empty() || values[0].type != kTVMFFIRawStr) ThrowProtocolError("an Exception without a message");
  constexpr std::string_view kTimeout = "RPCSessionTimeoutError: ";
  if (values[0].text.substr(0, kTimeout.size()) == kTimeout) {
    throw Error("SessionTimeoutError", values[0].text.substr(kTimeout.size()));
  }
  throw Error("RemoteError", values[0].text);
}

class RemoteSessionImpl : public RemoteSession {
 public:
  RemoteSessionImpl(std::unique_ptr<Channel> channel, RemoteOptions options)
      : channel_(std::move(channel)), options_(std::move(options)), frames_(options_.max_frame) {}
  ~RemoteSessionImpl() override { Close(); }

  void InitServer(const std::vector<Any>& constructor_args) override {
    Request(Code::kInitServer, [&](Writer& out) {
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
    Request(
        Code::kCallFunc,
        [&](Writer& out) {
          out.Put<uint64_t>(function);
          out.Values(args, Form::kRequest);
        },
        [&](std::string_view body) { ReadResult(body, result); });
  }

  void Free(uint64_t handle) override { FreeLater({Code::kFreeHandle, {}, handle}); }
  void FreeData(DLDevice device, uint64_t data) override { FreeLater({Code::kDevFreeData, device, data}); }

  uint64_t Alloc(const WireTensor& like, std::optional<std::string_view> scope) override {
    Sequence args;
    WireTensor copy = like;
    copy.data = 0;
    args.push_back(WireValue::Tensor(std::move(copy)));
    args.push_back(scope ? WireValue::Text(*scope) : WireValue::None());
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
    Blocks(to, nbytes, [&](const WireTensor& block, uint64_t offset, uint64_t size) {
      Request(Code::kCopyToRemote,
              [&](Writer& out) {
                out.Tensor(block);
                out.Put<uint64_t>(size);
              },
              {}, {static_cast<const char*>(from) + offset, size});
    });
  }
  void CopyFrom(const WireTensor& from, void* to, uint64_t nbytes) override {
    Blocks(from, nbytes, [&](const WireTensor& block, uint64_t offset, uint64_t size) {
      Request(
          Code::kCopyFromRemote,
          [&](Writer& out) {
            out.Tensor(block);
            out.Put<uint64_t>(size);
          },
          {}, {}, static_cast<char*>(to) + offset, size);
    });
  }
  void CopyAmong(const WireTensor& from, const WireTensor& to, uint64_t stream) override {
    Sequence args;
    args.push_back(WireValue::Tensor(from));
    args.push_back(WireValue::Tensor(to));
    args.push_back(WireValue::Pointer(stream));
    SysCall(Code::kCopyAmongRemote, args);
  }
  void* Address(const WireTensor&, uint64_t, Any*) override { return nullptr; }

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

  // Says goodbye without waiting for anybody: a request that is under way elsewhere is cut off.
  void Close() override {
    bool was_open = !closed_.exchange(true);
    if (!was_open) return;
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return channel_->Interrupt();  // the request that is cut off closes the channel
    try {
      std::string goodbye;
      Writer writer(&goodbye);
      writer.Begin(Code::kShutdown);
      writer.End();
      channel_->Send({{goodbye.data(), goodbye.size()}}, DeadlineIn(0.2));
    } catch (const Error&) {  // the peer is gone already
    }
    channel_->Close();
  }
  bool closed() const override { return closed_; }

  const RemoteOptions& options() const override { return options_; }
  SessionStats stats() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void set_call_timeout(double seconds) override {
    std::lock_guard<std::mutex> lock(mutex_);
    options_.call_timeout = seconds;
  }

 private:
  struct PendingFree {
    Code code;
    DLDevice device;
    uint64_t handle;
  };

  static WireValue Plain(const Any& value) {
    const TVMFFIAny& cell = value.cell();
    if (auto text = TryString(cell)) return WireValue::Text(*text);
    if (auto bytes = TryBytes(cell)) return WireValue::Bytes(*bytes);
    switch (cell.type_index) {
      case kTVMFFINone:
        return WireValue::None();
      case kTVMFFIInt:
        return WireValue::Int(cell.v_int64);
      case kTVMFFIBool:
        return WireValue::Bool(cell.v_int64 != 0);
      case kTVMFFIFloat:
        return WireValue::Float(cell.v_float64);
      default:
        throw Error("TypeError",
                    "a session constructor takes None, numbers, text and bytes, not " + DescribeType(cell.type_index));
    }
  }

  // Text of an answer points into the receive buffer: what outlives the request owns a copy.
  static void Keep(WireValue* value, Any* owner) {
    if (value->type == kTVMFFIRawStr) {
      *owner = String(value->text);
      value->text = *TryString(owner->cell());
    } else if (value->type == kTVMFFIByteArrayPtr) {
      *owner = Bytes(value->text);
      value->text = *TryBytes(owner->cell());
    }
  }

  static void ReadResult(std::string_view body, CallResult* result) {
    Reader reader(body);
    Sequence values = reader.Values();
    reader.ExpectEnd();
    if (values.size() < 2 || values[0].type != kTVMFFIInt) ThrowProtocolError("the answer to a call has no result");
    result->type = static_cast<int32_t>(values[0].v_int64);
    result->value = std::move(values[1]);
    if (values.size() > 2) result->handle = values[2].v_handle;
    Keep(&result->value, &result->owner);
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
      if (answer.type != kTVMFFIOpaquePtr) ThrowProtocolError("the answer is no handle");
      handle = answer.v_handle;
    });
    return handle;
  }
  void SysCall(Code code, const Sequence& args, const std::function<void(WireValue&&)>& take = {}) {
    Request(
        code, [&](Writer& out) { out.Values(args, Form::kRequest); },
        [&](std::string_view body) {
          Reader reader(body);
          Sequence values = reader.Values();
          reader.ExpectEnd();
          if (values.size() != 1) ThrowProtocolError("the answer has " + std::to_string(values.size()) + " values");
          if (take) take(std::move(values[0]));
        });
  }

  // Large copies go in blocks where the server says that its packets are limited.
  template <typename Copy> void Blocks(const WireTensor& tensor, uint64_t nbytes, Copy&& copy) {
    if (nbytes == 0) return;
    uint64_t limit = PacketLimit();
    uint64_t head = 44 + 8 * tensor.shape.size();
    uint64_t block = limit == 0 ? nbytes : limit > head ? limit - head : 1;
    WireTensor part = tensor;
    for (uint64_t offset = 0; offset < nbytes; offset += block) {
      part.byte_offset = tensor.byte_offset + offset;
      copy(part, offset, std::min(block, nbytes - offset));
    }
  }
  // Asked once; 0: there is none.
  uint64_t PacketLimit() {
    if (packet_limit_) return *packet_limit_;
    uint64_t function = GetFunction("tvm.rpc.server.GetCRTMaxPacketSize");
    uint64_t limit = 0;
    if (function) {
      CallResult result;
      Call(function, {}, &result);
      if (result.value.type != kTVMFFIInt || result.value.v_int64 <= 0)
        ThrowProtocolError("a packet limit that is none");
      limit = static_cast<uint64_t>(result.value.v_int64);
      Free(function);
    }
    packet_limit_ = limit;
    return limit;
  }

  void FreeLater(PendingFree item) {
    if (item.handle == 0 || closed_) return;
    std::lock_guard<std::mutex> lock(frees_mutex_);
    frees_.push_back(item);
  }

  size_t WriteFrees(std::string* out) {
    std::vector<PendingFree> frees;
    {
      std::lock_guard<std::mutex> lock(frees_mutex_);
      size_t n = std::min(frees_.size(), kMaxPendingFrees);
      frees.assign(frees_.begin(), frees_.begin() + static_cast<ptrdiff_t>(n));
      frees_.erase(frees_.begin(), frees_.begin() + static_cast<ptrdiff_t>(n));
    }
    for (const PendingFree& item : frees) {
      Sequence args;
      if (item.code == Code::kDevFreeData) args.push_back(WireValue::OfDevice(item.device));
      args.push_back(WireValue::Pointer(item.handle));
      Writer writer(out);
      writer.Begin(item.code);
      writer.Values(args, Form::kRequest);
      writer.End();
    }
    return frees.size();
  }

  // One request and its answer. `read` gets the body of a Return; `to` is where a CopyAck of `to_size` bytes goes.
  void Request(Code code, const std::function<void(Writer&)>& write,
               const std::function<void(std::string_view)>& read = {}, Chunk payload = {nullptr, 0}, void* to = nullptr,
               uint64_t to_size = 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    PORTCALL_CHECK(!closed_, SessionClosedError) << "the session with " << options_.name << " is closed";
    auto start = std::chrono::steady_clock::now();
    Deadline deadline = DeadlineIn(options_.call_timeout);
    out_.clear();
    size_t frees = WriteFrees(&out_);
    Writer writer(&out_);
    writer.Begin(code);
    write(writer);
    writer.End(payload.size);
    Answer answer;
    answer.target = to;
    answer.target_size = to_size;
    try {
      Send({{out_.data(), out_.size()}, payload}, deadline);
      for (; frees > 0; --frees) {  // what they answered is of no interest: the handles are gone either way
        Answer ignored;
        Receive(deadline, &ignored);
      }
      Receive(deadline, &answer);
      ++stats_.requests;
      stats_.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (answer.code == Code::kReturn && read) read(answer.body);
      if (answer.code == Code::kReturn && to_size) ThrowProtocolError("a copy was answered without its bytes");
    } catch (...) {
      closed_ = true;
      channel_->Close();
      throw;
    }
    if (answer.code == Code::kException) ThrowRemote(answer.body);
  }

  void Send(std::vector<Chunk> chunks, Deadline deadline) {
    if (chunks.back().size == 0) chunks.pop_back();
    while (!chunks.empty()) {
      size_t n = channel_->Send(chunks, deadline);
      stats_.bytes_sent += n;
      while (!chunks.empty() && n >= chunks.front().size) {
        n -= chunks.front().size;
        chunks.erase(chunks.begin());
      }
      if (n) chunks.front() = {static_cast<const char*>(chunks.front().data) + n, chunks.front().size - n};
    }
  }

  void Receive(Deadline deadline, Answer* answer) {
    for (;;) {
      switch (frames_.Next()) {
        case FrameReader::kMessage:
          return TakeMessage(answer);
        case FrameReader::kPayload:
          if (frames_.code() != Code::kCopyAck || frames_.payload_size() != answer->target_size) {
            ThrowProtocolError("a copy of " + std::to_string(answer->target_size) + " bytes was answered with " +
                               std::to_string(frames_.payload_size()));
          }
          frames_.Receive(answer->target);
          break;
        case FrameReader::kPayloadEnd:
          answer->code = Code::kCopyAck;
          return;
        case FrameReader::kNeedBytes: {
          auto [space, room] = frames_.Space();
          size_t n = channel_->Receive(space, room, deadline);
          if (n == 0)
            throw Error("SessionBrokenError", options_.name + " closed the connection" +
                                                  (frames_.AtBoundary() ? "" : " in the middle of an answer"));
          stats_.bytes_received += n;
          frames_.Filled(n);
          break;
        }
      }
    }
  }

  void TakeMessage(Answer* answer) {
    answer->code = frames_.code();
    answer->body = frames_.body();
    if (answer->code == Code::kShutdown) {
      throw Error("SessionBrokenError", options_.name + " ended the session because of a failure on its side");
    }
    if (answer->code != Code::kReturn && answer->code != Code::kException) {
      ThrowProtocolError("an answer has code " + std::to_string(static_cast<int32_t>(answer->code)));
    }
  }

  mutable std::mutex mutex_;  // of a request, from its first byte to the last of its answer
  std::unique_ptr<Channel> channel_;
  RemoteOptions options_;
  FrameReader frames_;
  std::string out_;
  SessionStats stats_;
  std::atomic<bool> closed_{false};
  std::optional<uint64_t> packet_limit_;
  std::mutex frees_mutex_;
  std::vector<PendingFree> frees_;
};

}  // namespace

std::shared_ptr<RemoteSession> MakeRemoteSession(std::unique_ptr<Channel> channel, RemoteOptions options) {
  return std::make_shared<RemoteSessionImpl>(std::move(channel), std::move(options));
}

}  // namespace portcall::rpc
