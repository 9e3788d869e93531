// SPDX-License-Identifier: Apache-2.0
// Directories that a stranger filled: of any depth, with any rights and any number of files. Folders are opened one from
// the other, and links are not followed.
#ifndef PORTCALL_BOARD_DIRECTORIES_H_
#define PORTCALL_BOARD_DIRECTORIES_H_

#include <cstdint>
#include <functional>
#include <string>

#include "board/descriptor.h"

namespace portcall::board {

// Calls use(name) for each name in an open folder but "." and "..", in any order, until it returns false.
void ForEachName(int folder, const std::function<bool(const char*)>& use);

// Deletes a directory and all that is in it; what cannot be deleted stays, without an error.
void DeleteTree(const std::string& directory);

// The bytes that a directory's files take: 512 at least for each name, a file with several names once. Counting ends
// when it is more than `enough`, which folders deeper than 256 are.
uint64_t DiskUsage(const std::string& directory, uint64_t enough);

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
