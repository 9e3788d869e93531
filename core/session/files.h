// SPDX-License-Identifier: Apache-2.0
// Functions that clients call by name (docs/wire.md, section 7).
#ifndef PORTCALL_SESSION_FILES_H_
#define PORTCALL_SESSION_FILES_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "session/folder.h"
#include "session/linkage.h"

namespace portcall::session {

using Functions = std::vector<std::pair<std::string, PackedFunc>>;
void Register(const Functions& functions);

// Those for the files of a session.
Functions FilesOf(std::shared_ptr<const Folder> folder, const Beside& beside = {});
// Those for contents that are kept in the folder's store from session to session, at most `limit` bytes; 0 for what the
// disk can spare. `told` is called with the path of each whole file that is kept.
Functions ContentsOf(std::shared_ptr<Folder> folder, uint64_t limit, PackedFunc told = {});
// Those by which a session sends and receives objects by value.
void RegisterValues();
// Those for objects that stay here.
Functions ObjectFunctions();
// Those that tuners and TVM's clients look up; a function that has such a name already stays.
void RegisterStandardNames();
void RegisterContainerNames();

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_FILES_H_
