// SPDX-License-Identifier: Apache-2.0
// Ways out of a session, each by the group of the sandbox that closes it: it returns 0 where it is open, else the number
// of the error. They change nothing outside but what the test has made there.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <portcall/portcall.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

using namespace portcall;

namespace {

// What the test has made outside: a folder, a process, a port, and a key of System V.
std::string place;
int victim = 0, port = 0, key = 0;

std::string Outside(const char* name = "file") { return place + "/" + name; }
std::string Proc(const char* name) { return "/proc/" + std::to_string(victim) + "/" + name; }
int Result(long result) { return result < 0 ? errno : 0; }
template <typename... A> int Call(long number, A... arguments) { return Result(syscall(number, arguments...)); }

int Closed(int fd) {
  if (fd < 0) return errno;
  close(fd);
  return 0;
}
int Opens(const std::string& path, int flags) { return Closed(open(path.c_str(), flags | O_CLOEXEC, 0600)); }

// Several steps, of which each must work.
template <typename... Steps> int All(Steps... steps) {
  int error = 0;
  (void)((!(error = steps()) && ...));
  return error;
}

int Connects(int family, int kind, const void* address, size_t size) {
  const int fd = socket(family, kind, 0);
  if (fd < 0) return errno;
  const int error = Result(connect(fd, static_cast<const sockaddr*>(address), static_cast<socklen_t>(size)));
  close(fd);
  return error;
}
sockaddr_un Named(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  return address;
}
int ConnectsInet(int kind) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return Connects(AF_INET, kind, &address, sizeof(address));
}
int ConnectsAbstract() {
  const std::string name = std::string(1, '\0') + "portcall-" + std::to_string(port);
  const sockaddr_un address = Named(name);
  return Connects(AF_UNIX, SOCK_STREAM, &address, offsetof(sockaddr_un, sun_path) + name.size());
}
int ConnectsFile() {
  const sockaddr_un address = Named(Outside("socket"));
  return Connects(AF_UNIX, SOCK_STREAM, &address, sizeof(address));
}
// From a socket of a pair, to another one by its name.
int SendsDatagram() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) return errno;
  sockaddr_un address = Named(Outside("datagrams"));
  iovec text{&address, 1};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = sizeof(address);
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  const int error = Result(sendmsg(ends[0], &message, 0));
  for (int end : ends) close(end);
  return error;
}

int ReadsThroughLink() {
  return All([] { return Result(symlink(Outside().c_str(), "link")); }, [] { return Opens("link", O_RDONLY); });
}
int ReadsThroughHardLink() {
  return All([] { return Result(link(Outside().c_str(), "hard")); }, [] { return Opens("hard", O_RDONLY); });
}
int ReopensPath() {
  const int path = open(Outside().c_str(), O_PATH | O_CLOEXEC);
  if (path < 0) return errno;
  const int error = Opens("/proc/self/fd/" + std::to_string(path), O_RDONLY);
  close(path);
  return error;
}
int RunsProgram() {
  const pid_t child = vfork();
  if (child < 0) return errno;
  if (child == 0) {
    execl(Outside("program").c_str(), "program", nullptr);
    _exit(EACCES);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}
// What the file's owner may do, who cannot write it here.
template <typename Action> int OfLibrary(Action action) {
  const int file = open("/usr/bin/env", O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno;
  const int error = Result(action(file));
  close(file);
  return error;
}
int SetTimes(int file) {
  struct stat facts{};
  fstat(file, &facts);
  const timespec same[] = {facts.st_atim, facts.st_mtim};
  return futimens(file, same);
}
int SetVersion(int file) {
  long version = 0;
  return ioctl(file, 0x80087601 /* FS_IOC_GETVERSION */, &version) ? -1 : ioctl(file, 0x40087602, &version);
}
int TakeLease(int file) { return fcntl(file, F_SETLEASE, F_RDLCK) ? -1 : fcntl(file, F_SETLEASE, F_UNLCK); }
int WatchByDescriptor() {
  const int folder = open("/usr/bin", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return errno;
  signal(SIGIO, SIG_IGN);
  const int error = Result(fcntl(folder, F_NOTIFY, 4L /* DN_CREATE */));
  close(folder);
  return error;
}
// The kernel's own answer tells that it was asked.
int ReachesProtocol() {
  int ends[2];
  return socketpair(AF_INET, SOCK_STREAM, 0, ends) != 0 && errno == EPERM ? EPERM : 0;
}
int Snapshots() { return ioctl(STDIN_FILENO, 0x50009401, nullptr) != 0 && errno == EPERM ? EPERM : 0; }
int Watches() {
  const int watch = inotify_init1(IN_CLOEXEC);
  if (watch < 0) return errno;
  const int error = Result(inotify_add_watch(watch, place.c_str(), IN_CREATE));
  close(watch);
  return error;
}
int SignalsByFile() {
  int ends[2];
  if (pipe(ends) != 0) return errno;
  const int error = Result(fcntl(ends[0], F_SETOWN, victim));
  for (int end : ends) close(end);
  return error;
}
// The pipe to the log is of all sessions.
int ResizesPipe() {
  int ends[2];
  if (pipe(ends) != 0) return errno;
  const int size = fcntl(ends[1], F_SETPIPE_SZ, 4096), error = size < 0 ? errno : 0;
  for (int end : ends) close(end);
  return error;
}
int SignalsByDescriptor() {
  const int process = static_cast<int>(syscall(434 /* pidfd_open */, victim, 0));
  if (process < 0) return errno;
  const int error = Call(424 /* pidfd_send_signal */, process, 0, nullptr, 0);
  close(process);
  return error;
}
int Traces() {
  if (ptrace(PTRACE_SEIZE, victim, nullptr, nullptr) != 0) return errno;
  ptrace(PTRACE_INTERRUPT, victim, nullptr, nullptr);
  waitpid(victim, nullptr, __WALL);
  ptrace(PTRACE_DETACH, victim, nullptr, nullptr);
  return 0;
}
// Of an address that is in no process: EFAULT tells that it was looked at.
int Copies(bool there) {
  char text[1] = {};
  iovec ours{text, 1}, theirs{reinterpret_cast<void*>(16), 1};
  const long done =
      there ? process_vm_writev(victim, &ours, 1, &theirs, 1, 0) : process_vm_readv(victim, &ours, 1, &theirs, 1, 0);
  return done < 0 && errno == EFAULT ? 0 : Result(done);
}
int OpensRing() {
  char parameters[256] = {};
  return Closed(static_cast<int>(syscall(425 /* io_uring_setup */, 1, parameters)));
}
int OpensCounter() {
  perf_event_attr counter{};
  counter.type = PERF_TYPE_SOFTWARE;
  counter.size = sizeof(counter);
  counter.config = PERF_COUNT_SW_TASK_CLOCK;
  counter.exclude_kernel = counter.exclude_hv = 1;
  return Closed(static_cast<int>(syscall(SYS_perf_event_open, &counter, 0, -1, -1, 0)));
}
// The pipe to the log, which is open here to be written to, has what other sessions print.
int ReadsLog() {
  struct stat own[2]{}, facts{};
  for (int i : {0, 1}) fstat(i + 1, &own[i]);
  for (int fd = 3; fd < 64; ++fd) {
    if (fstat(fd, &facts) != 0 || !S_ISFIFO(facts.st_mode) || facts.st_ino == own[0].st_ino ||
        facts.st_ino == own[1].st_ino) {
      continue;
    }
    if (!Opens("/proc/self/fd/" + std::to_string(fd), O_RDONLY | O_NONBLOCK)) return 0;
  }
  return EACCES;
}
// In a process of its own: it stays there.
int InChild(int (*action)()) {
  const pid_t child = fork();
  if (child < 0) return errno;
  if (child == 0) _exit(action());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EFAULT;
}
// The server would have to wait for it.
int GivesChild() {
  const long child = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) _exit(0);
  return Result(child);
}
// The limit of this namespace alone: never that of the machine, which is higher.
void RaiseLimit() {
  const int file = open("/proc/sys/kernel/pid_max", O_RDWR | O_CLOEXEC);
  char number[16] = "";
  if (file < 0) return;
  if (read(file, number, sizeof(number) - 1) > 0 && std::stoi(number) <= 1024) (void)!pwrite(file, "4096", 4, 0);
  close(file);
}
// Starts processes until that fails. They share memory and descriptors, and so cost little.
int StartMany(int (*wait)(void*), std::vector<pid_t>* children) {
  static char stack[4096];
  for (int i = 0; i < 1100; ++i) {
    const pid_t child = clone(wait, stack + sizeof(stack) - 64, CLONE_VM | CLONE_FILES | SIGCHLD, nullptr);
    if (child < 0) return errno;
    children->push_back(child);
  }
  return 0;
}
// They end when the pipe does.
int Bomb() {
  RaiseLimit();
  static int ends[2];
  if (pipe(ends) != 0) return errno;
  const auto wait = [](void*) {
    char byte;
    return static_cast<int>(read(ends[0], &byte, 1));
  };
  std::vector<pid_t> children;
  const int error = StartMany(wait, &children);
  close(ends[1]);
  for (pid_t child : children) waitpid(child, nullptr, 0);
  close(ends[0]);
  return error;
}

struct Escape {
  const char* group;
  const char* name;
  int (*attempt)();
};
constexpr Escape kEscapes[] = {
    {"files", "read a file", [] { return Opens(Outside(), O_RDONLY); }},
    {"files", "write a file", [] { return Opens(Outside(), O_WRONLY); }},
    {"files", "truncate a file", [] { return Result(truncate(Outside("long").c_str(), 1)); }},
    {"files", "truncate a library while it is opened", [] { return Opens(Outside("long"), O_RDONLY | O_TRUNC); }},
    {"files", "make a file", [] { return Opens(Outside("new"), O_WRONLY | O_CREAT); }},
    {"files", "make a folder", [] { return Result(mkdir(Outside("folder").c_str(), 0700)); }},
    {"files", "remove a file", [] { return Result(unlink(Outside("old").c_str())); }},
    {"files", "take a file away", [] { return Result(rename(Outside("moved").c_str(), "moved")); }},
    {"files", "list a folder", [] { return Opens(place, O_RDONLY | O_DIRECTORY); }},
    {"files", "read through a link", ReadsThroughLink},
    {"files", "read through a hard link", ReadsThroughHardLink},
    {"files", "open a path again", ReopensPath},
    {"files", "run a program", RunsProgram},
    {"files", "read another session's directory", [] { return Opens("../..", O_RDONLY | O_DIRECTORY); }},
    {"files", "read the environment of a process", [] { return Opens(Proc("environ"), O_RDONLY); }},
    {"files", "write the memory of a process by a file", [] { return Opens(Proc("mem"), O_RDWR); }},
    {"files", "list processes", [] { return Opens("/proc", O_RDONLY | O_DIRECTORY); }},
    {"attributes", "change rights", [] { return Result(chmod(Outside().c_str(), 0640)); }},
    {"attributes", "change the owner", [] { return Result(chown(Outside().c_str(), geteuid(), getegid())); }},
    {"attributes", "change times",
     [] {
       const timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
       return Result(utimensat(AT_FDCWD, Outside().c_str(), now, 0));
     }},
    {"attributes", "change rights of a library",
     [] {
       return OfLibrary([](int file) {
         struct stat facts{};
         return fstat(file, &facts) ? -1 : fchmod(file, facts.st_mode & 07777);
       });
     }},
    {"attributes", "change times of a library", [] { return OfLibrary(SetTimes); }},
    {"attributes", "change the version of a library", [] { return OfLibrary(SetVersion); }},
    {"attributes", "have others wait for a library", [] { return OfLibrary(TakeLease); }},
    {"attributes", "watch a folder by its descriptor", WatchByDescriptor},
    {"attributes", "change the room of a pipe", ResizesPipe},
    {"attributes", "copy a file system", Snapshots},
    {"attributes", "watch a folder", Watches},
    {"network", "connect by TCP", [] { return ConnectsInet(SOCK_STREAM); }},
    {"network", "send by UDP", [] { return ConnectsInet(SOCK_DGRAM); }},
    {"network", "connect to an abstract socket", ConnectsAbstract},
    {"sockets", "connect to a socket of a folder", ConnectsFile},
    {"sockets", "send a datagram to a name", SendsDatagram},
    {"sockets", "make a socket for a hypervisor", [] { return Closed(socket(40 /* AF_VSOCK */, SOCK_STREAM, 0)); }},
    {"sockets", "make a pair of another protocol", ReachesProtocol},
    {"sockets", "ask the kernel by netlink", [] { return Closed(socket(AF_NETLINK, SOCK_RAW, 0)); }},
    {"signals", "kill", [] { return Result(kill(victim, 0)); }},
    {"signals", "tgkill", [] { return Call(SYS_tgkill, victim, victim, 0); }},
    {"signals", "signal by a descriptor", SignalsByDescriptor},
    {"signals", "have a file send signals", SignalsByFile},
    {"memory", "trace", Traces},
    {"memory", "read memory", [] { return Copies(false); }},
    {"memory", "write memory", [] { return Copies(true); }},
    {"kernel", "find a keyring", [] { return Call(SYS_keyctl, 0, -4 /* the user's */, 1); }},
    {"kernel", "add a key", [] { return Call(SYS_add_key, "user", "portcall-test", "x", 1, -2 /* the process's */); }},
    {"kernel", "use io_uring", OpensRing},
    {"kernel", "count events", OpensCounter},
    {"kernel", "handle page faults", [] { return Closed(static_cast<int>(syscall(SYS_userfaultfd, 1))); }},
    {"kernel", "make a namespace", [] { return InChild([] { return Result(unshare(CLONE_NEWUSER)); }); }},
    {"kernel", "give the server a child", GivesChild},
    {"kernel", "ask for the personality", [] { return Result(personality(0xFFFFFFFF)); }},
    {"ipc", "find shared memory", [] { return Result(shmget(key, 1, 0)); }},
    {"ipc", "find semaphores", [] { return Result(semget(key, 1, 0)); }},
    {"ipc", "find a queue", [] { return Result(msgget(key, 0)); }},
    {"bombs", "start processes without end", Bomb},
    // Closed whatever is hidden, by the rights that every session gives up.
    {"", "read what others print", ReadsLog},
    {"", "mount", [] { return Result(mount("none", ".", "tmpfs", 0, nullptr)); }},
    {"", "change the root", [] { return InChild([] { return Result(chroot(".")); }); }},
    {"", "make a device", [] { return Result(mknod("device", S_IFCHR | 0600, makedev(1, 3))); }},
};

}  // namespace

PORTCALL_REGISTER_GLOBAL("escape.names").set_body_typed([] {
  std::vector<Any> names;
  for (const Escape& each : kEscapes) names.emplace_back(std::string(each.group) + ": " + each.name);
  return Array<Any>(names);
});
PORTCALL_REGISTER_GLOBAL("escape.prepare").set_body_typed([](std::string folder, int process, int free, int number) {
  place = folder;
  victim = process;
  port = free;
  key = number;
});
// The numbers of the errors, in turn.
PORTCALL_REGISTER_GLOBAL("escape.attempt").set_body_typed([] {
  std::vector<Any> errors;
  for (const Escape& each : kEscapes) errors.emplace_back(each.attempt());
  return Array<Any>(errors);
});
PORTCALL_REGISTER_GLOBAL("escape.give_child").set_body_typed(GivesChild);
// As many processes as there may be, which stay; returns the number of the error.
PORTCALL_REGISTER_GLOBAL("escape.fill").set_body_typed([] {
  std::vector<pid_t> children;
  return StartMany([](void*) { return pause(); }, &children);
});
// A program in a session of its own; returns its number outside.
PORTCALL_REGISTER_GLOBAL("escape.survive").set_body_typed([] {
  int ends[2];
  if (pipe(ends) != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    char self[32] = "";
    if (readlink("/proc/self", self, sizeof(self) - 1) > 0 && write(ends[1], self, sizeof(self)) > 0) {
      for (;;) pause();
    }
    _exit(1);
  }
  char self[32] = "0";
  const bool told = read(ends[0], self, sizeof(self)) > 0;
  for (int end : ends) close(end);
  return told ? std::stoi(self) : 0;
});
