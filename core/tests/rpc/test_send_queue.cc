// SPDX-License-Identifier: Apache-2.0
// What is sent: the same bytes, wherever they lie and in whichever pieces they go.
#include "rpc/send_queue.h"
#include "tests/check.h"
#include "tests/rpc/peer.h"

using namespace rpc_test;

namespace {

std::string Joined(const std::vector<Chunk>& chunks) {
  std::string bytes;
  for (const Chunk& chunk : chunks) bytes.append(static_cast<const char*>(chunk.data), chunk.size);
  return bytes;
}

// Everything in a queue, of which `most` bytes go at once.
std::string Drained(SendQueue* queue, size_t most) {
  std::string bytes;
  while (!queue->empty()) {
    std::string next = Joined(queue->Chunks()).substr(0, most);
    bytes += next;
    queue->Sent(next.size());
  }
  return bytes;
}

const std::string kLarge(100000, 'l'), kLarger(200000, 'm'), kSmall(100, 's');

void WriteFrames(Writer out) {
  for (int i = 0; i < 2; ++i) {
    out.Begin(Code::kReturn);
    out.Values(Values(WireValue::Bytes(kLarge), WireValue::Text(kSmall), WireValue::Text(kLarger), WireValue::Int(i)),
               Form::kRequest);
    out.End();
  }
}

std::string Copied() {
  std::string bytes;
  WriteFrames(Writer(&bytes));
  return bytes;
}

}  // namespace

TEST("what is sent from where it lies is byte for byte what would have been copied, in any pieces") {
  for (size_t most : {size_t{1000}, size_t{4096}, size_t{99999}, size_t{150001}, SIZE_MAX}) {
    SendQueue queue;
    queue.Copy().Text("before");
    WriteFrames(queue.Lend(nullptr));
    CHECK_EQ(queue.size(), 14 + Copied().size());
    CHECK(Drained(&queue, most).substr(14) == Copied());
    CHECK(queue.empty() && queue.Chunks().empty());
  }
}

TEST("large bytes are sent from where they lie, small ones are gathered") {
  SendQueue queue;
  WriteFrames(queue.Lend(nullptr));
  std::vector<Chunk> chunks = queue.Chunks();
  CHECK_EQ(chunks.size(), 9);  // four that lie elsewhere, and what is around them
  CHECK(chunks.at(1).data == kLarge.data() && chunks.at(3).data == kLarger.data());
  CHECK_EQ(queue.Chunks(2).size(), 2);
  CHECK(queue.full());
  queue.Clear();
  CHECK(queue.empty() && !queue.full());
  WriteFrames(queue.Copy());
  CHECK_EQ(queue.Chunks().size(), 1);
}

TEST("what owns large bytes is kept until all is sent") {
  Tensor owner = Tensor::Empty({4}, {kDLUInt, 8, 1});
  auto references = [&] { return owner.get()->combined_ref_count & 0xFFFFFFFF; };
  SendQueue queue;
  queue.Lend(owner).Content(kLarge);
  CHECK_EQ(references(), 2);
  queue.Sent(kLarge.size() - 1);
  CHECK_EQ(references(), 2);
  queue.Sent(1);
  CHECK_EQ(references(), 1);
}

TEST("a queue that is never empty does not grow, and keeps no owners") {
  Tensor owner = Tensor::Empty({4}, {kDLUInt, 8, 1});
  SendQueue queue;
  queue.Copy().Content(kSmall);
  for (int i = 0; i < 1000; ++i) {
    queue.Lend(owner).Content(kSmall);
    queue.Sent(kSmall.size());
  }
  CHECK_EQ(queue.size(), kSmall.size());
  CHECK(queue.End().text < 3 * kSmall.size());
  CHECK_EQ(owner.get()->combined_ref_count & 0xFFFFFFFF, 1);
}

TEST("a frame that is not written to its end leaves those before it") {
  SendQueue queue;
  WriteFrames(queue.Lend(nullptr));
  SendQueue::Mark end = queue.End();
  queue.Lend(nullptr).Text(kLarge);
  queue.CutTo(end);
  CHECK(Drained(&queue, SIZE_MAX) == Copied());
}
