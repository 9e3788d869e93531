// SPDX-License-Identifier: Apache-2.0
// The serving end of a session: bytes in, calls, bytes out. It knows no sockets; a transport moves the bytes.
//
// Rule: no bytes crash it, make it wait, or reach outside of its session. A message that is wrong is answered with an
// exception if the end of the frame is known, and ends the session otherwise.
#ifndef PORTCALL_RPC_ENDPOINT_H_
#define PORTCALL_RPC_ENDPOINT_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "portcall/tensor.h"
#include "rpc/frames.h"
#include "rpc/send_queue.h"
#include "rpc/session.h"

namespace portcall::rpc {

// The client of an endpoint, as one that has functions which the session's code may call, also from other threads.
class ClientFunctions {
 public:
  virtual ~ClientFunctions() = default;
  virtual Any Function(uint64_t number) = 0;  // one that it lends with a call
  virtual bool has_functions() const = 0;     // that the session's code can call
  // The thread that serves runs a call: those who wait for a callback read what comes. Return: it reads again.
  virtual void Yield() = 0;
  virtual bool reads_elsewhere() const = 0;
  virtual void Return() = 0;
  virtual void Deliver(uint64_t callback, std::string_view frame) = 0;
  virtual void WriteDrops(SendQueue* out) = 0;  // of functions without references
  // Around a call that the client has given a number, and may cancel: throws if it has. `interrupts`: while the call runs,
  // others read what comes, and the thread gets a signal. EndCall returns whether that was so.
  virtual void BeginCall(uint64_t number, bool interrupts) = 0;
  virtual bool EndCall() = 0;
  // Keeps the work until all that has come for callbacks is done, unless it is: returns whether it does.
  virtual bool Defer(std::function<void()> work) = 0;
};

struct EndpointOptions {
  uint64_t max_frame = kMaxFrame;
  std::shared_ptr<ClientFunctions> client;  // null: it lends no functions
  bool posts = false;                       // whether the client may post requests
  bool cancels = false;                     // whether it may cancel calls
  bool tracebacks = false;  // whether an Exception says where it was raised: the client must know of that
  // Makes the session that a client asks for by the name and arguments of a constructor; null: none may be asked for.
  std::function<std::shared_ptr<Session>(const std::string& name, const std::vector<Any>& args)> constructor;
};

class Endpoint {
 public:
  Endpoint(std::shared_ptr<Session> session, EndpointOptions options);
  // Serves what belongs to a callback, while it runs.
  Endpoint(Endpoint* outer, uint64_t callback);
  // What has come is kept for later, but for frames of callbacks, which are delivered; returns whether there were any.
  bool Collect();
  void Give(std::string_view frame);
  void Export(Any value, CallResult* out) { session_->Export(std::move(value), out); }
  // The result of a callback, from the body of its Return: what the session makes of it, or the one value as it is.
  Any Import(Reader body) { return session_->Import(Result(body)[0]); }
  Sequence Result(Reader body);
  bool Serves(const Session& session) const { return session_.get() == &session; }

  // Receiving: put bytes where Space() says, tell how many, then serve what has arrived. Serve stops when the output is
  // full: send, then call it again. Returns whether it stopped for that.
  std::pair<char*, size_t> Space() { return frames_.Space(); }
  void Filled(size_t n) { frames_.Filled(n); }
  bool Serve();
  size_t waiting() const { return frames_.buffered(); }  // bytes that were received and not served
  bool between() const { return frames_.AtBoundary(); }  // two messages
  // The peer closed its side. Returns whether that was between two messages.
  bool PeerClosed();

  SendQueue& output() { return output_; }
  bool closed() const { return closed_; }

  // Answers to a request whose call left Serve with something that is no error: the result came later.
  void ReturnResult(CallResult* result);
  void Exception(const Error& error);

 private:
  void Step(FrameReader::Event event);
  void Answer(Code code, Reader body);
  void InitServer(Reader body);
  void CallFunc(Reader body, CallResult* result);
  void CallNumbered(uint64_t number, uint64_t function, const Sequence& args, CallResult* result);
  Sequence Arguments(Reader body);
  Sequence SysCall(Code code, Sequence* args, Any* owner);
  void Sync(const Sequence& args);
  void Fetch(const Sequence& args);
  void CopyFromRemote(Reader body);
  void BeginCopyTo(Reader head);
  void EndCopyTo();

  // Requests that are posted, and handles that the client chose. One whose request failed is poisoned: who uses it gets
  // that error.
  struct Chosen {
    CallResult result;
    std::unique_ptr<Error> poison;
  };
  void Posted(Code code, Reader body);
  void Fail(uint64_t target, const Error& error);
  std::shared_ptr<Chosen> Find(uint64_t handle);
  uint64_t Actual(uint64_t handle);
  bool IsChosen(uint64_t handle);
  void Resolve(Sequence* args);
  void Free(const Sequence& args, bool memory);
  bool FreeChosen(DLDevice device, uint64_t handle, bool memory);

  Tensor Stage(uint64_t nbytes) const;

  void Write(Code code, const Sequence& values, const Any& owner = {});
  void Return(const Sequence& values, const Any& owner = {}) { Write(Code::kReturn, values, owner); }
  void ReturnNone() { Return(NoneOnly()); }
  void Shutdown();
  static Sequence NoneOnly();

  std::shared_ptr<Session> session_;
  EndpointOptions options_;
  FrameReader frames_;
  SendQueue output_;
  bool initialized_ = false;
  bool closed_ = false;
  uint64_t call_number_ = 0;                                      // of the next call; 0: it has none
  uint64_t callback_ = 0;                                         // that the requests belong to; 0: none
  Endpoint* const outermost_;                                     // whose next three fields are used
  std::mutex mutex_;                                              // guards chosen_ and unreported_
  std::unordered_map<uint64_t, std::shared_ptr<Chosen>> chosen_;  // short text lies in them
  std::vector<std::pair<uint64_t, Error>> unreported_;            // of posted requests, with their callback
  bool poisoned_ = false;                                         // whether the last error is that of an earlier one
  // The copy that is being received.
  WireTensor copy_to_;
  Any copy_owner_;     // of the memory that the bytes go to
  Tensor copy_stage_;  // where they go first, if that memory cannot be written in place
  std::unique_ptr<Error> copy_error_;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_ENDPOINT_H_
