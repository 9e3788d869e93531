// SPDX-License-Identifier: Apache-2.0
// The sandbox of a session: what the kernel offers to keep its code to its own directory, asked once for a server, and
// entered by each session's process before anything of its client runs.
#ifndef PORTCALL_SESSION_SANDBOX_H_
#define PORTCALL_SESSION_SANDBOX_H_

#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
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

  struct Started {
    pid_t session = 0, first = 0;
  };
  // Returns what `fork` returns, which starts a process: here that has numbers of processes of its own, and can reach
  // none outside. It ends with its first process (0 for none), which its parent ends when the session has ended, and waits
  // for. For a process with one thread: `fork` is called in another one that has this one's memory, and that has ended
  // when this returns. So `fork` may start a program, too. It throws where it cannot.
  Started Start(const std::function<pid_t()>& fork);
  // The same, where this process is to be the session's: it waits for a child in which this returns, and ends as that does.
  void Descend();
  // Confines the calling process, which Start or Descend began. A path of `paths` may be used, too: a device is read and
  // written, all else read and executed. Throws where a mechanism that was found fails.
  void Enter(const std::string& directory, const std::string& contents, std::vector<std::string> paths);

 private:
  struct Stack {
    alignas(16) char bytes[8192];
  };

  bool Has(std::string_view word) const;
  void FindReadable();
  pid_t EnterNamespaces(pid_t parent, Stack* stack);
  void LimitFiles(const std::string& directory, const std::string& contents, const std::vector<std::string>& paths);

  int landlock_ = 0;  // version of its interface
  bool seccomp_ = false, namespaces_ = false, limit_ = false;
  Descriptor user_, network_;  // namespaces of all sessions: a network takes a millisecond to make
  std::vector<std::pair<Descriptor, uint64_t>> readable_;  // what all sessions may use, and how
  std::vector<sock_filter> filter_;
  bool limited_ = false;  // whether the last namespace has few numbers of processes
  std::vector<std::pair<pid_t, std::unique_ptr<Stack>>> stacks_;  // of first processes
};

// A program of the kernel that denies calls of the system which lead out of a session. `alone`: no other process can be
// named; else it is for the calling process. `quiet`: none can be reached by a signal. Empty where this processor's calls
// are not known.
std::vector<sock_filter> FilterOfCalls(bool alone, bool quiet);
// Has it decide on the calls of this process from now on. Returns whether it does.
bool FilterCalls(const std::vector<sock_filter>& filter);
// Whether there can be such a filter.
bool CanFilterCalls();

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_SANDBOX_H_
