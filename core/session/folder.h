// SPDX-License-Identifier: Apache-2.0
// A directory that nothing leads out of. A path is relative to it, or absolute within it; ".." is refused, and links are
// not followed: each step is opened from the one before it. Only ordinary files with one name are opened.
#ifndef PORTCALL_SESSION_FOLDER_H_
#define PORTCALL_SESSION_FOLDER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "portcall/function.h"
#include "session/descriptor.h"

namespace portcall::session {

class Folder {
 public:
  using Identity = std::pair<uint64_t, uint64_t>;  // device, inode

  // `limit`: maximum bytes of its files, 0 for any number; `digest`: what finds the SHA-256 of a file faster than C++ does:
  // open file -> hexadecimal digits.
  explicit Folder(uint64_t limit, PackedFunc digest = {}) : limit_(limit), digest_(std::move(digest)) {}
  Folder(std::string root, uint64_t limit) : Folder(limit) { Enter(std::move(root)); }

  // Says which directory it is, an absolute path without links, and where its contents are kept, if they are. It is done
  // once: functions that use the folder may be made before the session that has it.
  void Enter(std::string root, std::string store = {});
  const std::string& store() const { return store_; }

  std::string Path(std::string_view path) const;  // absolute
  Descriptor Open(std::string_view path, int flags) const;
  // Replaces the file of that name; open handles keep the old one.
  Descriptor Create(std::string_view path) const;
  void Remove(std::string_view path) const;
  std::vector<std::string> List(std::string_view path) const;  // sorted
  uint64_t Used() const;                                       // bytes, as far as that matters for the limit
  // Throws OSError where that many more bytes are over the limit.
  void CheckRoom(uint64_t nbytes) const { CheckRoom(nbytes, Used()); }
  void CheckRoom(uint64_t nbytes, uint64_t used) const;
  // The SHA-256 of an open file, as hexadecimal digits.
  std::string DigestOf(const Descriptor& file) const;

  // Files of the server that are kept from session to session have a name here and one in its store (contents.cc).
  void MayHaveLinks(Identity file) { own_links_.insert(file); }
  // Gives a file of the store a name here.
  void Link(const std::string& kept, std::string_view path);
  // The file came from another session, with this SHA-256.
  void Taken(Identity file, const std::string& digest) { taken_[file] = digest; }
  // Replaces a file that was taken by a separate copy; ValueError where somebody wrote into it.
  void Verify(std::string_view path) const;

 private:
  using Steps = std::vector<std::string>;
  Steps Inside(std::string_view path) const;
  Descriptor OpenFolder(const Steps& steps, size_t count, std::string_view path) const;
  std::pair<Descriptor, std::string> Parent(std::string_view path) const;
  // Returns false where there is nothing of that name.
  static bool Unlink(int folder, const std::string& name, const std::string& failure);

  std::string root_, store_;
  uint64_t limit_;
  PackedFunc digest_;
  Descriptor fd_;
  std::set<Identity> own_links_;
  std::map<Identity, std::string> taken_;
};

// Of an open file.
Folder::Identity IdentityOf(const Descriptor& file);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_FOLDER_H_
