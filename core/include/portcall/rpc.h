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

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "module.h"
#include "sha256.h"
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

namespace detail {
struct Socket {
  int fd = -1;
  ~Socket() {
    if (fd >= 0) close(fd);
  }
};

[[noreturn]] inline void FailToConnect(const std::string& address, const std::string& why) {
  throw Error("ConnectError", "cannot connect to " + address + ": " + why);
}

inline int OpenSocket(const std::string& address, double timeout) {
  Socket made;
  const auto limit = [&] {
    timeval time{static_cast<time_t>(timeout), static_cast<suseconds_t>(1e6 * (timeout - static_cast<long>(timeout)))};
    setsockopt(made.fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    setsockopt(made.fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));  // connect() keeps it, too
  };
  if (address.compare(0, 5, "unix:") == 0) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    address.copy(where.sun_path, sizeof(where.sun_path) - 1, 5);
    made.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    limit();
    if (connect(made.fd, reinterpret_cast<sockaddr*>(&where), sizeof(where)) != 0) {
      FailToConnect(address, std::strerror(errno));
    }
    return std::exchange(made.fd, -1);
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) FailToConnect(address, "it is not of the form host:port or unix:/path");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  if (int failed = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &wanted, &found)) {
    FailToConnect(address, gai_strerror(failed));
  }
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  for (const addrinfo* one = found; one; one = one->ai_next) {
    if (made.fd >= 0) close(made.fd);
    made.fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    limit();
    const int yes = 1;
    setsockopt(made.fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (connect(made.fd, one->ai_addr, one->ai_addrlen) == 0) return std::exchange(made.fd, -1);
  }
  FailToConnect(address, std::strerror(errno));
}

inline std::string LittleEndian(uint32_t value) {
  std::string bytes(4, '\0');
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

inline std::string ReadExactly(int fd, size_t size, const std::string& address) {
  std::string data(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t n = recv(fd, data.data() + done, size - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) FailToConnect(address, n == 0 ? "the server closed the connection" : std::strerror(errno));
    done += static_cast<size_t>(n);
  }
  return data;
}

// The handshake of a client (docs/wire.md, sections 1 and 8).
class Handshake {
 public:
  Handshake(int fd, const std::string& address) : fd_(fd), address_(address) {}

  // Returns the extensions that both sides have: those with which the server calls functions of this side.
  std::vector<std::string> Run(const std::string& key, const std::string& token) {
    const std::string words = "client:" + key + " -portcall=1 -features=callback,pipeline -nonce=" + Nonce();
    Send(LittleEndian(kMagic) + LittleEndian(static_cast<uint32_t>(words.size())) + words);
    const std::string reply = ReadReply("the server does not have the key '" + key + "'");
    const bool asked = (reply + " ").find(" -auth=token ") != std::string::npos;
    if (!asked && token.empty()) return FeaturesOf(reply);
    if (!asked) Refuse("the server does not ask for the token, so it may be another one");
    if (token.empty()) Refuse("the server asks for a token");
    const sha256::HmacKey secret(token);
    const std::string transcript = transcript_;
    Send(std::string(sha256::AsText(secret.Sign("client" + std::string(1, '\0') + transcript))));
    const std::string proof = sha256::Hex(secret.Sign("server" + std::string(1, '\0') + transcript));
    std::string opened;
    try {
      opened = ReadReply("its answer is not of this protocol");
    } catch (const Error&) {  // it closes without a word
      Refuse("the server refused the token; is it the one that it was started with?");
    }
    const size_t at = opened.find(" -proof=");
    const bool same = at != std::string::npos && sha256::SameInConstantTime(opened.substr(at + 8, proof.size()), proof);
    if (!same) Refuse("the server does not know the token");
    return FeaturesOf(opened);
  }

 private:
  static constexpr uint32_t kMagic = 0xFF271, kNotice = 0xFF274, kMostBytes = 4096;

  static std::string Nonce() {
    std::random_device random;
    std::string text;
    for (int i = 0; i < 32; ++i) text += "0123456789abcdef"[random() & 15];
    return text;
  }

  static std::vector<std::string> FeaturesOf(const std::string& reply) {
    std::vector<std::string> features;
    const size_t at = std::min(reply.find(" -features="), reply.size());
    const std::string word = reply.substr(at, reply.find(' ', at + 1) - at);
    for (const char* name : {"callback", "pipeline"}) {
      if (word.find(name) != std::string::npos) features.push_back(name);
    }
    return features;
  }

  [[noreturn]] void Refuse(const std::string& why) const { throw Error("AuthenticationError", address_ + ": " + why); }

  void Send(const std::string& data) {
    transcript_ += data;
    if (send(fd_, data.data(), data.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(data.size())) {
      FailToConnect(address_, std::strerror(errno));
    }
  }

  uint32_t ReadNumber() {
    const std::string bytes = ReadExactly(fd_, 4, address_);
    transcript_ += bytes;
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    return value;
  }

  // The words of the server's reply; notices before it say what it waits for.
  std::string ReadReply(const std::string& refusal) {
    for (;;) {
      const uint32_t code = ReadNumber();
      if (code != kMagic && code != kNotice) FailToConnect(address_, refusal);
      const uint32_t size = ReadNumber();
      if (size > kMostBytes) FailToConnect(address_, "its answer is not of this protocol");
      const std::string text = ReadExactly(fd_, size, address_);
      transcript_ += text;
      if (code == kMagic) return text;
    }
  }

  int fd_;
  const std::string& address_;
  std::string transcript_;  // all bytes that both sides said
};
}  // namespace detail

// A session with a server at "host:port", "[v6]:port" or "unix:/path".
inline Client Connect(const std::string& address, const ConnectOptions& options = {}) {
  detail::Socket socket{detail::OpenSocket(address, options.timeout)};
  const std::vector<std::string> features = detail::Handshake(socket.fd, address).Run(options.key, options.token);
  const int fd = std::exchange(socket.fd, -1);
  Client client = Attach(fd, fd, options.call_timeout, address);
  if (!features.empty()) Registry::GetRequired("portcall.rpc.UseFeatures")(client.root(), features);
  return client;
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
