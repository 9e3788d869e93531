// SPDX-License-Identifier: Apache-2.0
#include "board/session.h"

#include <link.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "board/ending.h"
#include "board/files.h"
#include "board/listen.h"
#include "portcall/module.h"

namespace portcall::board {
namespace {

// What every session may use; the same as for `portcall serve`.
constexpr const char* kOffered[] = {
    "tvm.rpc.server.*",
    "portcall.rpc.file_*",
    "portcall.rpc.content_*",
    "portcall.rpc.object_*",
    "portcall.rpc.call_with_names",
    "portcall.rpc.machine",
    "portcall.Event*",
    "portcall.rpc.Module*",
    "portcall.graph.*",
    "vm.builtin.make_tuple",
    "vm.builtin.make_shape",
    "relax.run.shape_to_tensor",
    "testing.*",
    "ffi.Array*",
    "ffi.Map*",
    "ffi.ModuleGetKind",
    "ffi.SystemLib",
    "runtime.GetDeviceAttr",
    "runtime.NumThreads",
    "runtime.config_threadpool",
    "runtime.RPCTimeEvaluator",
    "runtime.TVMTensorAllocWithScope",
    "cache_flush_cpu_non_first_arg",
};

// Asked for what is not linked in, where it is no library beside the core either.
PORTCALL_REGISTER_GLOBAL("portcall.FindPlugin").set_body_typed([](std::string kind) {
  PORTCALL_CHECK(kind != "relax.VMExecutable", ModuleLoadError)
      << "this server cannot run models of Relax: `portcall board build --with vm` makes one that can, and "
         "`portcall serve` can";
  return std::string();
});

// A name as a pattern that matches nothing else.
std::string Exactly(const std::string& name) {
  std::string pattern;
  for (char c : name) {
    if (c == '\\' || c == '*' || c == '?' || c == '[' || c == ']') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

// Becomes a process of its own, which ends with its parent, in the session's directory.
void Isolate(const SessionStart& start, const SessionOptions& options) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != start.parent) _exit(1);
  sigprocmask(SIG_SETMASK, &options.signals, nullptr);
  signal(SIGXFSZ, SIG_IGN);  // a file over the limit is an error of the write
  const std::string files = start.directory + "/files", temporary = start.directory + "/tmp";
  if (mkdir(files.c_str(), 0700) != 0 || mkdir(temporary.c_str(), 0700) != 0 || chdir(files.c_str()) != 0) {
    throw SystemError("cannot make the session's directory");
  }
  setenv("PWD", files.c_str(), 1);
  setenv("TMPDIR", temporary.c_str(), 1);
  dup2(start.log, STDOUT_FILENO);
  dup2(start.log, STDERR_FILENO);
}

void LimitResources(const SessionOptions& options) {
  const auto limit = [](auto what, int64_t value) {
    const rlimit both{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
    setrlimit(what, &both);
  };
  setrlimit(RLIMIT_NOFILE, &options.files);
  limit(RLIMIT_CORE, 0);
  if (options.server.memory_limit) limit(RLIMIT_DATA, options.server.memory_limit);
  if (options.server.disk_limit) limit(RLIMIT_FSIZE, options.server.disk_limit);
}

// Makes the session that a client asks for by name.
Any Construct(const std::vector<std::string>& patterns, bool by_value, Args args) {
  const std::string name = args[0].cast<std::string>();
  PORTCALL_CHECK(name == "rpc.LocalSession", PermissionError)
      << "this server makes no sessions with '" << name << "', only with rpc.LocalSession";
  PORTCALL_CHECK(args.size() == 1, ValueError) << "rpc.LocalSession takes no arguments";
  return Registry::Get("portcall.rpc.LocalSession")(patterns, by_value);
}

void CallHook(const char* name) {
  PackedFunc hook = Registry::Get(name);
  if (hook.defined()) hook();
}

// Where stdout and stderr can be read, once they go through pipes: to the log, and to a client that reads an account.
struct Printed {
  Descriptor streams[2];
  int log = -1;
};

// Requests that have arrived are answered, and no others are read.
void EndReading(int descriptor) {
  shutdown(descriptor, SHUT_RD);  // wakes a thread that reads; TCP still gives what arrives later
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  dup3(ends[0], descriptor, O_CLOEXEC);
  for (int end : ends) close(end);
}

Printed Redirect(SessionStart* start) {
  Printed printed;
  int ends[2];
  if (start->features.empty() || pipe2(ends, O_CLOEXEC) != 0) return printed;
  printed.streams[0] = Descriptor(ends[0]);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  dup2(start->errors[1].get(), STDERR_FILENO);
  start->errors[1].Close();
  printed.streams[1] = std::move(start->errors[0]);
  printed.log = start->log;
  return printed;
}

int Serve(SessionStart start, const SessionOptions& options) {
  Isolate(start, options);
  LimitResources(options);
  const auto limit = static_cast<uint64_t>(options.server.disk_limit);
  auto folder = std::make_shared<Folder>(start.directory + "/files", limit);
  RegisterFiles(folder);
  if (options.server.farm.empty()) RegisterContents(folder, start.contents, limit);  // a farm's clients are strangers
  CallHook("tvm.rpc.server.start");
  if (options.server.unix_path.empty()) Tune(start.client.get());
  std::string_view rest = start.reply;
  while (!rest.empty()) {
    const ssize_t n = send(start.client.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) break;  // the client is gone, which the session notices
    rest.remove_prefix(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
  const std::vector<std::string>& patterns = options.patterns;
  const bool by_value = start.features.find("values") != std::string::npos;
  const PackedFunc constructor([&, by_value](Args args, RetValue* rv) { *rv = Construct(patterns, by_value, args); });
  const int client = start.client.Release(), reading = fcntl(client, F_DUPFD_CLOEXEC, 0);
  if (reading < 0) throw SystemError("cannot serve");
  bool device_failed = false;
  Registry::Register("portcall.DeviceFailed", true).set_body([&, reading](Args, RetValue*) {  // plug-ins call it
    device_failed = true;
    EndReading(reading);
  });
  Printed printed = Redirect(&start);
  GiveBackCode();
  const std::string how = Registry::GetRequired("portcall.rpc.ServeSession")(
      reading, client, patterns, options.server.max_frame, constructor, start.progress.Release(), start.features,
      printed.streams[0].get(), printed.streams[1].get(), printed.log);
  dup2(start.log, STDOUT_FILENO);
  dup2(start.log, STDERR_FILENO);
  if (how == "closed") CallHook("tvm.rpc.server.shutdown");
  return device_failed ? kDeviceFailed : 0;
}

}  // namespace

void GiveBackCode() {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) & part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_W)) continue;
          const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), from = info->dlpi_addr + part.p_vaddr;
          const uintptr_t first = (from + page - 1) / page * page, end = (from + part.p_memsz) / page * page;
          if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
        }
        return 0;
      },
      nullptr);
}

std::vector<std::string> LoadLibraries(const Options& options) {
  static std::vector<Module> loaded;  // as long as the process lives
  const std::vector<std::string> known = Registry::ListNames();
  const std::set<std::string> before(known.begin(), known.end());
  for (const std::string& path : options.libraries) loaded.push_back(Module::LoadFromFile(path));
  RegisterStandardNames();
  RegisterContainerNames();
  RegisterValues();
  RegisterObjects();
  std::vector<std::string> patterns(std::begin(kOffered), std::end(kOffered));
  patterns.insert(patterns.end(), options.expose.begin(), options.expose.end());
  for (const std::string& name : Registry::ListNames()) {
    if (!before.count(name)) patterns.push_back(Exactly(name));
  }
  return patterns;
}

int RunSession(SessionStart start, const SessionOptions& options) noexcept {
  int code = 0;
  try {
    code = Serve(std::move(start), options);
  } catch (const std::exception& error) {
    fprintf(stderr, "the session ended: %s\n", error.what());
    code = 1;
  }
  fflush(nullptr);
  return code;
}

}  // namespace portcall::board
