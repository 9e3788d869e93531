// SPDX-License-Identifier: Apache-2.0
#include "rpc/link.h"

namespace portcall::rpc {
namespace {

constexpr auto kSignalInterval = std::chrono::milliseconds(100);
constexpr auto kReaderInterval = std::chrono::milliseconds(20);  // between looks whether somebody still receives

}  // namespace

Link::Link(std::unique_ptr<Channel> channel, std::string peer, uint64_t max_frame, Handler handler)
    : channel_(std::move(channel)),
      peer_(std::move(peer)),
      frames_(max_frame, false, FrameReader::Nested::kInline),
      handler_(std::move(handler)) {}

void Link::Changed() {
  if (waiting_) changed_.notify_all();
}

void Link::AwaitIdle(Lock& lock) {
  ++waiting_;
  changed_.wait(lock, [&] { return !busy() && !listening_; });
  --waiting_;
}

void Link::Wait(Lock& lock, Deadline until) {
  Deadline look = Clock::now() + kSignalInterval;
  ++waiting_;
  bool late = changed_.wait_until(lock, std::min(look, until)) == std::cv_status::timeout;
  --waiting_;
  if (!late) return;
  lock.unlock();
  int status = TVMFFIEnvCheckSignals();
  lock.lock();
  Check(status);
}

void Link::End() {
  ended_ = true;
  if (busy() || listening_) channel_->Interrupt();
  else channel_->Close();
  Changed();
}

void Link::Forget() {
  if (channel_->KeepsDeadlines()) channel_->Close();  // our copy of its descriptors
  else (void)channel_.release();                      // what a user's own does in the end is its parent's business
}

void Link::Leave(bool* role) {
  *role = false;
  if (ended_ && !busy() && !listening_) channel_->Close();
  Changed();
}

void Link::Count(std::atomic<uint64_t>* counter, size_t n) {
  rpc::Count(counter, n);
  Deadline now = Clock::now();
  last_bytes_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  if (counter == &received_) heard_ = now;
}

void Link::Expect(bool answers) {
  if (!hears() || answers == expecting_) return;
  heard_ = Clock::now();
  expecting_ = answers;
}

Deadline Link::silent_at() const {
  if (!hears() || !expecting_) return kNoDeadline;
  return heard_.load() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(silence_));
}

// ---- Sending ------------------------------------------------------------------------------------------------------

void Link::Flush(Lock& lock, Deadline deadline, bool duplex) {
  uint64_t mine = out_.empty() ? taken_ : taken_ + 1;
  while (finished_ < mine) {
    PORTCALL_CHECK(!ended_, SessionClosedError) << "the connection is closed";
    if (writing_) Wait(lock, deadline);
    else Send(lock, deadline, duplex);
  }
}

void Link::Send(Lock& lock, Deadline deadline, bool duplex) {
  writing_ = true;
  ++taken_;
  out_.Swap(&sending_);
  lock.unlock();
  try {
    if (duplex) {
      SendDuplex(deadline);
    } else {
      while (!sending_.empty()) {
        size_t n = channel_->Send(sending_.Chunks(), deadline);
        Count(&sent_, n);
        sending_.Sent(n);
      }
    }
  } catch (...) {
    lock.lock();
    sending_.Clear();
    Leave(&writing_);
    throw;
  }
  lock.lock();
  finished_ = taken_;
  Leave(&writing_);
}

// Receives while there is no room to send: the peer may be waiting for us to take its answers.
void Link::SendDuplex(Deadline deadline) {
  while (!sending_.empty()) {
    if (size_t n = channel_->TrySend(sending_.Chunks())) {
      Count(&sent_, n);
      sending_.Sent(n);
      continue;
    }
    Lock lock(mutex_);
    if (reading_) {
      lock.unlock();
      channel_->WaitFor(false, std::min(deadline, Clock::now() + kReaderInterval));
    } else {
      Read(lock, deadline, true);
    }
    PORTCALL_CHECK(Clock::now() < std::min(deadline, silent_at()), SessionTimeoutError) << kTimeIsUp;
  }
}

// ---- Receiving ----------------------------------------------------------------------------------------------------

void Link::Receive(Lock& lock, Deadline deadline) { Read(lock, deadline, false); }

// `or_room`: ends without having received where there is room to send.
void Link::Read(Lock& lock, Deadline deadline, bool or_room) {
  reading_ = true;
  lock.unlock();
  try {
    deadline = std::min(deadline, silent_at());
    if (!or_room || channel_->WaitFor(true, deadline)) Pump(deadline);
  } catch (...) {
    lock.lock();
    Leave(&reading_);
    throw;
  }
  lock.lock();
  Leave(&reading_);
}

void Link::Listen(Lock& lock, Deadline until) {
  listening_ = true;
  lock.unlock();
  try {
    channel_->WaitForInput(until);
  } catch (...) {
    lock.lock();
    Leave(&listening_);
    throw;
  }
  lock.lock();
  Leave(&listening_);
}

void Link::Pump(Deadline deadline) {
  if (frames_.buffered() > 0 && HandleAll()) return;
  auto [space, room] = frames_.Space();
  size_t n = channel_->Receive(space, room, deadline);
  if (n == 0) {
    throw Error("SessionBrokenError",
                peer_ + " closed the connection" + (frames_.AtBoundary() ? "" : " in the middle of an answer"));
  }
  Count(&received_, n);
  frames_.Filled(n);
  HandleAll();
}

// Returns whether there was an event.
bool Link::HandleAll() {
  bool any = false;
  for (FrameReader::Event event; (event = frames_.Next()) != FrameReader::kNeedBytes;) {
    any = true;
    if (!handler_(event)) break;
  }
  return any;
}

}  // namespace portcall::rpc
