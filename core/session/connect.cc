// SPDX-License-Identifier: Apache-2.0
// A client's way to a server: a socket, and the handshake (docs/wire.md, sections 1 and 8). The core opens this library at
// the first call of one of its two functions.
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
#include "facts/server.h"
#include "facts/wire.h"
#include "portcall/module.h"
#include "portcall/sha256.h"
#include "session/descriptor.h"
#include "session/files.h"
#include "session/text.h"

namespace portcall::session {

using namespace facts;
namespace {

constexpr const char* kStrange = "its answer is not of this protocol";

[[noreturn]] void FailToConnect(const std::string& address, const std::string& why) {
  throw Error("ConnectError", "cannot connect to " + address + ": " + why);
}

// A time for reading or writing; no limit where it is not positive.
void Limit(const Descriptor& socket, int option, double seconds) {
  seconds = std::clamp(seconds, 0.0, kMostSeconds);
  const auto whole = static_cast<time_t>(seconds);
  const timeval limit{whole, static_cast<suseconds_t>(1e6 * (seconds - static_cast<double>(whole)))};
  setsockopt(socket.get(), SOL_SOCKET, option, &limit, sizeof(limit));
}

// Returns 0, or the error.
int ConnectTo(int family, const void* where, socklen_t size, double timeout, Descriptor* made) {
  *made = Descriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!*made) return errno;
  Limit(*made, SO_SNDTIMEO, timeout);  // of connect(), too
  const int on = 1;
  if (family != AF_UNIX) setsockopt(made->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  while (connect(made->get(), static_cast<const sockaddr*>(where), size) != 0) {
    if (errno == EINPROGRESS || errno == EALREADY || errno == EAGAIN) return ETIMEDOUT;
    if (errno != EINTR) return errno;
    Check(TVMFFIEnvCheckSignals());
  }
  return 0;
}

// Returns a socket that blocks, and sends within the timeout.
Descriptor OpenSocket(const std::string& address, double timeout) {
  Descriptor made;
  int error = 0;
  if (address.compare(0, 5, "unix:") == 0) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    if (address.size() - 5 >= sizeof(where.sun_path)) FailToConnect(address, "its path is too long for a socket");
    address.copy(where.sun_path, sizeof(where.sun_path) - 1, 5);
    error = ConnectTo(AF_UNIX, &where, sizeof(where), timeout, &made);
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
      error = ConnectTo(one->ai_family, one->ai_addr, one->ai_addrlen, timeout, &made);
    }
  }
  if (error) FailToConnect(address, strerror(error));
  return made;
}

// The value of a word such as -auth=token; empty where there is none.
std::string OptionOf(std::string_view words, std::string_view name) {
  std::string found;
  for (const std::string& word : Split(words, " ")) {
    if (word.compare(0, name.size(), name) == 0) found = word.substr(name.size());
  }
  return found;
}

class Handshake {
 public:
  Handshake(int fd, const std::string& address, double timeout) : fd_(fd), address_(address), timeout_(timeout) {}

  // Returns those of the extensions that both sides have.
  std::vector<std::string> Run(const std::string& key, const std::string& token, const std::string& extensions) {
    const std::string words = "client:" + key + " -portcall=" + std::to_string(kExtensionVersion) +
                              " -features=" + extensions + " -nonce=" + Nonce();
    Send(bytes::BytesOf(kMagic) + bytes::BytesOf(static_cast<int32_t>(words.size())) + words);
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
    const std::vector<std::string> ours = Split(extensions, ",");
    for (const std::string& name : Split(OptionOf(reply, "-features="), ",")) {
      if (std::find(ours.begin(), ours.end(), name) != ours.end()) features.push_back(name);
    }
    return features;
  }

 private:
  static std::string Nonce() {
    std::random_device random;
    std::string text;
    for (int i = 0; i < 32; ++i) text += "0123456789abcdef"[random() & 15];
    return text;
  }

  [[noreturn]] void Refuse(const std::string& why) const { throw Error("AuthenticationError", address_ + ": " + why); }

  // After a call that failed: returns where it may be tried again.
  void CheckFailure() const {
    if (errno == EINTR) return Check(TVMFFIEnvCheckSignals());
    PORTCALL_CHECK(errno != EAGAIN, SessionTimeoutError) << address_ << " did not answer within " << timeout_ << " s";
    FailToConnect(address_, strerror(errno));
  }

  void Send(const std::string& data) {
    transcript_ += data;
    for (size_t sent = 0; sent < data.size();) {
      const ssize_t n = send(fd_, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
      if (n < 0) CheckFailure();
      else sent += static_cast<size_t>(n);
    }
  }

  std::string Read(size_t size) {
    std::string data(size, '\0');
    for (size_t done = 0; done < size;) {
      const ssize_t n = recv(fd_, data.data() + done, size - done, 0);
      const bool ended = n == 0 || (n < 0 && errno == ECONNRESET);
      if (ended && !told_.empty()) FailToConnect(address_, "waited for " + told_);
      if (ended && proving_) Refuse("the server refused the token; is it the one that it was started with?");
      if (ended) FailToConnect(address_, "the server closed the connection");
      if (n < 0) CheckFailure();
      else done += static_cast<size_t>(n);
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
      if (text.rfind(kNotOpened, 0) == 0) told_ = text;
    }
  }

  int fd_;
  const std::string& address_;
  double timeout_;
  bool proving_ = false;
  std::string transcript_;  // all bytes that both sides said
  std::string told_;        // why the server opens no session
};

// Whether objects can travel by value: libportcall_ir, if it is beside the core, saves and reads them.
bool ValuesAreKnown() {
  if (Registry::Get("portcall.rpc.ValueToBytes").defined()) return true;
  try {
    Registry::GetRequired("portcall.LoadPlugin")("ir");
  } catch (const Error& error) {
    if (error.kind() != "ModuleLoadError") throw;
  }
  if (!Registry::Get("portcall.ir.ToBytes").defined()) return false;
  RegisterValues();
  return true;
}

// (address, key, token, timeout, time of a call, whether objects travel by value, name): a session with a server at
// "host:port", "[v6]:port" or "unix:/path". `timeout` is that of each step of the handshake. The name, which messages have in
// the place of the address, and what is before it may be left out.
Module Connect(Args args) {
  const std::string address = args[0], key = args[1], token = args[2];
  const double timeout = args[3], call_timeout = args[4];
  const bool values = args.size() > 5 && args[5].cast<bool>() && ValuesAreKnown();
  const std::string name = args.size() > 6 ? args[6].cast<std::string>() : address;
  PORTCALL_CHECK(key.find_first_of(kBlanks) == key.npos, ValueError) << "the key '" << key << "' contains whitespace";
  Descriptor socket = OpenSocket(address, timeout);
  Limit(socket, SO_RCVTIMEO, timeout);
  const std::string extensions = std::string("callback,cancel,pipeline,traceback") + (values ? ",values" : "");
  const std::vector<std::string> features = Handshake(socket.get(), name, timeout).Run(key, token, extensions);
  for (int option : {SO_RCVTIMEO, SO_SNDTIMEO}) Limit(socket, option, 0);
  const int fd = socket.Release();
  auto root =
      Registry::GetRequired("portcall.rpc.ConnectFds")(fd, fd, name, call_timeout, std::vector<Any>()).cast<Module>();
  Registry::GetRequired("portcall.rpc.UseFeatures")(root, features);
  return root;
}

// They take the places of functions that open this library.
[[maybe_unused]] const bool connect_registered = [] {
  Registry::Register("portcall.rpc.Connect", true).set_body([](Args args, RetValue* rv) { *rv = Connect(args); });
  Registry::Register("portcall.rpc.OpenSocket", true).set_body_typed([](std::string address, double timeout) {
    return OpenSocket(address, timeout).Release();
  });
  return true;
}();

}  // namespace
}  // namespace portcall::session
