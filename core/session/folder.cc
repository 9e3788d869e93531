// SPDX-License-Identifier: Apache-2.0
#include "session/folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "portcall/sha256.h"
#include "session/directories.h"

namespace portcall::session {

using namespace sha256;
namespace {
constexpr size_t kPiece = 64 << 10;
std::string InQuotes(std::string_view path) { return "'" + std::string(path) + "'"; }
}  // namespace

void Folder::Enter(std::string root, std::string store) {
  root_ = std::move(root);
  store_ = std::move(store);
  fd_ = Descriptor(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd_) throw SystemError("cannot open the session's directory");
}

Folder::Steps Folder::Inside(std::string_view path) const {
  PORTCALL_CHECK(path.find('\0') == std::string_view::npos, ValueError) << "a path has a NUL character in it";
  std::string_view rest = path;
  if (!path.empty() && path[0] == '/') {
    const bool inside =
        path.substr(0, root_.size()) == root_ && (path.size() == root_.size() || path[root_.size()] == '/');
    PORTCALL_CHECK(inside, PermissionError)
        << InQuotes(path) << " is outside of the session's directory; use a relative path";
    rest.remove_prefix(root_.size());
  }
  Steps steps;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view step = rest.substr(0, end);
    PORTCALL_CHECK(step != "..", PermissionError)
        << InQuotes(path) << " may lead outside of the session's directory: leave out '..'";
    if (!step.empty() && step != ".") steps.emplace_back(step);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return steps;
}

std::string Folder::Path(std::string_view path) const {
  std::string whole = root_;
  for (const std::string& step : Inside(path)) whole += "/" + step;
  return whole;
}

Descriptor Folder::OpenFolder(const Steps& steps, size_t count, std::string_view path) const {
  Descriptor folder(openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (size_t i = 0; i < count; ++i) {
    Descriptor next(openat(folder.get(), steps[i].c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next && (errno == ENOTDIR || errno == ELOOP)) {
      PORTCALL_THROW(PermissionError) << InQuotes(path) << ": '" << steps[i] << "' is not a folder";
    }
    if (!next && errno == ENOENT) {
      PORTCALL_THROW(FileNotFoundError) << "cannot find folder '" << steps[i] << "' of " << InQuotes(path);
    }
    if (!next) throw SystemError("cannot open " + InQuotes(path));
    folder = std::move(next);
  }
  if (!folder) throw SystemError("cannot open " + InQuotes(path));
  return folder;
}

std::pair<Descriptor, std::string> Folder::Parent(std::string_view path) const {
  Steps steps = Inside(path);
  PORTCALL_CHECK(!steps.empty(), IsADirectoryError)
      << InQuotes(path) << ": this is the session's directory, not a file in it";
  return {OpenFolder(steps, steps.size() - 1, path), steps.back()};
}

Descriptor Folder::Open(std::string_view path, int flags) const {
  auto [folder, name] = Parent(path);
  Descriptor file(openat(folder.get(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!file && errno == ENOENT) {
    PORTCALL_THROW(FileNotFoundError) << "cannot find file " << InQuotes(path)
                                      << " in the session's directory: upload it first";
  }
  if (!file && (errno == ELOOP || errno == ENXIO)) {
    PORTCALL_THROW(PermissionError) << InQuotes(path) << " is a link or not an ordinary file";
  }
  if (!file) throw SystemError("cannot open " + InQuotes(path));
  struct stat facts{};
  const bool there = fstat(file.get(), &facts) == 0;
  const Identity identity{facts.st_dev, facts.st_ino};
  const bool changes = (flags & O_ACCMODE) != O_RDONLY && taken_.count(identity);
  const bool ordinary = S_ISREG(facts.st_mode) && (facts.st_nlink == 1 || own_links_.count(identity));
  PORTCALL_CHECK(there && ordinary && !changes, PermissionError) << InQuotes(path) << " is not an ordinary file";
  return file;
}

bool Folder::Unlink(int folder, const std::string& name, const std::string& failure) {
  if (unlinkat(folder, name.c_str(), 0) == 0) return true;
  if (errno == ENOENT) return false;
  PORTCALL_CHECK(errno != EISDIR && errno != EPERM, IsADirectoryError) << failure << ": it is a folder";
  throw SystemError(failure);
}

Descriptor Folder::Create(std::string_view path) const {
  auto [folder, name] = Parent(path);
  const std::string failure = "cannot write " + InQuotes(path);
  Unlink(folder.get(), name, failure);
  Descriptor file(openat(folder.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) throw SystemError(failure);
  return file;
}

void Folder::Link(const std::string& kept, std::string_view path) {
  const Descriptor file(open(kept.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts{};
  if (!file || fstat(file.get(), &facts) != 0) throw SystemError("cannot open what is kept");
  CheckRoom(static_cast<uint64_t>(facts.st_size));
  auto [folder, name] = Parent(path);
  const std::string failure = "cannot write " + InQuotes(path);
  Unlink(folder.get(), name, failure);
  own_links_.insert({facts.st_dev, facts.st_ino});
  if (linkat(AT_FDCWD, kept.c_str(), folder.get(), name.c_str(), 0) != 0) throw SystemError(failure);
}

void Folder::Verify(std::string_view path) const {
  const Descriptor file = Open(path, O_RDONLY);
  const auto found = taken_.find(IdentityOf(file));
  if (found == taken_.end()) return;
  auto [folder, name] = Parent(path);
  const std::string failure = "cannot copy " + InQuotes(path), beside = ".copy-" + name;
  Unlink(folder.get(), beside, failure);
  Descriptor copy(openat(folder.get(), beside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400));
  std::string piece(kPiece, '\0');
  for (ssize_t n; (n = read(file.get(), piece.data(), piece.size())) > 0;) {
    if (!copy || write(copy.get(), piece.data(), static_cast<size_t>(n)) != n) throw SystemError(failure);
  }
  const bool same = DigestOf(copy) == found->second;
  if (same && renameat(folder.get(), beside.c_str(), folder.get(), name.c_str()) == 0) return;
  Unlink(folder.get(), beside, failure);
  PORTCALL_CHECK(!same, OSError) << failure;
  Unlink(folder.get(), name, failure);
  PORTCALL_THROW(ValueError) << InQuotes(path) << " was changed on the server after it had been sent; upload it again";
}

std::string Folder::DigestOf(const Descriptor& file) const {
  if (digest_.defined()) return digest_(file.get()).cast<std::string>();
  Sha256 hash;
  std::string piece(kPiece, '\0');
  off_t offset = 0;
  for (ssize_t n; (n = pread(file.get(), piece.data(), piece.size(), offset)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw SystemError("cannot read a file");
    hash.Update(std::string_view(piece).substr(0, static_cast<size_t>(n)));
    offset += n;
  }
  return Hex(hash.Finish());
}

Folder::Identity IdentityOf(const Descriptor& file) {
  struct stat facts{};
  if (fstat(file.get(), &facts) != 0) throw SystemError("cannot look at a file");
  return {facts.st_dev, facts.st_ino};
}

void Folder::Remove(std::string_view path) const {
  if (Inside(path).empty()) return;  // TVM's tuner ends each session so; its directory goes with it anyway
  auto [folder, name] = Parent(path);
  Unlink(folder.get(), name, "cannot remove " + InQuotes(path));
}

std::vector<std::string> Folder::List(std::string_view path) const {
  Steps steps = Inside(path);
  std::set<std::string> names;
  ForEachName(OpenFolder(steps, steps.size(), path).get(), [&](const char* name) {
    names.emplace(name);
    return true;
  });
  return {names.begin(), names.end()};
}

uint64_t Folder::Used() const { return limit_ ? DiskUsage(root_, limit_) : 0; }

void Folder::CheckRoom(uint64_t nbytes, uint64_t used) const {
  if (!limit_) return;
  PORTCALL_CHECK(used <= limit_ && nbytes <= limit_ - used, OSError)
      << "no room: the session's files take " << used << " bytes, " << nbytes << " more are over the limit of "
      << limit_ << " bytes (--disk-limit)";
}

}  // namespace portcall::session
