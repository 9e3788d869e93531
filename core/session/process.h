// SPDX-License-Identifier: Apache-2.0
// The process of one session: gives up what it must not keep, serves, ends.
#ifndef PORTCALL_SESSION_PROCESS_H_
#define PORTCALL_SESSION_PROCESS_H_

#include <string>
#include <vector>

#include "portcall/function.h"
#include "session/descriptor.h"

namespace portcall::session {

// Becomes a process that ends with its parent, in the session's directory.
void Isolate(const std::string& directory, pid_t parent);

// For this process and all that it starts, in bytes, and for each of them in seconds of a processor; 0 for no limit.
void LimitResources(int64_t memory, int64_t disk, double processor);

// The ends of a pipe.
struct Pipe {
  Descriptor reading, writing;
};

struct Service {
  Descriptor client;                  // its connection
  std::vector<std::string> patterns;  // of the functions that are offered
  int64_t max_frame = 0;
  PackedFunc constructor;  // makes the session that a client asks for by name
  Descriptor progress;     // memory that a supervisor reads
  std::string features;    // that the session uses, separated by commas
  PackedFunc flush;        // where a language has streams of its own: writes what they still hold
  Pipe out, err;           // for stdout and stderr, for a client that may read an account of its end
};

// Serves until the connection ends, or a device has failed for good, and returns whether one has; calls the user's
// functions for the start and the end.
bool Serve(Service service);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_PROCESS_H_
