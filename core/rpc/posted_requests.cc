// SPDX-License-Identifier: Apache-2.0
#include "rpc/posted_requests.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace portcall::rpc {
namespace {

constexpr size_t kMaxPendingFrees = 256;       // with one request: their answers must fit into what a connection holds
constexpr size_t kGathered = 4 << 10;          // bytes that are sent together
constexpr size_t kMaxPosted = 256;             // requests until one asks for an answer
constexpr uint64_t kMaxPostedBytes = 8 << 20;  // and their bytes
constexpr size_t kMaxReports = 64;
constexpr auto kGatherTime = std::chrono::microseconds(300);

}  // namespace

void PostedRequests::Post(Lock& lock, Code code, uint64_t target, const WriteBody& write, Deadline deadline) {
  connection_.Admit(lock);
  WriteFrees();
  SendQueue& out = connection_.out();
  SendQueue::Mark start = out.End();
  size_t before = out.size();
  uint64_t callback = connection_.CurrentCallback();
  NumberCall(deadline);
  try {
    Writer writer = out.Lend(nullptr);
    writer.BeginPosted(code, target, callback);
    write(writer);
    writer.End();
  } catch (...) {
    out.CutTo(start);
    throw;
  }
  bytes_ += out.size() - before;
  connection_.pending().StreamOf(callback).unreported = true;
  if (++count_ >= kMaxPosted || bytes_ >= kMaxPostedBytes) WriteFence(false);
  FlushOrSoon(lock);
}

void PostedRequests::FlushOrSoon(Lock& lock) {
  if (connection_.out().size() >= kGathered || connection_.out().full()) connection_.Flush(lock);
  else SendSoon();
}

void PostedRequests::SendSoon() {
  if (flush_wanted_) return;
  flush_wanted_ = true;
  if (has_thread_) return flush_.notify_one();
  std::thread([this, kept = connection_.shared_from_this()] { SendLoop(); }).detach();
  has_thread_ = true;
}

void PostedRequests::SendLoop() {
  Lock lock = connection_.link().Take();
  while (!connection_.closed()) {
    auto wanted = [&] { return flush_wanted_ || connection_.closed(); };
    wakes_at_ = NextDeadline();
    if (wakes_at_ == kNoDeadline) flush_.wait(lock, wanted);
    else flush_.wait_until(lock, wakes_at_, wanted);
    if (flush_wanted_) flush_.wait_for(lock, kGatherTime, [&] { return connection_.closed(); });
    flush_wanted_ = false;
    WriteCancels();
    try {
      if (!connection_.closed()) connection_.Flush(lock);
    } catch (const Error&) {  // those who wait for a request hear of it
      if (!lock.owns_lock()) lock.lock();
    }
  }
}

void PostedRequests::NumberCall(Deadline deadline) {
  if (deadline == kNoDeadline || !connection_.cancels() || connection_.CurrentCallback()) return;
  Writer writer = connection_.out().Copy();
  writer.Begin(Code::kNumberCall);
  writer.Put<uint64_t>(++last_number_);
  writer.End();
  deadlines_.emplace(last_number_, deadline);
  if (deadline < wakes_at_) SendSoon();  // the thread looks again when to wake
}

void PostedRequests::Answered(uint64_t last_number) {
  if (!deadlines_.empty()) deadlines_.erase(deadlines_.begin(), deadlines_.upper_bound(last_number));
}

Deadline PostedRequests::NextDeadline() const {
  Deadline next = kNoDeadline;
  for (const auto& [_, deadline] : deadlines_) next = std::min(next, deadline);
  return next;
}

void PostedRequests::WriteCancels() {
  const Deadline now = Pending::Clock::now();
  for (auto it = deadlines_.begin(); it != deadlines_.end();) {
    if (it->second > now) {
      ++it;
      continue;
    }
    Writer writer = connection_.out().Copy();
    writer.Begin(Code::kCancel, it->first);
    writer.End();
    it = deadlines_.erase(it);
  }
}

void PostedRequests::WriteFence(bool report) {
  auto fence = std::make_shared<Pending>();
  fence->code = Code::kSync;
  fence->callback = connection_.CurrentCallback();
  Writer writer = connection_.out().Copy();
  writer.Begin(fence->code, fence->callback);
  Sequence args;
  args.push_back(WireValue::Int(report));
  writer.Values(args, Form::kRequest);
  writer.End();
  fence->began = Pending::Clock::now();
  fence->size = TakeBytes() + 1;
  fence->last_number = last_number_;
  connection_.Append(fence.get());
  fence->self = fence;
  if (!report) return;
  connection_.pending().StreamOf(fence->callback).unreported = false;
  DropReports([](const Pending& one) { return !one.failure; });
  if (reports_.size() < kMaxReports) reports_.push_back(fence);
}

uint64_t PostedRequests::TakeBytes() {
  count_ = 0;
  return std::exchange(bytes_, 0);
}

std::vector<std::shared_ptr<Pending>> PostedRequests::TakeReports() {
  uint64_t callback = connection_.CurrentCallback();
  std::vector<std::shared_ptr<Pending>> taken, left;
  for (auto& one : reports_) {
    bool mine = one->callback == callback || (!callback && (one->done || one->lost));
    (mine ? taken : left).push_back(std::move(one));
  }
  reports_.swap(left);
  return taken;
}

void PostedRequests::DropReports(const std::function<bool(const Pending&)>& dropped) {
  size_t kept = 0;
  for (auto& one : reports_) {
    if (!one->done || !dropped(*one)) std::swap(reports_[kept++], one);
  }
  reports_.resize(kept);
}

void PostedRequests::FreeLater(Code code, DLDevice device, uint64_t handle) {
  if (handle == 0 || connection_.closed()) return;
  std::lock_guard<std::mutex> guard(frees_mutex_);
  frees_.push_back({code, device, handle, connection_.CurrentCallback()});
  any_frees_ = true;
}

// A free follows the requests that may use its handle: those of a callback that goes on, or else those outside.
void PostedRequests::WriteFrees() {
  if (!any_frees_.load(std::memory_order_relaxed)) return;
  std::vector<PendingFree> frees;
  {
    std::lock_guard<std::mutex> guard(frees_mutex_);
    auto end = frees_.begin() + static_cast<ptrdiff_t>(std::min(frees_.size(), kMaxPendingFrees));
    frees.assign(frees_.begin(), end);
    frees_.erase(frees_.begin(), end);
    any_frees_ = !frees_.empty();
  }
  PendingTable& pending = connection_.pending();
  for (const PendingFree& item : frees) {
    PendingTable::Stream* nested = pending.Find(item.callback);
    uint64_t callback = !nested || nested->over ? 0 : item.callback;
    Sequence args;
    if (item.code == Code::kDevFreeData) args.push_back(WireValue::OfDevice(item.device));
    args.push_back(WireValue::Pointer(item.handle));
    Writer writer = connection_.out().Copy();
    bool posts = connection_.posts();
    posts ? writer.BeginPosted(item.code, 0, callback) : writer.Begin(item.code, callback);
    writer.Values(args, Form::kRequest);
    writer.End();
    if (!posts) pending.AppendDiscarded(callback);
  }
}

}  // namespace portcall::rpc
