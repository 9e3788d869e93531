// SPDX-License-Identifier: Apache-2.0
// Session: a place where functions live, that can call them, own memory and move bytes. LocalSession is this process,
// RemoteSession another one across a channel; an Endpoint serves any of them, so sessions chain.
//
// Everything that a session owns is named by a handle: a number of the session's own, never an address.
#ifndef PORTCALL_RPC_SESSION_H_
#define PORTCALL_RPC_SESSION_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "portcall/value.h"
#include "rpc/codec.h"

namespace portcall::rpc {

// What a call gives: the type index of the result as its owner sees it, the value, and for tensors the handle to free.
struct CallResult {
  int32_t type = kTVMFFINone;
  WireValue value;
  uint64_t handle = 0;  // of a tensor; or of an object by value, for those who do not know its type
  Any owner;            // keeps what value.text points to
};

enum class Access { kRead, kWrite };

class Session {
 public:
  virtual ~Session() = default;

  virtual uint64_t GetFunction(std::string_view name) = 0;  // 0: there is none; otherwise to be freed
  virtual void Call(uint64_t function, const Sequence& args, CallResult* result) = 0;
  virtual void Free(uint64_t handle) = 0;

  virtual uint64_t Alloc(const WireTensor& like, std::optional<std::string_view> scope) = 0;
  virtual uint64_t AllocData(DLDevice device, uint64_t nbytes, uint64_t alignment, DLDataType hint) = 0;
  virtual void FreeData(DLDevice device, uint64_t data) = 0;
  virtual void CopyTo(const WireTensor& to, const void* from, uint64_t nbytes) = 0;
  virtual void CopyFrom(const WireTensor& from, void* to, uint64_t nbytes) = 0;
  virtual void CopyAmong(const WireTensor& from, const WireTensor& to, uint64_t stream) = 0;
  // Where `nbytes` of the tensor lie in this process, so that a transport can read or write them, and what keeps them
  // there; null: use CopyTo and CopyFrom.
  virtual void* Address(const WireTensor& tensor, uint64_t nbytes, Access access, Any* owner) = 0;

  virtual WireValue GetAttr(DLDevice device, int64_t attr, Any* owner) = 0;
  virtual void SetDevice(DLDevice device) = 0;
  virtual uint64_t CreateStream(DLDevice device) = 0;
  virtual void FreeStream(DLDevice device, uint64_t stream) = 0;
  virtual void SetStream(DLDevice device, uint64_t stream) = 0;
  virtual uint64_t GetStream(DLDevice device) = 0;
  virtual void SyncStream(DLDevice device, uint64_t stream) = 0;

  // Functions of a client. Lend: the number of one that becomes an argument of a call (kClientFunction), or TypeError;
  // Import and Export: what comes from the client for a function of the session, and goes to it.
  virtual bool calls_back() const { return false; }
  virtual uint64_t Lend(const Any&) { ThrowNoFunctions(); }
  virtual Any Import(const WireValue&) { ThrowNoFunctions(); }
  virtual void Export(Any, CallResult*) { ThrowNoFunctions(); }

  // Whether objects may be arguments and results by themselves (kByValue).
  virtual bool by_value() const { return false; }

  // Whether a call runs in the thread that makes it, which a signal may interrupt.
  virtual bool runs_here() const { return false; }

  virtual void Close() = 0;
  virtual bool closed() const = 0;

  [[noreturn]] static void ThrowNoFunctions() {
    throw Error("TypeError", "a function of the client cannot go on to another session");
  }
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_SESSION_H_
