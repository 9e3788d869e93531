// SPDX-License-Identifier: Apache-2.0
#include "board/session.h"

#include <link.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "board/ending.h"
#include "board/listen.h"
#include "portcall/module.h"
#include "session/files.h"
#include "session/process.h"

namespace portcall::board {
namespace {

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

// Makes the session that a client asks for by name.
Any Construct(const std::vector<std::string>& patterns, bool by_value, Args args) {
  const std::string name = args[0].cast<std::string>();
  PORTCALL_CHECK(name == "rpc.LocalSession", PermissionError)
      << "this server makes no sessions with '" << name << "', only with rpc.LocalSession";
  PORTCALL_CHECK(args.size() == 1, ValueError) << "rpc.LocalSession takes no arguments";
  return Registry::Get("portcall.rpc.LocalSession")(patterns, by_value);
}

// What the supervisor still had to say to the client.
void SendReply(int client, std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t n = send(client, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) break;  // the client is gone, which the session notices
    rest.remove_prefix(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
}

int Serve(SessionStart start, SessionOptions& options) {
  Isolate(start.directory, start.parent);
  for (int stream : {STDOUT_FILENO, STDERR_FILENO}) dup2(start.log, stream);
  if (options.sandbox) options.sandbox->Enter(start.directory, start.contents, options.server.sandbox_paths);
  sigprocmask(SIG_SETMASK, &options.signals, nullptr);
  signal(SIGXFSZ, SIG_IGN);  // a file over the limit is an error of the write
  setrlimit(RLIMIT_NOFILE, &options.files);
  LimitResources(options.server.memory_limit, options.server.disk_limit, options.server.cpu_limit);
  const auto limit = static_cast<uint64_t>(options.server.disk_limit);
  auto folder = std::make_shared<Folder>(limit);
  folder->Enter(start.directory + "/files", start.contents);
  Register(FilesOf(folder));
  if (options.server.farm.empty()) Register(ContentsOf(folder, limit));  // a farm's clients are strangers
  if (options.server.unix_path.empty()) Tune(start.client.get());
  SendReply(start.client.get(), start.reply);
  const bool by_value = start.features.find("values") != std::string::npos;
  const std::vector<std::string>& patterns = options.patterns;
  Service service;
  service.constructor =
      PackedFunc([&patterns, by_value](Args args, RetValue* rv) { *rv = Construct(patterns, by_value, args); });
  int ends[2];
  if (!start.features.empty() && pipe2(ends, O_CLOEXEC) == 0) {
    service.out = {Descriptor(ends[0]), Descriptor(ends[1])};
    service.err = {std::move(start.errors[0]), std::move(start.errors[1])};
  }
  service.client = std::move(start.client);
  service.patterns = patterns;
  service.max_frame = options.server.max_frame;
  service.progress = std::move(start.progress);
  service.features = start.features;
  GiveBackCode();
  return session::Serve(std::move(service)) ? kDeviceFailed : 0;
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
  Register(ObjectFunctions());
  std::vector<std::string> patterns(std::begin(facts::kOffered), std::end(facts::kOffered));
  patterns.insert(patterns.end(), options.expose.begin(), options.expose.end());
  for (const std::string& name : Registry::ListNames()) {
    if (!before.count(name)) patterns.push_back(Exactly(name));
  }
  return patterns;
}

int RunSession(SessionStart start, SessionOptions& options) noexcept {
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
