// SPDX-License-Identifier: Apache-2.0
// The options of the program: those of `portcall serve` that need no Python, by the same names.
#ifndef PORTCALL_BOARD_OPTIONS_H_
#define PORTCALL_BOARD_OPTIONS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "facts/server.h"
#include "facts/wire.h"

namespace portcall::board {

// Durations are seconds, sizes bytes; 0 means no limit.
struct Options {
  std::string host = "127.0.0.1", unix_path, key, token_file, work_dir, ready_file;
  std::string place, check, prepare, clean;
  std::pair<std::string, std::string> custom_addr;        // where clients reach the server; the port may be empty
  std::vector<std::pair<std::string, std::string>> farm;  // hosts and ports; empty for none
  int64_t port = -1, port_end = 0;
  std::vector<std::string> libraries, expose, tags, sandbox_paths;
  std::string sandbox;  // "best", "require" or empty
  bool insecure = false, relay = false, json = false, log_json = false, silent = false;
  int64_t max_sessions = 0, memory_limit = 0, disk_limit = 0, max_frame = facts::kMaxFrame;
  int64_t max_handshakes = facts::kMaxHandshakes;
  double session_timeout = 0, cpu_limit = 0, handshake_timeout = facts::kHandshakeTimeout,
         hook_limit = facts::kHookLimit;
  double lost_client_grace = facts::kLostClientGrace;

  bool Local() const;  // only processes of this machine can connect
};

// Whether an address, or a name, is of this machine alone.
bool IsLoopback(const std::string& host);

// What was asked for instead of serving (--help, --version) is printed, and `exit_code` is 0; after a mistake it is 2.
struct Parsed {
  Options options;
  int exit_code = -1;  // -1: go on
};
Parsed ParseOptions(int argc, char** argv);

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_OPTIONS_H_
