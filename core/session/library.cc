// SPDX-License-Identifier: Apache-2.0
// What libportcall_session offers to the server in Python, as functions of a library: no client can ask for them by name.
// The server without Python has the same parts linked in.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "portcall/container.h"
#include "portcall/function.h"
#include "session/files.h"
#include "session/needs.h"
#include "session/process.h"
#include "session/sandbox.h"

using namespace portcall;
using namespace portcall::session;

namespace {
// Names and functions in turn.
Array<Any> InTurn(const Functions& functions) {
  std::vector<Any> parts;
  for (const auto& [name, function] : functions) {
    parts.emplace_back(String(name));
    parts.emplace_back(function);
  }
  return Array<Any>(parts);
}

std::optional<Sandbox>& PreparedSandbox() {
  static std::optional<Sandbox> sandbox;
  return sandbox;
}
}  // namespace

PORTCALL_EXPORT_TYPED(register_standard_names, []() {
  RegisterStandardNames();
  RegisterContainerNames();
})

PORTCALL_EXPORT_TYPED(isolate,
                      [](std::string directory, int64_t parent) { Isolate(directory, static_cast<pid_t>(parent)); })
PORTCALL_EXPORT_TYPED(limit_resources, LimitResources)

// The sandbox of this machine: what there is, what is missing, what that leaves open, and a line of all three.
PORTCALL_EXPORT_TYPED(sandbox, [](std::string mode) {
  const Sandbox sandbox;
  sandbox.Check(mode);
  const auto texts = [](const std::vector<std::string>& from) {
    return Array<Any>(std::vector<Any>(from.begin(), from.end()));
  };
  return Array<Any>(
      {Any(sandbox.Found()), Any(texts(sandbox.Missing())), Any(texts(sandbox.Open())), Any(sandbox.Report())});
})
PORTCALL_EXPORT_TYPED(prepare_sandbox, [] { PreparedSandbox().emplace().Prepare(); })
// What the function that starts a process returns, and the number of the first process beside that.
PORTCALL_EXPORT_TYPED(start_in_sandbox, [](PackedFunc fork) {
  const Sandbox::Started made = PreparedSandbox()->Start([&] { return static_cast<pid_t>(fork().cast<int64_t>()); });
  return Array<Any>({Any(static_cast<int64_t>(made.session)), Any(static_cast<int64_t>(made.first))});
})
PORTCALL_EXPORT_TYPED(descend_into_sandbox, [] { PreparedSandbox()->Descend(); })
PORTCALL_EXPORT_TYPED(enter_sandbox, [](std::string directory, std::string contents, std::vector<std::string> paths) {
  PreparedSandbox()->Enter(directory, contents, std::move(paths));
})

// The arguments are Service's; `pipes`: the ends to read and to write of that for stdout, then of that for stderr, or
// nothing. Returns whether a device has failed.
PORTCALL_EXPORT_TYPED(serve,
                      [](int client, std::vector<std::string> patterns, int64_t max_frame, PackedFunc constructor,
                         int progress, std::string features, std::vector<int> pipes, PackedFunc flush) {
                        Service service;
                        service.client = Descriptor(client);
                        service.patterns = std::move(patterns);
                        service.max_frame = max_frame;
                        service.constructor = std::move(constructor);
                        service.progress = Descriptor(progress);
                        service.features = std::move(features);
                        service.flush = std::move(flush);
                        if (pipes.size() == 4) {
                          service.out = {Descriptor(pipes[0]), Descriptor(pipes[1])};
                          service.err = {Descriptor(pipes[2]), Descriptor(pipes[3])};
                        }
                        return Serve(std::move(service));
                      })

PORTCALL_EXPORT_TYPED(register_values, RegisterValues)
PORTCALL_EXPORT_TYPED(objects, [] { return InTurn(ObjectFunctions()); })

// Of DescribeMachine, with places. The last two arguments are those of Beside.
PORTCALL_EXPORT_TYPED(machine, [](std::string folder, std::string needs, PackedFunc place_of, std::string objects) {
  return DescribeMachine(folder, needs, {std::move(place_of), std::move(objects)}, true);
})

// Functions by name, in turn: those of a session's clients, and some for the server itself. `told`: of ContentsOf; None
// where nothing is kept. The last two arguments are those of Beside.
PORTCALL_EXPORT_TYPED(files, [](int64_t limit, PackedFunc digest, PackedFunc told, PackedFunc place_of,
                                std::string objects) {
  const auto most = static_cast<uint64_t>(limit);
  const auto folder = std::make_shared<Folder>(most, std::move(digest));
  Functions all = FilesOf(folder, {std::move(place_of), std::move(objects)});
  if (told.defined()) {
    for (auto& function : ContentsOf(folder, most, std::move(told))) all.push_back(std::move(function));
  }
  const auto offer = [&](const char* name, auto body) {
    all.emplace_back(name, PackedFunc(detail::Unpack(std::move(body)), name));
  };
  offer("enter", [folder](std::string root, std::string store) { folder->Enter(std::move(root), std::move(store)); });
  offer("verify", [folder](std::string path) {
    folder->Verify(path);
    return folder->Path(path);
  });
  offer("used", [folder] { return static_cast<int64_t>(folder->Used()); });
  offer("check_room", [folder](int64_t nbytes, int64_t used) {
    folder->CheckRoom(static_cast<uint64_t>(nbytes), static_cast<uint64_t>(used));
  });
  return InTurn(all);
})
