// SPDX-License-Identifier: Apache-2.0
// The supervisor of a server that is a place of a farm: its gate, and the agent's process.
#include <signal.h>

#include <algorithm>

#include "board/farm/agent.h"
#include "board/supervisor.h"

namespace portcall::board {

void Supervisor::StartAgent() {
  AgentTask task{&options_, listener_.host, listener_.port, gate_.last_fence(), {}, announced_, {}};
  for (const auto& [number, connection] : connections_) {
    if (connection->state == State::kServing) task.open[number] = connection->fence;
  }
  const Descriptor theirs = gate_.Connect();
  const pid_t pid = secrets_->Fork(true);  // no other process may open its memory before the token is there
  if (pid < 0) throw SystemError("cannot start a process");
  if (pid == 0) {
    gate_.Close();
    const LogStyle style = log_.style();
    Connection none;
    LeaveSupervisor(&none);
    RunAgent(theirs, std::move(task), style);
    _exit(0);
  }
  gate_.Started(pid);
  secrets_->SendToAgent(gate_.fd());
}

// The farm hears that no session is open once it asks the next agent.
void Supervisor::OnAgentEnded() {
  gate_.Started(0);
  gate_.Close();
  if (stop_signal_) return;
  log_.Write(Event::kRestart, "the process that speaks to the farm ended; starting another one");
  agent_after_ = Now() + kPause;
}

void Supervisor::OnAgent() {
  gate_.SendWaiting();
  for (;;) {
    GateMessage message;
    Descriptor passed;
    if (!gate_.Receive(&message, &passed)) return;
    if (message.kind == GateMessage::kAdmit) {
      CloseLeases(message.fence - 1);  // those are over, though their ends may not have come here
      gate_.Allow(message);
    } else if (message.kind == GateMessage::kEndLease) {
      EndLease(message.fence);
    } else if (message.kind == GateMessage::kAdopt && passed) {
      Begin(std::move(passed));
    } else if (message.kind == GateMessage::kRegistered && !announced_) {
      Announce();
    } else if (message.kind == GateMessage::kFailed) {
      failure_ = message.text;
      stop_signal_ = SIGTERM;
    }
  }
}

// Lets in a client that the farm sent; its key is not valid a second time.
void Supervisor::AdmitFromFarm(Connection* connection, const std::string& key) {
  OnAgent();  // what was said about this key was said before the client came
  Gate::Admission admission{};
  if (!gate_.Admit(key, &admission)) return Refuse(connection, "has no key that the farm gave out", Refusal());
  connection->fence = admission.fence;
  for (double limit : {admission.limit, options_.session_timeout}) {
    if (limit > 0) connection->limit = connection->limit > 0 ? std::min(connection->limit, limit) : limit;
  }
  Enqueue(connection);
}

void Supervisor::EndLease(int64_t fence) {
  CloseLeases(fence);
  gate_.ToBeReported(fence);
  ReportEndedLeases();
}

// Lets no more clients in for leases up to a fence, and ends their sessions.
void Supervisor::CloseLeases(int64_t fence) {
  gate_.Forget(fence);
  std::vector<int> numbers;
  for (const auto& [number, connection] : connections_) {
    if (connection->fence > 0 && connection->fence <= fence) numbers.push_back(number);
  }
  for (int number : numbers) {
    if (Connection* connection = Find(number)) Kill(connection, {"lease"});
  }
}

void Supervisor::ReportEndedLeases() {
  int64_t oldest = 0;
  for (const auto& [number, connection] : connections_) {
    if (connection->fence > 0 && (!oldest || connection->fence < oldest)) oldest = connection->fence;
  }
  gate_.ReportEnded(oldest);
}

}  // namespace portcall::board
