// SPDX-License-Identifier: Apache-2.0
// What a client sets for its session, and sees of it.
#ifndef PORTCALL_RPC_CLIENT_FACTS_H_
#define PORTCALL_RPC_CLIENT_FACTS_H_

#include <string>

#include "rpc/codec.h"

namespace portcall::rpc {

struct RemoteOptions {
  std::string name;         // for messages: "127.0.0.1:9090"
  double call_timeout = 0;  // seconds for one request and its answer; not positive: no limit
  uint64_t max_frame = uint64_t{1} << 34;
};

// Counts of a session's life, for its user. Times are seconds.
struct SessionStats {
  uint64_t requests = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  double waited = 0;                    // on the channel, of which
  double run = 0, copy = 0, fetch = 0;  // calls, copies to the session and within it, copies from it
};

// The request that is on its way, for those who wonder what it waits for.
struct Activity {
  Code code = Code::kNone;  // kNone: there is none
  const char* what = "";    // the code in words
  double seconds = 0;       // since it began
  double silent = 0;        // since bytes came or went
  uint64_t sent = 0, to_send = 0;
  uint64_t received = 0, to_receive = 0;  // 0: not known
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_CLIENT_FACTS_H_
