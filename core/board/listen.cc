// SPDX-License-Identifier: Apache-2.0
#include "board/listen.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <memory>

namespace portcall::board {
namespace {

constexpr int kBacklog = 256;
constexpr int64_t kPorts = 1 << 16;
constexpr int64_t kMore = 100;  // ports that an error proposes to try

std::string HostOf(const sockaddr_storage& address, int* port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text));
    *port = ntohs(six.sin6_port);
  } else {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &four.sin_addr, text, sizeof(text));
    *port = ntohs(four.sin_port);
  }
  return text;
}

std::string AddressText(const std::string& host, int64_t port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

std::string FurtherPorts(int64_t taken) {
  if (taken + 1 >= kPorts) return "";
  return ", --port-end " + std::to_string(std::min(taken + kMore, kPorts)) + " looks further";
}

Descriptor BindTcp(const addrinfo& where) {
  const int yes = 1;
  Descriptor made(socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made) setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (made && bind(made.get(), where.ai_addr, where.ai_addrlen) == 0 && listen(made.get(), kBacklog) == 0) return made;
  return Descriptor();
}

Listener ListenTcp(const Options& options) {
  std::string host = options.host;
  if (!host.empty() && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  for (int64_t port = options.port;; ++port) {
    addrinfo wanted{}, *found = nullptr;
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_PASSIVE;
    const int failed =
        getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &wanted, &found);
    PORTCALL_CHECK(!failed, OSError) << "cannot listen on " << AddressText(host, port) << ": " << gai_strerror(failed);
    std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
    const addrinfo* best = found;  // of several addresses of a name, the one of the protocol that most clients speak
    for (const addrinfo* one = found; one; one = one->ai_next) {
      if (one->ai_family == AF_INET && best->ai_family != AF_INET) best = one;
    }
    Listener made;
    made.socket = BindTcp(*best);
    if (made.socket) {
      sockaddr_storage bound{};
      socklen_t size = sizeof(bound);
      getsockname(made.socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
      made.host = HostOf(bound, &made.port);
      made.address = AddressText(made.host, made.port);
      return made;
    }
    if (errno != EADDRINUSE) throw SystemError("cannot listen on " + AddressText(host, port));
    PORTCALL_CHECK(port + 1 < options.port_end, OSError)
        << "port " << port << " of " << host << " is taken; --port takes another\n  next: --port 0 takes a free one"
        << FurtherPorts(port);
  }
}

Listener ListenUnix(const std::string& path) {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  PORTCALL_CHECK(path.size() < sizeof(where.sun_path), OSError) << "cannot listen on " << path << ": path too long";
  path.copy(where.sun_path, sizeof(where.sun_path) - 1);
  const auto* address = reinterpret_cast<const sockaddr*>(&where);
  struct stat facts{};
  if (lstat(path.c_str(), &facts) == 0) {  // one that a server left behind is deleted
    PORTCALL_CHECK(S_ISSOCK(facts.st_mode), OSError) << "cannot listen on " << path << ": there is a file of that name";
    Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(probe.get(), address, sizeof(where)) != 0 && errno == ECONNREFUSED) unlink(path.c_str());
  }
  Listener made;
  made.address = "unix:" + path;
  made.socket = Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const mode_t before = umask(0177);
  const bool bound = bind(made.socket.get(), address, sizeof(where)) == 0 && listen(made.socket.get(), kBacklog) == 0;
  const int error = errno;
  umask(before);
  if (!bound) throw SystemError("cannot listen on " + path, error);
  return made;
}

}  // namespace

Listener Listen(const Options& options) {
  return options.unix_path.empty() ? ListenTcp(options) : ListenUnix(options.unix_path);
}

std::string PeerName(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size);
  if (peer.ss_family != AF_UNIX) {
    int port = 0;
    std::string host = HostOf(peer, &port);
    return AddressText(host, port);
  }
  struct {
    int32_t pid, uid, gid;
  } who{};
  socklen_t length = sizeof(who);
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length);
  return "process " + std::to_string(who.pid) + " of user " + std::to_string(who.uid);
}

std::string LocalAddress(int socket) {
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  getsockname(socket, reinterpret_cast<sockaddr*>(&local), &size);
  int port = 0;
  return HostOf(local, &port);
}

void Tune(int socket) {
  const int yes = 1, idle = kSilence / 2, interval = kSilence / 8, count = 4;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

bool IsSilent(int socket, int milliseconds) {
  tcp_info facts{};
  socklen_t size = sizeof(facts);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &facts, &size) != 0) return false;  // a Unix socket
  const int asked = std::max(facts.tcpi_retransmits, facts.tcpi_probes);            // again, without an answer
  return asked > kUnanswered && facts.tcpi_last_ack_recv > static_cast<uint32_t>(milliseconds);
}

}  // namespace portcall::board
