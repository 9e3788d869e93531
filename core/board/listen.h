// SPDX-License-Identifier: Apache-2.0
// Where the server listens, and who comes.
#ifndef PORTCALL_BOARD_LISTEN_H_
#define PORTCALL_BOARD_LISTEN_H_

#include <string>

#include "board/options.h"
#include "session/descriptor.h"

namespace portcall::board {

using namespace session;
using namespace facts;

struct Listener {
  Descriptor socket;  // does not block
  std::string host;   // empty for a Unix socket
  int port = 0;
  std::string address;  // what clients connect to
};

// Throws OSError, which says what to do.
Listener Listen(const Options& options);
// A client's address, or the process and user at the other end of a Unix socket.
std::string PeerName(int socket);
std::string LocalAddress(int socket);  // without the port
// Sends small messages at once, and notices a peer that is gone while nothing is on its way to it.
void Tune(int socket);
// Whether a TCP connection waits for an acknowledgement, asked again, and got none for so long.
bool IsSilent(int socket, int milliseconds);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_LISTEN_H_
