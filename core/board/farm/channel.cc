// SPDX-License-Identifier: Apache-2.0
#include "board/farm/channel.h"

#include <strings.h>
#include <sys/socket.h>

#include <cstdlib>

#include "board/clock.h"
#include "board/listen.h"
#include "portcall/function.h"

namespace portcall::board {
namespace {

constexpr double kConnectTimeout = 10;  // seconds
constexpr double kAnswerTimeout = 20;   // seconds beyond the time for which the farm may hold an answer back
constexpr size_t kMostHead = 64 << 10, kMostBody = 1 << 20;

// The value of a header; empty where there is none.
std::string_view HeaderOf(std::string_view head, std::string_view name) {
  for (size_t at = head.find("\r\n"); at != std::string_view::npos; at = head.find("\r\n", at + 2)) {
    std::string_view line = head.substr(at + 2, head.find("\r\n", at + 2) - at - 2);
    if (line.size() <= name.size() || line[name.size()] != ':') continue;
    if (strncasecmp(line.data(), name.data(), name.size()) != 0) continue;
    line.remove_prefix(name.size() + 1);
    return line.substr(std::min(line.find_first_not_of(' '), line.size()));
  }
  return {};
}

}  // namespace

std::string FarmAnswer::Word(const char* name) const {
  const Json* found = body.kind() == Json::Kind::kObject ? body.Find(name, "the answer") : nullptr;
  return found && found->kind() == Json::Kind::kText ? found->Text(name) : "";
}

std::string FarmChannel::address() const {
  return (host().find(':') == std::string::npos ? host() : "[" + host() + "]") + ":" + port();
}

Descriptor FarmChannel::ConnectAgain() const {
  Descriptor made(Registry::GetRequired("portcall.rpc.OpenSocket")(address(), kConnectTimeout).cast<int>());
  Tune(made.get());
  return made;
}

void FarmChannel::Connect() {
  if (socket_) return;
  for (current_ = 0;; ++current_) {
    try {
      socket_ = ConnectAgain();
      break;
    } catch (const Error& error) {
      PORTCALL_CHECK(current_ + 1 < addresses_.size(), OSError)
          << "the farm cannot be reached: " << std::string(error.message());
    }
  }
  fresh_ = true;
}

void FarmChannel::Ask(const std::string& command, double hold) {
  command_ = command;
  hold_ = hold;
  const bool kept = static_cast<bool>(socket_);
  try {
    SendRequest();
  } catch (const Error&) {
    if (!kept) throw;  // the farm had closed the connection, or has started again
    SendRequest();
  }
}

void FarmChannel::SendRequest() {
  Connect();
  std::string request = "POST /api HTTP/1.1\r\nHost: " + address() + "\r\n";
  if (!token_.empty()) request.append("Authorization: Bearer ").append(token_).append("\r\n");
  request += "Content-Type: application/json\r\nContent-Length: " + std::to_string(command_.size()) + "\r\n\r\n";
  request += command_;
  received_.clear();
  asking_ = true;
  deadline_ = Now() + hold_ + kAnswerTimeout;
  for (std::string_view rest = request; !rest.empty();) {
    const ssize_t n = send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const Error error = SystemError("the farm " + address() + " does not answer");
      Close();
      throw error;
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
}

bool FarmChannel::Receive(FarmAnswer* answer) {
  char data[16 << 10];
  const ssize_t n = recv(socket_.get(), data, sizeof(data), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    if (Now() < deadline_) return false;
    Close();
    PORTCALL_THROW(OSError) << "the farm " << address() << " does not answer";
  }
  if (n <= 0) {
    const bool kept = !fresh_ && received_.empty();
    Close();
    if (kept) return SendRequest(), false;
    PORTCALL_THROW(OSError) << "the farm " << address() << " closed the connection";
  }
  received_.append(data, static_cast<size_t>(n));
  const size_t end = received_.find("\r\n\r\n");
  const std::string_view head = std::string_view(received_).substr(0, std::min(end, received_.size()));
  const bool strange = received_.compare(0, 7, "HTTP/1.", std::min<size_t>(received_.size(), 7)) != 0;
  const std::string length(end == std::string::npos ? "" : HeaderOf(head, "content-length"));
  const size_t size = std::strtoul(length.c_str(), nullptr, 10);
  if (strange || head.size() > kMostHead || size > kMostBody) {
    Close();
    PORTCALL_THROW(OSError) << address() << " is not a farm, or needs TLS";
  }
  if (end == std::string::npos || received_.size() < end + 4 + size) return false;
  answer->status =
      head.size() > 12 ? static_cast<int>(std::strtol(std::string(head.substr(9, 3)).c_str(), nullptr, 10)) : 0;
  asking_ = fresh_ = false;
  const bool last = strncasecmp(std::string(HeaderOf(head, "connection")).c_str(), "close", 5) == 0;
  try {
    answer->body = Json::Parse(std::string_view(received_).substr(end + 4, size));
  } catch (const Error&) {
    Close();
    PORTCALL_THROW(OSError) << address() << " is not a farm: it answered with status " << answer->status;
  }
  if (last) Close();
  return true;
}

void FarmChannel::Close() {
  socket_.Close();
  asking_ = false;
}

std::string FarmChannel::LocalHost() const { return LocalAddress(socket_.get()); }

}  // namespace portcall::board
