// SPDX-License-Identifier: Apache-2.0
// relax.run.*, which TVM has in Python: operators whose result has a shape that depends on values.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "vm/order.h"

namespace portcall::vm {
namespace {

Tensor NewIntegers(const std::vector<int64_t>& values) {
  Tensor tensor = Tensor::Empty({static_cast<int64_t>(values.size())}, DataTypeOf<int64_t>());
  std::copy(values.begin(), values.end(), tensor.data<int64_t>());
  return tensor;
}

// Slices of a tensor along an axis, or its elements, in groups of equal ones.
class Groups {
 public:
  Groups(const Tensor& tensor, const Axis& axis, bool sorted) : keys_(*tensor.dl_tensor()), axis_(axis) {
    std::vector<int64_t> order(static_cast<size_t>(axis.extent));
    std::iota(order.begin(), order.end(), int64_t{0});
    SortPlaces(&order, [&](int64_t a, int64_t b) { return Compare(a, b); });
    std::vector<int64_t> group(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      if (i == 0 || Compare(order[i - 1], order[i]) != 0) first.push_back(order[i]);
      group[static_cast<size_t>(order[i])] = static_cast<int64_t>(first.size()) - 1;
    }
    std::vector<int64_t> rank(first.size());  // of the groups as they are given
    std::iota(rank.begin(), rank.end(), int64_t{0});
    if (!sorted) {
      std::vector<int64_t> by_place = rank;
      SortPlaces(&by_place, [&](int64_t a, int64_t b) { return First(a) < First(b) ? -1 : 1; });
      for (size_t i = 0; i < by_place.size(); ++i) rank[static_cast<size_t>(by_place[i])] = static_cast<int64_t>(i);
      SortPlaces(&first, [](int64_t, int64_t) { return 0; });
    }
    counts.resize(first.size());
    for (int64_t g : group) {
      inverse.push_back(rank[static_cast<size_t>(g)]);
      ++counts[static_cast<size_t>(inverse.back())];
    }
  }

  std::vector<int64_t> first, inverse, counts;

 private:
  int64_t First(int64_t g) const { return first[static_cast<size_t>(g)]; }
  int Compare(int64_t a, int64_t b) const {
    for (int64_t row = 0; row < axis_.rows(); ++row) {
      uint64_t x = keys_[axis_.Element(row, a)], y = keys_[axis_.Element(row, b)];
      if (x != y) return x < y ? -1 : 1;
    }
    return 0;
  }

  Keys keys_;
  const Axis& axis_;
};

Tensor Slices(const Tensor& tensor, const Axis& axis, std::vector<int64_t> shape, const std::vector<int64_t>& places) {
  Tensor out = Tensor::Empty(shape, tensor.dtype());
  Keys from(*tensor.dl_tensor());
  size_t nbytes = from.element_bytes();
  Axis to = axis;
  to.extent = static_cast<int64_t>(places.size());
  for (int64_t row = 0; row < to.rows(); ++row) {
    for (int64_t k = 0; k < to.extent; ++k) {
      std::memcpy(static_cast<char*>(out.raw_data()) + static_cast<size_t>(to.Element(row, k)) * nbytes,
                  from.At(axis.Element(row, places[static_cast<size_t>(k)])), nbytes);
    }
  }
  return out;
}

// As numpy.unique; unsorted groups are in the order in which they first occur. The inverse has one dimension.
void Unique(const Arguments& args, Result result) {  // (tensor, sorted, index, inverse, counts, [axis])
  args.CheckCount(5, 6);
  Tensor tensor = OnHost(args, 0);
  bool whole = args.size() == 5 || args[5].type_index == kTVMFFINone;
  std::vector<int64_t> shape = whole ? std::vector<int64_t>{static_cast<int64_t>(tensor.numel())} : tensor.shape();
  DLTensor seen = *tensor.dl_tensor();
  seen.shape = shape.data();
  seen.ndim = static_cast<int32_t>(shape.size());
  int64_t number = whole ? 0 : args.Int(5);
  Axis axis(args.function(), seen, number);
  Groups groups(tensor, axis, args.Int(1) != 0);
  shape[static_cast<size_t>(number < 0 ? number + seen.ndim : number)] = static_cast<int64_t>(groups.first.size());
  std::vector<Any> results = {Slices(tensor, axis, shape, groups.first)};
  if (args.Int(2)) results.emplace_back(NewIntegers(groups.first));
  if (args.Int(3)) results.emplace_back(NewIntegers(groups.inverse));
  if (args.Int(4)) results.emplace_back(NewIntegers(groups.counts));
  result.Move(results.size() == 1 ? results[0] : Any(Array<Any>(results)));
}

void Nonzero(const Arguments& args, Result result) {  // (tensor) -> int64[dimensions, k]
  args.CheckCount(1, 1);
  Tensor tensor = OnHost(args, 0);
  std::vector<int64_t> shape = tensor.shape();
  if (shape.empty()) shape = {1};
  Keys keys(*tensor.dl_tensor());
  bool number = tensor.dtype().code != kDLUInt && tensor.dtype().code != kDLBool;
  uint64_t zero = number ? uint64_t{1} << 63 : 0;
  std::vector<int64_t> found;
  for (int64_t i = 0; i < static_cast<int64_t>(tensor.numel()); ++i) {
    if (keys[i] != zero) found.push_back(i);
  }
  auto count = static_cast<int64_t>(found.size()), ndim = static_cast<int64_t>(shape.size());
  Tensor out = Tensor::Empty({ndim, count}, DataTypeOf<int64_t>());
  for (int64_t k = 0; k < count; ++k) {
    int64_t left = found[static_cast<size_t>(k)];
    for (int64_t d = ndim; d-- > 0; left /= shape[static_cast<size_t>(d)]) {
      out.data<int64_t>()[d * count + k] = left % shape[static_cast<size_t>(d)];
    }
  }
  result.Owned(out.release());
}

void ShapeToTensor(const Arguments& args, Result result) {  // (shape) -> int64[dimensions]
  args.CheckCount(1, 1);
  Extents extents = args.ExtentsAt(0);
  result.Owned(NewIntegers(std::vector<int64_t>(extents.data, extents.data + extents.size)).release());
}

// ---- Printing ------------------------------------------------------------------------------------------------------

std::string ElementText(const DLTensor& tensor, int64_t i) {
  const char* data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  double value = 0;
  if (tensor.dtype.code == kDLFloat && tensor.dtype.bits == 32) {
    value = reinterpret_cast<const float*>(data)[i];
  } else if (tensor.dtype.code == kDLFloat && tensor.dtype.bits == 64) {
    value = reinterpret_cast<const double*>(data)[i];
  } else {
    return std::to_string(IntegerAt(tensor, i));
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.8g", value);
  return text;
}

std::string TensorText(const DLTensor& tensor, int32_t axis, int64_t* next) {
  if (axis == tensor.ndim) return ElementText(tensor, (*next)++);
  std::string text = "[";
  for (int64_t i = 0; i < tensor.shape[axis]; ++i) text += (i ? ", " : "") + TensorText(tensor, axis + 1, next);
  return text + "]";
}

std::string ValueText(const Arguments& args, int32_t i) {
  const TVMFFIAny& value = args[i];
  if (std::optional<std::string_view> text = TryString(value)) return std::string(*text);
  if (value.type_index == kTVMFFIBool) return value.v_int64 ? "True" : "False";
  if (value.type_index == kTVMFFIInt) return std::to_string(value.v_int64);
  if (value.type_index == kTVMFFIFloat) return std::to_string(value.v_float64);
  if (TryDLTensor(value)) {
    int64_t next = 0;
    Tensor tensor = OnHost(args, i);
    return TensorText(*tensor.dl_tensor(), 0, &next);
  }
  if (value.type_index == kTVMFFIShape) {
    Extents extents = args.ExtentsAt(i);
    std::string text;
    for (int64_t k = 0; k < extents.size; ++k) text += (k ? ", " : "") + std::to_string(extents.data[k]);
    return "[" + text + "]";
  }
  if (value.type_index != kTVMFFIArray) return "<" + DescribeType(value.type_index) + ">";
  const TVMFFISeqCell& items = args.TupleAt(i);
  Arguments inner(args.function(), static_cast<const TVMFFIAny*>(items.data), static_cast<int32_t>(items.size));
  std::string text;
  for (int32_t k = 0; k < inner.size(); ++k) text += (k ? ", " : "") + ValueText(inner, k);
  return "(" + text + ")";
}

// Puts the values from `first` on into the places {} of the format; without a format they are joined.
std::string Formatted(const Arguments& args, int32_t format, const char* separator) {
  std::string text(args.Text(format));
  if (text.empty()) {
    for (int32_t i = format + 1; i < args.size(); ++i) text += (i > format + 1 ? separator : "") + ValueText(args, i);
    return text;
  }
  size_t from = 0;
  for (int32_t i = format + 1; i < args.size(); ++i) {
    size_t place = text.find("{}", from);
    if (place == std::string::npos) break;
    std::string value = ValueText(args, i);
    text.replace(place, 2, value);
    from = place + value.size();
  }
  return text;
}

void Print(const Arguments& args, Result) {  // (format, values…)
  args.CheckCount(1, INT32_MAX);
  std::puts(Formatted(args, 0, " ").c_str());
  std::fflush(stdout);
}

void Assert(const Arguments& args, Result) {  // (condition, format, values…)
  args.CheckCount(2, INT32_MAX);
  Tensor condition = TryDLTensor(args[0]) ? OnHost(args, 0) : Tensor();
  bool holds =
      condition.defined() ? condition.numel() == 1 && IntegerAt(*condition.dl_tensor(), 0) != 0 : args.Int(0) != 0;
  if (holds) return;
  std::string text = Formatted(args, 1, ", ");
  PORTCALL_THROW(AssertionError) << (text.empty() ? "Assertion Failed" : text);
}

Builtin builtins[] = {
    {"relax.run.unique", Unique}, {"relax.run.nonzero", Nonzero},  {"relax.run.shape_to_tensor", ShapeToTensor},
    {"relax.run.print", Print},   {"relax.run.assert_op", Assert},
};

}  // namespace
}  // namespace portcall::vm
