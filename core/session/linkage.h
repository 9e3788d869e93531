// SPDX-License-Identifier: Apache-2.0
// What the dynamic linker would do with a library here: which files it would open, what they offer. They are read, never
// loaded. The rules are those of portcall/inspect/_linkage.py.
#ifndef PORTCALL_SESSION_LINKAGE_H_
#define PORTCALL_SESSION_LINKAGE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace portcall::session {

using Names = std::vector<std::string>;

class Linkage {
 public:
  // For a library that lies in `folder`, or will, needs others and says where to look first.
  Linkage(const std::string& folder, const Names& needed, const Names& runpath);

  // For each library that could not be found, who asks for it first.
  const std::map<std::string, std::string>& not_found() const { return not_found_; }
  // Those of the symbols that neither this process nor any of the libraries has, sorted.
  std::set<std::string> Without(const Names& symbols) const;
  // Those of the versions of symbols that a library lacks, sorted; none for a library that was not found.
  std::set<std::string> VersionGap(const std::string& library, const Names& versions) const;

 private:
  struct Place {
    uint64_t device, number;
    bool operator<(const Place& other) const {
      return device != other.device ? device < other.device : number < other.number;
    }
  };
  std::string Find(const std::string& name, const Names& folders, Place* place) const;

  std::map<Place, std::string> opened_;  // the path of each file
  std::map<std::string, std::string> not_found_;
  Names needed_;
};

// Those of the symbols that this process does not show to every library.
std::set<std::string> WithoutProcess(const Names& symbols);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_LINKAGE_H_
