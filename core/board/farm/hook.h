// SPDX-License-Identifier: Apache-2.0
// Commands of the shell that run before and after a lease. Each has a limit, and is not waited for.
#ifndef PORTCALL_BOARD_FARM_HOOK_H_
#define PORTCALL_BOARD_FARM_HOOK_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "session/descriptor.h"

namespace portcall::board {

using namespace session;

class Hook {
 public:
  using Variables = std::vector<std::pair<const char*, std::string>>;  // of the environment

  // `limit` seconds from now on it is ended, with all that it started.
  Hook(std::string command, double limit, const Variables& variables);
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;
  ~Hook() { Kill(); }

  int fd() const { return output_.get(); }  // readable when there is something to do; -1: look again soon
  double deadline() const { return deadline_; }
  // Takes what it printed. True once it has ended; `why` says then why it failed, or is empty.
  bool Ended(std::string* why);

 private:
  void Kill();

  std::string command_, said_;
  double limit_, deadline_;
  Descriptor output_;
  pid_t pid_ = 0;
};

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_FARM_HOOK_H_
