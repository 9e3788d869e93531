// SPDX-License-Identifier: Apache-2.0
// The process that takes care of the sessions' directories: it deletes them, counts what lies in them, and once the
// server is gone, killed or not, it ends what the sessions started and deletes the rest. A server that is stopped gives it
// little time for that; what is left, the keeper of the next one deletes.
#ifndef PORTCALL_BOARD_KEEPER_H_
#define PORTCALL_BOARD_KEEPER_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "session/descriptor.h"

namespace portcall::board {

using namespace session;

std::string SessionDirectory(const std::string& base, int number);
std::string ContentsDirectory(const std::string& base);  // what is kept from session to session

// The supervisor's side. It never waits.
class Keeper {
 public:
  struct Order {
    int32_t begins;  // or else it has ended
    int32_t number, pid;
  };

  // After a fork: the descriptor that the child serves is returned, the other one kept.
  Descriptor Connect();
  void Started(pid_t pid) { pid_ = pid; }
  pid_t pid() const { return pid_; }
  int fd() const { return link_.get(); }

  void SessionBegins(int number, pid_t pid) { Send({1, number, pid}); }
  void SessionEnded(int number) { Send({0, number, 0}); }
  bool waiting() const { return !orders_.empty(); }
  void SendWaiting();
  // The number of a session whose files take too much; 0 for none.
  int Receive();
  // The child must neither keep this link open nor send anything.
  void Close() { link_.Close(); }

 private:
  void Send(Order order);

  Descriptor link_;
  pid_t pid_ = 0;
  std::deque<Order> orders_;
};

struct KeeperTask {
  std::string base, place;              // the server's directory, and where those of other servers may lie
  uint64_t disk_limit;                  // 0 for none
  std::map<int32_t, int32_t> sessions;  // that are there already: number, process
  std::vector<std::string> left;        // directories that another keeper did not delete
};
// The child's whole life, until the other end of the link is closed.
void RunKeeper(const Descriptor& link, KeeperTask task);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_KEEPER_H_
