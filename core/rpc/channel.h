// SPDX-License-Identifier: Apache-2.0
// Channel: what carries the bytes of a session. Blocking, with a deadline; one thread may send while another receives.
#ifndef PORTCALL_RPC_CHANNEL_H_
#define PORTCALL_RPC_CHANNEL_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "portcall/function.h"
#include "rpc/send_queue.h"

namespace portcall::rpc {

using Deadline = std::chrono::steady_clock::time_point;
constexpr Deadline kNoDeadline = Deadline::max();
constexpr std::string_view kTimeIsUp = "the peer did not answer in time";  // what a SessionTimeoutError says

constexpr size_t kMaxFunctionChunk = 1 << 20;  // bytes that a function of a channel is given at once

Deadline DeadlineIn(double seconds);  // never for a value that is not positive

// Adds to a counter of bytes, as one thread at a time does: others read it.
inline void Count(std::atomic<uint64_t>* counter, size_t n) {
  counter->store(counter->load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

class Channel {
 public:
  virtual ~Channel() = default;
  // Sends some of the chunks' bytes, at least one; returns how many.
  virtual size_t Send(const std::vector<Chunk>& chunks, Deadline deadline) = 0;
  // Receives between one byte and `size`; 0 when the peer has closed.
  virtual size_t Receive(void* data, size_t size, Deadline deadline) = 0;
  // The same without waiting; 0: there is no room now. Only of channels that keep deadlines, as WaitFor is.
  virtual size_t TrySend(const std::vector<Chunk>& chunks) { return Send(chunks, kNoDeadline); }
  // Waits until there is room to send or, if asked for, something to receive: returns whether that is so.
  virtual bool WaitFor(bool receive, Deadline) { return receive; }
  // Waits until there is something to receive, or the deadline; returns whether there is.
  virtual bool WaitForInput(Deadline) { return false; }
  // Acknowledges what has arrived without delay: before a wait for the second of several answers, since a peer that
  // gathers small messages (TVM's server does) keeps that back until the first is acknowledged.
  virtual void Acknowledge() {}
  // Whether deadlines are kept while bytes are waited for, not only before.
  virtual bool KeepsDeadlines() const { return true; }
  // Wakes threads that are sending or receiving, which then fail. May come from any thread.
  virtual void Interrupt() = 0;
  virtual void Close() noexcept = 0;
};

// Throw SessionTimeoutError past the deadline, SessionBrokenError when the connection is lost, and whatever a signal
// handler of the embedding language raised.
//
// Over file descriptors, which may be one (a socket) or two (pipes): owned from now on, and whether they block is set
// here. `interactive`: signals are looked for every second or two, in case one came between a look and the wait.
std::unique_ptr<Channel> MakeFdChannel(int read_fd, int write_fd, bool interactive = false);
// Over functions: send(bytes) -> count, receive(most) -> bytes (empty: closed), close(). What close() raises is dropped.
std::unique_ptr<Channel> MakeFunctionChannel(PackedFunc send, PackedFunc receive, PackedFunc close);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_CHANNEL_H_
