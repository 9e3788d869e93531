// SPDX-License-Identifier: Apache-2.0
// Sequences of a paged cache, without its tensors. A sequence is a chain of blocks, a block has pages; a fork shares whole
// pages, which go into a block above both. How a history of calls divides pages into blocks decides which kernels run and
// how results are merged, so it is that of TVM's cache (src/runtime/vm/paged_kv_cache.cc): with it results are equal bit
// for bit.
//
// What fails changes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace portcall::lm {

struct Block {
  std::vector<int32_t> pages;
  int64_t start = 0, length = 0;  // in the sequence
  int64_t sink = 0, offset = 0;   // of a window that slid: tokens that stay, and where the others begin
  int32_t parent = -1;
  int32_t refs = 0;  // children, and a sequence that ends here
};

// What kernels read about one depth of the chains: a row for each sequence, or for neighbours that share their block.
struct Level {
  bool decode = false;  // by the kernel for one query a sequence
  std::vector<int32_t> queries, ends, pages, last_lengths, offsets, sinks, starts;
};

struct Batch {
  int64_t tokens = 0;
  bool append_first = false;  // new keys are written before attention reads the pages
  std::vector<Level> levels;
  std::vector<int32_t> ends, starts;       // by sequence
  std::vector<int32_t> positions, places;  // by token: in the sequence; in the pages, -1: not kept
};

// ValueError: a sequence is in a batch twice. `scratch` keeps its memory.
void CheckDistinct(const std::vector<int64_t>& ids, std::vector<int64_t>* scratch);

constexpr size_t kMostSequences = 1 << 16;  // a client may add them without tokens

class Sequences {
 public:
  // (from, to, tokens): what a fork within a page copies.
  using Copy = std::function<void(int32_t, int32_t, int64_t)>;
  Sequences(int32_t pages, int64_t page_size, bool windows, Copy copy);

  void Clear();
  void Add(int64_t id);
  void Remove(int64_t id);
  void Fork(int64_t parent, int64_t child, int64_t at = -1);  // -1: at the end
  void Pop(int64_t id, int64_t count);
  void Slide(int64_t id, int64_t window, int64_t sink);
  // Room for new tokens of some sequences; all of them get it, or none. The result is overwritten by the next call: its
  // memory is kept, as all that is needed for a batch, since this is done for each token.
  const Batch& Append(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts);

  bool Empty() const { return all_.empty(); }
  size_t FreePages() const { return free_.size(); }
  int64_t TotalLength() const;
  int64_t Length(int64_t id) const { return Get(id).length; }
  std::vector<int32_t> Places(int64_t id) const;  // of all tokens that are kept, in the pages
  std::vector<int32_t> Chain(int64_t id) const;   // indices of blocks, the first one first
  const Block& At(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }

 private:
  struct Sequence {
    int32_t last = -1;
    int64_t length = 0;
    int64_t window = -1, sink = 0;  // sink: of the last block
  };
  struct Growth {  // of the last block of a sequence
    int64_t pages, sink, offset, length, released;
  };
  const Sequence& Get(int64_t id) const;
  void CheckNew(int64_t id) const;
  Block& Edit(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  int64_t PagesFor(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }
  int32_t NewBlock();
  int32_t TakePage();
  void Free(int32_t block);
  void Drop(int32_t last);
  int32_t Split(Sequence* parent, int64_t at);
  struct Row {      // of a depth
    int32_t block;  // -1: the chain ends before
    int64_t queries;
  };
  struct Member {  // of a batch
    Sequence* sequence;
    int64_t count, before, in_block;  // new tokens; tokens before them, in the sequence and in its last block
    std::vector<int32_t> chain;
  };
  Growth Grown(const Sequence& sequence, int64_t count) const;
  void Reserve(Sequence* sequence, int64_t count);
  void FindChain(int32_t last, std::vector<int32_t>* chain) const;
  void CheckBatch(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts);
  double PagesOf(const std::vector<Row>& rows) const;
  void Tables(const std::vector<Row>& rows, bool last, Level* level) const;

  int32_t pages_;
  int64_t page_size_;
  bool windows_;
  Copy copy_;
  std::vector<int32_t> free_, free_blocks_;
  std::vector<Block> blocks_;
  std::map<int64_t, Sequence> all_;
  Batch batch_;
  std::vector<int64_t> sorted_;
  std::vector<Member> members_;  // as many as the largest batch had
  std::vector<Row> single_[2], joined_[2];
};

}  // namespace portcall::lm
