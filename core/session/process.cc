// SPDX-License-Identifier: Apache-2.0
#include "session/process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace portcall::session {
namespace {

void CallHook(const char* name) {
  PackedFunc hook = Registry::Get(name);
  if (hook.defined()) hook();
}

// Requests that have arrived are answered, and no others are read.
void EndReading(int descriptor) {
  shutdown(descriptor, SHUT_RD);  // wakes a thread that reads; TCP still gives what arrives later
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  dup3(ends[0], descriptor, O_CLOEXEC);
  for (int end : ends) close(end);
}

// What stdout and stderr still hold goes where they go now.
struct Flushed {
  ~Flushed() {
    try {
      if (own.defined()) own();
    } catch (const Error&) {  // the session is over
    }
    fflush(nullptr);
  }
  const PackedFunc& own;
};

// Has stdout or stderr go through a pipe, where there is one, as long as it lives.
class Redirected {
 public:
  Redirected(int stream, Pipe* pipe) : stream_(stream), kept_(fcntl(stream, F_DUPFD_CLOEXEC, 0)) {
    if (!pipe->writing) return;
    dup2(pipe->writing.get(), stream);
    pipe->writing.Close();
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;
  ~Redirected() { dup2(kept_.get(), stream_); }
  int kept() const { return kept_.get(); }

 private:
  int stream_;
  Descriptor kept_;
};

}  // namespace

void Isolate(const std::string& directory, pid_t parent) {
  for (int number : {SIGINT, SIGTERM, SIGCHLD}) signal(number, SIG_DFL);
  setsid();
  if (getppid() != 0) {  // else it has numbers of processes of its own, and ends with the first of them
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent) _exit(1);
  }
  const std::string files = directory + "/files", temporary = directory + "/tmp";
  if (mkdir(files.c_str(), 0700) != 0 || mkdir(temporary.c_str(), 0700) != 0 || chdir(files.c_str()) != 0) {
    throw SystemError("cannot make the session's directory");
  }
  setenv("PWD", files.c_str(), 1);
  setenv("TMPDIR", temporary.c_str(), 1);
}

void LimitResources(int64_t memory, int64_t disk, double processor) {
  const auto limit = [](auto what, int64_t value) {
    const rlimit both{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
    setrlimit(what, &both);
  };
  limit(RLIMIT_CORE, 0);
  if (memory) limit(RLIMIT_DATA, memory);
  if (disk) limit(RLIMIT_FSIZE, disk);
  if (processor <= 0) return;
  const auto seconds = static_cast<rlim_t>(std::ceil(processor));
  const rlimit both{seconds, seconds + 1};  // SIGXCPU, which says why, and SIGKILL for who ignores it
  setrlimit(RLIMIT_CPU, &both);
}

bool Serve(Service service) {
  CallHook("tvm.rpc.server.start");
  const int client = service.client.Release(), reading = fcntl(client, F_DUPFD_CLOEXEC, 0);
  if (reading < 0) throw SystemError("cannot serve");
  const auto failed = std::make_shared<bool>(false);
  const auto serving = std::make_shared<bool>(true);
  Registry::Register("portcall.DeviceFailed", true).set_body([=](Args, RetValue*) {  // plug-ins call it
    *failed = true;
    if (*serving) EndReading(reading);
  });
  std::string how;
  {
    const bool pipes(service.err.writing);
    const Redirected out(STDOUT_FILENO, &service.out), err(STDERR_FILENO, &service.err);
    const Flushed flushed{service.flush};
    how = Registry::GetRequired("portcall.rpc.ServeSession")(
              reading, client, service.patterns, service.max_frame, service.constructor, service.progress.Release(),
              service.features, service.out.reading.get(), service.err.reading.get(), pipes ? err.kept() : -1)
              .cast<std::string>();
  }
  *serving = false;
  if (how == "closed") CallHook("tvm.rpc.server.shutdown");
  return *failed;
}

}  // namespace portcall::session
