// SPDX-License-Identifier: Apache-2.0
// The directories of servers.
#ifndef PORTCALL_BOARD_DIRECTORIES_H_
#define PORTCALL_BOARD_DIRECTORIES_H_

#include <string>

#include "session/descriptor.h"
#include "session/directories.h"

namespace portcall::board {

using namespace session;

// The directory of a server, which the sessions' directories are in. The lock is held as long as the descriptor is open
// in any process: a directory without a lock was left behind by a server that was killed.
struct BaseDirectory {
  std::string path;
  Descriptor lock;
};
// The folder that servers' directories are in: `place`, or the system's for such when empty.
std::string PlaceOf(const std::string& place);
BaseDirectory MakeBaseDirectory(const std::string& place);
void DeleteAbandonedDirectories(const std::string& place);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_DIRECTORIES_H_
