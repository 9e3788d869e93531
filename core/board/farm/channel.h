// SPDX-License-Identifier: Apache-2.0
// Commands to a farm: one JSON object each way, by HTTP on a connection that is kept.
#ifndef PORTCALL_BOARD_FARM_CHANNEL_H_
#define PORTCALL_BOARD_FARM_CHANNEL_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "session/descriptor.h"
#include "session/json.h"

namespace portcall::board {

using namespace session;

struct FarmAnswer {
  int status = 0;
  Json body;
  std::string Word(const char* name) const;  // a text of the body; empty where there is none
};

// To the first of the farm's processes that is there. All errors are OSError: the farm is away.
class FarmChannel {
 public:
  using Addresses = std::vector<std::pair<std::string, std::string>>;  // hosts and ports
  // The token stays with the caller.
  FarmChannel(Addresses addresses, std::string_view token) : addresses_(std::move(addresses)), token_(token) {}

  void Connect();  // unless it is
  // Sends a command; the answer may take `hold` seconds longer than usual.
  void Ask(const std::string& command, double hold);
  // True with the answer, once all of it is there; what has come so far is kept.
  bool Receive(FarmAnswer* answer);
  void Close();
  Descriptor ConnectAgain() const;  // to the process that is in use; blocks for 10 s at the most

  bool asking() const { return asking_; }
  int fd() const { return socket_.get(); }
  double deadline() const { return deadline_; }
  const std::string& host() const { return addresses_[current_].first; }
  const std::string& port() const { return addresses_[current_].second; }
  std::string address() const;
  std::string LocalHost() const;  // of this machine, as the farm sees it

 private:
  void SendRequest();

  Addresses addresses_;
  size_t current_ = 0;
  std::string_view token_;
  Descriptor socket_;
  bool asking_ = false, fresh_ = false;
  std::string command_, received_;
  double hold_ = 0, deadline_ = 0;
};

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_FARM_CHANNEL_H_
