// SPDX-License-Identifier: Apache-2.0
// The sandbox of a session: what the kernel offers to keep its code to its own directory, asked once for a server, and
// entered by each session's process before anything of its client runs.
#ifndef PORTCALL_SESSION_SANDBOX_H_
#define PORTCALL_SESSION_SANDBOX_H_

#include <string>
#include <string_view>
#include <vector>

#include "session/descriptor.h"

namespace portcall::session {

class Sandbox {
 public:
  // Asks the kernel, in processes of its own where that changes something.
  Sandbox();

  // What there is, for people: "Landlock 7, seccomp".
  std::string Found() const;
  // The mechanisms that are not there, with why: "Landlock (Linux 6.2)".
  std::vector<std::string> Missing() const;
  // The names of what sessions could still do: rows of facts::kSandboxGroups.
  std::vector<std::string> Open() const;
  // Throws OSError where the mode is "require" and something is missing.
  void Check(const std::string& mode) const;
  // Makes what all sessions share.
  void Prepare();
  // For the log.
  std::string Report() const;

  // Makes the calling process, which has one thread, a session's: returns in a child that is confined, while the caller
  // waits for it and ends as it ends. A path of `paths` may be used, too: a device is read and written, all else read
  // and executed. Throws where a mechanism that was found fails.
  void Enter(const std::string& directory, const std::string& contents, std::vector<std::string> paths);

 private:
  bool Has(std::string_view word) const;
  void LimitFiles(const std::string& directory, const std::string& contents,
                  const std::vector<std::string>& paths) const;

  int landlock_ = 0;  // version of its interface
  bool seccomp_ = false, namespaces_ = false, limit_ = false;
  Descriptor user_, network_;  // namespaces that sessions start from: a network takes a millisecond to make
};

// Denies calls of the system that lead out of a session. `alone`: no other process can be named; `quiet`: none can be
// reached by a signal. Returns false where this processor's calls are not known.
bool FilterCalls(bool alone, bool quiet);
// Whether there can be such a filter.
bool CanFilterCalls();

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_SANDBOX_H_
