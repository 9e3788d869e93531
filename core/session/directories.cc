// SPDX-License-Identifier: Apache-2.0
#include "session/directories.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <set>

#include "session/descriptor.h"

namespace portcall::session {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMostDepth = 256;
constexpr uint64_t kSmallest = 512;

void GiveRights(const char* name, int parent) {
  Descriptor folder(openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder) chmod(("/proc/self/fd/" + std::to_string(folder.get())).c_str(), 0700);
}

// Opens a folder for reading, and gives its owner all rights where they were taken away.
Descriptor OpenFolder(const char* name, int parent) {
  Descriptor folder(openat(parent, name, kFolder));
  if (!folder && errno == EACCES) {
    GiveRights(name, parent);
    folder = Descriptor(openat(parent, name, kFolder));
  }
  return folder;
}

// Opens a folder that is to be emptied.
Descriptor OpenToEmpty(const char* name, int parent) {
  Descriptor folder = OpenFolder(name, parent);
  struct stat facts{};
  if (folder && fstat(folder.get(), &facts) == 0 && (facts.st_mode & 0700) != 0700) fchmod(folder.get(), 0700);
  return folder;
}

bool Move(const char* name, int parent, const std::string& new_name, int new_parent) {
  if (renameat(parent, name, new_parent, new_name.c_str()) == 0) return true;
  if (errno != EACCES) return false;
  GiveRights(name, parent);  // a folder that is moved is written to: it notes where it lies
  return renameat(parent, name, new_parent, new_name.c_str()) == 0;
}

using Seen = std::set<std::pair<uint64_t, uint64_t>>;

uint64_t Count(int folder, uint64_t enough, int depth, Seen* seen) {
  if (depth >= kMostDepth) return enough + 1;
  uint64_t total = 0;
  ForEachName(folder, [&](const char* name) {
    struct stat facts{};
    if (fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) return true;
    const bool is_folder = S_ISDIR(facts.st_mode);
    const bool known = !is_folder && facts.st_nlink > 1 && !seen->insert({facts.st_dev, facts.st_ino}).second;
    total += std::max(known ? 0 : static_cast<uint64_t>(facts.st_blocks) * 512, kSmallest);
    if (is_folder && total <= enough) {
      Descriptor inner = OpenFolder(name, folder);
      if (inner) total += Count(inner.get(), enough - total, depth + 1, seen);
    }
    return total <= enough;
  });
  return total;
}

}  // namespace

void ForEachName(int folder, const std::function<bool(const char*)>& use) {
  Descriptor own(openat(folder, ".", kFolder));
  std::unique_ptr<DIR, int (*)(DIR*)> entries(own ? fdopendir(own.get()) : nullptr, closedir);
  if (!entries) return;
  (void)own.Release();
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != ".." && !use(entry->d_name)) return;
  }
}

// Folders inside of folders are moved up to the top and deleted there, so the depth costs neither stack nor descriptors.
void DeleteTree(const std::string& directory) {
  Descriptor top = OpenToEmpty(directory.c_str(), AT_FDCWD);
  unsigned number = 0;
  bool progress = static_cast<bool>(top);
  while (progress) {
    progress = false;
    ForEachName(top.get(), [&](const char* name) {
      if (unlinkat(top.get(), name, 0) == 0) return progress = true;
      Descriptor folder = OpenToEmpty(name, top.get());
      if (!folder) return true;
      ForEachName(folder.get(), [&](const char* inner) {
        const std::string moved = ".deleted-" + std::to_string(getpid()) + "-" + std::to_string(++number);
        progress |= unlinkat(folder.get(), inner, 0) == 0 || Move(inner, folder.get(), moved, top.get());
        return true;
      });
      progress |= unlinkat(top.get(), name, AT_REMOVEDIR) == 0;
      return true;
    });
  }
  rmdir(directory.c_str());
}

uint64_t DiskUsage(const std::string& directory, uint64_t enough) {
  Descriptor folder = OpenFolder(directory.c_str(), AT_FDCWD);
  Seen seen;
  return folder ? Count(folder.get(), enough, 0, &seen) : 0;
}

}  // namespace portcall::session
