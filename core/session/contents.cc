// SPDX-License-Identifier: Apache-2.0
// Files by content: what one session sent, another need not send again, and
// an upload that broke off goes on. In the store a file's name begins with its size and a sample of it ("stem"), then comes
// "-" and its SHA-256; "." and a number until that is asked for; ".part" for the start of a file.
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "portcall/function.h"
#include "session/directories.h"
#include "session/files.h"

namespace portcall::session {
namespace {

constexpr uint64_t kMostStored = uint64_t{2} << 30;
constexpr size_t kMostContents = 256;  // each upload looks at all of them

bool StartsWith(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

void CheckHex(const std::string& text) {
  PORTCALL_CHECK(text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos, ValueError)
      << "invalid digest '" << text.substr(0, 80) << "' (must be 64 hexadecimal digits)";
}

class Contents {
 public:
  Contents(std::shared_ptr<Folder> folder, uint64_t limit, PackedFunc kept)
      : folder_(std::move(folder)), limit_(limit), kept_(std::move(kept)) {}

  std::string Find(int64_t size, std::string sample) const {
    const std::string stem = Stem(size, sample);
    bool part = false, complete = false;
    for (const std::string& name : Names()) {
      if (name == stem + ".part") part = true;
      else complete |= StartsWith(name, stem);
    }
    return complete ? "complete" : part ? "part" : "";
  }

  bool Take(std::string path, int64_t size, std::string sample, std::string digest) {
    CheckHex(digest);
    const std::string stem = Stem(size, sample), kept = stem + "-" + digest;
    for (const std::string& name : Names()) {
      if (!StartsWith(name, stem + ".") || name == stem + ".part") continue;
      const Descriptor file = Open(name);
      if (file) rename((store() + "/" + name).c_str(), (store() + "/" + stem + "-" + folder_->DigestOf(file)).c_str());
    }
    const Descriptor file = Open(kept);
    if (!file) return false;
    folder_->Link(store() + "/" + kept, path);
    Use(kept);
    folder_->Taken(IdentityOf(file), digest);
    return true;
  }

  void Begin(std::string path, int64_t size, std::string sample) {
    Keep(path, Stem(size, sample) + ".part");
    Lock(path, folder_->Open(path, O_RDONLY));
  }

  int64_t Resume(std::string path, int64_t size, std::string sample) {
    const std::string name = Stem(size, sample) + ".part";
    struct stat facts{};
    Descriptor file = Open(name);
    if (!file || fstat(file.get(), &facts) != 0 || !Lock(path, std::move(file))) return 0;
    folder_->Link(store() + "/" + name, path);
    return facts.st_size;
  }

  void KeepWhole(std::string path, std::string sample) {
    struct stat facts{};
    if (fstat(folder_->Open(path, O_RDONLY).get(), &facts) != 0) throw SystemError("cannot keep '" + path + "'");
    const std::string stem = Stem(facts.st_size, sample);
    const std::string whole = stem + "." + std::to_string(facts.st_ino);
    Keep(path, whole);
    unlink((store() + "/" + stem + ".part").c_str());
    locks_.erase(path);  // the open file would take its room on the disk after it was deleted
    MakeRoom();
    if (kept_.defined()) kept_(store() + "/" + whole);
  }

 private:
  const std::string& store() const { return folder_->store(); }
  static std::string Stem(int64_t size, const std::string& sample) {
    CheckHex(sample);
    return std::to_string(std::max<int64_t>(size, 0)) + "-" + sample;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    const Descriptor store(open(folder_->store().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (store) {
      ForEachName(store.get(), [&](const char* name) {
        names.emplace_back(name);
        return true;
      });
    }
    return names;
  }

  Descriptor Open(const std::string& name) const {
    return Descriptor(open((store() + "/" + name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  }

  // Makes its time the present. A session in a sandbox sets no times, but those of what it writes.
  void Use(const std::string& name) const {
    struct stat facts{};
    const Descriptor file(open((store() + "/" + name).c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file && fstat(file.get(), &facts) == 0) (void)!ftruncate(file.get(), facts.st_size);
  }

  // Gives a file of the session a second name, at once: another session may keep the same content now.
  void Keep(const std::string& path, const std::string& name) {
    const Folder::Identity file = IdentityOf(folder_->Open(path, O_RDONLY));
    folder_->MayHaveLinks(file);
    mkdir(store().substr(0, store().rfind('/')).c_str(), 0700);
    mkdir(store().c_str(), 0700);
    const std::string kept = store() + "/" + name, beside = store() + "/new-" + std::to_string(file.second);
    unlink(beside.c_str());  // of a session that was killed
    const bool done = linkat(AT_FDCWD, folder_->Path(path).c_str(), AT_FDCWD, beside.c_str(), 0) == 0 &&
                      rename(beside.c_str(), kept.c_str()) == 0;
    const Error error = SystemError("cannot keep '" + path + "'");
    unlink(beside.c_str());  // it stays if both names were those of one file
    if (!done) throw error;
  }

  // Has a part for this session alone, until it is whole or the session ends.
  bool Lock(const std::string& path, Descriptor file) {
    locks_.erase(path);
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
    locks_.insert_or_assign(path, std::move(file));
    return true;
  }

  // Deletes the files that were used least recently.
  void MakeRoom() const {
    struct statvfs disk{};
    uint64_t limit = limit_, used = 0;
    if (!limit && statvfs(store().c_str(), &disk) == 0) {
      limit = std::min<uint64_t>(kMostStored, uint64_t{disk.f_blocks} * disk.f_frsize / 4);
    }
    std::multimap<std::pair<int64_t, int64_t>, std::pair<uint64_t, std::string>> files;  // by age: size and path
    for (const std::string& name : Names()) {
      struct stat facts{};
      const std::string path = store() + "/" + name;
      if (stat(path.c_str(), &facts) != 0) continue;
      used += static_cast<uint64_t>(facts.st_size);
      files.insert({{facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec}, {static_cast<uint64_t>(facts.st_size), path}});
    }
    size_t left = files.size();
    for (const auto& [age, file] : files) {
      if (used <= limit && left <= kMostContents) return;
      unlink(file.second.c_str());
      used -= file.first;
      --left;
    }
  }

  std::shared_ptr<Folder> folder_;
  uint64_t limit_;
  PackedFunc kept_;
  std::map<std::string, Descriptor> locks_;  // of parts, by the paths where this session writes them
};

}  // namespace

Functions ContentsOf(std::shared_ptr<Folder> folder, uint64_t limit, PackedFunc told) {
  Functions functions;
  const auto offer = [&](const char* name, auto body) {
    functions.emplace_back(name, PackedFunc(detail::Unpack(std::move(body)), name));
  };
  auto kept = std::make_shared<Contents>(std::move(folder), limit, std::move(told));
  offer("portcall.rpc.content_find", [kept](int64_t size, std::string sample) { return kept->Find(size, sample); });
  offer("portcall.rpc.content_take", [kept](std::string path, int64_t size, std::string sample, std::string digest) {
    return kept->Take(path, size, sample, digest);
  });
  offer("portcall.rpc.content_begin",
        [kept](std::string path, int64_t size, std::string sample) { kept->Begin(path, size, sample); });
  offer("portcall.rpc.content_resume",
        [kept](std::string path, int64_t size, std::string sample) { return kept->Resume(path, size, sample); });
  offer("portcall.rpc.content_keep", [kept](std::string path, std::string sample) { kept->KeepWhole(path, sample); });
  return functions;
}

}  // namespace portcall::session
