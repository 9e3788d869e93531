// SPDX-License-Identifier: Apache-2.0
#include "lm/paged_cache.h"

#include <algorithm>

#include "vm/memory.h"

namespace portcall::lm {
namespace {

constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr size_t kAligned = 16;  // numbers: 64 bytes

// The first rows of a tensor of three or two dimensions.
struct Rows {
  Rows(const DLTensor& whole, int64_t rows) : tensor(whole) {
    std::copy(whole.shape, whole.shape + whole.ndim, shape);
    shape[0] = rows;
    tensor.shape = shape;
    tensor.strides = nullptr;
  }
  Rows(const Tensor& whole, int64_t rows) : Rows(*whole.dl_tensor(), rows) {}
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  DLTensor tensor;
  int64_t shape[3];
};

}  // namespace

// The numbers that kernels read about a batch: one buffer, one copy. A device whose addresses are not numbers has a buffer
// for each table. Buffers are taken again for a batch of the same size, which is the next token's mostly.
class PagedCache::Tables {
 public:
  struct Depth {
    size_t queries, ends, pages, lengths, starts;
    bool decode;
  };

  explicit Tables(Device device) : device_(device) {}
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  void Fill(const Batch& batch, bool windows) {
    numbers_.clear();
    tables_.clear();
    depths.clear();
    tokens = batch.tokens;
    append_first = batch.append_first;
    positions = Add({&batch.positions});
    places = Add({&batch.places});
    starts = Add({&batch.starts});
    ends = Add({&batch.ends});
    for (const Level& level : batch.levels) {
      if (level.pages.empty()) continue;
      depths.push_back({Add({&level.queries}), Add({&level.ends}), Add({&level.pages}),
                        windows ? Add({&level.last_lengths, &level.offsets, &level.sinks}) : Add({&level.last_lengths}),
                        Add({&level.starts}), level.decode});
    }
    Place();
  }

  const DLTensor& operator[](size_t table) const { return tables_[table].tensor; }
  Any Vector(size_t table) const {
    const DLTensor& tensor = tables_[table].tensor;
    TVMFFIObject* owner = buffers_[buffers_.size() == 1 ? 0 : table].get();
    return ObjectRef::Steal<ObjectRef>(vm::NewView(owner, tensor.data, tensor.shape, 1, kInt32, device_));
  }

  int64_t tokens;
  bool append_first;
  size_t positions, places, starts, ends;
  std::vector<Depth> depths;

 private:
  struct Table {
    size_t begin, size;
    int64_t shape[2];
    DLTensor tensor;
  };

  size_t Add(std::initializer_list<const std::vector<int32_t>*> rows) {
    Table& table = tables_.emplace_back();
    table.begin = numbers_.size();
    for (const std::vector<int32_t>* row : rows) numbers_.insert(numbers_.end(), row->begin(), row->end());
    table.size = numbers_.size() - table.begin;
    bool single = rows.size() == 1;
    table.shape[0] = static_cast<int64_t>(single ? table.size : rows.size());
    table.shape[1] = static_cast<int64_t>(table.size / rows.size());
    table.tensor = {};
    table.tensor.ndim = single ? 1 : 2;
    table.tensor.dtype = kInt32;
    table.tensor.device = device_;
    numbers_.resize((numbers_.size() + kAligned - 1) / kAligned * kAligned);
    return tables_.size() - 1;
  }

  void* Copy(size_t buffer, size_t begin, size_t size) {
    return PlaceNumbers(&buffers_[buffer], numbers_.data() + begin, size, device_);
  }

  void Place() {
    bool addresses = device_.device_type == kDLCPU || device_.device_type == kDLCUDA || device_.device_type == kDLROCM;
    buffers_.resize(addresses ? 1 : tables_.size());
    void* all = addresses ? Copy(0, 0, numbers_.size()) : nullptr;
    for (size_t i = 0; i < tables_.size(); ++i) {
      Table& table = tables_[i];
      table.tensor.shape = table.shape;
      table.tensor.data = addresses ? static_cast<int32_t*>(all) + table.begin : Copy(i, table.begin, table.size);
    }
  }

  Device device_;
  std::vector<int32_t> numbers_;
  std::vector<Table> tables_;
  std::vector<Tensor> buffers_;  // one for all tables, or one for each
};

PagedCache::PagedCache(const Sizes& sizes, Rope rope, Kernels kernels, DLDataType dtype, Device device)
    : sizes_(sizes),
      rope_(std::move(rope)),
      kernels_(std::move(kernels)),
      dtype_(dtype),
      device_(device),
      sequences_(static_cast<int32_t>(sizes.pages()), sizes.page_size, sizes.windows,
                 [this](int32_t from, int32_t to, int64_t tokens) {
                   for (const Tensor& pages : pages_)
                     (Call() << pages << int64_t{from} << int64_t{to} << tokens)(kernels_.copy_page);
                 }) {
  const Sizes& s = sizes_;
  for (int64_t layer = 0; layer < s.layers; ++layer)
    pages_.push_back(Tensor::Empty({s.pages(), 2, s.kv_heads, s.page_size, s.dim}, dtype, device));
  auto workspace = [&](int64_t heads) { return Tensor::Empty({s.chunk, heads, s.dim}, dtype, device); };
  q_ = workspace(s.q_heads);
  k_ = workspace(s.kv_heads);
  v_ = workspace(s.kv_heads);
  part_ = workspace(s.q_heads);
  sums_ = Tensor::Empty({s.chunk, s.q_heads}, kFloat32, device);
  part_sums_ = Tensor::Empty({s.chunk, s.q_heads}, kFloat32, device);
  try {  // nothing is written at -1, and a page onto itself: the kernels check what they are given
    Batch none;
    none.places = {-1};
    Tables table(device);
    table.Fill(none, false);
    Rows k(k_, 1), v(v_, 1);
    (Call() << pages_[0] << k.tensor << v.tensor << table[table.places])(kernels_.append);
    (Call() << pages_[0] << int64_t{0} << int64_t{0} << int64_t{1})(kernels_.copy_page);
  } catch (const Error& error) {
    Throw("ValueError",
          {"the kernels of this library take no pages of ", s.page_size, " tokens with ", s.kv_heads, " heads of ",
           s.dim, " numbers; a model is compiled for one size of pages, mostly 16: ", error.message()});
  }
}

void PagedCache::Clear() {
  begun_ = false;
  sequences_.Clear();
}

void PagedCache::Add(int64_t id) { sequences_.Add(id); }

void PagedCache::Remove(int64_t id) {
  sequences_.Remove(id);
  begun_ = false;
}

void PagedCache::Fork(int64_t parent, int64_t child, int64_t at) {
  sequences_.Fork(parent, child, at);
  begun_ = false;
}

void PagedCache::Pop(int64_t id, int64_t count) {
  sequences_.Pop(id, count);
  begun_ = false;
}

void PagedCache::Slide(int64_t id, int64_t window, int64_t sink) { sequences_.Slide(id, window, sink); }

void PagedCache::Begin(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts) {
  begun_ = false;  // where it fails, what goes on anyway must not write over the batch before
  int64_t left = sizes_.chunk;
  for (int64_t count : counts) {
    if (count > left)
      Throw("ValueError", {"a batch of more than ", sizes_.chunk,
                           " tokens, which is the prefill_chunk_size of the cache: "
                           "give it in parts"});
    left -= std::max<int64_t>(count, 0);
  }
  const Batch& batch = sequences_.Append(ids, counts);
  if (batch_.use_count() != 1) batch_ = std::make_shared<Tables>(device_);  // a kernel that runs has the one before
  batch_->Fill(batch, sizes_.windows);
  begun_ = true;
}

std::shared_ptr<const PagedCache::Tables> PagedCache::Begun(const char* function) const {
  if (!begun_)
    Throw("RuntimeError",
          {function, "(): no batch was begun since the sequences changed: call kv_state_begin_forward"});
  return batch_;
}

void PagedCache::CheckTensor(const Arguments& args, int32_t i, std::initializer_list<int64_t> shape) const {
  const DLTensor& tensor = args.TensorAt(i);
  bool same = tensor.ndim == static_cast<int32_t>(shape.size()) && tensor.dtype == dtype_ && tensor.device == device_ &&
              IsContiguous(tensor) && std::equal(shape.begin(), shape.end(), tensor.shape);
  if (same) return;
  std::string expected = vm::ExtentsText({shape.begin(), static_cast<int64_t>(shape.size())});
  std::string got = vm::ExtentsText({tensor.shape, tensor.ndim}), type = ToString(dtype_),
              other = ToString(tensor.dtype);
  args.Refuse(
      {"argument ", i, " must be ", type, expected, " on the device of the cache, compact; it is ", other, got});
}

void PagedCache::Attention(const Arguments& args) {
  args.CheckCount(5, 5);
  int64_t layer = args.Int(1) - sizes_.first_layer;
  if (layer < 0 || layer >= sizes_.layers)
    args.Refuse({"the cache has ", sizes_.layers, " layers, there is no layer ", args.Int(1)});
  double scale = FloatAt(args, 2);
  std::shared_ptr<const Tables> begun = Begun(args.function());
  const Tables& batch = *begun;
  const Sizes& s = sizes_;
  const DLTensor &given = args.TensorAt(3), &result = args.TensorAt(4);
  int64_t rows = given.ndim == 3 ? given.shape[0] : 0;
  CheckTensor(args, 3, {rows, s.q_heads + 2 * s.kv_heads, s.dim});
  CheckTensor(args, 4, {rows, s.q_heads, s.dim});
  if (rows < batch.tokens) args.Refuse({"the batch has ", batch.tokens, " tokens, the tensor ", rows});

  Rows all(given, batch.tokens), out(result, batch.tokens), q(q_, batch.tokens), k(k_, batch.tokens),
      v(v_, batch.tokens), sums(sums_, batch.tokens), part(part_, batch.tokens), part_sums(part_sums_, batch.tokens);
  const Tensor& pages = pages_[static_cast<size_t>(layer)];
  const int64_t inside = rope_.mode == 2;
  Call rotate;
  rotate << all.tensor << batch[batch.positions] << q.tensor << k.tensor << v.tensor;
  if (rope_.factors.defined()) rotate << rope_.factors;
  else rotate << int64_t{rope_.mode == 1};
  rotate(kernels_.rotate);
  Call append;
  append << pages << k.tensor << v.tensor << batch[batch.places];
  bool first = batch.append_first;
  if (first) {
    append(kernels_.append);
  } else {
    (Call() << q.tensor << batch[batch.ends] << k.tensor << v.tensor << batch[batch.ends] << batch[batch.positions]
            << batch[batch.starts] << out.tensor << sums.tensor << int64_t{1} << inside << rope_.scale << rope_.theta
            << scale)(kernels_.ragged);
  }
  for (const Tables::Depth& depth : batch.depths) {
    const DLTensor &to = first ? out.tensor : part.tensor, &to_sums = first ? sums.tensor : part_sums.tensor;
    Call attend;
    attend << q.tensor;
    if (!depth.decode) attend << batch[depth.queries];
    attend << pages << batch[depth.ends] << batch[depth.pages] << batch[depth.lengths] << batch[depth.starts]
           << batch[batch.positions] << to << to_sums;
    if (!depth.decode) attend << int64_t{0};
    attend << inside << rope_.scale << rope_.theta << scale;
    attend(depth.decode ? kernels_.decode : kernels_.prefill);
    if (!first) (Call() << out.tensor << sums.tensor << part.tensor << part_sums.tensor)(kernels_.merge);
    first = false;
  }
  if (!batch.append_first) append(kernels_.append);
}

Any PagedCache::QueryPositions(const char* function) const {
  std::shared_ptr<const Tables> batch = Begun(function);
  return batch->Vector(batch->positions);
}

void PagedCache::Read(const Arguments& args) {
  args.CheckCount(6, 6);
  if (!kernels_.read.defined()) args.Refuse({"the cache was made without the kernel that reads it (f_debug_get_kv)"});
  std::vector<int32_t> places = sequences_.Places(args.Int(1));
  int64_t start = args.Int(2), end = args.Int(3), length = static_cast<int64_t>(places.size());
  if (start < 0 || start >= end || end > length)
    args.Refuse({"the sequence has ", length, " tokens, there are none from ", start, " to ", end});
  for (int32_t i : {4, 5}) CheckTensor(args, i, {sizes_.layers, end - start, sizes_.kv_heads, sizes_.dim});
  Batch wanted;
  wanted.places.assign(places.begin() + start, places.begin() + end);
  Tables table(device_);
  table.Fill(wanted, false);
  for (int64_t layer = 0; layer < sizes_.layers; ++layer)
    (Call() << pages_[static_cast<size_t>(layer)] << table[table.places] << args.TensorAt(4) << args.TensorAt(5)
            << layer)(kernels_.read);
}

}  // namespace portcall::lm
