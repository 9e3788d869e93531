// SPDX-License-Identifier: Apache-2.0
#include "board/directories.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <cstdlib>
#include <memory>

#include "bytes/this_machine.h"

namespace portcall::board {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr std::string_view kPrefix = "portcall-server-";

bool Lock(int descriptor) { return flock(descriptor, LOCK_EX | LOCK_NB) == 0; }

}  // namespace

std::string PlaceOf(const std::string& place) { return place.empty() ? TemporaryFolder() : place; }

BaseDirectory MakeBaseDirectory(const std::string& place) {
  for (;;) {
    std::string path = PlaceOf(place) + "/" + std::string(kPrefix) + "XXXXXX";
    if (!mkdtemp(path.data())) throw SystemError("cannot make a directory in " + PlaceOf(place));
    std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
    if (real) path = real.get();
    BaseDirectory made{path, Descriptor(open(path.c_str(), kFolder))};
    if (made.lock && Lock(made.lock.get()) && access(path.c_str(), F_OK) == 0) return made;
    // Another server was quicker, and took it for one that was left behind.
  }
}

void DeleteAbandonedDirectories(const std::string& place) {
  const std::string folder = PlaceOf(place);
  Descriptor opened(open(folder.c_str(), kFolder));
  if (!opened) return;
  ForEachName(opened.get(), [&](const char* name) {
    if (std::string_view(name).substr(0, kPrefix.size()) != kPrefix) return true;
    Descriptor found(openat(opened.get(), name, kFolder));
    struct stat facts{};
    if (found && fstat(found.get(), &facts) == 0 && facts.st_uid == getuid() && Lock(found.get())) {
      DeleteTree(folder + "/" + name);
    }
    return true;
  });
}

}  // namespace portcall::board
