// SPDX-License-Identifier: Apache-2.0
// The gate of a server that is a place of a farm: clients that the farm sent come in, each with a key for one session.
// The agent, another process (agent.h), speaks over a link.
#ifndef PORTCALL_BOARD_FARM_GATE_H_
#define PORTCALL_BOARD_FARM_GATE_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "facts/farm.h"
#include "session/descriptor.h"

namespace portcall::board {

using namespace session;

struct GateMessage {
  enum Kind : int32_t {
    kAdmit = 1,   // of the agent: let a client with the key `text` in, for `limit` seconds (0: any time)
    kEndLease,    //   end all sessions up to this fence
    kAdopt,       //   a connection comes with the message
    kRegistered,  //   the farm knows the place
    kFailed,      //   the farm refuses us for good: `text`
    kOpened,      // of the server: a session
    kClosed,      //   `text` says how
    kLeaseEnded,  //   nothing is left of the leases up to this fence
    kStop,        //   leave the farm
  };
  GateMessage() = default;
  GateMessage(Kind what, int number, int64_t of) : kind(what), session(number), fence(of) {}
  bool SetText(std::string_view words);  // returns false where the end is cut off

  int32_t kind = 0, session = 0;
  int64_t fence = 0;
  double limit = 0;
  char text[facts::kMaxClientKey + 1] = "";
};

// One message, with a descriptor or without; false where it was not sent.
bool SendOnLink(int link, const GateMessage& message, int descriptor, int flags);
// The size of what came, as recv(2) returns it.
ssize_t ReceiveFromLink(int link, GateMessage* message, Descriptor* descriptor, int flags);

// The supervisor's side. It never waits.
class Gate {
 public:
  struct Admission {
    int64_t fence;
    double limit;
  };

  // After a fork: the descriptor that the child serves is returned, the other one kept.
  Descriptor Connect();
  void Started(pid_t pid) { pid_ = pid; }
  pid_t pid() const { return pid_; }
  int fd() const { return link_.get(); }
  int64_t last_fence() const { return last_fence_; }

  bool waiting() const { return !waiting_.empty(); }
  void SendWaiting();
  void Send(const GateMessage& message);
  bool Receive(GateMessage* message, Descriptor* descriptor);

  void Allow(const GateMessage& message);
  // Says what a client's key is good for, and forgets it. False: it lets no one in.
  bool Admit(const std::string& key, Admission* admission);
  void Forget(int64_t fence);  // the keys of leases up to a fence
  void ToBeReported(int64_t fence) { ending_.insert(fence); }
  // Reports the ends of leases, of which the oldest one with a connection has the fence `oldest`; 0 for none.
  void ReportEnded(int64_t oldest);
  // The child must neither keep this link open nor send anything.
  void Close() { link_.Close(); }

 private:
  Descriptor link_;
  pid_t pid_ = 0;
  int64_t last_fence_ = 0;
  std::deque<GateMessage> waiting_;
  std::map<std::string, Admission> keys_;
  std::set<int64_t> ending_;  // fences
};

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_FARM_GATE_H_
