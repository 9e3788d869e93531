// SPDX-License-Identifier: Apache-2.0
#include "board/supervisor.h"

#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <set>

namespace portcall::board {
namespace {

constexpr double kStopTimeout = 5;  // for the processes of sessions to end
constexpr int kLongestWait = 3600;

sigset_t OurSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  struct sigaction hangup{};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN) sigdelset(&set, SIGHUP);  // nohup
  return set;
}

// Readers see all of the text or no file.
void WriteWhole(const std::string& path, const std::string& text) {
  const std::string beside = path + "." + std::to_string(getpid());
  const Descriptor file(open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  const bool written = file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (written && rename(beside.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  unlink(beside.c_str());
  throw SystemError("cannot write '" + path + "'", error);
}

}  // namespace

Supervisor::Supervisor(Options options, Secrets* secrets, LogStyle style)
    : options_(session_.server), secrets_(secrets), log_(style) {
  session_.server = std::move(options);
}

int Supervisor::Run() {
  Prepare();
  if (options_.farm.empty()) Announce();
  else StartAgent();
  while (!stop_signal_) Step();
  ShutDown();
  PORTCALL_CHECK(failure_.empty(), RPCError) << failure_;
  return stop_signal_;
}

// ---- Beginning and end ----------------------------------------------------------------------------------------------

void Supervisor::Prepare() {
  PORTCALL_CHECK(options_.Local() || secrets_->has_token() || options_.insecure || !options_.farm.empty(), ValueError)
      << "anyone who reaches " << options_.host << " could run any code here: give --token-file FILE (or "
      << "PORTCALL_TOKEN); or say --insecure in a network that you trust";
  listener_ = Listen(options_);
  signal(SIGCHLD, SIG_DFL);  // where who started us ignores it, the ends of processes would not be told
  if (!options_.sandbox.empty()) {
    session_.sandbox = std::make_unique<Sandbox>();
    session_.sandbox->Check(options_.sandbox);
    session_.sandbox->Prepare();
  }
  session_.patterns = LoadLibraries(options_);
  const sigset_t ours = OurSignals();
  sigprocmask(SIG_BLOCK, &ours, &session_.signals);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // what was loaded may ignore it, too
  signals_ = Descriptor(signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
  int ends[2];
  if (!signals_ || pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot start");
  output_read_ = Descriptor(ends[0]);
  output_write_ = Descriptor(ends[1]);
  fcntl(output_read_.get(), F_SETFL, O_NONBLOCK);
  getrlimit(RLIMIT_NOFILE, &session_.files);
  const rlimit most{session_.files.rlim_max, session_.files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &most);
  base_ = MakeBaseDirectory(options_.work_dir);
  StartKeeper();
  GiveBackCode();
}

void Supervisor::StartKeeper() {
  KeeperTask task{base_.path, options_.work_dir, static_cast<uint64_t>(options_.disk_limit), {}, {}};
  std::set<std::string> used = {ContentsDirectory(base_.path)};
  for (const auto& [number, connection] : connections_) {
    if (connection->state != State::kServing) continue;
    task.sessions[number] = connection->pid;
    used.insert(SessionDirectory(base_.path, number));
  }
  // Listed here, where no session can begin meanwhile.
  ForEachName(base_.lock.get(), [&](const char* name) {
    const std::string directory = base_.path + "/" + name;
    if (!used.count(directory)) task.left.push_back(directory);
    return true;
  });
  Descriptor theirs = keeper_.Connect();
  const pid_t pid = secrets_->Fork();
  if (pid < 0) throw SystemError("cannot start a process");
  if (pid == 0) {
    keeper_.Close();
    Descriptor lock = std::move(base_.lock);
    Connection none;
    LeaveSupervisor(&none);
    RunKeeper(theirs, std::move(task));
    _exit(0);
  }
  keeper_.Started(pid);
}

void Supervisor::Announce() {
  announced_ = true;
  if (!options_.Local() && !secrets_->has_token() && options_.farm.empty()) {
    log_.Write(Event::kInsecure,
               "--insecure: anyone who reaches " + listener_.address + " can run any code as this user");
  }
  if (session_.sandbox) {
    log_.Write(Event::kSandbox, session_.sandbox->Report(), 0, {{"open", Quoted(Join(session_.sandbox->Open()))}});
  }
  log_.Write(Event::kListening, "ready for clients with the key '" + options_.key + "'", 0,
             {{"address", Quoted(listener_.address)}});
  const std::string host = listener_.host.empty() ? listener_.address : listener_.host;
  const std::string facts = "{\"host\": " + Quoted(host) + ", \"port\": " + std::to_string(listener_.port) +
                            ", \"address\": " + Quoted(listener_.address) + ", \"pid\": " + std::to_string(getpid()) +
                            "}\n";
  if (!options_.ready_file.empty()) WriteWhole(options_.ready_file, facts);
  printf("%s", options_.json ? facts.c_str() : ("listening on " + listener_.address + "\n").c_str());
  fflush(stdout);
}

// Ends all sessions and waits for their processes; the keeper deletes what they left, or the next server's.
void Supervisor::ShutDown() {
  size_t sessions = Count(State::kServing, State::kServing);
  if (sessions)
    log_.Write(Event::kStopping, "ending " + std::to_string(sessions) + (sessions == 1 ? " session" : " sessions"));
  listener_.socket.Close();
  if (!options_.unix_path.empty()) unlink(options_.unix_path.c_str());
  if (announced_ && !options_.ready_file.empty()) unlink(options_.ready_file.c_str());
  for (const auto& [number, connection] : connections_) {
    if (connection->pid) Kill(connection.get(), {"stopped"});
  }
  if (gate_.pid()) gate_.Send({GateMessage::kStop, 0, 0});
  const double until = Now() + kStopTimeout;
  while ((gate_.pid() || Count(State::kServing, State::kServing)) && Now() < until) Step();
  if (gate_.pid()) kill(gate_.pid(), SIGKILL);
  connections_.clear();
  lingering_.clear();
  OnOutput();
  log_.EndOutput();
  EndKeeper();
  log_.Write(Event::kStopped, "stopped");
}

void Supervisor::EndKeeper() {
  keeper_.Close();
  const double until = Now() + kDeleteTimeout;
  while (keeper_.pid() && waitpid(keeper_.pid(), nullptr, WNOHANG) == 0) {
    pollfd ended{signals_.get(), POLLIN, 0};
    poll(&ended, 1, static_cast<int>(1000 * std::max(0.0, until - Now())) + 1);
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) > 0) {
    }
    if (Now() < until) continue;
    kill(keeper_.pid(), SIGKILL);
    waitpid(keeper_.pid(), nullptr, 0);
    log_.Write(Event::kLeft, "files are left in " + base_.path + "; the next server in this place deletes them");
    return;
  }
}

// In a child: closes all that is the supervisor's, and forgets the other clients.
SessionStart Supervisor::LeaveSupervisor(Connection* connection) {
  SessionStart start;
  start.client = std::move(connection->socket);
  start.progress = std::move(connection->progress);
  start.log = output_write_.Release();
  start.features = Join(connection->features);
  for (int i : {0, 1}) start.errors[i] = std::move(connection->errors[i]);
  start.directory = SessionDirectory(base_.path, connection->number);
  start.contents = ContentsDirectory(base_.path);
  connections_.clear();
  lingering_.clear();
  keeper_.Close();
  gate_.Close();
  for (Descriptor* own : {&listener_.socket, &signals_, &output_read_, &base_.lock}) own->Close();
  return start;
}

// ---- Events ---------------------------------------------------------------------------------------------------------

void Supervisor::Step() {
  MakeRoom();
  std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}, {output_read_.get(), POLLIN, 0}};
  polled.push_back({keeper_.fd(), static_cast<short>(keeper_.waiting() ? POLLIN | POLLOUT : POLLIN), 0});
  polled.push_back({gate_.fd(), static_cast<short>(gate_.waiting() ? POLLIN | POLLOUT : POLLIN), 0});
  const bool room = !IsCrowded() && Now() >= accept_after_;
  polled.push_back({room ? listener_.socket.get() : -1, POLLIN, 0});
  double next = Now() + kLongestWait;
  if (accept_after_ > Now()) next = std::min(next, accept_after_);
  if (!room) next = std::min(next, Now() + kStaleHandshake);
  for (double after : {keeper_after_, agent_after_, connections_.empty() ? 0 : look_after_}) {
    if (after > 0) next = std::min(next, after);
  }
  std::vector<int> numbers;
  for (const auto& [number, connection] : connections_) {
    const bool reads = connection->state == State::kGreeting || connection->state == State::kProving;
    numbers.push_back(number);
    polled.push_back({connection->gone ? -1 : connection->socket.get(),
                      static_cast<short>(reads ? POLLIN | POLLRDHUP : POLLRDHUP), 0});
    if (connection->deadline > 0) next = std::min(next, connection->deadline);
  }
  for (const Lingering& one : lingering_) next = std::min(next, one.deadline);
  const int wait = static_cast<int>(std::max(0.0, next - Now()) * 1000) + 1;
  if (poll(polled.data(), polled.size(), wait) < 0 && errno != EINTR) return;
  if (polled[1].revents) Guard(0, [&] { OnOutput(); });
  if (polled[2].revents) Guard(0, [&] { OnKeeper(); });
  if (polled[3].revents) Guard(0, [&] { OnAgent(); });
  for (size_t i = 0; i < numbers.size(); ++i) {
    const short events = polled[5 + i].revents;
    if (!events) continue;
    Guard(numbers[i], [&] {
      if (Connection* connection = Find(numbers[i])) OnClient(connection, events);
    });
  }
  if (polled[0].revents) Guard(0, [&] { OnSignal(); });
  if (polled[4].revents) Guard(0, [&] { OnAccept(); });
  OnDeadlines();
}

// An error ends the connection that the event belonged to, and no other.
void Supervisor::Guard(int number, const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    const std::string why = WithRemedy(error.what());
    if (Connection* connection = Find(number)) return Kill(connection, {"failed", {}, 0, why});
    log_.Write(Event::kError, "the server goes on after an error: " + why);
  }
}

void Supervisor::OnSignal() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) stop_signal_ = static_cast<int>(info.ssi_signo);
  }
  Reap();
}

void Supervisor::OnOutput() {
  char data[16 << 10];
  for (ssize_t left = kMostRest, n; left > 0 && (n = read(output_read_.get(), data, sizeof(data))) > 0; left -= n) {
    log_.Output({data, static_cast<size_t>(n)});
    if (n < static_cast<ssize_t>(sizeof(data))) break;
  }
}

void Supervisor::OnKeeper() {
  keeper_.SendWaiting();
  Connection* connection = Find(keeper_.Receive());
  if (connection) Kill(connection, {"disk", {}, 0, std::to_string(options_.disk_limit) + " bytes"});
}

void Supervisor::Reap() {
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid) {
    const pid_t pid = info.si_pid;
    int status = 0;
    if (pid != keeper_.pid() && pid != gate_.pid())
      kill(-pid, SIGKILL);  // what the session started, before its number can be another's
    waitpid(pid, &status, 0);
    info = {};
    if (pid == keeper_.pid()) {
      log_.Write(Event::kRestart, "the process that keeps the directories ended; starting another one");
      keeper_.Started(0);
      keeper_.Close();
      keeper_after_ = Now() + kPause;
      continue;
    }
    if (pid == gate_.pid()) {
      OnAgentEnded();
      continue;
    }
    for (const auto& [number, connection] : connections_) {
      if (connection->first == pid) connection->first = 0;
      if (connection->pid != pid) continue;
      Finish(connection.get(), status);
      break;
    }
  }
  Guard(0, [&] { ServeQueue(); });
}

void Supervisor::OnDeadlines() {
  const double now = Now();
  lingering_.remove_if([&](const Lingering& one) { return one.deadline <= now; });
  if (look_after_ <= now) LookForSilence();
  Restart(&keeper_after_, &Supervisor::StartKeeper);
  Restart(&agent_after_, &Supervisor::StartAgent);
  for (auto next = connections_.begin(); next != connections_.end();) {
    Connection* connection = (next++)->second.get();  // it may be erased
    if (connection->deadline <= 0 || connection->deadline > now) continue;
    const bool serves = connection->state == State::kServing;
    char limit[32];
    snprintf(limit, sizeof(limit), "%g s", serves ? connection->limit : options_.handshake_timeout);
    const Ending ending{serves ? "expired" : "silent", {}, 0, limit};
    Kill(connection, connection->killed.how.empty() ? ending : connection->killed);
  }
}

// Ends the sessions of clients whose machine is gone while bytes are on their way to it: TCP sends no keepalive then, and
// repeats the bytes for a quarter of an hour.
void Supervisor::LookForSilence() {
  look_after_ = Now() + kSilenceInterval;
  for (const auto& [number, connection] : connections_) {
    if (connection->state != State::kServing || connection->gone) continue;
    if (!IsSilent(connection->socket.get(), 1000 * kSilence)) continue;
    log_.Write(Event::kSilent, connection->peer + " has acknowledged nothing for " + std::to_string(kSilence) + " s",
               number);
    shutdown(connection->socket.get(), SHUT_RDWR);
  }
}

// Starts a process again whose time has come; `after` is 0 for none.
void Supervisor::Restart(double* after, void (Supervisor::*start)()) {
  if (*after <= 0 || *after > Now() || stop_signal_) return;
  *after = Now() + kPause;
  Guard(0, [&] {
    (this->*start)();
    *after = 0;
  });
}

void Supervisor::OnClient(Connection* connection, short events) {
  if ((connection->state == State::kGreeting || connection->state == State::kProving) && (events & POLLIN)) {
    return Receive(connection);
  }
  if (!(events & (POLLRDHUP | POLLHUP | POLLERR))) return;
  connection->gone = true;
  if (connection->state != State::kServing) return Drop(connection, {"left"});
  if (connection->deadline <= 0 || Now() + options_.lost_client_grace < connection->deadline) {
    connection->deadline = Now() + options_.lost_client_grace;
    if (connection->killed.how.empty()) connection->killed = {"abandoned"};
  }
}

// ---- Ends -----------------------------------------------------------------------------------------------------------

void Supervisor::Kill(Connection* connection, Ending why) {
  if (connection->state != State::kServing) return Drop(connection, why);
  connection->killed = std::move(why);
  connection->deadline = Now() + kKillAgain;
  kill(connection->pid, SIGKILL);
}

// The end of a connection that has no session yet.
void Supervisor::Drop(Connection* connection, const Ending& ending) {
  log_.Write(Event::kDropped, connection->peer + " " + ending.Text(), connection->number,
             {{"peer", Quoted(connection->peer)}, {"how", Quoted(ending.how)}});
  if (connection->portcall && ending.how == "failed") {
    const bool known = connection->state > State::kProving;
    const std::string notice = Notice(std::string(kNotOpened).append(known ? ending.detail : kSeeLog));
    send(connection->socket.get(), notice.data(), notice.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  Forget(connection);
  ServeQueue();
}

void Supervisor::Finish(Connection* connection, int status) {
  if (connection->first) kill(connection->first, SIGKILL);
  Progress progress;
  if (pread(connection->progress.get(), &progress, sizeof(progress), 0) != sizeof(progress)) progress = {};
  const Ending ending = EndingOf(status, progress, connection->killed, ReadRest(connection->errors[0].get()));
  ended_.emplace_back(connection->number, ending);
  if (ended_.size() > kMostEnded) ended_.pop_front();
  char seconds[32];
  snprintf(seconds, sizeof(seconds), "%.3f", Now() - connection->since);
  log_.Write(Event::kEnded, "ended after " + std::string(seconds, strlen(seconds) - 2) + " s: " + ending.Text(),
             connection->number,
             {{"peer", Quoted(connection->peer)},
              {"how", Quoted(ending.how)},
              {"signal", Quoted(ending.signal)},
              {"code", std::to_string(ending.code)},
              {"seconds", seconds},
              {"received", std::to_string(progress.received)},
              {"sent", std::to_string(progress.sent)}});
  if (connection->fence) {
    GateMessage closed(GateMessage::kClosed, connection->number, connection->fence);
    closed.SetText(ending.Text());
    gate_.Send(closed);
  }
  const std::string message =
      progress.state == kBetween ? LastMessage(ending, connection->portcall, connection->limit) : std::string();
  if (!message.empty()) {
    send(connection->socket.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(connection->socket.get(), SHUT_WR);
    lingering_.push_back({std::move(connection->socket), Now() + kLinger});
  }
  const std::string directory = SessionDirectory(base_.path, connection->number);
  rmdir((directory + "/files").c_str());
  rmdir((directory + "/tmp").c_str());
  rmdir(directory.c_str());
  keeper_.SessionEnded(connection->number);  // the keeper deletes what is left
  Forget(connection);
}

void Supervisor::Forget(Connection* connection) {
  queue_.erase(std::remove(queue_.begin(), queue_.end(), connection->number), queue_.end());
  connections_.erase(connection->number);
  if (gate_.fd() >= 0) ReportEndedLeases();
}

size_t Supervisor::Count(State from, State to) const {
  return static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
    return entry.second->state >= from && entry.second->state <= to;
  }));
}

bool Supervisor::IsCrowded() const {
  return Count(State::kGreeting, State::kWaiting) >= static_cast<size_t>(options_.max_handshakes);
}

Connection* Supervisor::Find(int number) {
  auto found = connections_.find(number);
  return found == connections_.end() ? nullptr : found->second.get();
}

}  // namespace portcall::board
