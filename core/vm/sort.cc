// SPDX-License-Identifier: Apache-2.0
// tvm.contrib.sort.*, which kernels of sort, argsort, topk and non-maximum suppression call. Sorting is stable, and NaN
// comes last.
#include <algorithm>
#include <cstring>

#include "vm/order.h"

namespace portcall::vm {
namespace {

class Sorter {
 public:
  Sorter(const Arguments& args, int64_t axis, bool ascending)
      : input_(HostTensor(args, 0)), keys_(input_), axis_(args.function(), input_, axis), ascending_(ascending) {}

  const Axis& axis() const { return axis_; }
  const Keys& keys() const { return keys_; }
  const DLTensor& input() const { return input_; }

  // The places of the first `count` elements of a row, in order.
  const std::vector<int64_t>& Row(int64_t row, int64_t count) {
    sorted_.resize(static_cast<size_t>(count));
    order_.resize(static_cast<size_t>(count));
    for (int64_t k = 0; k < count; ++k) {
      uint64_t key = keys_[axis_.Element(row, k)];
      sorted_[static_cast<size_t>(k)] = ascending_ || keys_.IsNan(key) ? key : ~key;
      order_[static_cast<size_t>(k)] = k;
    }
    SortPlaces(&order_, [&](int64_t a, int64_t b) {
      uint64_t x = sorted_[static_cast<size_t>(a)], y = sorted_[static_cast<size_t>(b)];
      return x < y ? -1 : static_cast<int>(x > y);
    });
    return order_;
  }

  // Writes values, or places, of the first of each row into a tensor with as many along the axis.
  void Write(const Arguments& args, int32_t i, bool values) {
    const DLTensor& out = HostTensor(args, i);
    Axis to = Like(args, i, out);
    if (values && out.dtype != input_.dtype) args.Fail(i, "a Tensor of the input's data type");
    for (int64_t row = 0; row < axis_.rows(); ++row) {
      const std::vector<int64_t>& order = Row(row, axis_.extent);
      for (int64_t k = 0; k < to.extent; ++k) {
        int64_t place = order[static_cast<size_t>(k)];
        if (values) {
          char* data = static_cast<char*>(out.data) + out.byte_offset;
          std::memcpy(data + static_cast<size_t>(to.Element(row, k)) * keys_.element_bytes(),
                      keys_.At(axis_.Element(row, place)), keys_.element_bytes());
        } else {
          WriteNumber(out, to.Element(row, k), place);
        }
      }
    }
  }

 private:
  // An output: the input's shape, with no more elements along the axis.
  Axis Like(const Arguments& args, int32_t i, const DLTensor& out) const {
    Axis to(args.function(), out, args.Int(args.size() - (IsTopK(args) ? 3 : 2)));
    if (to.outer != axis_.outer || to.inner != axis_.inner || to.extent > axis_.extent)
      args.Fail(i, "a smaller Tensor");
    return to;
  }
  static bool IsTopK(const Arguments& args) { return TryString(args[args.size() - 2]).has_value(); }

  const DLTensor& input_;
  Keys keys_;
  Axis axis_;
  bool ascending_;
  std::vector<uint64_t> sorted_;  // keys of a row, such that the first comes first
  std::vector<int64_t> order_;
};

void Sort(const Arguments& args, Result) {  // (input, output, axis, ascending)
  args.CheckCount(4, 4);
  Sorter(args, args.Int(2), args.Int(3) != 0).Write(args, 1, true);
}

void Argsort(const Arguments& args, Result) {  // (input, output, axis, ascending)
  args.CheckCount(4, 4);
  Sorter(args, args.Int(2), args.Int(3) != 0).Write(args, 1, false);
}

void TopK(const Arguments& args, Result) {  // (input, outputs…, k, axis, "both"|"values"|"indices", ascending)
  args.CheckCount(6, 7);
  int32_t last = args.size() - 1;
  std::string_view what = args.Text(last - 1);
  Sorter sorter(args, args.Int(last - 2), args.Int(last) != 0);
  bool both = what == "both";
  if (both != (args.size() == 7) || !(both || what == "values" || what == "indices"))
    args.Refuse({args.size(), " arguments for '", what, "'"});
  if (both || what == "values") sorter.Write(args, 1, true);
  if (both || what == "indices") sorter.Write(args, both ? 2 : 1, false);
}

void ArgsortNms(const Arguments& args, Result) {  // (input, counts of valid elements, output, axis, ascending)
  args.CheckCount(5, 5);
  Sorter sorter(args, args.Int(3), args.Int(4) != 0);
  const DLTensor &counts = HostTensor(args, 1), &out = HostTensor(args, 2);
  const Axis& axis = sorter.axis();
  if (static_cast<int64_t>(NumElements(counts)) != axis.rows()) args.Fail(1, "a count for each row");
  if (NumElements(out) != NumElements(sorter.input())) args.Fail(2, "a Tensor of the input's shape");
  for (int64_t row = 0; row < axis.rows(); ++row) {
    int64_t valid = std::clamp<int64_t>(IntegerAt(counts, row), 0, axis.extent);
    const std::vector<int64_t>& order = sorter.Row(row, valid);
    for (int64_t k = 0; k < axis.extent; ++k) {
      WriteNumber(out, axis.Element(row, k), k < valid ? order[static_cast<size_t>(k)] : k);
    }
  }
}

Builtin sort_builtins[] = {
    {"tvm.contrib.sort.sort", Sort},
    {"tvm.contrib.sort.argsort", Argsort},
    {"tvm.contrib.sort.topk", TopK},
    {"tvm.contrib.sort.argsort_nms", ArgsortNms},
};

}  // namespace
}  // namespace portcall::vm
