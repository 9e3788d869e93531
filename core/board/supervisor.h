// SPDX-License-Identifier: Apache-2.0
// The process that clients connect to: lets them in, counts, forks a process for each session, and ends sessions. One
// thread, none of the user's code once it serves.
//
//   GREETING ── hello ──> WAITING ── its turn ──> SERVING
//       └── hello ──> PROVING ── proof ──┘             where there is a token
//
// Rules:
//  * It never waits for a client, a session, a disk or a reader of the log: what takes time is an event with a deadline.
//  * It keeps each connection open until the reason of the session's end has been noted.
//  * A session costs its own client at most: an error in an event ends the connection that the event belonged to.
#ifndef PORTCALL_BOARD_SUPERVISOR_H_
#define PORTCALL_BOARD_SUPERVISOR_H_

#include <poll.h>

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "board/clock.h"
#include "board/directories.h"
#include "board/ending.h"
#include "board/farm/gate.h"
#include "board/keeper.h"
#include "board/listen.h"
#include "board/log.h"
#include "board/secrets.h"
#include "board/session.h"

namespace portcall::board {

constexpr double kPause = 0.1;  // seconds until what failed for want of room is tried again

enum class State { kGreeting, kProving, kWaiting, kServing };

struct Connection {
  int number = 0;  // of the session
  Descriptor socket, progress;
  Descriptor errors[2];  // the pipe that its stderr is; the second end is the process's
  std::string peer;
  State state = State::kGreeting;
  std::string received;    // of the hello or the proof
  std::string transcript;  // all bytes that both sides said; the proofs are computed from them
  bool portcall = false;
  std::vector<std::string> features;
  double since = 0, limit = 0;  // when it connected; seconds that the session may last
  double deadline = 0;          // 0 for none
  Ending killed;                // why
  pid_t pid = 0, first = 0;     // of its process, and of the sandbox's beside that
  size_t place = 0;             // in the queue, as last reported
  int64_t fence = 0;            // of the farm's lease that it belongs to
  bool gone = false;            // the client has closed its side
};

class Supervisor {
 public:
  Supervisor(Options options, Secrets* secrets, LogStyle style);
  // Serves until a signal ends it, and returns that.
  int Run();

 private:
  struct Lingering {
    Descriptor socket;
    double deadline;
  };

  // Beginning and end
  void Prepare();
  void Announce();
  void StartKeeper();
  void ShutDown();
  void EndKeeper();
  // Events
  void Step();
  void Guard(int number, const std::function<void()>& action);
  void OnSignal();
  void OnAccept();
  void Begin(Descriptor socket);
  void OnOutput();
  void OnKeeper();
  void OnClient(Connection* connection, short events);
  void OnDeadlines();
  void LookForSilence();
  void Restart(double* after, void (Supervisor::*start)());
  void Reap();
  // Admission
  void Receive(Connection* connection);
  void OnHello(Connection* connection);
  void OnProof(Connection* connection);
  void Enqueue(Connection* connection);
  void ServeQueue();
  void Open(Connection* connection);
  void Fork(Connection* connection, const std::string& reply);
  void Refuse(Connection* connection, const std::string& why, const std::string& answer);
  void SendNow(Connection* connection, const std::string& data);
  void MakeRoom();
  // As a place of a farm
  void StartAgent();
  void OnAgentEnded();
  void OnAgent();
  void AdmitFromFarm(Connection* connection, const std::string& key);
  void EndLease(int64_t fence);
  void CloseLeases(int64_t fence);
  void ReportEndedLeases();
  // Ends
  void Kill(Connection* connection, Ending why);
  void Drop(Connection* connection, const Ending& ending);
  void Finish(Connection* connection, int status);
  void Forget(Connection* connection);

  size_t Count(State from, State to) const;
  bool IsCrowded() const;  // as many connections as may be are on their way to a session
  Connection* Find(int number);
  SessionStart LeaveSupervisor(Connection* connection);

  SessionOptions session_;
  const Options& options_;
  Secrets* secrets_;
  Log log_;
  Listener listener_;
  BaseDirectory base_;
  Keeper keeper_;
  Gate gate_;
  Descriptor signals_, output_read_, output_write_;
  std::map<int, std::unique_ptr<Connection>> connections_;  // by number
  std::deque<int> queue_;
  std::deque<std::pair<int, Ending>> ended_;  // the last sessions
  std::list<Lingering> lingering_;
  int last_number_ = 0;
  double accept_after_ = 0, keeper_after_ = 0, agent_after_ = 0, look_after_ = 0;
  int stop_signal_ = 0;
  bool announced_ = false;
  std::string failure_;  // by the farm
};

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_SUPERVISOR_H_
