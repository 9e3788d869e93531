// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote_session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <mutex>

#include "portcall/container.h"
#include "rpc/frames.h"
#include "rpc/turn.h"

namespace portcall::rpc {
namespace {

constexpr size_t kMaxPendingFrees = 256;  // with one request: their answers must fit into what a connection holds
constexpr double kLastWordsTime = 0.2;    // seconds

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// An answer, or a place for the bytes of a copy.
struct Answer {
  Code code = Code::kNone;
  std::string_view body;   // of a message
  void* target = nullptr;  // where a CopyAck goes
  uint64_t target_size = 0;
};

// What was asked for, in words.
const char* NameOf(Code code) {
  switch (code) {
    case Code::kInitServer:
      return "opening the session";
    case Code::kCallFunc:
      return "a call";
    case Code::kCopyToRemote:
      return "a copy to it";
    case Code::kCopyFromRemote:
      return "a copy from it";
    case Code::kDevStreamSync:
      return "the work of a device";
    default:
      return "a request";
  }
}

std::string Milliseconds(double seconds) {  // in seconds, with no digit beyond
  int64_t count = std::llround(seconds * 1000);
  std::string text = std::to_string(count / 1000), digits = std::to_string(1000 + count % 1000);
  if (count % 1000 == 0) return text;
  return text + '.' + digits.substr(1, digits.find_last_not_of('0'));
}

class RemoteSessionImpl : public RemoteSession {
 public:
  RemoteSessionImpl(std::unique_ptr<Channel> channel, RemoteOptions options)
      : channel_(std::move(channel)),
        options_(std::move(options)),
        call_timeout_(options_.call_timeout),
        frames_(options_.max_frame) {}
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
    std::string ordered;
    if constexpr (kBigEndian) {
      ordered.assign(static_cast<const char*>(from), nbytes);
      OrderElements(ordered.data(), nbytes, to.dtype);
      from = ordered.data();
    }
    Blocks(to, nbytes, [&](const WireTensor& block, uint64_t offset, uint64_t size) {
      Request(Code::kCopyToRemote, [&](Writer& out) {
        out.Tensor(block);
        out.Text({static_cast<const char*>(from) + offset, static_cast<size_t>(size)});
      });
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
          {}, static_cast<char*>(to) + offset, size);
    });
    OrderElements(to, nbytes, from.dtype);
  }
  void CopyAmong(const WireTensor& from, const WireTensor& to, uint64_t stream) override {
    Sequence args;
    args.push_back(WireValue::Tensor(from));
    args.push_back(WireValue::Tensor(to));
    args.push_back(WireValue::Pointer(stream));
    SysCall(Code::kCopyAmongRemote, args);
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

  // Sends the shutdown message without waiting: a request that is under way elsewhere is cut off.
  void Close() override {
    if (closed_.exchange(true)) return;
    if (!IsOurs()) return ForgetChannel();
    std::unique_lock<Turn> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return channel_->Interrupt();  // the request that is cut off closes the channel
    try {
      std::string shutdown;
      Writer writer(&shutdown);
      writer.Begin(Code::kShutdown);
      writer.End();
      // What a channel of the user's own does not take at once it may wait for: it has no other idea of "at once".
      channel_->Send({{shutdown.data(), shutdown.size()}}, channel_->KeepsDeadlines() ? Clock::now() : kNoDeadline);
    } catch (const Error&) {  // the peer is gone already
    }
    channel_->Close();
  }
  bool closed() const override { return closed_ || !IsOurs(); }

  const RemoteOptions& options() const override { return options_; }
  SessionStats stats() const override {
    std::lock_guard<std::mutex> lock(stats_mutex_);
    return stats_;
  }
  Activity activity() const override {
    std::lock_guard<std::mutex> lock(stats_mutex_);
    Activity now = activity_;
    now.seconds = SecondsSince(began_);
    now.silent = SecondsSince(last_bytes_);
    return now;
  }
  void set_call_timeout(double seconds) override { call_timeout_ = seconds; }
  void set_explain(PackedFunc explain) override { explain_ = std::move(explain); }

 private:
  static constexpr uint64_t kUnknown = UINT64_MAX;

  struct PendingFree {
    Code code;
    DLDevice device;
    uint64_t handle;
  };

  static WireValue Plain(const Any& value) {
    int32_t type = value.type_index();
    bool refused = type == kTVMFFIOpaquePtr || type == kTVMFFIDataType || type == kTVMFFIDevice;
    WireValue plain;
    PORTCALL_CHECK(!refused && GivePlain(value.cell(), &plain), TypeError)
        << "a session constructor takes None, numbers, text and bytes, not " << DescribeType(type);
    return plain;
  }

  // Text of an answer points into the receive buffer: what outlives the request has its own.
  void Keep(WireValue* value, Any* owner) {
    if (value->type == kTVMFFIRawStr) {
      *owner = String(value->text);
      value->text = *TryString(owner->cell());
    } else if (value->type == kTVMFFIByteArrayPtr) {
      *owner = frames_.Lend(value->text);
      if (*owner == nullptr) *owner = Bytes(value->text);
      value->text = *TryBytes(owner->cell());
    }
  }

  void ReadResult(std::string_view body, CallResult* result) {
    Reader reader(body);
    Sequence values = reader.Values();
    reader.ExpectEnd();
    if (values.size() < 2 || values[0].type != kTVMFFIInt) ThrowProtocolError("the answer to a call has no result");
    result->type = static_cast<int32_t>(values[0].v_int64);
    result->value = std::move(values[1]);
    if (result->value.tensor) result->value.tensor->NumBytes();  // throws for an invalid shape
    if (values.size() > 2) {
      if (values[2].type != kTVMFFIOpaquePtr) ThrowProtocolError("the third value of a result is not a handle");
      result->handle = values[2].v_handle;
    }
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
      if (answer.type != kTVMFFIOpaquePtr) ThrowProtocolError("the answer is not a handle");
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

  void FreeLater(PendingFree item) {
    if (item.handle == 0 || closed_) return;
    std::lock_guard<std::mutex> lock(frees_mutex_);
    frees_.push_back(item);
  }

  size_t WriteFrees() {
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
      Writer writer = out_.Copy();
      writer.Begin(item.code);
      writer.Values(args, Form::kRequest);
      writer.End();
    }
    return frees.size();
  }

  // One request and its answer. `read` gets the body of a Return; `to` is where a CopyAck of `to_size` bytes goes.
  void Request(Code code, const std::function<void(Writer&)>& write,
               const std::function<void(std::string_view)>& read = {}, void* to = nullptr, uint64_t to_size = 0) {
    CheckOurs();  // before a lock that may be taken forever in a copy
    std::lock_guard<Turn> turn(turn_);
    CheckOpen();
    Deadline deadline = DeadlineIn(call_timeout_);
    out_.Clear();  // of a request that could not be written to its end
    size_t frees = WriteFrees();
    Writer writer = out_.Lend(nullptr);  // what the caller gave stays until it is sent
    writer.Begin(code);
    write(writer);
    writer.End();
    Begin(code, out_.size(), to_size);
    std::optional<Error> failure;
    try {
      SendOrReadEndReason(frees, deadline);
      for (; frees > 0; --frees) {
        Answer ignored;
        Receive(deadline, &ignored);
        if (frames_.buffered() == 0) channel_->Acknowledge();
        // That a handle was not freed is of no interest: it is gone either way.
        if (ignored.code == Code::kException) RemoteErrorOf(ignored.body);
      }
      Answer answer;
      answer.target = to;
      answer.target_size = to_size;
      Receive(deadline, &answer);
      End();
      if (answer.code == Code::kReturn && read) read(answer.body);
      if (answer.code == Code::kReturn && to_size) ThrowProtocolError("a copy was answered without its bytes");
      if (answer.code == Code::kException) failure = RemoteErrorOf(answer.body);
    } catch (const Error& error) {
      End();
      bool by_us = closed_.exchange(true);
      channel_->Close();
      RecordEnd(error, by_us);
      throw;
    } catch (...) {
      End();
      closed_ = true;
      channel_->Close();
      throw;
    }
    if (closed_) channel_->Close();  // somebody closed the session and could not wait for us
    if (failure) throw Error(*failure);
  }

  void Begin(Code code, uint64_t to_send, uint64_t to_receive) {
    std::lock_guard<std::mutex> lock(stats_mutex_);
    began_ = last_bytes_ = Clock::now();
    activity_ = {code, NameOf(code), 0, 0, 0, to_send, 0, to_receive};
  }
  void End() {
    std::lock_guard<std::mutex> lock(stats_mutex_);
    if (activity_.code == Code::kNone) return;  // it has ended already
    double seconds = SecondsSince(began_);
    ++stats_.requests;
    stats_.waited += seconds;
    if (activity_.code == Code::kCallFunc) stats_.run += seconds;
    if (activity_.code == Code::kCopyToRemote || activity_.code == Code::kCopyAmongRemote) stats_.copy += seconds;
    if (activity_.code == Code::kCopyFromRemote) stats_.fetch += seconds;
    waited_for_ = activity_;
    waited_for_.seconds = seconds;
    waited_for_.silent = SecondsSince(last_bytes_);
    activity_ = {};
  }
  void CountBytes(uint64_t sent, uint64_t received) {
    std::lock_guard<std::mutex> lock(stats_mutex_);
    last_bytes_ = Clock::now();
    stats_.bytes_sent += sent;
    stats_.bytes_received += received;
    activity_.sent += sent;
    activity_.received += received;
  }

  // ---- Ends of the session ----

  // An error with facts: front ends read the peer from the extra context, not from the text.
  Error ErrorOf(std::string_view kind, std::string_view message, std::string_view backtrace = {}) const {
    return Error(kind, message, backtrace, nullptr, Array<Any>({Any("portcall.RPCError"), Any(options_.name)}));
  }

  // A child process has a copy of the session, and must not end what is its parent's.
  bool IsOurs() const { return getpid() == process_; }
  void ForgetChannel() {
    if (channel_->KeepsDeadlines()) channel_->Close();  // our copy of its descriptors
    else (void)channel_.release();                      // what a user's own does in the end is its parent's business
  }

  void CheckOurs() const {
    if (IsOurs()) return;
    throw ErrorOf("SessionClosedError", "the session with " + options_.name + " belongs to process " +
                                            std::to_string(process_) + ", of which this one is a copy; open another");
  }

  void CheckOpen() const {
    if (!closed_) return;
    std::string kind = "SessionClosedError", text = "the session with " + options_.name + " is closed";
    {
      std::lock_guard<std::mutex> lock(stats_mutex_);
      if (!end_text_.empty()) kind = end_kind_, text = end_text_;
    }
    ThrowEnd(kind, text);
  }
  [[noreturn]] void ThrowEnd(const std::string& kind, const std::string& text) const {
    if (kind == "SessionBrokenError" && explain_.defined()) explain_();
    throw ErrorOf(kind, text);
  }

  // Says how the session ended, now and to later users. Returns for errors that are not of the session.
  void RecordEnd(const Error& error, bool by_us) {
    std::string session = "the session with " + options_.name;
    std::string kind(error.kind()), message(error.message());
    if (by_us) throw ErrorOf("SessionClosedError", session + " was closed while it waited for " + RequestName());
    if (kind == "SessionTimeoutError" && message == kTimeIsUp) {
      SetEnd("SessionClosedError", session + " is closed: " + RequestName() + " ran out of time");
      throw ErrorOf(
          kind, options_.name + " did not answer in time: " + WaitSummary() + "; the session is closed; raise " +
                    (waited_for_.code == Code::kInitServer ? "timeout=" : "call_timeout=") + " if it may take longer");
    }
    if (kind == "SessionTimeoutError" || kind == "SessionBrokenError") {
      SetEnd(kind, session + " is over: " + message);
      ThrowEnd(kind, message);
    }
    if (kind == "RemoteProtocolError") {
      SetEnd(kind, session + " is over, because the peer broke the protocol: " + message);
      throw ErrorOf(kind, options_.name + " broke the protocol: " + message + "; the session is closed");
    }
    SetEnd("SessionClosedError", session + " is closed: " + RequestName() + " was interrupted by " + kind);
  }
  void SetEnd(std::string kind, std::string text) {
    std::lock_guard<std::mutex> lock(stats_mutex_);
    end_kind_ = std::move(kind);
    end_text_ = std::move(text);
  }

  const char* RequestName() const { return waited_for_.what; }
  std::string WaitSummary() const {
    const Activity& done = waited_for_;
    std::string text = std::string(RequestName()) + " took more than " + Milliseconds(done.seconds) +
                       " s, of which nothing came " + "or went for " + Milliseconds(done.silent) + " s (sent " +
                       std::to_string(done.sent) + " of " + std::to_string(done.to_send) + " bytes, received " +
                       std::to_string(done.received);
    return text + (done.to_receive ? " of " + std::to_string(done.to_receive) : "") + ")";
  }

  // The error that an Exception message stands for. A server that ends a session says so once, asked or not: that throws.
  Error RemoteErrorOf(std::string_view body) {
    Reader reader(body);
    Sequence values = reader.Values();
    reader.ExpectEnd();
    if (values.empty() || values[0].type != kTVMFFIRawStr) ThrowProtocolError("an Exception without a message");
    constexpr std::string_view kTimeout = "RPCSessionTimeoutError: ";
    if (values[0].text.substr(0, kTimeout.size()) == kTimeout) {
      throw Error("SessionTimeoutError", values[0].text.substr(kTimeout.size()));
    }
    bool traceback = values.size() > 1 && values[1].type == kTVMFFIRawStr;
    return ErrorOf("RemoteError", values[0].text, traceback ? values[1].text : std::string_view{});
  }

  // A server that gives up halfway through a request says why before it closes the connection.
  void SendOrReadEndReason(size_t frees, Deadline deadline) {
    try {
      Send(deadline);
    } catch (const Error& lost) {
      if (lost.kind() == "SessionBrokenError" && channel_->KeepsDeadlines()) ReadEndReason(frees);
      throw;
    }
  }
  void ReadEndReason(size_t frees) {
    try {
      for (size_t i = 0; i <= frees; ++i) {
        Answer answer;
        Receive(DeadlineIn(kLastWordsTime), &answer);
        if (answer.code != Code::kException) continue;
        Error why = RemoteErrorOf(answer.body);
        if (i == frees) throw why;
      }
    } catch (const Error& why) {
      bool ended = why.kind() == "SessionTimeoutError" && why.message() != kTimeIsUp;
      if (ended || why.kind() == "RemoteError") throw;  // else that was all
    }
  }

  void Send(Deadline deadline) {
    while (!out_.empty()) {
      size_t n = channel_->Send(out_.Chunks(), deadline);
      CountBytes(n, 0);
      out_.Sent(n);
    }
  }

  void Receive(Deadline deadline, Answer* answer) {
    for (;;) {
      switch (frames_.Next()) {
        case FrameReader::kMessage:
          return TakeMessage(answer);
        case FrameReader::kPayload:
          if (frames_.code() != Code::kCopyAck || !answer->target || frames_.payload_size() != answer->target_size) {
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
          CountBytes(0, n);
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

  Turn turn_;  // of a request, from its first byte to the last of its answer
  const pid_t process_ = getpid();
  std::unique_ptr<Channel> channel_;
  const RemoteOptions options_;
  std::atomic<double> call_timeout_;
  FrameReader frames_;
  SendQueue out_;
  mutable std::mutex stats_mutex_;  // of these:
  SessionStats stats_;
  Activity activity_;
  Clock::time_point began_, last_bytes_;
  std::string end_kind_, end_text_;  // what using it raises, where it was not simply closed
  PackedFunc explain_;
  Activity waited_for_;  // of the request that ended last
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> packet_limit_{kUnknown};
  std::mutex frees_mutex_;
  std::vector<PendingFree> frees_;
};

}  // namespace

std::shared_ptr<RemoteSession> MakeRemoteSession(std::unique_ptr<Channel> channel, RemoteOptions options) {
  return std::make_shared<RemoteSessionImpl>(std::move(channel), std::move(options));
}

}  // namespace portcall::rpc
