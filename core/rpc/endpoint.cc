// SPDX-License-Identifier: Apache-2.0
#include "rpc/endpoint.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace portcall::rpc {
namespace {

constexpr size_t kMaxUnreported = 16;
constexpr auto kMostDelay = std::chrono::microseconds(500);  // of an answer, by the requests after it

bool IsSysCall(Code code) { return code >= Code::kGetGlobalFunc && code <= Code::kDevGetCurrentStream; }

// The arguments of a syscall, each checked before it is read.
class SysArgs {
 public:
  SysArgs(const Sequence& values, size_t count) : values_(values) {
    if (values.size() < count) {
      ThrowProtocolError("a request has " + std::to_string(values.size()) + " arguments instead of " +
                         std::to_string(count));
    }
  }
  std::string_view Text(size_t i) const { return Expect(i, kTVMFFIRawStr, "text").text; }
  uint64_t Pointer(size_t i) const { return Expect(i, kTVMFFIOpaquePtr, "a handle").v_handle; }
  int64_t Int(size_t i) const { return Expect(i, kTVMFFIInt, "an int").v_int64; }
  DLDevice Device(size_t i) const { return Expect(i, kTVMFFIDevice, "a device").v_device; }
  DLDataType Dtype(size_t i) const { return Expect(i, kTVMFFIDataType, "a data type").v_dtype; }
  const WireTensor& Tensor(size_t i) const { return *Expect(i, kTVMFFIDLTensorPtr, "a tensor").tensor; }
  std::optional<std::string_view> Scope(size_t i) const {
    if (values_[i].type == kTVMFFINone) return std::nullopt;
    return Text(i);
  }

 private:
  const WireValue& Expect(size_t i, int32_t type, const char* what) const {
    if (values_[i].type != type) {
      ThrowProtocolError("argument " + std::to_string(i) + " of a request is of type index " +
                         std::to_string(values_[i].type) + " instead of " + what);
    }
    return values_[i];
  }
  const Sequence& values_;
};

// Whether the value is a handle of an object, rather than a plain value or an object by value.
bool IsHandle(const CallResult& result) {
  return result.value.type == kTVMFFIOpaquePtr && result.type != kTVMFFIOpaquePtr;
}

WireValue PointerOf(uint64_t handle) { return WireValue::Pointer(handle); }

}  // namespace

// ---- Serving ------------------------------------------------------------------------------------------------------

Endpoint::Endpoint(std::shared_ptr<Session> session, EndpointOptions options)
    : session_(std::move(session)),
      options_(std::move(options)),
      frames_(options_.max_frame, options_.posts,
              options_.client ? FrameReader::Nested::kSorted : FrameReader::Nested::kRefused),
      outermost_(this) {}

Endpoint::Endpoint(Endpoint* outer, uint64_t callback)
    : session_(outer->session_),
      options_(outer->options_),
      frames_(options_.max_frame, options_.posts),
      initialized_(true),
      callback_(callback),
      outermost_(outer->outermost_) {}

bool Endpoint::Collect() {
  bool any = false;
  frames_.Hold();
  for (; frames_.Next() != FrameReader::kNeedBytes; any = true) {
    options_.client->Deliver(frames_.callback(), frames_.body());
  }
  return any;
}

void Endpoint::Give(std::string_view frame) {
  while (!frame.empty()) {
    auto [space, room] = Space();
    size_t n = std::min(room, frame.size());
    std::memcpy(space, frame.data(), n);
    Filled(n);
    frame.remove_prefix(n);
    if (!frame.empty()) Serve();  // the payload of a copy goes elsewhere
  }
}

bool Endpoint::Serve() {
  auto until = std::chrono::steady_clock::now() + kMostDelay;
  try {
    while (!closed_ && !output_.full()) {
      if (outermost_ == this && options_.client && options_.client->reads_elsewhere()) {
        if (!output_.empty()) return true;
        options_.client->Return();
        frames_.Resume();
      }
      FrameReader::Event event = frames_.Next();
      if (event == FrameReader::kNeedBytes) return false;
      Step(event);
      if (!output_.empty() && std::chrono::steady_clock::now() > until) break;
    }
  } catch (const Error& error) {  // only frames_ throws here: where the next message starts is not known any more
    Exception(error);
    Shutdown();
  }
  return !closed_;
}

bool Endpoint::PeerClosed() {
  closed_ = true;
  session_->Close();
  return frames_.AtBoundary();
}

void Endpoint::Step(FrameReader::Event event) {
  switch (event) {
    case FrameReader::kMessage:
      try {
        if (frames_.posted()) Posted(frames_.code(), frames_.reader());
        else Answer(frames_.code(), frames_.reader());
      } catch (const Error& error) {
        Exception(error);
      } catch (const std::exception& error) {
        Exception(Error("RuntimeError", error.what()));
      }
      break;
    case FrameReader::kPayload:
      BeginCopyTo(Reader(frames_.body()));
      break;
    case FrameReader::kPayloadEnd:
      EndCopyTo();
      break;
    case FrameReader::kForCallback:
      options_.client->Deliver(frames_.callback(), frames_.body());
      break;
    case FrameReader::kNeedBytes:
      break;
  }
}

void Endpoint::Answer(Code code, Reader body) {
  if (code == Code::kShutdown) {
    closed_ = true;
    return session_->Close();
  }
  if (code == Code::kInitServer) return InitServer(body);
  PORTCALL_CHECK(initialized_, RemoteProtocolError) << "a request came before InitServer";
  if (code == Code::kCallFunc) {
    CallResult result;
    CallFunc(body, &result);
    return ReturnResult(&result);
  }
  if (code == Code::kCopyFromRemote) return CopyFromRemote(body);
  if (code == Code::kNumberCall && options_.cancels) {
    call_number_ = body.Take<uint64_t>();
    return body.ExpectEnd();
  }
  if (code == Code::kCopyToRemote) {  // its head is wrong, or it would not have come as a message: this finds how
    body.Tensor();
    body.Take<uint64_t>();
  }
  bool ours = options_.posts && (code == Code::kSync || code == Code::kFetch);
  if (!IsSysCall(code) && !ours) {
    ThrowProtocolError("no request has code " + std::to_string(static_cast<int32_t>(code)));
  }
  Sequence args = body.Values();
  body.ExpectEnd();
  if (code == Code::kSync) return Sync(args);
  if (code == Code::kFetch) return Fetch(args);
  Any owner;
  Sequence reply = SysCall(code, &args, &owner);
  reply.empty() ? ReturnNone() : Return(reply);
}

void Endpoint::InitServer(Reader body) {
  std::string_view version = body.Text();
  Sequence args = body.Values();
  body.ExpectEnd();
  PORTCALL_CHECK(version == kProtocolVersion, VersionMismatchError)
      << "the server speaks protocol version " << kProtocolVersion << ", the client " << version;
  PORTCALL_CHECK(!initialized_, RemoteProtocolError) << "the session has already been initialized";
  if (!args.empty()) {
    SysArgs(args, 1).Text(0);
    PORTCALL_CHECK(options_.constructor, PermissionError)
        << "this server makes no sessions by constructor ('" << args[0].text << "'); see --allow-connect";
    std::vector<Any> values;
    for (size_t i = 1; i < args.size(); ++i) {
      const WireValue& arg = args[i];
      bool refused = arg.type == kTVMFFIDataType || arg.type == kTVMFFIDevice;
      Any& value = values.emplace_back();
      if (refused || !TakePlain(arg, &value)) {
        ThrowProtocolError("a session constructor takes no argument of type index " + std::to_string(arg.type));
      }
    }
    session_ = options_.constructor(std::string(args[0].text), values);
  }
  initialized_ = true;
  ReturnNone();
}

void Endpoint::CallFunc(Reader body, CallResult* result) {
  const uint64_t number = std::exchange(call_number_, 0);
  auto function = body.Take<uint64_t>();
  Sequence args = Arguments(body);
  function = Actual(function);
  if (!options_.client || outermost_ != this) return session_->Call(function, args, result);
  Tensor kept;  // the body, while others read
  if (number || options_.client->has_functions()) {
    kept = frames_.Detach();
    options_.client->Yield();
  }
  number ? CallNumbered(number, function, args, result) : session_->Call(function, args, result);
}

void Endpoint::CallNumbered(uint64_t number, uint64_t function, const Sequence& args, CallResult* result) {
  options_.client->BeginCall(number, session_->runs_here());
  try {
    session_->Call(function, args, result);
  } catch (const Error& error) {
    if (!options_.client->EndCall() || error.kind() != "KeyboardInterrupt") throw;
    throw Error("CallTimeoutError", "the call was stopped when its time was over", error.backtrace());
  } catch (...) {
    options_.client->EndCall();
    throw;
  }
  options_.client->EndCall();
}

Sequence Endpoint::Arguments(Reader body) {
  Sequence args = body.Values();
  body.ExpectEnd();
  for (WireValue& arg : args) {
    if (arg.type != kClientFunction) continue;
    if (!options_.client) ThrowProtocolError("a function of the client, which was not agreed upon");
    arg.object = options_.client->Function(arg.v_handle);
  }
  Resolve(&args);
  for (WireValue& arg : args) {
    if (arg.type == kClientFunction) arg.v_handle = session_->Lend(arg.object);
  }
  return args;
}

Sequence Endpoint::Result(Reader body) {
  Sequence values = Arguments(body);
  if (values.size() != 1) ThrowProtocolError("a callback has " + std::to_string(values.size()) + " results");
  return values;
}

void Endpoint::ReturnResult(CallResult* result) {
  Sequence reply;
  reply.reserve(3);
  reply.push_back(WireValue::Int(result->type));
  bool handle = result->value.type == kTVMFFIDLTensorPtr || result->handle;
  reply.push_back(std::move(result->value));
  if (handle) reply.push_back(PointerOf(result->handle));
  Return(reply, result->owner);
}

Sequence Endpoint::SysCall(Code code, Sequence* given, Any* owner) {
  Sequence reply;
  if (code != Code::kFreeHandle && code != Code::kDevFreeData) Resolve(given);
  const Sequence& values = *given;
  auto args = [&](size_t count) { return SysArgs(values, count); };
  switch (code) {
    case Code::kGetGlobalFunc:
      reply.push_back(PointerOf(session_->GetFunction(args(1).Text(0))));
      break;
    case Code::kFreeHandle:
      Free(values, false);
      break;
    case Code::kDevSetDevice:
      session_->SetDevice(args(1).Device(0));
      break;
    case Code::kDevGetAttr:
      reply.push_back(session_->GetAttr(args(2).Device(0), args(2).Int(1), owner));
      break;
    case Code::kDevAllocData: {
      SysArgs a = args(4);
      PORTCALL_CHECK(a.Int(1) >= 0 && a.Int(2) >= 0, ValueError) << "memory of a negative size or alignment";
      reply.push_back(PointerOf(session_->AllocData(a.Device(0), static_cast<uint64_t>(a.Int(1)),
                                                    static_cast<uint64_t>(a.Int(2)), a.Dtype(3))));
      break;
    }
    case Code::kDevAllocDataWithScope:
      reply.push_back(PointerOf(session_->Alloc(args(2).Tensor(0), args(2).Scope(1))));
      break;
    case Code::kDevFreeData:
      Free(values, true);
      break;
    case Code::kDevStreamSync:
      session_->SyncStream(args(2).Device(0), args(2).Pointer(1));
      break;
    case Code::kCopyAmongRemote:
      session_->CopyAmong(args(3).Tensor(0), args(3).Tensor(1), args(3).Pointer(2));
      break;
    case Code::kDevCreateStream:
      reply.push_back(PointerOf(session_->CreateStream(args(1).Device(0))));
      break;
    case Code::kDevFreeStream:
      session_->FreeStream(args(2).Device(0), args(2).Pointer(1));
      break;
    case Code::kDevSetStream:
      session_->SetStream(args(2).Device(0), args(2).Pointer(1));
      break;
    case Code::kDevGetCurrentStream:
      reply.push_back(PointerOf(session_->GetStream(args(1).Device(0))));
      break;
    default:
      break;
  }
  return reply;
}

void Endpoint::CopyFromRemote(Reader body) {
  WireTensor from = body.Tensor();
  auto nbytes = body.Take<uint64_t>();
  body.ExpectEnd();
  from.data = Actual(from.data);
  Any owner;
  void* address = kBigEndian ? nullptr : session_->Address(from, nbytes, Access::kRead, &owner);
  if (!address) {
    Tensor stage = Stage(nbytes);
    address = stage.raw_data();
    if (nbytes) session_->CopyFrom(from, address, nbytes);
    OrderElements(address, nbytes, from.dtype);
    owner = std::move(stage);
  }
  Writer writer = output_.Lend(owner);
  writer.Begin(Code::kCopyAck, callback_);
  writer.Content({static_cast<const char*>(address), static_cast<size_t>(nbytes)});
  writer.End();
}

// Memory that the system hands out as it is filled: a length alone costs nothing.
Tensor Endpoint::Stage(uint64_t nbytes) const {
  PORTCALL_CHECK(nbytes <= options_.max_frame, ValueError)
      << "a copy of " << nbytes << " bytes goes through the memory of the server, which takes " << options_.max_frame
      << " at once; copy a part at a time, or raise --max-frame";
  return Tensor::Empty({static_cast<int64_t>(nbytes)}, {kDLUInt, 8, 1});
}

void Endpoint::BeginCopyTo(Reader head) {
  copy_error_ = nullptr;
  poisoned_ = false;
  uint64_t size = frames_.payload_size();
  try {
    if (frames_.code() != Code::kCopyToRemote) ThrowProtocolError("a CopyAck came where a request was expected");
    PORTCALL_CHECK(initialized_, RemoteProtocolError) << "a request came before InitServer";
    copy_to_ = head.Tensor();
    copy_to_.data = Actual(copy_to_.data);
    auto nbytes = head.Take<uint64_t>();
    if (nbytes != size) {
      ThrowProtocolError("a copy of " + std::to_string(nbytes) + " bytes carries " + std::to_string(size));
    }
    void* address = session_->Address(copy_to_, nbytes, Access::kWrite, &copy_owner_);
    if (!address || kBigEndian) {
      copy_stage_ = Stage(nbytes);
      address = copy_stage_.raw_data();
    }
    frames_.Receive(address);
  } catch (const Error& error) {  // the bytes are skipped, then the error is the answer
    copy_error_ = std::make_unique<Error>(error);
  }
}

void Endpoint::EndCopyTo() {
  try {
    if (copy_error_) {
      frames_.posted() ? Fail(0, *copy_error_) : Exception(*copy_error_);
    } else {
      if (copy_stage_.defined()) {
        OrderElements(copy_stage_.raw_data(), copy_stage_.numel(), copy_to_.dtype);
        session_->CopyTo(copy_to_, copy_stage_.raw_data(), copy_stage_.numel());
      }
      if (!frames_.posted()) ReturnNone();
    }
  } catch (const Error& error) {
    frames_.posted() ? Fail(0, error) : Exception(error);
  }
  copy_stage_ = Tensor();
  copy_owner_ = nullptr;
}

// ---- Posted requests ----------------------------------------------------------------------------------------------

void Endpoint::Posted(Code code, Reader body) {
  uint64_t target = frames_.posted_target();
  poisoned_ = false;
  try {
    PORTCALL_CHECK(initialized_, RemoteProtocolError) << "a request came before InitServer";
    std::unique_lock<std::mutex> lock(outermost_->mutex_);
    if (target && (target < kClientHandles || outermost_->chosen_.count(target))) {
      ThrowProtocolError("a posted request fills the handle " + std::to_string(target) + ", which it may not");
    }
    lock.unlock();
    auto made = std::make_shared<Chosen>();
    if (code == Code::kCallFunc) {
      CallFunc(body, &made->result);
    } else if (IsSysCall(code)) {
      Sequence args = body.Values();
      body.ExpectEnd();
      Sequence reply = SysCall(code, &args, &made->result.owner);
      if (!reply.empty()) made->result.value = std::move(reply[0]);
    } else {
      ThrowProtocolError("a request of code " + std::to_string(static_cast<int32_t>(code)) + " is posted");
    }
    lock.lock();
    if (target) outermost_->chosen_.emplace(target, std::move(made));
  } catch (const Error& error) {
    Fail(target, error);
  } catch (const std::exception& error) {
    Fail(target, Error("RuntimeError", error.what()));
  }
}

// An error is reported once: by what uses the handle, or else when the client asks.
void Endpoint::Fail(uint64_t target, const Error& error) {
  std::lock_guard<std::mutex> lock(outermost_->mutex_);
  auto& unreported = outermost_->unreported_;
  if (!poisoned_ && unreported.size() < kMaxUnreported) unreported.emplace_back(callback_, error);
  if (target < kClientHandles) return;
  std::shared_ptr<Chosen>& chosen = outermost_->chosen_[target];
  if (chosen) return;
  chosen = std::make_shared<Chosen>();
  chosen->poison = std::make_unique<Error>(error);
}

std::shared_ptr<Endpoint::Chosen> Endpoint::Find(uint64_t handle) {
  std::lock_guard<std::mutex> lock(outermost_->mutex_);
  auto it = outermost_->chosen_.find(handle);
  PORTCALL_CHECK(it != outermost_->chosen_.end(), ValueError)
      << "the handle " << handle << " names nothing in this session";
  poisoned_ = it->second->poison != nullptr;
  if (poisoned_) throw Error(*it->second->poison);
  return it->second;
}

// The session's own number of a handle: most are that already.
uint64_t Endpoint::Actual(uint64_t handle) {
  if (handle < kClientHandles || !options_.posts) return handle;
  std::shared_ptr<Chosen> chosen = Find(handle);
  const CallResult& result = chosen->result;
  if (result.value.tensor) return result.value.tensor->data;
  PORTCALL_CHECK(result.value.type == kTVMFFIOpaquePtr, TypeError)
      << "the handle " << handle << " names a plain value, which cannot be used as memory or called";
  return result.value.v_handle;
}

// A result that is an argument: what the session calls the object, or the value itself.
void Endpoint::Resolve(Sequence* args) {
  if (!options_.posts) return;
  for (WireValue& arg : *args) {
    if (arg.tensor) {
      arg.tensor->data = Actual(arg.tensor->data);
    } else if ((arg.type == kRemoteObject || arg.type == kTVMFFIFunction || arg.type == kTVMFFIModule) &&
               arg.v_handle >= kClientHandles) {
      std::shared_ptr<Chosen> chosen = Find(arg.v_handle);
      const CallResult& result = chosen->result;
      if (result.value.tensor) {
        arg = WireValue::Tensor(*result.value.tensor);
      } else if (IsHandle(result)) {
        bool own = result.type == kTVMFFIFunction || result.type == kTVMFFIModule;
        arg = WireValue::Handle(own ? result.type : kRemoteObject, result.value.v_handle);
      } else {
        arg = WireValue::Handle(result.value.type, result.value.v_handle);
        arg.object = result.owner;  // short text lies in it
        auto text = TryString(arg.object.cell()), bytes = TryBytes(arg.object.cell());
        arg.text = text ? *text : bytes ? *bytes : std::string_view();
      }
    } else if (arg.type == kTVMFFIOpaquePtr && arg.v_handle >= kClientHandles && IsChosen(arg.v_handle)) {
      arg.v_handle = Actual(arg.v_handle);
    }
  }
}

bool Endpoint::IsChosen(uint64_t handle) {
  std::lock_guard<std::mutex> lock(outermost_->mutex_);
  return outermost_->chosen_.count(handle) != 0;
}

// Threads of the session that wait for a callback may not have taken yet what it uses and returns.
void Endpoint::Free(const Sequence& args, bool memory) {
  SysArgs given(args, memory ? 2 : 1);
  DLDevice device = memory ? given.Device(0) : DLDevice{};
  uint64_t handle = given.Pointer(memory ? 1 : 0);
  auto free = [this, device, handle, memory] {
    if (FreeChosen(device, handle, memory)) return;
    memory ? session_->FreeData(device, handle) : session_->Free(handle);
  };
  if (outermost_ != this || !options_.client || !options_.client->Defer(free)) free();
}

// Whether the handle was one that the client chose. One that never came to be is freed as silently.
bool Endpoint::FreeChosen(DLDevice device, uint64_t handle, bool memory) {
  if (!options_.posts) return false;
  std::shared_ptr<Chosen> gone;
  {
    std::lock_guard<std::mutex> lock(outermost_->mutex_);
    auto it = outermost_->chosen_.find(handle);
    if (it == outermost_->chosen_.end()) return false;
    gone = std::move(it->second);
    outermost_->chosen_.erase(it);
  }
  if (gone->poison) return true;
  const CallResult& result = gone->result;
  if (memory) session_->FreeData(device, result.value.v_handle);
  else if (result.handle || IsHandle(result)) session_->Free(result.handle ? result.handle : result.value.v_handle);
  return true;
}

// Answers when all before it is done; with a 1, by the first error that was not reported.
// Errors of a callback's own requests are reported in it, those that are left at the top.
void Endpoint::Sync(const Sequence& args) {
  bool report = SysArgs(args, 1).Int(0) != 0;
  std::optional<Error> first;
  if (report) {
    std::lock_guard<std::mutex> lock(outermost_->mutex_);
    auto& all = outermost_->unreported_;
    auto mine = [&](const auto& one) { return !callback_ || one.first == callback_; };
    auto found = std::find_if(all.begin(), all.end(), mine);
    if (found != all.end()) first = found->second;
    all.erase(std::remove_if(found, all.end(), mine), all.end());
  }
  if (!first) return ReturnNone();
  throw Error(*first);
}

// The result of a posted call; what it names stays the handle's.
void Endpoint::Fetch(const Sequence& args) {
  std::shared_ptr<Chosen> found = Find(SysArgs(args, 1).Pointer(0));
  Chosen& chosen = *found;
  CallResult result;
  result.type = chosen.result.type;
  result.owner = chosen.result.owner;
  if (chosen.result.value.tensor) {
    result.value = WireValue::Tensor(*chosen.result.value.tensor);
    result.value.tensor->data = args[0].v_handle;
  } else {
    result.value = WireValue::Handle(chosen.result.value.type, chosen.result.value.v_handle);
    result.value.text = chosen.result.value.text;
    if (IsHandle(chosen.result)) result.value.v_handle = args[0].v_handle;
    if (chosen.result.handle) result.handle = args[0].v_handle;
  }
  ReturnResult(&result);
}

// ---- Answers ------------------------------------------------------------------------------------------------------

Sequence Endpoint::NoneOnly() {
  Sequence values;
  values.push_back(WireValue::None());
  return values;
}

// All of a message or, when memory runs out halfway, nothing of it. Text and bytes that `owner` keeps are not copied.
void Endpoint::Write(Code code, const Sequence& values, const Any& owner) {
  if (options_.client) options_.client->WriteDrops(&output_);
  SendQueue::Mark start = output_.End();
  try {
    Writer writer = owner == nullptr ? output_.Copy() : output_.Lend(owner);
    writer.Begin(code, callback_);
    writer.Values(values, Form::kReply);
    writer.End();
  } catch (...) {
    output_.CutTo(start);
    throw;
  }
}

void Endpoint::Exception(const Error& error) {
  auto same = [&](const auto& one) { return one.second.ref().same_as(error.ref()); };
  {
    std::lock_guard<std::mutex> lock(outermost_->mutex_);
    auto& all = outermost_->unreported_;
    all.erase(std::remove_if(all.begin(), all.end(), same), all.end());
  }
  Sequence values;
  std::string text = options_.tracebacks ? TextOf(error) : error.what();
  values.push_back(WireValue::Text(text));
  if (options_.tracebacks) values.push_back(WireValue::Text(error.backtrace().substr(0, kMaxTraceback)));
  Write(Code::kException, values);
}

void Endpoint::Shutdown() {
  Writer writer = output_.Copy();
  writer.Begin(Code::kShutdown);
  writer.End();
  closed_ = true;
  session_->Close();
}

}  // namespace portcall::rpc
