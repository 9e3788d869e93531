// SPDX-License-Identifier: Apache-2.0
// What the dynamic linker would do with a library here: which files it would open, what they offer. They are read, never
// loaded. The search follows ld.so(8): what is loaded already, run path, LD_LIBRARY_PATH, the folders of ld.so.conf, the
// default folders; then what the program that asks has beside them.
#ifndef PORTCALL_SESSION_LINKAGE_H_
#define PORTCALL_SESSION_LINKAGE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "portcall/function.h"

namespace portcall::session {

using Names = std::vector<std::string>;

// What a program has beside the linker's folders. The server without Python has nothing.
struct Beside {
  PackedFunc place_of;          // (name of a library) -> its path, empty text for none; not defined: there is none
  std::string objects_library;  // the path of what has the functions of portcall/ir.h, and is loaded when it is needed
};

class Linkage {
 public:
  // For a library that lies in `folder`, or will, needs others and says where to look first.
  Linkage(const std::string& folder, const Names& needed, const Names& runpath, const Beside& beside);

  // Where each library lies that it asks for itself; empty where nothing was found.
  const std::map<std::string, std::string>& found() const { return found_; }
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

  const Beside& beside_;
  std::map<Place, std::string> opened_;  // the path of each file
  std::map<std::string, std::string> found_;
  std::map<std::string, std::string> not_found_;
  Names needed_;
};

// Those of the symbols that neither every library of this process sees, nor the runtime has.
std::set<std::string> WithoutRuntime(const Names& symbols, const Beside& beside);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_LINKAGE_H_
