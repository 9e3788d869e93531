// SPDX-License-Identifier: Apache-2.0
// Outlet: the way out of a served session. Answers, and between them what its code prints: from pipes to the server's log
// and to the client. Who prints does not wait for the client: text that has no room is dropped and counted.
#ifndef PORTCALL_RPC_OUTLET_H_
#define PORTCALL_RPC_OUTLET_H_

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "rpc/channel.h"
#include "rpc/progress.h"

namespace portcall::rpc {

// Where a session's stdout and stderr arrive: ends of pipes to read, which are borrowed; -1 for none.
struct PrintPipes {
  int streams[2] = {-1, -1};
  int log = -1;            // where the text goes, too
  bool to_client = false;  // in frames of code Output
  bool signs = false;      // of life, for the client, while it waits: such a frame without text every second
};

class Outlet {
 public:
  Outlet(Channel* channel, Progress* progress, PrintPipes pipes);
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  // Sends what was printed so far, then the answers; waits until they are gone.
  void Flush(SendQueue* answers);
  // Whether the client waits for something.
  void set_working(bool on) { working_ = on; }

 private:
  void Run();
  void Read();
  void Take(int stream, std::string_view text);
  void TakeLines(int stream, std::string_view lines);
  void WriteOutput(int stream, std::string_view text);
  void GiveSign();
  bool SendPrinted(Deadline deadline);
  bool TrySend();

  using Clock = std::chrono::steady_clock;
  Channel* channel_;
  Progress* progress_;
  PrintPipes pipes_;
  std::mutex sending_;        // guards the channel and out_; taken before the other
  std::string out_;           // frames on their way
  std::mutex reading_;        // guards what follows
  std::string rest_[2];       // of a line
  std::string printed_;       // frames that wait
  uint64_t dropped_[2] = {};  // lines
  std::atomic<bool> working_{false};
  Clock::time_point last_sign_;
  int wake_ = -1;
  int printing_ = -1;   // an epoll descriptor: whether a pipe has text, for a tenth of what poll() costs
  std::thread thread_;  // last: it uses the others
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_OUTLET_H_
