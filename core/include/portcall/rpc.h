// SPDX-License-Identifier: Apache-2.0
// Sessions for programs in C++: the client of a server, and a server on a connection of the program's own.
//
//   rpc::Client board = rpc::Connect("board:9090", {"rasp4"});
//   rpc::ClientTensor x = board.Empty({1000}, DataTypeOf<float>());
//   x.CopyFrom(values);
//   board.Upload("k.so", content);
//   board.LoadModule("k.so")["add_one"](x, x);
//   rpc::Serve(fd, {{"demo.*"}});                    // until the client on fd closes
//
// There is no TLS here: a tunnel carries the connection to a server that asks for it (ssh -L).
#ifndef PORTCALL_RPC_H_
#define PORTCALL_RPC_H_

#include <string>
#include <string_view>
#include <vector>

#include "module.h"
#include "tensor.h"

namespace portcall::rpc {

// Memory of a session. Functions of the same session take it as an argument.
struct ClientTensorObj final : Object {
  static constexpr const char* kTypeKey = "portcall.rpc.Tensor";
};
class ClientTensor : public ObjectRef {
  PORTCALL_OBJECT_REF(ClientTensor, ClientTensorObj)

  std::vector<int64_t> shape() const {
    return Registry::GetRequired("portcall.rpc.TensorShape")(*this).cast<std::vector<int64_t>>();
  }
  DLDataType dtype() const { return Registry::GetRequired("portcall.rpc.TensorDtype")(*this).cast<DLDataType>(); }
  // Copies need equal shapes and data types.
  void CopyFrom(const Tensor& local) const { Registry::GetRequired("portcall.rpc.CopyTo")(*this, local); }
  void CopyTo(const Tensor& local) const { Registry::GetRequired("portcall.rpc.CopyFrom")(*this, local); }
  Tensor CopyToHost() const {
    Tensor local = Tensor::Empty(shape(), dtype());
    CopyTo(local);
    return local;
  }
};

// A session. It closes with the last reference to it, its tensors, modules and functions. Functions of this program are
// arguments where the server is portcall's: it calls them while this side waits for an answer.
class Client {
 public:
  Client() = default;
  explicit Client(Module root) : root_(std::move(root)) {}

  // A function that the server offers; FunctionNotFoundError when there is none.
  PackedFunc operator[](const std::string& name) const {
    PackedFunc func = root_.GetFunction(name);
    PORTCALL_CHECK(func.defined(), FunctionNotFoundError) << "the server offers no function '" << name << "'";
    return func;
  }
  ClientTensor Empty(const std::vector<int64_t>& shape, DLDataType dtype, DLDevice device = Cpu()) const {
    return Registry::GetRequired("portcall.rpc.Empty")(root_, shape, dtype, static_cast<int>(device.device_type),
                                                       device.device_id)
        .cast<ClientTensor>();
  }
  // A file in the session's directory.
  void Upload(const std::string& name, std::string_view content) const {
    (*this)["tvm.rpc.server.upload"](name, Bytes(content));
  }
  Bytes Download(const std::string& name) const { return (*this)["tvm.rpc.server.download"](name).cast<Bytes>(); }
  // A library that was uploaded.
  Module LoadModule(const std::string& name) const {
    return (*this)["tvm.rpc.server.load_module"](name).cast<Module>();
  }
  void Close() const { Registry::GetRequired("portcall.rpc.Close")(root_); }
  const Module& root() const { return root_; }

 private:
  Module root_;
};

struct ConnectOptions {
  std::string key;          // of the server; empty for none
  std::string token;        // that both sides know, and that never travels; empty for none
  double timeout = 10;      // seconds for each step of the handshake
  double call_timeout = 0;  // seconds for an answer; 0 for any time
};

// A session over a connection whose handshake is over, or a pipe, which has none. The descriptors are owned from now on.
inline Client Attach(int read_fd, int write_fd, double call_timeout = 0, const std::string& name = "the server") {
  return Client(
      Registry::GetRequired("portcall.rpc.ConnectFds")(read_fd, write_fd, name, call_timeout, std::vector<Any>())
          .cast<Module>());
}

// A session with a server at "host:port", "[v6]:port" or "unix:/path".
inline Client Connect(const std::string& address, const ConnectOptions& options = {}) {
  return Client(Registry::GetRequired("portcall.rpc.Connect")(address, options.key, options.token, options.timeout,
                                                              options.call_timeout)
                    .cast<Module>());
}

struct ServeOptions {
  std::vector<std::string> offer;  // patterns of global functions, such as "demo.*"
  int64_t max_frame = 0;           // bytes of a message, the contents of tensors left out; 0 for 1 GiB
};

// Serves the client on a connection, or a pipe, whose handshake is over, until it closes. The descriptors are owned from
// now on. Returns whether the session was closed in order, and not lost within a message.
inline bool Serve(int read_fd, int write_fd, const ServeOptions& options) {
  const std::string how =
      Registry::GetRequired("portcall.rpc.ServeFds")(read_fd, write_fd, options.offer, options.max_frame, nullptr);
  return how == "closed";
}
inline bool Serve(int fd, const ServeOptions& options) { return Serve(fd, fd, options); }

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_H_
