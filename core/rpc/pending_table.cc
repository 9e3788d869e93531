// SPDX-License-Identifier: Apache-2.0
#include "rpc/pending_table.h"

#include <utility>

namespace portcall::rpc {

PendingTable::Stream* PendingTable::Find(uint64_t callback) {
  if (callback == 0) return &top_;
  auto nested = nested_.find(callback);
  return nested == nested_.end() ? nullptr : &nested->second;
}

void PendingTable::EraseIfOver(uint64_t callback) {
  auto it = nested_.find(callback);
  if (it == nested_.end()) return;
  const Stream& stream = it->second;
  if (stream.pending.empty() && stream.over && stream.waiting == 0) nested_.erase(it);
}

void PendingTable::Append(Pending* request) {
  StreamOf(request->callback).pending.push_back(request);
  bytes_ += request->size;
}

std::shared_ptr<Pending> PendingTable::Finish(Stream& stream) {
  Pending* front = stream.pending.front();
  stream.pending.pop_front();
  if (!front) return nullptr;
  Clock::time_point now = Clock::now();
  double seconds = std::chrono::duration<double>(now - StartOf(*front)).count();
  last_answer_ = now;
  bytes_ -= front->size;
  ++stats_.requests;
  stats_.waited += seconds;
  if (front->code == Code::kCallFunc) stats_.run += seconds;
  if (front->code == Code::kCopyToRemote || front->code == Code::kCopyAmongRemote) stats_.copy += seconds;
  if (front->code == Code::kCopyFromRemote) stats_.fetch += seconds;
  front->done = true;
  std::shared_ptr<Pending> self = std::move(front->self);
  EraseIfOver(front->callback);
  return self;
}

bool PendingTable::Discard(Pending* request) {
  std::deque<Pending*>& pending = StreamOf(request->callback).pending;
  if (pending.front() == request) return false;
  auto discarded = std::make_shared<Pending>();
  discarded->code = request->code;
  discarded->to_size = request->to_size;
  discarded->began = request->began;
  discarded->size = request->size;
  discarded->callback = request->callback;
  for (Pending*& place : pending) {
    if (place == request) place = discarded.get();
  }
  Pending& kept = *discarded;
  kept.self = std::move(discarded);
  return true;
}

void PendingTable::LoseAll() {
  auto lose = [](Stream& stream) {
    for (Pending* request : stream.pending) {
      if (!request) continue;
      request->lost = true;
      const std::shared_ptr<Pending> unawaited = std::move(request->self);
    }
    stream.pending.clear();
  };
  lose(top_);
  for (auto& [_, stream] : nested_) lose(stream);
}

const Pending* PendingTable::Stream::Front() const {
  for (const Pending* request : pending) {
    if (request) return request;
  }
  return nullptr;
}

const Pending* PendingTable::Front() const {
  const Pending* front = top_.Front();
  for (auto it = nested_.begin(); !front && it != nested_.end(); ++it) front = it->second.Front();
  return front;
}

}  // namespace portcall::rpc
