// SPDX-License-Identifier: Apache-2.0
// Directories that a stranger filled: of any depth, with any rights and any number of files. Folders are opened one from
// the other, and links are not followed.
#ifndef PORTCALL_SESSION_DIRECTORIES_H_
#define PORTCALL_SESSION_DIRECTORIES_H_

#include <cstdint>
#include <functional>
#include <string>

namespace portcall::session {

// Calls use(name) for each name in an open folder but "." and "..", in any order, until it returns false.
void ForEachName(int folder, const std::function<bool(const char*)>& use);

// Deletes a directory and all that is in it; what cannot be deleted stays, without an error.
void DeleteTree(const std::string& directory);

// The bytes that a directory's files take: 512 at least for each name, a file with several names once. Counting ends
// when it is more than `enough`, which folders deeper than 256 are.
uint64_t DiskUsage(const std::string& directory, uint64_t enough);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_DIRECTORIES_H_
