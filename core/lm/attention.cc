// SPDX-License-Identifier: Apache-2.0
// The functions vm.builtin.paged_attention_kv_cache_create and vm.builtin.attention_kv_cache_*, as executables of TVM 0.22
// to 0.27 and their hosts call them.
#include "lm/paged_cache.h"

namespace portcall::lm {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

constexpr int64_t kMost = int64_t{1} << 30;  // tokens and pages are counted by kernels in 32 bits

// TVM's arguments of the function that makes a cache.
enum Argument : int32_t {
  kSizes,
  kLayers,
  kQueryHeads,
  kKeyHeads,
  kWidth,
  kValueWidth,
  kKinds,
  kTransfer,
  kRopeMode,
  kRopeScale,
  kRopeTheta,
  kRopeFactors,
  kInit,
  kAppend,
  kAppendLatent,
  kRagged,
  kPrefill,
  kDecode,
  kPrefillWindow,
  kDecodeWindow,
  kPrefillTree,
  kRaggedTree,
  kPrefillLatent,
  kMerge,
  kRotate,
  kCopyPage,
  kRead,
  kCompact,
  kLeastArguments,
};

// A kernel of attention: ("tir" or "tirx", function).
PackedFunc AttentionKernel(const Arguments& args, int32_t i, const char* what) {
  Arguments pair = ItemsAt(args, i);
  if (pair.size() == 0) args.Refuse({"the library has no kernel for ", what});
  std::string_view kind = pair.Text(0);
  if (kind != "tir" && kind != "tirx")
    args.Refuse(
        {"kernels of '", kind, "' for ", what, " are not supported, only TVM's own: TIRPagedKVCache, flashinfer=0"});
  if (pair.size() != 2) args.Refuse({"expected a kind and a function for ", what, ", got ", pair.size(), " values"});
  return FunctionAt(pair, 1);
}

int64_t Within(const Arguments& args, const char* what, int64_t value, int64_t least, int64_t most = kMost) {
  if (value < least || value > most) args.Refuse({what, " is ", value, " (must be ", least, "-", most, ")"});
  return value;
}

Sizes SizesOf(const Arguments& args) {
  Sizes s{};
  vm::Extents given = args.ExtentsAt(kSizes), layers = args.ExtentsAt(kLayers), kinds = args.ExtentsAt(kKinds);
  if (given.size != 5 && given.size != 6)
    args.Refuse(
        {"expected 5 or 6 sizes, got ", given.size, ": the library is of a release of TVM that is not supported"});
  if (layers.size != 2) args.Refuse({"layers of several workers (", layers.size - 1, ") are not supported"});
  s.sequences = Within(args, "max_batch_size", given.data[0], 1);
  s.tokens = Within(args, "max_total_seq_len", given.data[1], 1);
  s.chunk = Within(args, "prefill_chunk_size", given.data[2], 1);
  s.page_size = Within(args, "page_size", given.data[3], 1);
  s.windows = Within(args, "support_sliding_window", given.data[4], 0, 1) != 0;
  s.first_layer = Within(args, "the first layer", layers.data[0], 0);
  s.layers = Within(args, "the number of layers", layers.data[1] - layers.data[0], 1, 1 << 16);
  s.kv_heads = Within(args, "the number of heads for keys", args.Int(kKeyHeads), 1);
  s.q_heads = Within(args, "the number of heads", args.Int(kQueryHeads), 1);
  s.dim = Within(args, "the width of a head", args.Int(kWidth), 1);
  if (s.q_heads % s.kv_heads) args.Refuse({s.q_heads, " heads cannot share ", s.kv_heads, " for keys"});
  if (s.tokens + 3 * s.page_size > kMost || s.pages() * s.page_size > 2 * kMost - 1)
    args.Refuse({"max_total_seq_len is ", s.tokens, ": too many tokens for pages of ", s.page_size});
  if (args.Int(kValueWidth) != s.dim) args.Refuse({"values of another width than keys are not supported"});
  static constexpr const char* kNames[] = {"", "of latent vectors (MLA)", "that is linear",
                                           "with a window for some layers"};
  if (kinds.size < s.first_layer + s.layers) args.Refuse({"kinds of attention for ", kinds.size, " layers only"});
  for (int64_t i = 0; i < kinds.size; ++i) {
    Within(args, "a kind of attention", kinds.data[i], 0, 3);
    if (kinds.data[i]) args.Refuse({"attention ", kNames[kinds.data[i]], " is not supported (layer ", i, ")"});
  }
  return s;
}

void CreateCache(const Arguments& args, Result result) {
  args.CheckCount(kLeastArguments, kLeastArguments + 1);
  Sizes sizes = SizesOf(args);
  if (args.Int(kTransfer)) args.Refuse({"transfer of a cache between machines is not supported"});
  Rope rope{
      Within(args, "rope_mode", args.Int(kRopeMode), 0, 2), FloatAt(args, kRopeScale), FloatAt(args, kRopeTheta), {}};
  if (args[kRopeFactors].type_index == kTVMFFITensor) {
    rope.factors = ObjectRef::Borrow<Tensor>(args.Owner(kRopeFactors));
    if (rope.mode != 1) args.Refuse({"factors of a rotation, but rope_mode is ", rope.mode, ", not 1"});
  }
  Arguments merges = ItemsAt(args, kMerge);
  if (merges.size() == 0) args.Refuse({"the library has no kernel that merges results of attention"});
  Kernels kernels;
  kernels.append = FunctionAt(args, kAppend);
  kernels.ragged = AttentionKernel(args, kRagged, "attention among new tokens");
  kernels.prefill = AttentionKernel(args, sizes.windows ? kPrefillWindow : kPrefill, "attention of several tokens");
  kernels.decode = AttentionKernel(args, sizes.windows ? kDecodeWindow : kDecode, "attention of one token");
  kernels.merge = FunctionAt(merges, 0);
  kernels.rotate = FunctionAt(args, kRotate);
  kernels.copy_page = FunctionAt(args, kCopyPage);
  kernels.read = FunctionAt(args, kRead, false);
  const DLTensor& init = args.TensorAt(kInit);
  auto cache = std::make_unique<PagedCache>(sizes, std::move(rope), std::move(kernels), init.dtype, init.device);
  result.Owned(NewNode<PagedCacheObj>(std::move(cache)));
}

PagedCache& CacheAt(const Arguments& args) {
  static const int32_t index = TypeIndexOf<PagedCacheObj>();
  if (args.size() == 0 || args[0].type_index != index) {
    if (args.size() == 0) args.CheckCount(1, 1);
    args.Fail(0, "a paged cache");
  }
  return static_cast<PagedCache&>(StateAt(args, 0));
}

void Attention(const Arguments& args, Result) {
  PagedCache& cache = CacheAt(args);
  Lock lock(cache.mutex);
  cache.Attention(args);
}

void QueryPositions(const Arguments& args, Result result) {
  PagedCache& cache = CacheAt(args);
  Lock lock(cache.mutex);
  result.Move(cache.QueryPositions(args.function()));
}

void Read(const Arguments& args, Result) {
  PagedCache& cache = CacheAt(args);
  Lock lock(cache.mutex);
  cache.Read(args);
}

void EnableWindow(const Arguments& args, Result) {  // (cache, sequence, window, sink)
  PagedCache& cache = CacheAt(args);
  args.CheckCount(4, 4);
  Lock lock(cache.mutex);
  cache.Slide(args.Int(1), args.Int(2), args.Int(3));
}

void IsEmpty(const Arguments& args, Result result) {
  PagedCache& cache = CacheAt(args);
  Lock lock(cache.mutex);
  result.Bool(cache.sequences().Empty());
}

void AvailablePages(const Arguments& args, Result result) {
  PagedCache& cache = CacheAt(args);
  Lock lock(cache.mutex);
  result.Int(static_cast<int64_t>(cache.sequences().FreePages()));
}

void TotalLength(const Arguments& args, Result result) {
  PagedCache& cache = CacheAt(args);
  Lock lock(cache.mutex);
  result.Int(cache.sequences().TotalLength());
}

Builtin attention_builtins[] = {
    {"vm.builtin.paged_attention_kv_cache_create", CreateCache},
    {"vm.builtin.attention_kv_cache_attention_with_fused_qkv", Attention},
    {"vm.builtin.attention_kv_cache_get_query_positions", QueryPositions},
    {"vm.builtin.attention_kv_cache_debug_get_kv", Read},
    {"vm.builtin.attention_kv_cache_enable_sliding_window_for_seq", EnableWindow},
    {"vm.builtin.attention_kv_cache_empty", IsEmpty},
    {"vm.builtin.attention_kv_cache_get_num_available_pages", AvailablePages},
    {"vm.builtin.attention_kv_cache_get_total_sequence_length", TotalLength},
};

}  // namespace
}  // namespace portcall::lm
