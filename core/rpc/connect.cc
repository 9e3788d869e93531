// SPDX-License-Identifier: Apache-2.0
// A client's way to a server: a socket, and the handshake (docs/wire.md, sections 1 and 8).
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

#include "bytes/byte_order.h"
#include "facts/wire.h"
#include "portcall/sha256.h"
#include "rpc/channel.h"
#include "rpc/remote_objects.h"

namespace portcall::rpc {
namespace {

constexpr const char* kStrange = "its answer is not of this protocol";

[[noreturn]] void FailToConnect(const std::string& address, const std::string& why) {
  throw Error("ConnectError", "cannot connect to " + address + ": " + why);
}

struct Socket {
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  // Returns 0, or the error.
  int Connect(int family, const void* where, socklen_t size, double timeout) {
    if (fd >= 0) close(fd);
    fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    timeout = std::clamp(timeout, 0.0, kMostSeconds);
    const auto seconds = static_cast<time_t>(timeout);
    const timeval limit{seconds, static_cast<suseconds_t>(1e6 * (timeout - static_cast<double>(seconds)))};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // of connect(), too
    const int on = 1;
    if (family != AF_UNIX) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    while (connect(fd, static_cast<const sockaddr*>(where), size) != 0) {
      if (errno == EINPROGRESS || errno == EALREADY || errno == EAGAIN) return ETIMEDOUT;
      if (errno != EINTR) return errno;
      Check(TVMFFIEnvCheckSignals());
    }
    return 0;
  }

  int fd = -1;
};

// Returns a socket that blocks, and sends within the timeout.
int OpenSocket(std::string address, double timeout) {
  Socket made;
  int error = 0;
  if (address.compare(0, 5, "unix:") == 0) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    if (address.size() - 5 >= sizeof(where.sun_path)) FailToConnect(address, "its path is too long for a socket");
    address.copy(where.sun_path, sizeof(where.sun_path) - 1, 5);
    error = made.Connect(AF_UNIX, &where, sizeof(where), timeout);
  } else {
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos) FailToConnect(address, "it is not of the form host:port or unix:/path");
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    addrinfo wanted{}, *found = nullptr;
    wanted.ai_socktype = SOCK_STREAM;
    const int failed = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &wanted, &found);
    if (failed) FailToConnect(address, gai_strerror(failed));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
    for (const addrinfo* one = found; one && (one == found || error); one = one->ai_next) {
      error = made.Connect(one->ai_family, one->ai_addr, one->ai_addrlen, timeout);
    }
  }
  if (error) FailToConnect(address, strerror(error));
  return std::exchange(made.fd, -1);
}

// Calls take(part) for each part of a text.
template <typename Take> void Split(std::string_view text, char separator, Take take) {
  for (;;) {
    const size_t end = text.find(separator);
    take(text.substr(0, end));
    if (end == text.npos) return;
    text.remove_prefix(end + 1);
  }
}

// The value of a word such as -auth=token; empty where there is none.
std::string_view OptionOf(std::string_view words, std::string_view name) {
  std::string_view found;
  Split(words, ' ', [&](std::string_view word) {
    if (word.substr(0, name.size()) == name) found = word.substr(name.size());
  });
  return found;
}

class Handshake {
 public:
  Handshake(Channel* channel, const std::string& address, double timeout)
      : channel_(channel), address_(address), timeout_(timeout) {}

  // Returns the extensions that both sides have.
  std::vector<std::string> Run(const std::string& key, const std::string& token) {
    const std::string words = "client:" + key + " -portcall=" + std::to_string(kExtensionVersion) +
                              " -features=callback,pipeline -nonce=" + Nonce();
    Send(Number(kMagic) + Number(static_cast<int32_t>(words.size())) + words);
    std::string reply = ReadReply(key);
    const bool asked = OptionOf(reply, "-auth=") == "token";
    if (asked != !token.empty()) {
      Refuse(asked ? "the server asks for a token" : "the server does not ask for the token, so it may be another one");
    }
    if (asked) {
      const sha256::HmacKey secret(token);
      const std::string transcript = transcript_;
      const auto sign = [&](const char* role) { return secret.Sign(role + std::string(1, '\0') + transcript); };
      Send(std::string(sha256::AsText(sign("client"))));
      proving_ = true;
      reply = ReadReply(key);
      if (!sha256::SameInConstantTime(OptionOf(reply, "-proof="), sha256::Hex(sign("server")))) {
        Refuse("the server does not know the token");
      }
    }
    std::vector<std::string> features;
    Split(OptionOf(reply, "-features="), ',', [&](std::string_view name) {
      if (name == "callback" || name == "pipeline") features.emplace_back(name);
    });
    return features;
  }

 private:
  static std::string Nonce() {
    std::random_device random;
    std::string text;
    for (int i = 0; i < 32; ++i) text += "0123456789abcdef"[random() & 15];
    return text;
  }
  static std::string Number(int32_t value) {
    value = bytes::Ordered(value);
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }

  [[noreturn]] void Refuse(const std::string& why) const { throw Error("AuthenticationError", address_ + ": " + why); }

  void Send(const std::string& data) {
    transcript_ += data;
    for (size_t sent = 0; sent < data.size();) {
      sent += channel_->Send({{data.data() + sent, data.size() - sent}}, DeadlineIn(timeout_));
    }
  }

  std::string Read(size_t size) {
    std::string data(size, '\0');
    for (size_t done = 0; done < size;) {
      const size_t n = channel_->Receive(data.data() + done, size - done, DeadlineIn(timeout_));
      if (n == 0 && proving_) Refuse("the server refused the token; is it the one that it was started with?");
      if (n == 0) FailToConnect(address_, "the server closed the connection");
      done += n;
    }
    transcript_ += data;
    return data;
  }

  // The words of the server's reply; notices before it say what it waits for.
  std::string ReadReply(const std::string& key) {
    for (;;) {
      const auto code = bytes::NumberAt<int32_t>(Read(4).data());
      if (code == kMismatch || code == kDuplicate) FailToConnect(address_, "it does not have the key '" + key + "'");
      if (code != kMagic && code != kNotice) FailToConnect(address_, kStrange);
      const auto size = bytes::NumberAt<uint32_t>(Read(4).data());
      if (size > kMaxKeyBytes) FailToConnect(address_, kStrange);
      std::string text = Read(size);
      if (code == kMagic) return text;
    }
  }

  Channel* channel_;
  const std::string& address_;
  double timeout_;
  bool proving_ = false;
  std::string transcript_;  // all bytes that both sides said
};

// A session with a server at "host:port", "[v6]:port" or "unix:/path"; `timeout` is that of each step of the handshake.
Module Connect(std::string address, std::string key, std::string token, double timeout, double call_timeout) {
  PORTCALL_CHECK(key.find_first_of(kBlanks) == key.npos, ValueError) << "the key '" << key << "' contains whitespace";
  const int fd = OpenSocket(address, timeout);
  std::unique_ptr<Channel> channel = MakeFdChannel(fd, fd, true);
  std::vector<std::string> features;
  try {
    features = Handshake(channel.get(), address, timeout).Run(key, token);
  } catch (const Error& error) {
    if (error.kind() == "SessionBrokenError") FailToConnect(address, std::string(error.message()));
    if (error.kind() != "SessionTimeoutError") throw;
    PORTCALL_THROW(SessionTimeoutError) << address << " did not answer within " << timeout << " s";
  }
  Module root = OpenSession(std::move(channel), address, call_timeout, {});
  UseFeatures(root, features);
  return root;
}

PORTCALL_REGISTER_GLOBAL("portcall.rpc.Connect").set_body_typed(Connect);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.OpenSocket").set_body_typed(OpenSocket);

}  // namespace
}  // namespace portcall::rpc
