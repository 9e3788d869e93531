// SPDX-License-Identifier: Apache-2.0
// The process of one session: give up what it must not keep, serve, end.
#ifndef PORTCALL_BOARD_SESSION_H_
#define PORTCALL_BOARD_SESSION_H_

#include <signal.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <vector>

#include "board/options.h"
#include "session/descriptor.h"
#include "session/sandbox.h"

namespace portcall::board {

using namespace session;

// What the supervisor hands to a session's process; nothing else of the supervisor's is open there.
struct SessionStart {
  Descriptor client, progress;
  std::string reply;                // the rest of the handshake
  std::string features;             // that the session uses, separated by commas
  int log = -1;                     // what it writes goes there
  Descriptor errors[2];             // a pipe that is to be its stderr
  std::string directory, contents;  // its own, and that of all sessions
  pid_t parent = 0;
};

// What every session is told when the server starts.
struct SessionOptions {
  Options server;
  std::vector<std::string> patterns;  // of the functions that it offers
  sigset_t signals{};                 // to block
  rlimit files{};
  std::unique_ptr<Sandbox> sandbox;  // none: sessions have the rights of the server's user
};

// Loads the libraries of the options and returns the patterns of the functions that sessions may use.
std::vector<std::string> LoadLibraries(const Options& options);
// Takes pages of files, which hold code that only the start needed, out of this process; those it uses come back.
void GiveBackCode();
// Returns the exit code.
int RunSession(SessionStart start, SessionOptions& options) noexcept;

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_SESSION_H_
