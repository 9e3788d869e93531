// SPDX-License-Identifier: Apache-2.0
// Bytes on their way out. What is small is gathered; what is large is sent from where it lies. No I/O here.
//
//   Writer writer = queue.Lend(owner); writer.Begin(…); … writer.End();
//   while (!queue.empty()) queue.Sent(send(queue.Chunks()));
#ifndef PORTCALL_RPC_SEND_QUEUE_H_
#define PORTCALL_RPC_SEND_QUEUE_H_

#include <string>
#include <vector>

#include "rpc/codec.h"

namespace portcall::rpc {

constexpr size_t kMaxChunks = 16;  // that are sent with one call

struct Chunk {
  const void* data;
  size_t size;
};

class SendQueue {
 public:
  // Frames to append: one whose bytes are copied, and one whose large text and bytes are sent from where they lie, which
  // `owner` keeps; null: the caller does, until they are sent or the queue is cleared.
  Writer Copy() { return Writer(&text_); }
  Writer Lend(const Any& owner);

  bool empty() const { return size() == 0; }
  size_t size() const;
  // Whether nothing should be added before all was sent: there is much, or something that is sent from where it lies,
  // which the next request might change.
  bool full() const;
  std::vector<Chunk> Chunks(size_t most = kMaxChunks) const;
  void Sent(size_t n);
  void Clear();
  void Swap(SendQueue* other);

  // For a frame that cannot be written to its end.
  struct Mark {
    size_t text, insets;
  };
  Mark End() const { return {text_.size(), insets_.size()}; }
  void CutTo(Mark mark);

 private:
  std::string text_;
  std::vector<Inset> insets_;
  std::vector<Any> owners_;
  size_t sent_ = 0;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_SEND_QUEUE_H_
