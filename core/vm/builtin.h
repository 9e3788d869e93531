// SPDX-License-Identifier: Apache-2.0
// What built-in functions are made with: arguments that are checked when they are read, results, registration.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bytes/message.h"
#include "portcall/portcall.h"

namespace portcall::vm {

using bytes::Join;
using bytes::Piece;
using bytes::Throw;

struct Extents {
  const int64_t* data;
  int64_t size;
};

// The arguments of a call. Each accessor is a TypeError for a value of another kind.
class Arguments {
 public:
  Arguments(const char* function, const TVMFFIAny* cells, int32_t size)
      : function_(function), cells_(cells), size_(size) {}

  const char* function() const { return function_; }
  int32_t size() const { return size_; }
  const TVMFFIAny* cells() const { return cells_; }
  const TVMFFIAny& operator[](int64_t i) const { return cells_[i]; }
  void CheckCount(int32_t least, int32_t most) const {
    if (size_ < least || size_ > most) FailCount(least);
  }

  int64_t Int(int32_t i) const {
    int32_t type = cells_[i].type_index;
    if (type != kTVMFFIInt && type != kTVMFFIBool) Fail(i, "an int");
    return cells_[i].v_int64;
  }
  DLDataType DataType(int32_t i) const {
    if (cells_[i].type_index != kTVMFFIDataType) Fail(i, "a data type");
    return cells_[i].v_dtype;
  }
  const DLTensor& TensorAt(int32_t i) const {
    const DLTensor* tensor = TryDLTensor(cells_[i]);
    if (!tensor) Fail(i, "a Tensor");
    return *tensor;
  }
  // The same, of a tensor that may be kept.
  TVMFFIObject* Owner(int32_t i) const {
    if (cells_[i].type_index != kTVMFFITensor) Fail(i, "a Tensor");
    return cells_[i].v_obj;
  }
  // Of a shape, or of a tensor's shape.
  Extents ExtentsAt(int32_t i) const {
    if (const DLTensor* tensor = TryDLTensor(cells_[i])) return {tensor->shape, tensor->ndim};
    if (cells_[i].type_index != kTVMFFIShape) Fail(i, "a Shape");
    const auto& shape = static_cast<ShapeObj*>(static_cast<Object*>(cells_[i].v_obj))->cell;
    return {shape.data, static_cast<int64_t>(shape.size)};
  }
  const TVMFFISeqCell& TupleAt(int32_t i) const {
    if (cells_[i].type_index != kTVMFFIArray) Fail(i, "a tuple");
    return static_cast<ArrayObj*>(static_cast<Object*>(cells_[i].v_obj))->cell;
  }
  std::string_view Text(int32_t i) const {
    std::optional<std::string_view> text = TryString(cells_[i]);
    if (!text) Fail(i, "a str");
    return *text;
  }

  std::string_view BytesAt(int32_t i) const {
    std::optional<std::string_view> bytes = TryBytes(cells_[i]);
    if (!bytes) Fail(i, "bytes");
    return *bytes;
  }

  // TypeError: argument i is of another kind.
  [[noreturn, gnu::cold]] void Fail(int32_t i, const char* expected) const;
  // ValueError: arguments of these kinds, but other values, are wanted.
  [[noreturn, gnu::cold]] void Refuse(std::initializer_list<Piece> why) const;

 private:
  [[noreturn, gnu::cold]] void FailCount(int32_t least) const;

  const char* function_;
  const TVMFFIAny* cells_;
  int32_t size_;
};

// The result is None unless the function writes it.
class Result {
 public:
  explicit Result(TVMFFIAny* cell) : cell_(cell) {}
  void Int(int64_t value) const { Number(kTVMFFIInt, value); }
  void Bool(bool value) const { Number(kTVMFFIBool, value); }
  void Owned(TVMFFIObjectHandle object) const {
    detail::SetCell(cell_, static_cast<TVMFFIObject*>(object)->type_index);
    cell_->v_obj = static_cast<TVMFFIObject*>(object);
  }
  void Copy(const TVMFFIAny& value) const { *cell_ = Any::Copy(value).release(); }
  void Move(Any value) const { *cell_ = value.release(); }

 private:
  void Number(int32_t type, int64_t value) const {
    detail::SetCell(cell_, type);
    cell_->v_int64 = value;
  }
  TVMFFIAny* cell_;
};

// A global function; made at namespace scope, and never destroyed.
struct Builtin {
  using Body = void (*)(const Arguments& args, Result result);
  Builtin(const char* global_name, Body run);

  const char* name;
  Body body;
};

std::string ExtentsText(Extents extents);  // "[2, 3]"

// The items of a tuple, as arguments.
Arguments ItemsOf(const Any& tuple, const char* function = "");
Any NewTuple(const std::vector<Any>& items);
Any NewShape(const int64_t* extents, size_t size);
Tensor NewIntegers(const int64_t* values, size_t size);  // int64[size]

// Element i of a compact tensor of integers or bools in the host's memory.
int64_t IntegerAt(const DLTensor& tensor, int64_t i);
// The tensor of an argument, in the host's memory, compact.
Tensor OnHost(const Arguments& args, int32_t i);

}  // namespace portcall::vm
