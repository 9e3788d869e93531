// SPDX-License-Identifier: Apache-2.0
#include "session/folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "session/directories.h"
#include "tests/check.h"

using namespace portcall;
using namespace portcall::session;

namespace {

// A directory with a folder `root` for sessions in it, and a secret beside that.
class Place {
 public:
  Place() {
    const char* temporary = std::getenv("TMPDIR");
    path_ = std::string(temporary ? temporary : "/tmp") + "/portcall-folder-XXXXXX";
    CHECK(mkdtemp(path_.data()) != nullptr);
    mkdir(root().c_str(), 0700);
    Write(path_ + "/secret", "secret");
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { DeleteTree(path_); }

  std::string root() const { return path_ + "/root"; }
  std::string secret() const { return path_ + "/secret"; }

  static void Write(const std::string& path, std::string_view text) {
    const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    CHECK_EQ(write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

 private:
  std::string path_;
};

std::string Read(const Descriptor& file) {
  char text[64];
  return {text, static_cast<size_t>(std::max<ssize_t>(read(file.get(), text, sizeof(text)), 0))};
}

// The kind of the error that it throws.
template <typename F> std::string KindOf(F action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(error.kind());
  }
  return "";
}

}  // namespace

TEST("paths in a session's folder are relative to it, or absolute within it") {
  const Place place;
  const Folder folder(place.root(), 0);
  for (const std::string& path : {std::string("a"), std::string("./a"), place.root() + "/a"}) {
    CHECK_EQ(folder.Path(path), place.root() + "/a");
  }
  CHECK_EQ(folder.Path("a//b/./c/"), place.root() + "/a/b/c");
  CHECK_EQ(folder.Path(""), place.root());
}

TEST("no path leads out of a session's folder") {
  const Place place;
  const Folder folder(place.root(), 0);
  for (const std::string& path :
       {std::string("../secret"), std::string("a/../../secret"), std::string(".."), place.secret(),
        place.root() + "/../secret", place.root() + "2/x", std::string("/")}) {
    CHECK_EQ(KindOf([&] { folder.Path(path); }), "PermissionError");
    CHECK_EQ(KindOf([&] { folder.Open(path, O_RDONLY); }), "PermissionError");
    CHECK_EQ(KindOf([&] { folder.Create(path); }), "PermissionError");
    CHECK_EQ(KindOf([&] { folder.Remove(path); }), "PermissionError");
    CHECK_EQ(KindOf([&] { folder.List(path); }), "PermissionError");
  }
  CHECK_EQ(KindOf([&] { folder.Path(std::string("a\0b", 3)); }), "ValueError");
  CHECK_EQ(KindOf([&] { folder.Open("", O_RDONLY); }), "IsADirectoryError");
}

TEST("links are not followed, and only ordinary files with one name are opened") {
  const Place place;
  const Folder folder(place.root(), 0);
  mkdir((place.root() + "/inside").c_str(), 0700);
  CHECK_EQ(symlink(place.secret().c_str(), (place.root() + "/to-file").c_str()), 0);
  CHECK_EQ(symlink("..", (place.root() + "/to-folder").c_str()), 0);
  CHECK_EQ(symlink("inside", (place.root() + "/to-inside").c_str()), 0);
  CHECK_EQ(link(place.secret().c_str(), (place.root() + "/hard").c_str()), 0);
  CHECK_EQ(mkfifo((place.root() + "/pipe").c_str(), 0600), 0);
  for (const char* path : {"to-file", "to-folder/secret", "to-inside/x", "hard", "pipe", "inside"}) {
    CHECK_EQ(KindOf([&] { folder.Open(path, O_RDONLY); }), "PermissionError");
  }
  for (const char* path : {"to-file", "hard", "pipe"}) CHECK(folder.Create(path));  // in their place
  CHECK_EQ(KindOf([&] { folder.Create("to-folder/new"); }), "PermissionError");
  CHECK_EQ(KindOf([&] { folder.Create("inside"); }), "IsADirectoryError");
  CHECK_EQ(Read(Descriptor(open(place.secret().c_str(), O_RDONLY))), "secret");
}

TEST("a file that is replaced stays whole for those who have it open") {
  const Place place;
  const Folder folder(place.root(), 0);
  Place::Write(place.root() + "/a", "old");
  const Descriptor old = folder.Open("a", O_RDONLY);
  CHECK_EQ(write(folder.Create("a").get(), "new", 3), 3);
  CHECK_EQ(Read(old), "old");
  CHECK_EQ(Read(folder.Open("a", O_RDONLY)), "new");
  CHECK(folder.List("") == std::vector<std::string>{"a"});
  folder.Remove("a");
  folder.Remove("a");  // which is no error
  folder.Remove("");
  CHECK_EQ(KindOf([&] { folder.Open("a", O_RDONLY); }), "FileNotFoundError");
  CHECK_EQ(KindOf([&] { folder.List("a/b"); }), "FileNotFoundError");
  CHECK(folder.List("").empty());
}

TEST("a session's files take no more than their limit") {
  const Place place;
  constexpr uint64_t kLimit = 1 << 20;
  const Folder folder(place.root(), kLimit), endless(place.root(), 0);
  Place::Write(place.root() + "/a", std::string(1000, 'x'));
  const uint64_t used = folder.Used();
  CHECK(used >= 1000 && used < kLimit);
  CHECK_EQ(KindOf([&] { folder.CheckRoom(kLimit - used); }), "");
  for (const uint64_t more : {kLimit - used + 1, UINT64_MAX, UINT64_MAX - used + 1}) {
    CHECK_EQ(KindOf([&] { folder.CheckRoom(more); }), "OSError");
  }
  CHECK_EQ(KindOf([&] { folder.CheckRoom(0, kLimit + 1); }), "OSError");
  CHECK_EQ(KindOf([&] { endless.CheckRoom(UINT64_MAX); }), "");
}

TEST("a file that another session kept is taken whole, and read alone") {
  const Place place;
  Folder folder(place.root(), 0);
  const std::string digest = folder.DigestOf(Descriptor(open(place.secret().c_str(), O_RDONLY)));
  CHECK_EQ(digest.size(), 64);
  folder.Link(place.secret(), "kept");
  folder.Taken(IdentityOf(folder.Open("kept", O_RDONLY)), digest);
  CHECK_EQ(KindOf([&] { folder.Open("kept", O_WRONLY); }), "PermissionError");
  folder.Verify("kept");  // it is a copy from now on
  CHECK(IdentityOf(folder.Open("kept", O_RDONLY)) != IdentityOf(Descriptor(open(place.secret().c_str(), O_RDONLY))));
  folder.Link(place.secret(), "changed");
  folder.Taken(IdentityOf(folder.Open("changed", O_RDONLY)), std::string(64, '0'));
  CHECK_EQ(KindOf([&] { folder.Verify("changed"); }), "ValueError");
  CHECK(folder.List("") == std::vector<std::string>{"kept"});
}
