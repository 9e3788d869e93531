// SPDX-License-Identifier: Apache-2.0
// relax.run.*, which TVM has in Python: operators whose result has a shape that depends on values.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "vm/order.h"

namespace portcall::vm {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Slices of a tensor along an axis, or its elements, in groups of equal ones.
struct Groups {
  std::vector<int64_t> first;    // the first place of each group
  std::vector<int64_t> inverse;  // the group of each place
  std::vector<int64_t> counts;
};

// Groups in the order of their values, or in the order in which they first occur.
Groups GroupEqual(const Tensor& tensor, const Axis& axis, bool sorted) {
  Keys keys(*tensor.dl_tensor());
  auto compare = [&](int64_t a, int64_t b) {
    for (int64_t row = 0; row < axis.rows(); ++row) {
      uint64_t x = keys[axis.Element(row, a)], y = keys[axis.Element(row, b)];
      if (x != y) return x < y ? -1 : 1;
    }
    return 0;
  };
  std::vector<int64_t> places(static_cast<size_t>(axis.extent));
  std::iota(places.begin(), places.end(), int64_t{0});
  std::vector<int64_t> order = places, leader = places, number = places;
  SortPlaces(&order, compare);  // so the first of equal ones leads them
  for (size_t i = 1; i < order.size(); ++i) {
    if (compare(order[i - 1], order[i]) == 0) leader[Size(order[i])] = leader[Size(order[i - 1])];
  }
  Groups groups;
  for (int64_t place : sorted ? order : places) {
    if (leader[Size(place)] != place) continue;
    number[Size(place)] = static_cast<int64_t>(groups.first.size());
    groups.first.push_back(place);
  }
  groups.counts.resize(groups.first.size());
  for (int64_t place : leader) {
    groups.inverse.push_back(number[Size(place)]);
    ++groups.counts[Size(groups.inverse.back())];
  }
  return groups;
}

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
  Groups groups = GroupEqual(tensor, axis, args.Int(1) != 0);
  shape[Size(number < 0 ? number + seen.ndim : number)] = static_cast<int64_t>(groups.first.size());
  std::vector<Any> results = {Slices(tensor, axis, shape, groups.first)};
  const std::vector<int64_t>* more[] = {&groups.first, &groups.inverse, &groups.counts};
  for (int32_t i = 0; i < 3; ++i) {
    if (args.Int(2 + i)) results.emplace_back(NewIntegers(more[i]->data(), more[i]->size()));
  }
  result.Move(results.size() == 1 ? results[0] : NewTuple(results));
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
      static_cast<int64_t*>(out.raw_data())[d * count + k] = left % shape[static_cast<size_t>(d)];
    }
  }
  result.Owned(out.release());
}

void ShapeToTensor(const Arguments& args, Result result) {  // (shape) -> int64[dimensions]
  args.CheckCount(1, 1);
  Extents extents = args.ExtentsAt(0);
  result.Owned(NewIntegers(extents.data, static_cast<size_t>(extents.size)).release());
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
  if (value.type_index == kTVMFFIShape) return ExtentsText(args.ExtentsAt(i));
  if (value.type_index != kTVMFFIArray) return "<" + DescribeType(value.type_index) + ">";
  Arguments inner = ItemsOf(Any::Copy(value));
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
  Throw("AssertionError", {text.empty() ? "Assertion Failed" : text});
}

Builtin operators_builtins[] = {
    {"relax.run.unique", Unique}, {"relax.run.nonzero", Nonzero},  {"relax.run.shape_to_tensor", ShapeToTensor},
    {"relax.run.print", Print},   {"relax.run.assert_op", Assert},
};

}  // namespace
}  // namespace portcall::vm
