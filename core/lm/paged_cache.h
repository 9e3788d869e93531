// SPDX-License-Identifier: Apache-2.0
// A cache of keys and values in pages, for attention of several heads by kernels of the model's library.
#pragma once

#include <memory>

#include "lm/sequences.h"
#include "lm/state.h"

namespace portcall::lm {

struct Kernels {
  PackedFunc append, ragged, prefill, decode, merge, rotate, copy_page, read;
};

struct Sizes {
  int64_t sequences, tokens, chunk, page_size;
  bool windows;
  int64_t first_layer, layers, q_heads, kv_heads, dim;
  int64_t pages() const { return (tokens + page_size - 1) / page_size + 1 + (windows ? 2 * sequences : 0); }
};

struct Rope {
  int64_t mode;  // 0: none, 1: when keys are written, 2: in the kernels of attention
  double scale, theta;
  Tensor factors;
};

class PagedCache : public State {
 public:
  // ValueError: the kernels take no such pages.
  PagedCache(const Sizes& sizes, Rope rope, Kernels kernels, DLDataType dtype, Device device);

  void Clear() override;
  void Add(int64_t id) override;
  void Remove(int64_t id) override;
  void Fork(int64_t parent, int64_t child, int64_t at) override;
  void Pop(int64_t id, int64_t count) override;
  void Begin(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts) override;
  void End() override {}

  Sequences& sequences() { return sequences_; }
  void Slide(int64_t id, int64_t window, int64_t sink);
  // Keys and values go into the cache, the result of attention into `out`: [tokens, heads, width].
  void Attention(const Arguments& args);  // (cache, layer, scale, queries with keys and values, out)
  Any QueryPositions(const char* function) const;
  void Read(const Arguments& args);  // (cache, sequence, start, end, keys, values): [layers, tokens, heads, width]

 private:
  class Tables;
  void CheckTensor(const Arguments& args, int32_t i, std::initializer_list<int64_t> shape) const;
  std::shared_ptr<const Tables> Begun(const char* function) const;

  Sizes sizes_;
  Rope rope_;
  Kernels kernels_;
  DLDataType dtype_;
  Device device_;
  std::vector<Tensor> pages_;                   // by layer: [pages, 2, heads, page size, width]
  Tensor q_, k_, v_, part_, sums_, part_sums_;  // for the tokens of one batch
  Sequences sequences_;
  std::shared_ptr<Tables> batch_;
  bool begun_ = false;  // no longer, once the sequences change
};

struct AttentionCacheObj : StateObj {
  static constexpr const char* kTypeKey = "relax.vm.AttentionKVCache";
  using ParentClass = StateObj;
  using StateObj::StateObj;
};
struct PagedCacheObj : AttentionCacheObj {
  static constexpr const char* kTypeKey = "relax.vm.PagedAttentionKVCache";
  using ParentClass = AttentionCacheObj;
  using AttentionCacheObj::AttentionCacheObj;
};

}  // namespace portcall::lm
