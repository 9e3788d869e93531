// SPDX-License-Identifier: Apache-2.0
#include "session/sandbox.h"

#include <dlfcn.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "facts/server.h"
#include "session/text.h"

namespace portcall::session {
namespace {

// ---- Landlock, by its numbers: headers of older systems lack them ----

constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr int kTruncation = 3, kNetwork = 4, kScopes = 6;  // versions that brought something

struct Ruleset {
  uint64_t files, network, scopes;
};
struct [[gnu::packed]] PathRule {
  uint64_t allowed;
  int32_t path;
};
constexpr uint64_t kExecute = 1, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadFolder = 1 << 3,
                   kMakeCharDevice = 1 << 6, kMakeSocket = 1 << 9, kMakeBlockDevice = 1 << 11, kTruncate = 1 << 14,
                   kDeviceControl = 1 << 15;
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate | kDeviceControl;
constexpr uint64_t kRead = kExecute | kReadFile | kReadFolder;
constexpr uint64_t kUseDevice = kReadFile | kWriteFile | kReadFolder | kDeviceControl;

uint64_t FileRights(int version) {
  constexpr int kRights[] = {0, 13, 14, 15, 15, 16};  // how many each version knows
  return (uint64_t{1} << kRights[std::min(version, 5)]) - 1;
}

// What every session may read: libraries and programs of the system, facts of the machine, itself.
constexpr const char* kReadable[] = {
    "/usr",         "/lib",          "/lib32",        "/lib64",        "/bin",
    "/sbin",        "/sys",          "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/proc/vmstat", "/proc/loadavg", "/proc/uptime",  "/proc/version", "/proc/filesystems",
    "/proc/driver", "/proc/sys"};
// Of these each session looks for its own, or for the file that has replaced an older one.
constexpr const char* kOwnReadable[] = {"/proc/self", "/etc/ld.so.cache", "/etc/localtime", "/etc/OpenCL"};
constexpr const char* kDevices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
// Those of accelerators, where the server names some.
constexpr const char* kAccelerators[] = {"/dev/nvidia*", "/dev/dri", "/dev/kfd", "/dev/mali*", "/dev/kgsl-3d0"};

std::vector<std::string> Matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

// ---- Namespaces ----

constexpr int kTasks = 1024;  // processes and threads of a session
constexpr int kShared = CLONE_NEWUSER | CLONE_NEWNET, kOwn = CLONE_NEWIPC | CLONE_NEWPID;

bool Write(const char* path, const std::string& text) {
  const Descriptor file(open(path, O_WRONLY | O_CLOEXEC));
  return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Makes namespaces in which this process is the same user.
bool Leave(int namespaces) {
  const auto same = [](unsigned id) { return std::to_string(id) + " " + std::to_string(id) + " 1"; };
  const std::string user = same(geteuid()), group = same(getegid());
  return unshare(namespaces) == 0 && Write("/proc/self/setgroups", "deny") && Write("/proc/self/uid_map", user) &&
         Write("/proc/self/gid_map", group);
}

// From Linux 6.14 on the highest process number is a namespace's own; before, a write would be for the whole machine.
bool LimitNumbers() {
  utsname system{};
  if (uname(&system) != 0) return false;
  char* point = nullptr;
  const long major = std::strtol(system.release, &point, 10), minor = *point ? std::strtol(point + 1, nullptr, 10) : 0;
  return (major > 6 || (major == 6 && minor >= 14)) && Write("/proc/sys/kernel/pid_max", std::to_string(kTasks));
}

// Of a user of its own. Not for root.
bool LimitUser() {
  const rlimit most{kTasks, kTasks};
  return geteuid() != 0 && Leave(CLONE_NEWUSER) && setrlimit(RLIMIT_NPROC, &most) == 0;
}

// Runs in a child; returns its exit code, or 255.
template <typename Action> int InChild(Action action) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // or its own files in /proc are root's
    _exit(action());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 255;
  return WEXITSTATUS(status);
}

void CloseFrom(unsigned first, unsigned last) {
  if (first > last || syscall(436 /* close_range */, first, last, 0) == 0) return;
  for (unsigned fd = first; fd <= std::min(last, 1024u); ++fd) close(static_cast<int>(fd));  // before Linux 5.9
}

// The first process of a session's namespace: when it ends, all others there do. It has its maker's memory, and so its
// errno: it makes no call that can fail once the maker goes on.
struct First {
  int pipe;
  bool limited;  // whether it is to be, then whether it is
};
int FirstProcess(void* argument) {
  First* first = static_cast<First*>(argument);
  const int pipe = first->pipe;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);  // the session may send it signals that the server handles
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  signal(SIGCHLD, SIG_IGN);
  if (pipe) CloseFrom(0, static_cast<unsigned>(pipe) - 1);
  CloseFrom(static_cast<unsigned>(pipe) + 1, ~0u);
  first->limited = first->limited && LimitNumbers();
  if (chdir("/") != 0 || write(pipe, "", 1) != 1) return 1;  // the session's directory is deleted before this ends
  close(pipe);
  for (;;) pause();
}

// Calls the action in a process that has this one's memory and stack, while this one waits. Where it has become another
// process, with memory of its own, it returns true, and so does this. The process has ended when this returns false.
[[gnu::noinline]] bool InBorrowedMemory(const std::function<bool()>& action) {
  const pid_t borrower = vfork();  // NOLINT(bugprone-unsafe-functions,clang-analyzer-security.insecureAPI.vfork)
  if (borrower == 0) {
    if (action()) return true;
    _exit(0);
  }
  int status = 0;
  if (borrower < 0) throw SystemError("cannot start a process");
  while (waitpid(borrower, &status, 0) != borrower) {
  }
  if (status != 0) throw Error("OSError", "cannot start a process: what starts it was killed");
  return false;
}

// Tells the C library that the kernel does not tell it the number of this process's processor any longer: that ends with
// memory that is shared.
void ForgetProcessor() {
#if defined(__has_builtin)
#if __has_builtin(__builtin_thread_pointer)
  const auto* size = static_cast<const unsigned*>(dlsym(RTLD_DEFAULT, "__rseq_size"));
  const auto* offset = static_cast<const ptrdiff_t*>(dlsym(RTLD_DEFAULT, "__rseq_offset"));
  if (!size || !*size || !offset) return;
  *reinterpret_cast<volatile int32_t*>(static_cast<char*>(__builtin_thread_pointer()) + *offset + 4) = -1;
#endif
#endif
}

[[noreturn]] void EndAs(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) != child) {
  }
  if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  sigset_t all;
  sigfillset(&all);
  signal(number, SIG_DFL);
  kill(getpid(), number);  // it waits until it is let in
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
  _exit(128 + number);
}

// A program does not give them back to root either, without new privileges.
void DropCapabilities() {
  struct {
    uint32_t version = 0x20080522;
    int pid = 0;
  } header;
  const uint32_t none[6] = {};
  if (syscall(SYS_capset, &header, none) != 0) throw SystemError("cannot give up capabilities");
}

}  // namespace

Sandbox::Sandbox() {
  const char* variable = std::getenv("PORTCALL_TEST_SANDBOX_HIDES");  // mechanisms, for tests
  const std::string hidden = variable ? variable : "";
  const auto hides = [&](const char* name) { return hidden.find(name) != std::string::npos; };
  if (!hides("landlock")) landlock_ = std::max(0, static_cast<int>(syscall(kCreateRuleset, nullptr, 0, 1)));
  seccomp_ = !hides("seccomp") && CanFilterCalls();
  if (hides("namespaces")) return;
  const int code = InChild([] {
    if (!Leave(kShared) || unshare(kOwn) != 0) return 0;
    return 1 + InChild([] { return static_cast<int>(LimitNumbers() || LimitUser()); });
  });
  namespaces_ = code == 1 || code == 2;
  limit_ = code == 2 && !hides("limit");
}

bool Sandbox::Has(std::string_view word) const {
  if (word == "landlock") return landlock_ >= kTruncation;
  if (word == "scopes") return landlock_ >= kScopes;
  if (word == "seccomp") return seccomp_;
  if (word == "namespaces") return namespaces_;
  return limit_ && (landlock_ || geteuid() != 0);  // else a session can raise it, by /proc/sys
}

std::string Sandbox::Found() const {
  std::vector<std::string> words;
  if (landlock_) words.push_back("Landlock " + std::to_string(landlock_));
  if (seccomp_) words.emplace_back("seccomp");
  if (namespaces_) words.emplace_back("namespaces");
  if (Has("limit")) words.emplace_back("a limit of processes");
  return Join(words, ", ");
}

std::vector<std::string> Sandbox::Missing() const {
  std::vector<std::string> words;
  for (const facts::SandboxMechanism& each : facts::kSandboxMechanisms) {
    if (!Has(each.name)) words.emplace_back(each.needs);
  }
  return words;
}

std::vector<std::string> Sandbox::Open() const {
  std::vector<std::string> names;
  for (const facts::SandboxGroup& group : facts::kSandboxGroups) {
    const std::vector<std::string> by = Split(group.by, " ");
    if (std::none_of(by.begin(), by.end(), [&](const std::string& word) { return Has(word); })) {
      names.emplace_back(group.name);
    }
  }
  return names;
}

std::string Sandbox::Report() const {
  const std::vector<std::string> missing = Missing();
  std::string found = Found();
  if (found.empty()) found = "nothing";
  if (missing.empty()) return "sessions run in a sandbox of " + found;
  return "sessions run in a sandbox of " + found + "; not here: " + Join(missing, ", ") +
         "; so open: " + Join(Open(), ", ");
}

void Sandbox::Check(const std::string& mode) const {
  const std::vector<std::string> missing = Missing();
  if (mode == "require" && !missing.empty()) {
    throw Error("OSError", "--sandbox=require: this machine does not have " + Join(missing, ", ") +
                               "; --sandbox=best does without, and leaves open: " + Join(Open(), ", "));
  }
}

void Sandbox::Prepare() {
  if (landlock_) FindReadable();
  if (seccomp_) filter_ = FilterOfCalls(true, true);
  if (!namespaces_) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot prepare the sandbox");
  const Descriptor ready(ends[0]);
  const pid_t maker = fork();
  if (maker == 0) {
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (!Leave(kShared) || write(ends[1], "", 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(ends[1]);
  char byte;
  const std::string names = "/proc/" + std::to_string(maker) + "/ns/";
  if (maker > 0 && read(ready.get(), &byte, 1) == 1) {
    user_ = Descriptor(open((names + "user").c_str(), O_RDONLY | O_CLOEXEC));
    network_ = Descriptor(open((names + "net").c_str(), O_RDONLY | O_CLOEXEC));
  }
  const Error error = SystemError("cannot prepare the sandbox's namespaces");
  if (maker > 0) {
    kill(maker, SIGKILL);
    waitpid(maker, nullptr, 0);
  }
  if (!user_ || !network_) throw error;
}

Sandbox::Started Sandbox::Start(const std::function<pid_t()>& fork) {
  if (!namespaces_) return {fork(), 0};
  for (size_t i = stacks_.size(); i--;) {
    if (kill(stacks_[i].first, 0) == 0 || errno != ESRCH) continue;
    stacks_[i].swap(stacks_.back());
    stacks_.pop_back();
  }
  std::unique_ptr<Stack> stack(new Stack);  // not filled
  std::exception_ptr error;
  Started made;
  const pid_t self = getpid();
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // a session can name its first process, which has this memory
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const auto start = [&] {
    try {
      made.first = EnterNamespaces(self, stack.get());
      made.session = fork();
      return made.session == 0;
    } catch (...) {
      error = std::current_exception();
    }
    return false;
  };
  try {
    if (InBorrowedMemory(start)) return made;
  } catch (...) {
    error = std::current_exception();
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  if (error && made.first) kill(made.first, SIGKILL);
  if (made.first) stacks_.emplace_back(made.first, std::move(stack));
  if (error) std::rethrow_exception(error);
  return made;
}

// In a process of its own, whose children will be in the namespaces; returns their first one, whose parent is `parent`.
pid_t Sandbox::EnterNamespaces(pid_t parent, Stack* stack) {
  if (setns(user_.get(), CLONE_NEWUSER) != 0 || setns(network_.get(), CLONE_NEWNET) != 0 || unshare(kOwn) != 0) {
    throw SystemError("cannot enter the sandbox's namespaces");
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot start a sandbox");
  const Descriptor ready(ends[0]);
  First facts{ends[1], limit_};
  const pid_t first =
      clone(FirstProcess, stack->bytes + sizeof(stack->bytes), CLONE_VM | CLONE_PARENT | SIGCHLD, &facts);
  close(ends[1]);
  char byte;
  if (first < 0) throw SystemError("cannot start a sandbox");
  if (read(ready.get(), &byte, 1) != 1 || getppid() != parent) {
    kill(first, SIGKILL);
    throw Error("OSError", "cannot start a sandbox: its first process has ended");
  }
  limited_ = facts.limited;
  return first;
}

void Sandbox::Descend() {
  if (!namespaces_) return;
  const Started made = Start([] {
    const pid_t child = fork();
    if (child < 0) throw SystemError("cannot start a process in the sandbox");
    return child;
  });
  if (made.session == 0) {
    setsid();
    return;
  }
  CloseFrom(0, ~0u);
  EndAs(made.session);
}

void Sandbox::Enter(const std::string& directory, const std::string& contents, std::vector<std::string> paths) {
  setenv("HOME", (directory + "/files").c_str(), 1);
  const Descriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(nothing.get(), STDIN_FILENO);
  for (int log : {STDOUT_FILENO, STDERR_FILENO}) {  // a pipe can be opened again, and has what other sessions print
    struct stat facts{};
    if (fstat(log, &facts) == 0 && S_ISFIFO(facts.st_mode)) fchmod(log, S_IWUSR);
  }
  mkdir(contents.substr(0, contents.rfind('/')).c_str(), 0700);
  mkdir(contents.c_str(), 0700);
  if (namespaces_) {
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // or its own files in /proc are root's
    ForgetProcessor();
    user_.Close();
    network_.Close();
    if (limit_ && !limited_ && !LimitUser()) throw SystemError("cannot limit the processes of the sandbox");
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) throw SystemError("cannot give up new privileges");
  if (landlock_) LimitFiles(directory, contents, paths);
  DropCapabilities();
  if (seccomp_ && !FilterCalls(namespaces_ ? filter_ : FilterOfCalls(false, Has("scopes"))))
    throw SystemError("cannot filter calls of the system");
}

void Sandbox::FindReadable() {
  std::vector<std::string> folders;
  const auto find = [&](const char* name, uint64_t rights) {
    const std::unique_ptr<char, void (*)(void*)> real(realpath(name, nullptr), free);
    Descriptor file(real ? open(real.get(), O_PATH | O_CLOEXEC) : -1);
    struct stat facts{};
    if (!file || fstat(file.get(), &facts) != 0) return;  // not on this machine
    const std::string path = real.get();
    for (const std::string& folder : folders) {
      if (path.compare(0, folder.size(), folder) == 0) return;
    }
    if (S_ISDIR(facts.st_mode)) folders.push_back(path + "/");
    readable_.emplace_back(std::move(file), rights & (S_ISDIR(facts.st_mode) ? ~uint64_t{0} : kOfFiles));
  };
  for (const char* path : kReadable) find(path, kRead);
  Dl_info own{};
  if (dladdr(static_cast<const void*>(kReadable), &own) != 0 && own.dli_fname) {
    const std::string path = own.dli_fname;  // its plug-ins are beside this library
    for (const std::string& each : Matches(path.substr(0, path.rfind('/') + 1) + "libportcall*")) {
      find(each.c_str(), kRead);
    }
  }
  for (const char* path : kDevices) find(path, kUseDevice);
}

void Sandbox::LimitFiles(const std::string& directory, const std::string& contents,
                         const std::vector<std::string>& paths) {
  const uint64_t handled = FileRights(landlock_);
  const Ruleset all{handled, 3, 3};
  const size_t size = landlock_ >= kScopes ? 24 : landlock_ >= kNetwork ? 16 : 8;
  const Descriptor rules(static_cast<int>(syscall(kCreateRuleset, &all, size, 0)));
  const auto add = [&](const Descriptor& file, uint64_t rights) {
    const PathRule rule{rights & handled, file.get()};
    return syscall(kAddRule, rules.get(), 1, &rule, 0) == 0;
  };
  const auto allow = [&](const std::string& path, uint64_t rights) {
    const Descriptor file(open(path.c_str(), O_PATH | O_CLOEXEC));
    struct stat facts{};
    if (!file || fstat(file.get(), &facts) != 0) return;  // not on this machine
    if (S_ISCHR(facts.st_mode) || S_ISBLK(facts.st_mode) || !path.compare(0, 5, "/dev/")) rights = kUseDevice;
    if (!add(file, rights & (S_ISDIR(facts.st_mode) ? ~uint64_t{0} : kOfFiles))) {
      throw SystemError("cannot let sessions use '" + path + "'");
    }
  };
  for (const auto& [file, rights] : readable_) {
    if (!add(file, rights)) throw SystemError("cannot let sessions use the system's files");
  }
  readable_.clear();
  for (const char* path : kOwnReadable) allow(path, kRead);
  for (const std::string& path : paths) allow(path, kRead);
  const char* named = std::getenv("PORTCALL_VISIBLE_DEVICES");
  for (const char* pattern : kAccelerators) {
    if (!named || !*named) break;
    for (const std::string& path : Matches(pattern)) allow(path, kUseDevice);
  }
  for (const std::string& own : {directory, contents}) {
    allow(own, ~(kMakeCharDevice | kMakeBlockDevice | kMakeSocket | kDeviceControl));
  }
  if (syscall(kRestrictSelf, rules.get(), 0) != 0) throw SystemError("cannot limit files to the session's");
}

}  // namespace portcall::session
