// SPDX-License-Identifier: Apache-2.0
// Serving functions of this process: the server's half of the handshake over a socket, and a listener whose sessions run in
// threads. What crashes in a session ends all of them: a program that may crash is served by portcall-server. The core
// opens this library at the first call of one of its functions.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "portcall/container.h"
#include "portcall/module.h"
#include "portcall/sha256.h"
#include "session/admission.h"
#include "session/descriptor.h"

namespace portcall::session {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

constexpr int kBacklog = 128;
constexpr size_t kMostSessions = 256;
// A thread of this process has neither pipes for what is printed nor code that may be stopped.
constexpr std::string_view kOffered[] = {"callback", "pipeline", "post", "traceback"};

class Admission {
 public:
  Admission(int fd, double timeout)
      : fd_(fd),
        end_(Clock::now() +
             std::chrono::milliseconds(static_cast<int64_t>(1000 * std::clamp(timeout, 0.001, kMostSeconds / 1000)))) {}

  // Returns the features of the session. What a client is told before it is refused has been sent.
  std::vector<std::string> Run(const std::string& key, const std::string& token) {
    std::string transcript;
    for (size_t missing; (missing = MissingOfHello(transcript));) Receive(missing, &transcript);
    try {
      const Hello hello = ParseHello(transcript);
      if (hello.portcall() && hello.options.count("reason")) {  // no session of ours has an account of its end
        throw Refused{"asked how a session ended", Reply(key, {{"ended", "unknown"}})};
      }
      CheckVersion(hello, key);
      CheckKey(hello, key, !token.empty());
      hello.Timeout();
      std::vector<std::string> features;
      for (const std::string& name : hello.Features()) {
        if (std::find(std::begin(kOffered), std::end(kOffered), name) != std::end(kOffered)) features.push_back(name);
      }
      const std::string proof = token.empty() ? "" : Prove(key, token, std::move(transcript));
      Send(Welcome(key, hello.portcall(), features, {}, proof));
      return features;
    } catch (const Refused& refused) {
      Send(refused.answer);
      throw Error("AuthenticationError", "the client " + refused.why);
    }
  }

 private:
  // Returns the server's proof.
  std::string Prove(const std::string& key, const std::string& token, std::string transcript) {
    std::random_device random;
    std::string nonce;
    for (int i = 0; i < 32; ++i) nonce += "0123456789abcdef"[random() & 15];
    const std::string challenge = Challenge(key, nonce);
    transcript += challenge;
    Send(challenge);
    const sha256::HmacKey secret(token);
    const auto sign = [&](const char* role) {
      const sha256::Digest digest = secret.Sign(role + std::string(1, '\0') + transcript);
      return std::string(sha256::AsText(digest));
    };
    std::string theirs;
    while (theirs.size() < kProofBytes) Receive(kProofBytes - theirs.size(), &theirs);
    if (!sha256::SameInConstantTime(theirs, sign("client"))) throw Refused{"does not know the token", ""};
    return sign("server");
  }

  // Waits until the socket is ready.
  void Await(short events) const {
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
      PORTCALL_CHECK(left > 0, SessionTimeoutError) << "the client did not end the handshake in time";
      pollfd entry{fd_, events, 0};
      const int n = poll(&entry, 1, static_cast<int>(left) + 1);
      if (n > 0) return;
      if (n < 0 && errno != EINTR) throw SystemError("cannot admit the client");
    }
  }

  void Receive(size_t most, std::string* received) const {
    char data[4096];
    for (;;) {
      Await(POLLIN);
      const ssize_t n = recv(fd_, data, std::min(most, sizeof(data)), MSG_DONTWAIT);
      if (n > 0) return (void)received->append(data, static_cast<size_t>(n));
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      throw Error("ConnectError", "the client left during the handshake");
    }
  }

  void Send(const std::string& data) const {
    for (size_t sent = 0; sent < data.size();) {
      Await(POLLOUT);
      const ssize_t n = send(fd_, data.data() + sent, data.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR)
        throw Error("ConnectError", "the client left during the handshake");
      sent += static_cast<size_t>(std::max<ssize_t>(n, 0));
    }
  }

  int fd_;
  Clock::time_point end_;
};

struct Terms {
  std::vector<std::string> patterns;
  std::string key, token;
  double timeout = 0;
  PackedFunc told;  // of what happens: what, the client's number, a text
};

// Accepts connections in a thread, and serves each in another. Threads keep it; Close ends it.
class Listening : public std::enable_shared_from_this<Listening> {
 public:
  Listening(Descriptor socket, Terms terms) : socket_(std::move(socket)), terms_(std::move(terms)) {}

  void Begin() {
    std::thread([self = shared_from_this()] { self->Accept(); }).detach();
  }

  // Ends all sessions, and waits for their threads; returns how many are still at work after that time.
  int64_t Close(double seconds) {
    Lock lock(mutex_);
    closed_ = true;
    shutdown(socket_.get(), SHUT_RDWR);  // wakes accept()
    for (int fd : clients_) shutdown(fd, SHUT_RDWR);
    const auto limit = std::chrono::milliseconds(static_cast<int64_t>(1000 * std::clamp(seconds, 0.0, 1e6)));
    gone_.wait_for(lock, limit, [this] { return clients_.empty() && !accepting_; });
    return static_cast<int64_t>(clients_.size());
  }

 private:
  void Accept() {
    for (;;) {
      Descriptor client(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      Lock lock(mutex_);
      if (closed_) break;
      if (!client) {
        if (errno == ECONNABORTED || errno == EINTR) continue;
        gone_.wait_for(lock, std::chrono::milliseconds(100), [this] { return closed_; });  // no descriptors, no memory
        continue;
      }
      if (clients_.size() >= kMostSessions) continue;  // it is told by the end of its connection
      clients_.insert(client.get());
      try {
        std::thread([self = shared_from_this(), fd = client.get(), number = ++last_] {
          self->Serve(fd, number);
        }).detach();
        (void)client.Release();
      } catch (const std::exception&) {  // no thread to be had: the client is told by the end of its connection
        clients_.erase(client.get());
      }
    }
    Lock lock(mutex_);
    accepting_ = false;
    gone_.notify_all();
  }

  void Serve(int fd, int64_t number) {
    std::string how;
    bool opened = false;
    try {
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
      std::string features;
      for (const std::string& name : Admission(fd, terms_.timeout).Run(terms_.key, terms_.token)) {
        features += (features.empty() ? "" : ",") + name;
      }
      opened = true;
      Tell("opened", number, features.empty() ? "a TVM client" : "a portcall client");
      // The session has a descriptor of its own, so that `fd` names this connection until it is forgotten.
      const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
      if (own < 0) throw SystemError("cannot serve");
      how = Registry::GetRequired("portcall.rpc.ServeSession")(own, own, terms_.patterns, int64_t{0}, nullptr, -1,
                                                               features, -1, -1, -1)
                .cast<std::string>();
    } catch (const std::exception& error) {
      how = error.what();
    }
    Tell(opened ? "ended" : "refused", number, how);
    Lock lock(mutex_);
    close(fd);
    clients_.erase(fd);
    gone_.notify_all();
  }

  void Tell(const char* what, int64_t number, const std::string& text) noexcept {
    try {
      if (terms_.told.defined()) terms_.told(what, number, text);
    } catch (const std::exception&) {  // who listens does not end a session
    }
  }

  Descriptor socket_;
  const Terms terms_;
  std::mutex mutex_;
  std::condition_variable gone_;
  std::set<int> clients_;
  int64_t last_ = 0;
  bool closed_ = false, accepting_ = true;
};

Descriptor Bind(const std::string& host, int64_t port) {
  PORTCALL_CHECK(port >= 0 && port <= 65535, ValueError) << "invalid port " << port << " (must be 0-65535)";
  const std::string where = (host.find(':') == host.npos ? host : "[" + host + "]") + ":" + std::to_string(port);
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  const int failed = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  PORTCALL_CHECK(!failed, OSError) << "cannot listen on " << where << ": " << gai_strerror(failed);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  const int yes = 1;
  Descriptor made(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made) setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (made && bind(made.get(), found->ai_addr, found->ai_addrlen) == 0 && listen(made.get(), kBacklog) == 0)
    return made;
  throw SystemError("cannot listen on " + where);
}

int64_t PortOf(const Descriptor& socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

// Serves functions whose names match `patterns` until it is closed. Returns the port, and what closes it: a function of
// the seconds to wait for sessions, which returns how many go on.
Array<Any> Listen(std::string host, int64_t port, std::vector<std::string> patterns, std::string key, std::string token,
                  double timeout, PackedFunc told) {
  PORTCALL_CHECK(key.find_first_of(kBlanks) == key.npos, ValueError) << "the key '" << key << "' contains whitespace";
  Descriptor socket = Bind(host, port);
  const int64_t bound = PortOf(socket);
  auto listening = std::make_shared<Listening>(
      std::move(socket), Terms{std::move(patterns), std::move(key), std::move(token), timeout, std::move(told)});
  listening->Begin();
  PackedFunc close(detail::Unpack([listening](double seconds) { return listening->Close(seconds); }), "close");
  return Array<Any>(std::vector<Any>{Any(bound), Any(close)});
}

[[maybe_unused]] const bool serving_registered = [] {
  // The server's half of a handshake on a socket, which stays the caller's; returns what UseFeatures takes.
  Registry::Register("portcall.rpc.Admit", true)
      .set_body_typed([](int fd, std::string key, std::string token, double timeout) {
        return Admission(fd, timeout).Run(key, token);
      });
  Registry::Register("portcall.rpc.Listen", true).set_body_typed(Listen);
  return true;
}();

}  // namespace
}  // namespace portcall::session
