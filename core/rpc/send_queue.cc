// SPDX-License-Identifier: Apache-2.0
#include "rpc/send_queue.h"

#include <algorithm>

namespace portcall::rpc {
namespace {

constexpr size_t kFullQueue = 256 << 10;

}  // namespace

Writer SendQueue::Lend(const Any& owner) {
  if (owner != nullptr) owners_.push_back(owner);
  return Writer(&text_, &insets_);
}

size_t SendQueue::size() const {
  size_t total = text_.size() - sent_;
  for (const Inset& inset : insets_) total += inset.bytes.size();
  return total;
}

bool SendQueue::full() const { return !insets_.empty() || size() >= kFullQueue; }

std::vector<Chunk> SendQueue::Chunks(size_t most) const {
  std::vector<Chunk> chunks;
  size_t skip = sent_, at = 0;
  auto add = [&](const char* data, size_t size) {
    size_t gone = std::min(skip, size);
    skip -= gone;
    if (size > gone && chunks.size() < most) chunks.push_back({data + gone, size - gone});
  };
  for (const Inset& inset : insets_) {
    add(text_.data() + at, inset.at - at);
    add(inset.bytes.data(), inset.bytes.size());
    at = inset.at;
  }
  add(text_.data() + at, text_.size() - at);
  return chunks;
}

void SendQueue::Sent(size_t n) {
  sent_ += n;
  if (empty()) return Clear();
  if (!insets_.empty()) return;
  text_.erase(0, sent_);  // a peer may never take all that there is
  owners_.clear();
  sent_ = 0;
}

void SendQueue::Clear() {
  if (text_.capacity() > kKeptBuffer) text_ = std::string();
  text_.clear();
  insets_.clear();
  owners_.clear();
  sent_ = 0;
}

void SendQueue::Swap(SendQueue* other) {
  text_.swap(other->text_);
  insets_.swap(other->insets_);
  owners_.swap(other->owners_);
  std::swap(sent_, other->sent_);
}

void SendQueue::CutTo(Mark mark) {
  text_.resize(mark.text);
  insets_.resize(mark.insets);
}

}  // namespace portcall::rpc
