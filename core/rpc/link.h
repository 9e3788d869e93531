// SPDX-License-Identifier: Apache-2.0
// Link: one end of a connection, for many threads. One of them sends at a time, and sends what the others have added
// meanwhile; one of them receives, and handles what has come for the others. One waits to send only while another receives.
//
//   auto lock = link.Take(); Writer writer = link.out().Copy(); … writer.End();
//   link.Flush(lock, deadline, true);
//   while (!answered) link.reading() ? link.Wait(lock, deadline) : link.Receive(lock, deadline);
#ifndef PORTCALL_RPC_LINK_H_
#define PORTCALL_RPC_LINK_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "rpc/channel.h"
#include "rpc/frames.h"
#include "rpc/send_queue.h"

namespace portcall::rpc {

class Link {
 public:
  using Lock = std::unique_lock<std::mutex>;
  // Handles an event; called by the thread that receives, without the lock. Returns whether more is expected: what comes
  // after is kept.
  using Handler = std::function<bool(FrameReader::Event)>;

  Link(std::unique_ptr<Channel> channel, std::string peer, uint64_t max_frame, Handler handler);

  // Everything below wants the lock, unless it says otherwise.
  Lock Take() { return Lock(mutex_); }
  SendQueue& out() { return out_; }  // frames to send, of any thread
  bool reading() const { return reading_; }
  bool busy() const { return reading_ || writing_; }
  bool listening() const { return listening_; }

  // Sends what is in out(), or waits until another thread has. `duplex`: answers may come that keep the peer from
  // reading, so that they are received meanwhile.
  void Flush(Lock& lock, Deadline deadline, bool duplex);
  // Has what was kept handled or, if there is nothing, receives once. No other thread may be reading.
  void Receive(Lock& lock, Deadline deadline);
  // Waits until something has come, and is not being read; only one thread may do this.
  void Listen(Lock& lock, Deadline until);
  // Waits until another thread has sent or received, for a tenth of a second at most; throws what a signal raises.
  void Wait(Lock& lock, Deadline until);
  void Changed();              // wakes those who wait
  void AwaitIdle(Lock& lock);  // until no thread sends or receives
  // Ends the connection: threads that send or receive fail, and the last of them closes the channel.
  void End();

  // Without the lock. The reader belongs to the thread that receives.
  FrameReader& frames() { return frames_; }
  Channel& channel() { return *channel_; }
  void Forget();  // in a child process: leaves the connection to the parent
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }
  Deadline last_bytes() const { return Deadline(Deadline::duration(last_bytes_.load())); }
  // A peer that gives a sign of life every second while it works: how long it may be silent; 0: forever.
  void set_silence(double seconds) { silence_ = seconds; }
  bool hears() const { return silence_ > 0; }
  void Expect(bool answers);  // whether it has got anything to do
  Deadline last_sign() const { return heard_; }
  Deadline silent_at() const;  // when it is taken for gone, unless it says something

 private:
  using Clock = std::chrono::steady_clock;
  void Send(Lock& lock, Deadline deadline, bool duplex);
  void SendDuplex(Deadline deadline);
  void Read(Lock& lock, Deadline deadline, bool or_room);
  void Pump(Deadline deadline);
  bool HandleAll();
  void Leave(bool* role);
  void Count(std::atomic<uint64_t>* counter, size_t n);

  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool reading_ = false, writing_ = false, listening_ = false, ended_ = false;
  uint64_t taken_ = 0, finished_ = 0;  // batches of out_
  SendQueue out_, sending_;
  std::unique_ptr<Channel> channel_;
  const std::string peer_;  // for messages
  FrameReader frames_;
  Handler handler_;
  std::atomic<uint64_t> sent_{0}, received_{0};
  std::atomic<Deadline::rep> last_bytes_{0};
  std::atomic<Deadline> heard_{};
  std::atomic<double> silence_{0};
  std::atomic<bool> expecting_{false};
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_LINK_H_
