// SPDX-License-Identifier: Apache-2.0
// What libportcall_session offers to the server in Python, as functions of a library: no client can ask for them by name.
// The server without Python has the same parts linked in.
#include <memory>
#include <string>
#include <vector>

#include "portcall/container.h"
#include "portcall/function.h"
#include "session/files.h"
#include "session/process.h"

using namespace portcall;
using namespace portcall::session;

PORTCALL_EXPORT_TYPED(register_standard_names, []() {
  RegisterStandardNames();
  RegisterContainerNames();
})

PORTCALL_EXPORT_TYPED(isolate,
                      [](std::string directory, int64_t parent) { Isolate(directory, static_cast<pid_t>(parent)); })
PORTCALL_EXPORT_TYPED(limit_resources, LimitResources)

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

// Functions by name, in turn: those of a session's clients, and some for the server itself. Contents are kept where there
// is a store; the last two arguments are those of Folder and ContentsOf.
PORTCALL_EXPORT_TYPED(files, [](std::string root, int64_t limit, std::string store, PackedFunc digest,
                                PackedFunc told) {
  const auto most = static_cast<uint64_t>(limit);
  const auto folder = std::make_shared<Folder>(std::move(root), most, std::move(digest));
  std::vector<Any> all;
  const auto add = [&](const std::string& name, const PackedFunc& function) {
    all.emplace_back(String(name));
    all.emplace_back(function);
  };
  for (const auto& [name, function] : FilesOf(folder)) add(name, function);
  if (!store.empty()) {
    for (const auto& [name, function] : ContentsOf(folder, std::move(store), most, std::move(told)))
      add(name, function);
  }
  const auto offer = [&](const char* name, auto body) { add(name, PackedFunc(detail::Unpack(body), name)); };
  offer("verify", [folder](std::string path) {
    folder->Verify(path);
    return folder->Path(path);
  });
  offer("used", [folder] { return static_cast<int64_t>(folder->Used()); });
  offer("check_room", [folder](int64_t nbytes, int64_t used) {
    folder->CheckRoom(static_cast<uint64_t>(nbytes), static_cast<uint64_t>(used));
  });
  return Array<Any>(all);
})
