// SPDX-License-Identifier: Apache-2.0
// The supervisor's way from a connection to a session.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdio>

#include "board/supervisor.h"
#include "portcall/sha256.h"
#include "session/admission.h"

namespace portcall::board {

using namespace sha256;
namespace {

constexpr double kOverloadPause = 0.1;

}  // namespace

void Supervisor::OnAccept() {
  const int fd = accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0 && (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR)) return;
  if (fd < 0) {  // no descriptors, no memory, or an error of the network that came with a connection
    log_.Write(Event::kOverload,
               "cannot accept a connection: " + WithRemedy(strerror(errno)) + "; trying again in 0.1 s");
    accept_after_ = Now() + kOverloadPause;
    return;
  }
  Begin(Descriptor(fd));
}

void Supervisor::Begin(Descriptor socket) {
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  connection->number = ++last_number_;
  connection->peer = PeerName(connection->socket.get());
  connection->since = Now();
  connection->deadline = connection->since + options_.handshake_timeout;
  connections_.emplace(connection->number, std::move(connection));
}

// Where silent connections take all the room, the oldest of them is ended.
void Supervisor::MakeRoom() {
  if (!IsCrowded()) return;
  for (const auto& [number, connection] : connections_) {
    if (connection->state > State::kProving) continue;
    if (Now() - connection->since > kStaleHandshake) Drop(connection.get(), {"crowded"});
    return;
  }
}

void Supervisor::Receive(Connection* connection) {
  const bool greeting = connection->state == State::kGreeting;
  std::string& received = connection->received;
  size_t missing = greeting ? MissingOfHello(received) : kProofBytes - received.size();
  while (missing) {
    char data[4096];
    const ssize_t n = recv(connection->socket.get(), data, std::min(missing, sizeof(data)), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return Drop(connection, {"left"});
    received.append(data, static_cast<size_t>(n));
    try {
      missing = greeting ? MissingOfHello(received) : kProofBytes - received.size();
    } catch (const Error& error) {  // another protocol: it is not answered
      return Refuse(connection, std::string(error.message()), "");
    }
  }
  return greeting ? OnHello(connection) : OnProof(connection);
}

void Supervisor::OnHello(Connection* connection) {
  Hello hello;
  double limit = 0;
  try {
    hello = ParseHello(connection->received);
    limit = hello.Timeout();
    connection->portcall = hello.portcall();
    if (hello.portcall() && hello.options.count("reason")) {
      const std::string question = hello.options["reason"];
      const size_t dot = std::min(question.find('.'), question.size());
      Words answer = {{"ended", std::string(kUnknown)}};
      for (const auto& [number, ending] : ended_) {
        if (std::to_string(number) != question.substr(0, dot)) continue;
        if (SameInConstantTime(secrets_->OfSession(number), question.substr(std::min(dot + 1, question.size())))) {
          answer = ending.Answer();
        }
      }
      SendNow(connection, Reply(options_.key, answer));
      return Forget(connection);
    }
    CheckVersion(hello, options_.key);
    if (options_.farm.empty()) CheckKey(hello, options_.key, secrets_->has_token());
  } catch (const Refused& refused) {
    return Refuse(connection, refused.why, refused.answer);
  } catch (const Error& error) {
    return Refuse(connection, std::string(error.message()), Refusal());
  }
  if (hello.portcall()) connection->features = hello.Features();
  if (!options_.farm.empty()) {
    connection->limit = limit;
    return AdmitFromFarm(connection, hello.key);
  }
  const bool both = limit > 0 && options_.session_timeout > 0;
  connection->limit = both ? std::min(limit, options_.session_timeout) : std::max(limit, options_.session_timeout);
  if (!secrets_->has_token()) return Enqueue(connection);
  const std::string reply = Challenge(options_.key, secrets_->Nonce());
  connection->transcript = connection->received + reply;
  connection->received.clear();
  connection->state = State::kProving;
  SendNow(connection, reply);
}

void Supervisor::OnProof(Connection* connection) {
  const std::string proof = secrets_->Proof("client", connection->transcript);
  if (!SameInConstantTime(connection->received, proof)) return Refuse(connection, "does not know the token", "");
  Enqueue(connection);
}

// ---- The queue ------------------------------------------------------------------------------------------------------

void Supervisor::Enqueue(Connection* connection) {
  connection->deadline = 0;
  connection->state = State::kWaiting;
  queue_.push_back(connection->number);
  ServeQueue();
}

// Opens as many sessions as there is room for, in order, and tells the other clients their place.
void Supervisor::ServeQueue() {
  const auto limit = static_cast<size_t>(options_.max_sessions);
  while (!queue_.empty() && !stop_signal_ && (!limit || Count(State::kServing, State::kServing) < limit)) {
    const int number = queue_.front();
    queue_.pop_front();
    Guard(number, [&] {
      if (Connection* connection = Find(number)) Open(connection);
    });
  }
  const std::deque<int> waiting = queue_;
  for (size_t i = 0; i < waiting.size(); ++i) {
    Connection* connection = Find(waiting[i]);
    if (!connection || connection->place == i + 1) continue;
    const std::string place = std::to_string(i + 1);
    connection->place = i + 1;
    if (i + 1 == waiting.size()) {
      log_.Write(Event::kWaiting, connection->peer + " waits in place " + place, connection->number,
                 {{"place", place}});
    }
    if (connection->portcall) {
      SendNow(connection,
              Notice("the server is full (" + std::to_string(limit) + (limit == 1 ? " session" : " sessions") +
                     "); you are number " + place + " in its queue"));
    }
  }
}

void Supervisor::Open(Connection* connection) {
  const std::string proof = secrets_->has_token() ? secrets_->Proof("server", connection->transcript) : std::string();
  Fork(connection,
       Welcome(options_.key, connection->portcall, connection->features,
               {{"session", std::to_string(connection->number)}, {"secret", secrets_->OfSession(connection->number)}},
               proof));
  connection->state = State::kServing;
  connection->received.clear();
  connection->transcript.clear();
  connection->deadline = connection->limit > 0 ? Now() + connection->limit : 0;
  keeper_.SessionBegins(connection->number, connection->pid);
  char limit[64] = "";
  if (connection->limit > 0) snprintf(limit, sizeof(limit), ", for at most %g s", connection->limit);
  const std::string kind = connection->portcall ? "portcall" : "TVM";
  log_.Write(Event::kOpened, "opened for " + connection->peer + ", a " + kind + " client" + limit, connection->number,
             {{"peer", Quoted(connection->peer)}, {"client", Quoted(kind)}});
  if (connection->fence) gate_.Send({GateMessage::kOpened, connection->number, connection->fence});
}

// Gives a connection to a new process, which answers the client.
void Supervisor::Fork(Connection* connection, const std::string& reply) {
  const std::string directory = SessionDirectory(base_.path, connection->number);
  const auto fail = [&](const char* what) {
    const Error error = SystemError(what);
    rmdir(directory.c_str());
    throw error;
  };
  connection->progress = Descriptor(static_cast<int>(syscall(SYS_memfd_create, "portcall-progress", 1 /* CLOEXEC */)));
  if (!connection->progress || ftruncate(connection->progress.get(), sizeof(Progress)) != 0)
    fail("cannot share memory");
  if (mkdir(directory.c_str(), 0700) != 0) fail("cannot make the session's directory");
  int ends[2];
  if (!connection->features.empty()) {
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail("cannot make a pipe");
    for (int i : {0, 1}) connection->errors[i] = Descriptor(ends[i]);
    fcntl(ends[1], F_SETFL, 0);  // writes block while the pipe is full
  }
  const pid_t parent = getpid();
  const auto fork = [&] {
    const pid_t pid = secrets_->Fork();
    if (pid < 0) throw SystemError("cannot start a process");
    return pid;
  };
  try {
    const Sandbox::Started made = session_.sandbox ? session_.sandbox->Start(fork) : Sandbox::Started{fork(), 0};
    connection->pid = made.session;
    connection->first = made.first;
  } catch (const Error&) {
    rmdir(directory.c_str());
    throw;
  }
  if (connection->pid > 0) return connection->errors[1].Close();
  SessionStart start = LeaveSupervisor(connection);
  start.reply = reply;
  start.parent = parent;
  _exit(RunSession(std::move(start), session_));
}

void Supervisor::Refuse(Connection* connection, const std::string& why, const std::string& answer) {
  log_.Write(Event::kRefused, "refused: " + connection->peer + " " + why, connection->number,
             {{"peer", Quoted(connection->peer)}});
  if (!answer.empty()) SendNow(connection, answer);
  Forget(connection);
}

// What is sent fits into an empty buffer; a client that does not read is its own fault.
void Supervisor::SendNow(Connection* connection, const std::string& data) {
  const ssize_t n = send(connection->socket.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  const bool gone = n < 0 && (errno == EPIPE || errno == ECONNRESET);  // that is another event
  PORTCALL_CHECK(gone || n == static_cast<ssize_t>(data.size()), OSError) << "the client takes no answer";
}

}  // namespace portcall::board
