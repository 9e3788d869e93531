// SPDX-License-Identifier: Apache-2.0
#include "lm/sequences.h"

#include <algorithm>

#include "bytes/message.h"

namespace portcall::lm {
namespace {

using bytes::Throw;

constexpr size_t kDepths = 2;  // what is deeper is joined with the last depth
constexpr double kJoinedWhen = 32;

int32_t Narrow(int64_t value) { return static_cast<int32_t>(value); }
size_t Index(int64_t value) { return static_cast<size_t>(value); }

}  // namespace

void CheckDistinct(const std::vector<int64_t>& ids, std::vector<int64_t>* scratch) {
  *scratch = ids;
  std::sort(scratch->begin(), scratch->end());
  auto twice = std::adjacent_find(scratch->begin(), scratch->end());
  if (twice != scratch->end()) Throw("ValueError", {"sequence ", *twice, " is in the batch twice"});
}

Sequences::Sequences(int32_t pages, int64_t page_size, bool windows, Copy copy)
    : pages_(pages), page_size_(page_size), windows_(windows), copy_(std::move(copy)) {
  Clear();
}

void Sequences::Clear() {
  all_.clear();
  blocks_.clear();
  free_blocks_.clear();
  free_.clear();
  for (int32_t page = pages_; page-- > 0;) free_.push_back(page);
}

const Sequences::Sequence& Sequences::Get(int64_t id) const {
  auto found = all_.find(id);
  if (found == all_.end())
    Throw("ValueError", {"the cache has no sequence ", id, ": it was not added, or it was removed"});
  return found->second;
}

void Sequences::CheckNew(int64_t id) const {
  if (all_.count(id)) Throw("ValueError", {"the cache has a sequence ", id, " already: remove it first"});
  if (all_.size() >= kMostSequences)
    Throw("RuntimeError", {"the cache has ", all_.size(), " sequences, more are not possible: remove some"});
}

int32_t Sequences::NewBlock() {
  if (free_blocks_.empty()) {
    blocks_.emplace_back();
    return Narrow(static_cast<int64_t>(blocks_.size())) - 1;
  }
  int32_t block = free_blocks_.back();
  free_blocks_.pop_back();
  Edit(block) = Block();
  return block;
}

int32_t Sequences::TakePage() {
  int32_t page = free_.back();
  free_.pop_back();
  return page;
}

void Sequences::Free(int32_t block) {
  std::vector<int32_t>& pages = Edit(block).pages;
  free_.insert(free_.end(), pages.begin(), pages.end());
  pages.clear();
  free_blocks_.push_back(block);
}

void Sequences::Add(int64_t id) {
  CheckNew(id);
  int32_t block = NewBlock();
  Edit(block).refs = 1;
  all_[id].last = block;
}

void Sequences::Drop(int32_t last) {
  for (; last >= 0 && At(last).refs == 1; last = At(last).parent) Free(last);
  if (last >= 0) --Edit(last).refs;
}

void Sequences::Remove(int64_t id) {
  Drop(Get(id).last);
  all_.erase(id);
}

void Sequences::FindChain(int32_t last, std::vector<int32_t>* chain) const {
  chain->clear();
  for (int32_t block = last; block >= 0; block = At(block).parent) chain->push_back(block);
  std::reverse(chain->begin(), chain->end());
}

std::vector<int32_t> Sequences::Chain(int64_t id) const {
  std::vector<int32_t> chain;
  FindChain(Get(id).last, &chain);
  return chain;
}

int64_t Sequences::TotalLength() const {
  int64_t total = 0;
  for (const auto& [id, sequence] : all_) total += sequence.length;
  return total;
}

std::vector<int32_t> Sequences::Places(int64_t id) const {
  std::vector<int32_t> places;
  for (int32_t number : Chain(id)) {
    const Block& block = At(number);
    for (int64_t i = 0; i < block.length; ++i) {
      int64_t at = i < block.sink ? i : i - block.sink + block.offset;
      places.push_back(Narrow(block.pages[Index(at / page_size_)] * page_size_ + at % page_size_));
    }
  }
  return places;
}

// Makes a block in which a second sequence goes on after the first `at` tokens. The caller has seen that there is a page.
int32_t Sequences::Split(Sequence* parent, int64_t at) {
  if (at == parent->length && at % page_size_ == 0 && At(parent->last).length > 0) {
    int32_t next = NewBlock();  // the parent goes on in a block of its own
    Edit(next).start = at;
    Edit(next).parent = parent->last;
    Edit(next).refs = 1;
    parent->last = next;
  }
  int32_t shared = parent->last;
  while (At(shared).parent >= 0 && At(shared).start > at) shared = At(shared).parent;
  int64_t inside = at % page_size_, whole = (at - inside - At(shared).start) / page_size_;
  int32_t made = NewBlock();
  if (whole <= 0) {
    int32_t above = At(shared).parent;
    if (above >= 0) ++Edit(above).refs;
    Edit(made).parent = above;
  } else {  // the common pages go into a block above both
    int32_t above = NewBlock();
    Block& upper = Edit(above);
    Block& lower = Edit(shared);
    upper.start = lower.start;
    upper.parent = lower.parent;
    upper.refs = 2;
    upper.length = whole * page_size_;
    upper.pages.assign(lower.pages.begin(), lower.pages.begin() + whole);
    lower.pages.erase(lower.pages.begin(), lower.pages.begin() + whole);
    lower.parent = above;
    lower.start += upper.length;
    lower.length -= upper.length;
    Edit(made).parent = above;
    if (shared == parent->last) parent->sink = std::max<int64_t>(parent->sink - upper.length, 0);
  }
  Block& block = Edit(made);
  block.start = at - inside;
  block.length = inside;
  block.refs = 1;
  if (inside) block.pages.push_back(TakePage());
  if (inside) copy_(At(shared).pages[0], block.pages[0], inside);
  return made;
}

void Sequences::Fork(int64_t parent, int64_t child, int64_t at) {
  const Sequence& from = Get(parent);
  CheckNew(child);
  if (at < -1 || at > from.length)
    Throw("ValueError", {"sequence ", parent, " has ", from.length, " tokens, it cannot be forked at ", at});
  if (at < 0) at = from.length;
  if (from.window >= 0) {
    const Block& last = At(from.last);
    // Once the window has moved, its block is not divided any more.
    int64_t fixed = from.length - last.length + (last.offset ? 0 : from.sink);
    if (at > fixed)
      Throw("ValueError", {"sequence ", parent, " has a sliding window: it can be forked within its first ", fixed,
                           " tokens, not at ", at});
  }
  if (at % page_size_ != 0 && free_.empty())
    Throw("RuntimeError", {"the cache is full: there is no page for a fork of sequence ", parent, " at ", at});
  Sequence made;
  made.last = Split(&all_[parent], at);
  made.length = at;
  all_[child] = made;
}

void Sequences::Pop(int64_t id, int64_t count) {
  const Sequence& now = Get(id);
  if (count < 0 || count > now.length)
    Throw("ValueError", {"sequence ", id, " has ", now.length, " tokens, ", count, " cannot be taken back"});
  if (count == 0) return;
  if (At(now.last).offset)
    Throw("ValueError", {"the window of sequence ", id, " has moved: its tokens cannot be taken back"});
  // Blocks that go as a whole, up to one that is shared or keeps some of its tokens.
  int64_t left = count, freed = 0;
  int32_t last = now.last;
  for (; At(last).refs == 1 && left > At(last).length; last = At(last).parent) {
    left -= At(last).length;
    freed += static_cast<int64_t>(At(last).pages.size());
  }
  int64_t length = now.length - count;
  bool shared = left > 0 && At(last).refs > 1;
  if (shared && length % page_size_ != 0 && free_.empty() && freed == 0)
    Throw("RuntimeError", {"the cache is full: sequence ", id, " shares the page in which it would end"});
  Sequence& sequence = all_[id];
  for (int32_t block = sequence.last; block != last;) {
    int32_t parent = At(block).parent;
    Free(block);
    block = parent;
  }
  sequence.last = last;
  sequence.length = length + left;
  if (shared) {
    int32_t made = Split(&sequence, length);
    Drop(sequence.last);
    sequence.last = made;
  } else {
    Block& block = Edit(last);
    block.length -= left;
    for (; static_cast<int64_t>(block.pages.size()) > PagesFor(block.length); block.pages.pop_back())
      free_.push_back(block.pages.back());
  }
  sequence.length = length;
}

void Sequences::Slide(int64_t id, int64_t window, int64_t sink) {
  const Sequence& now = Get(id);
  if (!windows_) Throw("ValueError", {"the cache was made without sliding windows (support_sliding_window is 0)"});
  if (sink < 0 || window <= sink || window > INT32_MAX)
    Throw("ValueError", {"a window of ", window, " tokens, of which ", sink, " stay (0 to fewer than all)"});
  if (now.window >= 0) Throw("ValueError", {"sequence ", id, " has a sliding window already"});
  Sequence& sequence = all_[id];
  sequence.window = window;
  sequence.sink = std::max<int64_t>(sink - (now.length - At(now.last).length), 0);
}

// ---- A batch -------------------------------------------------------------------------------------------------------

Sequences::Growth Sequences::Grown(const Sequence& sequence, int64_t count) const {
  const Block& block = At(sequence.last);
  Growth to{PagesFor(block.length - block.sink + block.offset + count), block.sink, block.offset, block.length + count,
            0};
  int64_t slide = sequence.window < 0 ? 0 : sequence.length + count - sequence.window;
  if (slide <= 0) return to;
  if (sequence.sink > 0 && to.sink == 0) to.sink = to.offset = sequence.sink;
  to.length -= slide;
  to.offset += slide;
  to.released = std::max<int64_t>(to.offset / page_size_ - PagesFor(to.sink), 0);
  to.offset -= to.released * page_size_;
  to.pages -= to.released;
  return to;
}

void Sequences::Reserve(Sequence* sequence, int64_t count) {
  Growth to = Grown(*sequence, count);
  Block& block = Edit(sequence->last);
  auto begin = block.pages.begin() + std::min<int64_t>(PagesFor(to.sink), static_cast<int64_t>(block.pages.size()));
  auto end = begin + std::min<int64_t>(to.released, block.pages.end() - begin);
  free_.insert(free_.end(), begin, end);
  block.pages.erase(begin, end);
  while (static_cast<int64_t>(block.pages.size()) < to.pages) block.pages.push_back(TakePage());
  sequence->length += count - (block.length + count - to.length);
  block.sink = to.sink;
  block.offset = to.offset;
  block.length = to.length;
}

void Sequences::Tables(const std::vector<Row>& rows, bool last, Level* level) const {
  for (std::vector<int32_t>* table : {&level->queries, &level->ends, &level->pages, &level->last_lengths,
                                      &level->offsets, &level->sinks, &level->starts})
    table->clear();
  level->queries.push_back(0);
  level->ends.push_back(0);
  const Block none;
  int32_t queries = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    int64_t length = 0;
    const Block* end = &none;
    auto add = [&](int32_t block) {
      end = &At(block);
      length += end->length;
      level->pages.insert(level->pages.end(), end->pages.begin(), end->pages.end());
    };
    int32_t block = rows[i].block;
    if (block >= 0) add(block);
    if (block >= 0 && last) {  // rows of the last depth are those of the batch
      const std::vector<int32_t>& chain = members_[i].chain;
      for (size_t k = kDepths; k < chain.size(); ++k) add(chain[k]);
    }
    queries += Narrow(rows[i].queries);
    level->queries.push_back(queries);
    level->ends.push_back(static_cast<int32_t>(level->pages.size()));
    level->last_lengths.push_back(length ? Narrow((length - end->sink + end->offset - 1) % page_size_ + 1) : 0);
    level->offsets.push_back(Narrow(end->offset));
    level->sinks.push_back(Narrow(end->sink));
    level->starts.push_back(block >= 0 ? Narrow(At(block).start) : 0);
  }
}

void Sequences::CheckBatch(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts) {
  int64_t need = 0;
  if (members_.size() < ids.size()) members_.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const Sequence& sequence = Get(ids[i]);
    const Block& block = At(sequence.last);
    if (counts[i] < 1 || counts[i] > INT32_MAX - sequence.length)
      Throw("ValueError", {"sequence ", ids[i], " cannot get ", counts[i], " tokens, at least 1"});
    if (block.refs != 1)
      Throw("RuntimeError", {"other sequences go on after sequence ", ids[i], ", it cannot get tokens"});
    need += Grown(sequence, counts[i]).pages - static_cast<int64_t>(block.pages.size());
    Member& member = members_[i];
    member.sequence = const_cast<Sequence*>(&sequence);
    member.count = counts[i];
    member.before = sequence.length;
    member.in_block = block.length;
    FindChain(sequence.last, &member.chain);
  }
  CheckDistinct(ids, &sorted_);
  if (need > static_cast<int64_t>(free_.size()))
    Throw("RuntimeError", {"the cache is full: the batch needs ", need, " pages of ", page_size_, " tokens, ",
                           free_.size(), " are free: remove sequences, or make a larger cache"});
}

double Sequences::PagesOf(const std::vector<Row>& rows) const {
  size_t sum = 0;
  for (const Row& row : rows) sum += row.block < 0 ? 0 : At(row.block).pages.size();
  return static_cast<double>(sum);
}

const Batch& Sequences::Append(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts) {
  CheckBatch(ids, counts);
  const size_t size = ids.size();
  size_t depths = 0;
  bool decoding = true;
  for (size_t i = 0; i < size; ++i) {
    depths = std::min(std::max(depths, members_[i].chain.size()), kDepths);
    decoding = decoding && counts[i] == 1;
  }
  batch_.levels.resize(depths);
  const std::vector<Row>* rows[kDepths];
  for (size_t d = 0; d < depths; ++d) {
    std::vector<Row>&single = single_[d], &joined = joined_[d];
    single.clear();
    joined.clear();
    for (size_t i = 0; i < size; ++i) {
      const std::vector<int32_t>& chain = members_[i].chain;
      Row row{d < chain.size() ? chain[d] : -1, counts[i]};
      single.push_back(row);
      if (!joined.empty() && joined.back().block == row.block) joined.back().queries += row.queries;
      else joined.push_back(row);
    }
    double pages = PagesOf(joined);
    bool decode = decoding && (pages == 0 || PagesOf(single) / pages < kJoinedWhen);
    batch_.levels[d].decode = decode;
    rows[d] = decode || d + 1 == kDepths ? &single : &joined;
  }
  batch_.append_first = !windows_ && batch_.levels.back().decode;

  auto reserve = [&] {
    for (size_t i = 0; i < size; ++i) Reserve(members_[i].sequence, counts[i]);
  };
  if (batch_.append_first) reserve();
  for (size_t d = 0; d < depths; ++d) Tables(*rows[d], d + 1 == kDepths, &batch_.levels[d]);
  if (!batch_.append_first) reserve();

  for (std::vector<int32_t>* table : {&batch_.ends, &batch_.starts, &batch_.positions, &batch_.places}) table->clear();
  batch_.tokens = 0;
  batch_.ends.push_back(0);
  for (size_t i = 0; i < size; ++i) {
    const Member& member = members_[i];
    const Block& block = At(member.sequence->last);
    batch_.tokens += member.count;
    batch_.ends.push_back(Narrow(batch_.tokens));
    batch_.starts.push_back(Narrow(member.before));
    for (int64_t k = 0; k < member.count; ++k) {
      batch_.positions.push_back(Narrow(member.before + k));
      int64_t at = block.length - member.count + k;
      if (member.in_block + k < block.sink) at = member.in_block + k;
      else if (at < block.sink) at = -1;
      else at += block.offset - block.sink;
      batch_.places.push_back(at < 0 ? -1 : Narrow(block.pages[Index(at / page_size_)] * page_size_ + at % page_size_));
    }
  }
  return batch_;
}

}  // namespace portcall::lm
