// SPDX-License-Identifier: Apache-2.0
// Rules
//  * Objects of one session are refused by another.
//  * Local tensors may be given to a remote function: they are sent, and those that are not read-only are copied back.
#include "rpc/remote_objects.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>

#include "portcall/container.h"
#include "portcall/tensor.h"
#include "rpc/callbacks.h"
#include "rpc/channel.h"
#include "rpc/endpoint.h"
#include "rpc/local_session.h"
#include "rpc/remote_session.h"
#include "rpc/remote_values.h"

namespace portcall::rpc {
namespace {

// A function of a session, as a closure.
struct RemoteFunction {
  HandlePtr handle;
  std::string name;
  double timeout = 0;             // seconds of a call; not positive: no limit
  std::atomic<int> compiled{-1};  // whether the server says so; -1: it was not asked

  // Throws for a tensor that the caller cannot write to, when it may be written to: what it wrote would be lost.
  void CheckWritable(const TVMFFIAny& arg, int position);
  static int Call(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* out);
  static void Delete(void* self) { delete static_cast<RemoteFunction*>(self); }
};

PackedFunc MakeFunction(HandlePtr handle, const std::string& name, double timeout = 0) {
  auto func = std::make_unique<RemoteFunction>();
  func->handle = std::move(handle);
  func->name = name;
  func->timeout = timeout;
  TVMFFIObjectHandle object = nullptr;
  Check(PortcallFunctionCreate(func.get(), RemoteFunction::Call, RemoteFunction::Delete, 0, name.c_str(), &object));
  (void)func.release();
  return ObjectRef::Steal<PackedFunc>(object);
}

// Null for a function that is not one of a session, and for none.
RemoteFunction* RemoteFunctionOf(const PackedFunc& func) {
  if (!func.defined()) return nullptr;
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(func.get(), &info);
  return info.call == RemoteFunction::Call ? static_cast<RemoteFunction*>(info.self) : nullptr;
}

// While it lives, requests of this thread to a session are posted; for null, all are answered.
class PipelineScope {
 public:
  explicit PipelineScope(const Session* session) : before_(std::exchange(pipelined_session, session)) {}
  PipelineScope(const PipelineScope&) = delete;
  PipelineScope& operator=(const PipelineScope&) = delete;
  ~PipelineScope() { pipelined_session = before_; }

 private:
  const Session* before_;
};

class RpcModule : public ModuleNode {
 public:
  explicit RpcModule(HandlePtr handle) : handle_(std::move(handle)) {}

  const char* kind() const override { return "rpc"; }
  const HandlePtr& handle() const { return handle_; }

  PackedFunc GetFunction(const std::string& name, const Module& self) override {
    PipelineScope none(nullptr);
    const SessionPtr& session = handle_->session();
    if (handle_->value()) {
      PackedFunc found = ServerFunction("tvm.rpc.server.ModuleGetFunction")(self, name, true);
      return found.defined() ? MakeFunction(RemoteFunctionOf(found)->handle, name) : found;
    }
    uint64_t function = Opened(session)->GetFunction(name);
    return function ? MakeFunction(std::make_shared<OwnedHandle>(session, function), name) : PackedFunc();
  }
  std::string GetSource(const std::string& format) override {
    if (handle_->value() == 0) return ModuleNode::GetSource(format);
    PipelineScope none(nullptr);
    Bytes source = ServerFunction("portcall.rpc.ModuleGetSource")(AsModule(), format);
    return std::string(source.view());
  }
  std::vector<std::string> FunctionNames() override {  // empty, too, where the server cannot say
    PipelineScope none(nullptr);
    std::vector<std::string> names;
    PackedFunc list = handle_->value() ? FindServerFunction("portcall.rpc.ModuleFunctionNames") : PackedFunc();
    if (!list.defined()) return names;
    Bytes all = list(AsModule());
    for (std::string_view rest = all.view(); !rest.empty(); rest.remove_prefix(names.back().size() + 1)) {
      names.emplace_back(rest.substr(0, rest.find('\0')));
    }
    return names;
  }
  bool Import(const Module& other) override {
    if (!other.defined()) return false;
    PipelineScope none(nullptr);
    ServerFunction("tvm.rpc.server.ImportModule")(AsModule(), other);
    return true;
  }
  PackedFunc TimeEvaluator(const std::vector<Any>& arguments) override {
    PipelineScope none(nullptr);
    std::vector<Any> all = arguments;
    all.insert(all.begin(), handle_->value() ? Any(AsModule()) : Any(nullptr));
    Any result = ServerFunction("runtime.RPCTimeEvaluator")
                     .CallPacked(reinterpret_cast<const TVMFFIAny*>(all.data()), static_cast<int32_t>(all.size()));
    return result.cast<PackedFunc>();
  }

 private:
  // This module under another reference: what a node is asked to do comes without one.
  Module AsModule() const { return Module(std::make_unique<RpcModule>(handle_)); }

  // A function of the server, looked up once; none where the server has none.
  PackedFunc FindServerFunction(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    PackedFunc& func = server_functions_[name];
    if (func.defined()) return func;
    if (uint64_t function = handle_->session()->GetFunction(name)) {
      func = MakeFunction(std::make_shared<OwnedHandle>(handle_->session(), function), name);
    }
    return func;
  }
  PackedFunc ServerFunction(const std::string& name) {
    PackedFunc func = FindServerFunction(name);
    PORTCALL_CHECK(func.defined(), FunctionNotFoundError)
        << "the server has no function '" << name << "', which this needs; TVM servers lack those of portcall";
    return func;
  }

  HandlePtr handle_;
  std::mutex mutex_;
  std::map<std::string, PackedFunc> server_functions_;
};

void RemoteFunction::CheckWritable(const TVMFFIAny& arg, int position) {
  if (arg.type_index != kTVMFFITensor) return;
  constexpr uint64_t kKinds = DLPACK_FLAG_BITMASK_READ_ONLY | PORTCALL_TENSOR_MARKED;
  if ((PortcallTensorGetFlags(arg.v_obj) & kKinds) != DLPACK_FLAG_BITMASK_READ_ONLY || compiled == 0) return;
  if (compiled < 0) {
    PipelineScope none(nullptr);
    uint64_t ask = handle->session()->GetFunction("portcall.rpc.ModuleFunctionIsCompiled");  // other servers have none
    PackedFunc func = ask ? MakeFunction(std::make_shared<OwnedHandle>(handle->session(), ask), "") : PackedFunc();
    compiled = func.defined() && func(MakeFunction(handle, name)).cast<bool>() ? 1 : 0;
  }
  if (compiled == 0) return;
  detail::ThrowArgumentError(name.c_str(), position, "a writable tensor, because compiled code may write to it",
                             "a read-only one; pass portcall.ReadOnly(a) if it is only read, or a copy");
}

RpcModule* RpcModuleOf(const Module& module) {
  auto* node = static_cast<ModuleNode*>(PortcallModuleGetNode(module.get()));
  return dynamic_cast<RpcModule*>(node);
}

// ---- Calls --------------------------------------------------------------------------------------------------------

constexpr int kResult = -1;  // the place of what a callback returns
std::string Place(int position) {
  return position == kResult ? "the result of a callback" : "argument #" + std::to_string(position);
}

using Owners = std::vector<std::pair<uint64_t, std::shared_ptr<void>>>;  // by the address of the memory

// The arguments of one call on their way out, and what must come back.
class Outgoing {
 public:
  Outgoing(SessionPtr session, int32_t count) : session_(std::move(session)) {
    values_.reserve(static_cast<size_t>(count));
  }

  void Add(const TVMFFIAny& cell, int position) {
    if (DLTensor* tensor = TryDLTensor(cell)) return AddLocal(cell, *tensor);
    WireValue plain;
    return GivePlain(cell, &plain) ? Push(std::move(plain)) : AddObject(cell, position);
  }
  // The result of a function that the session calls.
  void AddResult(const Any& value) {
    bool local = TryDLTensor(value.cell()) != nullptr;
    local ? AddByValue(value.cell(), kResult) : Add(value.cell(), kResult);
    sent_all_ = true;
  }
  ~Outgoing() {
    if (sent_all_) return;
    auto* remote = dynamic_cast<RemoteSession*>(session_.get());
    if (!remote) return;
    for (const WireValue& value : values_) {
      if (value.type == kClientFunction && value.v_handle) remote->TakeBack(value.v_handle);
    }
  }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;
  const Sequence& values() const { return values_; }
  const Sequence& Send() {
    sent_all_ = true;
    return values_;
  }
  bool has_local() const { return !sent_.empty(); }  // arrays of this process, which may be copied back

  // What keeps the memory of tensors among the arguments, for a function that returns one that it was given.
  Owners TakeOwners() { return std::move(owners_); }

  void CopyBack() {
    for (const Sent& sent : sent_) {
      if (sent.read_only) continue;
      uint64_t nbytes = NumBytes(*sent.given);
      if (nbytes == 0) continue;
      session_->CopyFrom(sent.remote, sent.data(), nbytes);
      if (sent.stage.defined()) Check(PortcallTensorCopy(sent.stage.dl_tensor(), sent.given));
    }
  }

 private:
  struct Sent {
    const DLTensor* given;
    WireTensor remote;
    Tensor stage;  // the bytes that travel, unless the given ones are compact and on the host
    bool read_only;
    void* data() const {
      return stage.defined() ? stage.raw_data() : static_cast<char*>(given->data) + given->byte_offset;
    }
  };

  void Push(WireValue value) { values_.push_back(std::move(value)); }

  void CheckOwn(const SessionPtr& owner, int position, const char* what) const {
    if (owner != session_) CheckOpen(owner);
    PORTCALL_CHECK(owner == session_, ValueError)
        << Place(position) << " is " << what << " of another session, with " << NameOf(owner)
        << "; the function is of the session with " << NameOf(session_);
  }

  void AddObject(const TVMFFIAny& cell, int position) {
    ObjectRef object = IsObject(cell) ? ObjectRef::Borrow(cell.v_obj) : ObjectRef();
    if (AddFuture(object, position)) return;
    if (auto* tensor = object.as<RemoteTensorObj>()) {
      CheckOwn(tensor->session, position, "a tensor");
      owners_.emplace_back(tensor->wire.data, tensor->owner);
      return Push(WireValue::Tensor(tensor->wire));
    }
    if (auto* device = object.as<RemoteDeviceObj>()) {
      CheckOwn(device->session, position, "a device");
      return Push(WireValue::OfDevice(device->device));
    }
    if (auto* remote = object.as<RemoteObjectObj>()) {
      CheckOwn(remote->handle->session(), position, "an object");
      return Push(WireValue::Handle(kRemoteObject, remote->handle->value()));
    }
    if (cell.type_index == kTVMFFIModule) return AddModule(ObjectRef::Borrow<Module>(cell.v_obj), position);
    if (cell.type_index == kTVMFFIFunction) return AddFunction(cell.v_obj, position);
    AddByValue(cell, position);
  }
  void AddByValue(const TVMFFIAny& cell, int position) {
    if (!session_->by_value() || !IsObject(cell)) {
      detail::ThrowArgumentError("", position, "None, a number, str, bytes, an array or an object of the session",
                                 DescribeType(cell.type_index));
    }
    saved_.push_back(std::make_unique<Any>(ToValueBytes(cell, Save::kAlways, position)));
    std::optional<std::string_view> bytes = TryBytes(saved_.back()->cell());
    Push(WireValue::ByValue(bytes ? *bytes : std::string_view()));
  }
  void AddModule(const Module& module, int position) {
    RpcModule* remote = RpcModuleOf(module);
    PORTCALL_CHECK(remote, TypeError)
        << Place(position) << " is a module of this process; load it on the server: upload() and load_module()";
    CheckOwn(remote->handle()->session(), position, "a module");
    PORTCALL_CHECK(remote->handle()->value(), TypeError) << Place(position) << " is the session itself";
    Push(WireValue::Handle(kTVMFFIModule, remote->handle()->value()));
  }
  bool AddFuture(const ObjectRef& object, int position);
  void AddFunction(TVMFFIObject* func, int position);
  void AddLocal(const TVMFFIAny& cell, const DLTensor& tensor);

  SessionPtr session_;
  Sequence values_;
  bool sent_all_ = false;  // or nearly so: the session has the functions that it was lent
  std::vector<Sent> sent_;
  std::vector<Any> results_;  // of calls, given as arguments
  Owners owners_;
  std::vector<std::unique_ptr<Any>> saved_;  // objects by value; short ones lie in the cell itself
};

// The object itself; a reference to it where its type is not known here.
Any IncomingValue(const SessionPtr& session, CallResult* result) {
  auto handle = std::make_shared<OwnedHandle>(session, result->handle);
  if (!session->by_value()) ThrowProtocolError("an object by value, which was not agreed upon");
  try {
    return FromValueBytes(result->owner);
  } catch (const Error&) {
    if (handle->value() == 0) throw;
  }
  auto object = Make<RemoteObject>();
  object->handle = std::move(handle);
  object->remote_type = result->type;
  return object;
}

// `owners` have the memory of a tensor that comes without its own handle.
Any Incoming(const SessionPtr& session, CallResult* result, const Owners& owners = {}) {
  WireValue& value = result->value;
  if (value.type == kByValue) return IncomingValue(session, result);
  if (value.type == kTVMFFIDevice) return DeviceOf(session, value.v_device);
  if (result->owner != nullptr) return std::move(result->owner);
  if (Any plain; TakePlain(value, &plain)) return plain;
  auto handle = [&] { return std::make_shared<OwnedHandle>(session, value.v_handle); };
  switch (value.type) {
    case kTVMFFIDLTensorPtr: {
      auto tensor = Make<RemoteTensor>();
      tensor->session = session;
      tensor->wire = std::move(*value.tensor);
      for (const auto& [data, owner] : owners) {
        if (!result->handle && data == tensor->wire.data) tensor->owner = owner;
      }
      if (!tensor->owner) tensor->owner = std::make_shared<OwnedHandle>(session, result->handle);
      return tensor;
    }
    case kTVMFFIOpaquePtr:
      break;
    default:
      ThrowProtocolError("a result of type index " + std::to_string(value.type));
  }
  if (result->type == kTVMFFIOpaquePtr) return reinterpret_cast<void*>(value.v_handle);
  if (value.v_handle == 0) return nullptr;
  if (result->type == kTVMFFIFunction) return MakeFunction(handle(), "");
  if (result->type == kTVMFFIModule) return Module(std::make_unique<RpcModule>(handle()));
  auto object = Make<RemoteObject>();
  object->handle = handle();
  object->remote_type = result->type;
  return object;
}

Any PostCall(const std::shared_ptr<RemoteSession>& session, uint64_t function, const Sequence& args, Deadline deadline);

int RemoteFunction::Call(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* out) {
  auto* func = static_cast<RemoteFunction*>(self);
  return Guard([&] {
    const SessionPtr& session = func->handle->session();
    const Deadline deadline = DeadlineIn(func->timeout);
    Opened(session);
    Outgoing outgoing(session, num_args);
    for (int32_t i = 0; i < num_args; ++i) {
      func->CheckWritable(args[i], i);
      outgoing.Add(args[i], i);
    }
    if (pipelined_session && pipelined_session == session.get() && !outgoing.has_local()) {
      auto remote = std::dynamic_pointer_cast<RemoteSession>(session);
      if (remote && remote->posting()) {
        *out = PostCall(remote, func->handle->value(), outgoing.Send(), deadline).release();
        return;
      }
    }
    CallResult result;
    auto limited = deadline == kNoDeadline ? nullptr : std::dynamic_pointer_cast<RemoteSession>(session);
    if (limited) {
      auto call = limited->CallLater(func->handle->value(), outgoing.Send(), deadline);
      result = std::move(*limited->WaitFor(call.get(), kNoDeadline));
    } else {
      session->Call(func->handle->value(), outgoing.Send(), &result);
    }
    outgoing.CopyBack();
    *out = Incoming(session, &result, outgoing.TakeOwners()).release();
  });
}

// ---- Calls whose results come later -------------------------------------------------------------------------------

struct FutureObj : Object {
  static constexpr const char* kTypeKey = "portcall.Future";
  std::mutex mutex;
  std::shared_ptr<RemoteSession> session;
  std::shared_ptr<Pending> call;  // null: the result is known, or has a handle
  HandlePtr handle;               // of a posted call
  Owners owners;                  // of tensors among the arguments
  Any value;
  std::optional<Error> failure;

  ~FutureObj() {
    if (!call || !session->IsDone(call.get())) return;
    try {
      Take(kNoDeadline);      // a result that was not taken is freed
    } catch (const Error&) {  // and this is of no interest
    }
  }
  HandlePtr Posted() {
    std::lock_guard<std::mutex> guard(mutex);
    return handle;
  }
  Any Result(Deadline until) {
    PORTCALL_CHECK(Take(until), TimeoutError) << "the result did not come in time";
    if (failure) throw Error(*failure);
    return value;
  }
  // Whether the result is there.
  bool Take(Deadline until) {
    std::shared_ptr<Pending> waiting;
    HandlePtr posted;
    {
      std::lock_guard<std::mutex> guard(mutex);
      waiting = call;
      posted = handle;
    }
    if (posted) {
      CallResult result;
      session->Fetch(posted->value(), &result);
      std::lock_guard<std::mutex> guard(mutex);
      if (!handle) return true;
      bool object = result.value.type == kTVMFFIOpaquePtr && result.type != kTVMFFIOpaquePtr;
      if (object || result.handle) posted->Disown();  // what it becomes has the handle
      value = Incoming(session, &result, {{result.value.tensor ? result.value.tensor->data : 0, posted}});
      handle = nullptr;
      return true;
    }
    if (!waiting) return true;
    CallResult* result = nullptr;
    std::optional<Error> error;
    try {
      result = session->WaitFor(waiting.get(), until);
    } catch (const Error& thrown) {
      // How a session ended is asked again: kept here, the exception's traceback would know this future.
      if (!session->IsDone(waiting.get()) || session->closed()) throw;
      error = thrown;
    }
    if (!result && !error) return false;
    std::lock_guard<std::mutex> guard(mutex);
    if (!call) return true;  // another thread has taken it
    if (result) value = Incoming(session, result, owners);
    failure = std::move(error);
    call = nullptr;
    owners.clear();
    return true;
  }
};
using Future = Given<FutureObj>;

Any PostCall(const std::shared_ptr<RemoteSession>& session, uint64_t function, const Sequence& args,
             Deadline deadline) {
  auto future = Make<Future>();
  future->handle = std::make_shared<OwnedHandle>(session, session->PostCall(function, args, deadline));
  future->session = session;
  return future;
}

// The result of a call as an argument: its handle where the session has it, or else what it is.
bool Outgoing::AddFuture(const ObjectRef& object, int position) {
  auto* future = const_cast<FutureObj*>(object.as<FutureObj>());
  if (!future) return false;
  HandlePtr posted = future->Posted();
  if (posted && posted->session() == session_) {
    Push(WireValue::Handle(kRemoteObject, posted->value()));
  } else {
    results_.push_back(future->Result(kNoDeadline));
    Add(results_.back().cell(), position);
  }
  return true;
}

// Sends a call to a session that takes several at once, and does not wait for the result. Null where it must be waited for:
// of any other function, and with arrays of this process, whose bytes are sent and copied back.
Future SendCall(const PackedFunc& func, const TVMFFIAny* args, int32_t count) {
  RemoteFunction* remote = RemoteFunctionOf(func);
  auto session = remote ? std::dynamic_pointer_cast<RemoteSession>(remote->handle->session()) : nullptr;
  auto is_array = [](const TVMFFIAny& arg) { return TryDLTensor(arg) != nullptr; };
  if (!session || !session->pipelined() || std::any_of(args, args + count, is_array)) return Future();
  Outgoing outgoing(session, count);
  for (int32_t i = 0; i < count; ++i) outgoing.Add(args[i], i);
  if (outgoing.has_local()) return Future();  // a result of another call
  auto future = Make<Future>();
  future->call = session->CallLater(remote->handle->value(), outgoing.Send(), DeadlineIn(remote->timeout));
  future->session = std::move(session);
  future->owners = outgoing.TakeOwners();
  return future;
}

// Calls a function, and does not wait for its result if that can be had later.
Future StartCall(const PackedFunc& func, const TVMFFIAny* args, int32_t count) {
  PORTCALL_CHECK(func.defined(), TypeError) << "expected a function to call, got None";
  Future future = SendCall(func, args, count);
  if (future.defined()) return future;
  future = Make<Future>();
  try {
    future->value = func.CallPacked(args, count);
  } catch (const Error& error) {  // without the exception of a language, whose traceback may know this future
    auto* facts = static_cast<TVMFFIObject*>(static_cast<ErrorObj*>(error.ref().get())->cell.extra_context);
    const bool plain = !facts || facts->type_index == kTVMFFIArray;
    future->failure = plain ? error : Error(error.kind(), error.message(), error.backtrace());
  }
  return future;
}

constexpr size_t kMaxMapped = 512;  // calls on their way: so many may run after one that fails

// Calls a function once for each row: `args` has the number of a row's arguments, the function, and these, for all rows.
// Adds the results to `results`, in order; after an error, which is thrown when the calls on their way are over, no more
// are begun.
void MapCalls(List<Any> results, const TVMFFIAny* args, int32_t count) {
  std::vector<Future> calls;
  size_t taken = 0;
  std::exception_ptr failure;
  auto take = [&](size_t left) {
    while (calls.size() - taken > left) {
      const Future call = std::move(calls[taken++]);
      try {
        Any value = call->Result(kNoDeadline);
        if (!failure) results.push_back(std::move(value));
      } catch (const Error&) {
        if (!failure) failure = std::current_exception();
        if (call->session && call->session->closed()) taken = calls.size();
      }
    }
  };
  while (count > 0 && !failure) {
    int64_t size = args->type_index == kTVMFFIInt ? args->v_int64 : -1;
    if (size < 0 || size + 1 >= count) throw Error("ValueError", "a row that is not whole");
    try {
      const auto func = Args(args, count, "map")[1].cast<PackedFunc>();
      calls.push_back(StartCall(func, args + 2, static_cast<int32_t>(size)));
      take(calls.back()->call ? kMaxMapped : 0);
    } catch (const Error&) {  // the call was not begun
      take(0);
      if (!failure) failure = std::current_exception();
    }
    args += size + 2;
    count -= static_cast<int32_t>(size) + 2;
  }
  take(0);
  if (failure) std::rethrow_exception(failure);
}

// `seconds` that are negative: without a limit.
Any FutureResult(Future future, double seconds) {
  return future->Result(seconds < 0 ? kNoDeadline : DeadlineIn(std::max(seconds, 1e-6)));
}

void Outgoing::AddFunction(TVMFFIObject* object, int position) {
  RemoteFunction* func = RemoteFunctionOf(ObjectRef::Borrow<PackedFunc>(object));
  if (!func) {
    PORTCALL_CHECK(session_->calls_back(), TypeError)
        << Place(position) << " is a function of this process, which the session cannot call back";
    WireValue& value = values_.emplace_back(WireValue::Handle(kClientFunction, 0));
    value.object = ObjectRef::Borrow<PackedFunc>(object);
    value.v_handle = session_->Lend(value.object);
    return;
  }
  CheckOwn(func->handle->session(), position, "a function");
  Push(WireValue::Handle(kTVMFFIFunction, func->handle->value()));
}

WireTensor Describe(const DLTensor& tensor, DLDevice device) {
  WireTensor wire;
  wire.device = device;
  wire.dtype = tensor.dtype;
  wire.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  return wire;
}

bool AreSame(const DLTensor& a, const DLTensor& b) {
  auto equal = [&](const int64_t* x, const int64_t* y) { return x == y || (x && y && std::equal(x, x + a.ndim, y)); };
  return a.data == b.data && a.byte_offset == b.byte_offset && a.device == b.device && a.dtype == b.dtype &&
         a.ndim == b.ndim && equal(a.shape, b.shape) && equal(a.strides, b.strides);
}

void Outgoing::AddLocal(const TVMFFIAny& cell, const DLTensor& tensor) {
  bool read_only =
      cell.type_index == kTVMFFITensor && (PortcallTensorGetFlags(cell.v_obj) & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  for (Sent& sent : sent_) {  // an array that is passed twice is one array on the server, too
    if (!AreSame(*sent.given, tensor)) continue;
    sent.read_only = sent.read_only && read_only;
    return Push(WireValue::Tensor(sent.remote));
  }
  Sent sent{&tensor, Describe(tensor, Cpu()), {}, read_only};
  if (tensor.device.device_type != kDLCPU || !IsContiguous(tensor)) {
    sent.stage = Tensor::Empty(sent.remote.shape, tensor.dtype);
    sent.stage.CopyFrom(tensor);
  }
  PipelineScope posting(session_.get());  // the call tells what went wrong
  sent.remote.data = session_->Alloc(sent.remote, std::nullopt);
  owners_.emplace_back(sent.remote.data, std::make_shared<OwnedMemory>(session_, sent.remote.device, sent.remote.data));
  session_->CopyTo(sent.remote, sent.data(), NumBytes(tensor));
  Push(WireValue::Tensor(sent.remote));
  sent_.push_back(std::move(sent));
}

// Calls a function for the server.
std::shared_ptr<void> RunCallback(const SessionPtr& session, const PackedFunc& func, std::vector<CallResult>* args,
                                  const std::function<void(const Sequence&)>& answer) {
  PipelineScope none(nullptr);
  if (auto kept = Callbacks::PassOn(func, *session, *args, answer)) return kept;
  std::vector<Any> values;
  for (CallResult& arg : *args) values.push_back(Incoming(session, &arg));
  Any result = func.CallPacked(reinterpret_cast<const TVMFFIAny*>(values.data()), static_cast<int32_t>(values.size()));
  Outgoing outgoing(session, 1);
  outgoing.AddResult(result);
  answer(outgoing.values());
  return nullptr;
}

// ---- What Python calls --------------------------------------------------------------------------------------------

Module Connect(std::unique_ptr<Channel> channel, std::string name, double call_timeout, std::vector<Any> constructor) {
  RemoteOptions options;
  options.name = std::move(name);
  options.call_timeout = call_timeout;
  auto session = MakeRemoteSession(std::move(channel), std::move(options), RunCallback);
  session->InitServer(constructor);
  return RootModule(std::move(session));
}

Module ConnectFds(int read_fd, int write_fd, std::string name, double call_timeout, std::vector<Any> constructor) {
  return Connect(MakeFdChannel(read_fd, write_fd, true), std::move(name), call_timeout, std::move(constructor));
}

Module ConnectFunctions(PackedFunc send, PackedFunc receive, PackedFunc close, std::string name, double call_timeout,
                        std::vector<Any> constructor) {
  return Connect(MakeFunctionChannel(std::move(send), std::move(receive), std::move(close)), std::move(name),
                 call_timeout, std::move(constructor));
}

Any DeviceAttr(Module root, int32_t type, int32_t id, int64_t attr) {
  CallResult result;
  auto session = SessionOf(root);
  result.value = session->GetAttr({type, id}, attr, &result.owner);
  return Incoming(session, &result);
}

PORTCALL_REGISTER_GLOBAL("portcall.StartCall").set_body([](Args args, RetValue* result) {
  *result = StartCall(args[0].cast<PackedFunc>(), args.cells() + 1, args.size() - 1);
});
PORTCALL_REGISTER_GLOBAL("portcall.MapCalls").set_body([](Args args, RetValue*) {
  MapCalls(args[0].cast<List<Any>>(), args.cells() + 1, args.size() - 1);
});
PORTCALL_REGISTER_GLOBAL("portcall.FutureResult").set_body_typed(FutureResult);
// The same; None where the call would be waited for.
PORTCALL_REGISTER_GLOBAL("portcall.SendCall").set_body([](Args args, RetValue* result) {
  *result = SendCall(args[0].cast<PackedFunc>(), args.cells() + 1, args.size() - 1);
});
// The session of a result that is on its way; 0 for one that has come.
PORTCALL_REGISTER_GLOBAL("portcall.FutureSession").set_body_typed([](Future future) {
  std::lock_guard<std::mutex> guard(future->mutex);
  bool done = !future->call ? !future->handle : future->session->IsDone(future->call.get());
  return done ? 0 : reinterpret_cast<int64_t>(future->session.get());
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.ConnectFds").set_body_typed(ConnectFds);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.ConnectFunctions").set_body_typed(ConnectFunctions);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.LocalSession")
    .set_body_typed([](std::vector<std::string> patterns, bool by_value) {
      return RootModule(MakeLocalSession(std::move(patterns), by_value));
    });
PORTCALL_REGISTER_GLOBAL("portcall.rpc.FunctionSession").set_body_typed([](PackedFunc func) {
  RemoteFunction* remote = RemoteFunctionOf(func);
  return remote ? RootModule(remote->handle->session()) : Module();
});
// The same function with a time for each call, in seconds; and that time.
PORTCALL_REGISTER_GLOBAL("portcall.rpc.WithTimeout").set_body_typed([](PackedFunc func, double seconds) {
  RemoteFunction* remote = RemoteFunctionOf(func);
  PORTCALL_CHECK(remote, TypeError)
      << "a function of this process has no timeout: only calls of a session are cancelled";
  PORTCALL_CHECK(seconds > 0 && seconds <= facts::kMostSeconds, ValueError)
      << "invalid timeout " << seconds << " (must be above 0, and at most " << facts::kMostSeconds << " seconds)";
  return MakeFunction(remote->handle, remote->name, seconds);
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.TimeoutOf").set_body_typed([](PackedFunc func) {
  RemoteFunction* remote = RemoteFunctionOf(func);
  return remote ? remote->timeout : 0.0;
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.ObjectSession").set_body_typed([](RemoteObject object) {
  return RootModule(object->handle->session());
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.DeviceAttr").set_body_typed(DeviceAttr);

}  // namespace

Module RootModule(std::shared_ptr<Session> session) {
  return Module(std::make_unique<RpcModule>(std::make_shared<OwnedHandle>(std::move(session), 0)));
}

std::shared_ptr<Session> SessionOf(const Module& module) {
  RpcModule* remote = module.defined() ? RpcModuleOf(module) : nullptr;
  PORTCALL_CHECK(remote, TypeError) << "the module is not one of a session (type 'rpc')";
  return remote->handle()->session();
}

}  // namespace portcall::rpc
