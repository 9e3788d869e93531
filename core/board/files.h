// SPDX-License-Identifier: Apache-2.0
// Functions that clients call by name (docs/wire.md, section 7).
#ifndef PORTCALL_BOARD_FILES_H_
#define PORTCALL_BOARD_FILES_H_

#include <memory>

#include "board/folder.h"

namespace portcall::board {

// Those for the files of a session, which this process serves.
void RegisterFiles(std::shared_ptr<const Folder> folder);
// Those by which a session sends and receives objects by value.
void RegisterValues();
// Those that tuners and TVM's clients look up; a function that has such a name already stays.
void RegisterStandardNames();

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_FILES_H_
