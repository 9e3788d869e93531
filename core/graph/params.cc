// SPDX-License-Identifier: Apache-2.0
#include "graph/params.h"

#include <algorithm>

namespace portcall::graph {
namespace {

constexpr uint64_t kListMagic = 0xF7E58D4F05049CB7;
constexpr uint64_t kTensorMagic = 0xDD5E40F096B4A13F;
constexpr size_t kHeader = 8 + 8 + 4 + 4 + 4 + 4 + 8;  // of a tensor without axes
constexpr int32_t kMaxAxes = 64;

// In a blob an element takes whole bytes. Types below a byte are packed nevertheless, at the front.
uint64_t BytesInBlob(DLDataType dtype, size_t elements) { return uint64_t{elements} * ((dtype.bits + 7) / 8); }

void ReadTensor(Cursor* cursor, Param* param) {
  if (cursor->Take<uint64_t>("the mark of a tensor") != kTensorMagic) cursor->Fail("no tensor begins before this byte");
  cursor->Take<uint64_t>("a reserved word");
  auto device = cursor->Take<int32_t>("a device type");
  if (device != kDLCPU) cursor->Fail("a tensor on a device of type " + std::to_string(device) + ", not on the host");
  cursor->Take<int32_t>("a device number");
  size_t elements = ReadDescription(cursor, param);
  uint64_t expected = BytesInBlob(param->dtype, elements);
  auto nbytes = cursor->Take<uint64_t>("a size");
  if (nbytes != expected) {
    cursor->Fail("'" + std::string(param->name) + "' is said to have " + std::to_string(nbytes) + " bytes; its shape " +
                 "and type have " + std::to_string(expected));
  }
  param->data = cursor->Bytes(nbytes, "the data of a tensor").substr(0, NumBytes(param->dtype, elements));
}

template <typename T> void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));  // little-endian machines only
}

void PutText(std::string* out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  out->append(text);
}

void PutTensor(std::string* out, const DLTensor& tensor) {
  Put(out, kTensorMagic);
  Put<uint64_t>(out, 0);
  Put<int32_t>(out, kDLCPU);
  Put<int32_t>(out, 0);
  Put(out, tensor.ndim);
  Put(out, tensor.dtype);
  for (int32_t i = 0; i < tensor.ndim; ++i) Put(out, tensor.shape[i]);
  uint64_t nbytes = BytesInBlob(tensor.dtype, NumElements(tensor));
  Put(out, nbytes);
  size_t packed = NumBytes(tensor);
  out->append(static_cast<const char*>(tensor.data) + tensor.byte_offset, packed);
  out->append(nbytes - packed, '\0');
}

}  // namespace

size_t ReadDescription(Cursor* cursor, Param* param) {
  auto ndim = cursor->Take<int32_t>("a number of axes");
  if (ndim < 0 || ndim > kMaxAxes) cursor->Fail("a tensor with " + std::to_string(ndim) + " axes");
  DLDataType& dtype = param->dtype;
  dtype.code = cursor->Take<uint8_t>("an element type");
  dtype.bits = cursor->Take<uint8_t>("an element type");
  dtype.lanes = cursor->Take<uint16_t>("an element type");
  if (dtype.code == kDLOpaqueHandle || dtype.code > kDLFloat4_e2m1fn || dtype.bits == 0 || dtype.bits > 128) {
    cursor->Fail("no element type has code " + std::to_string(dtype.code) + " and " + std::to_string(dtype.bits) +
                 " bits");
  }
  if (dtype.lanes != 1) cursor->Fail("vectors of " + std::to_string(dtype.lanes) + " elements, which the format cuts");
  if (dtype.code == kDLUInt && dtype.bits == 1) dtype = {kDLBool, 8, 1};  // as older compilers wrote it
  uint64_t elements = 1, limit = (uint64_t{1} << 62) / dtype.bits;
  bool empty = false;
  for (int32_t i = 0; i < ndim; ++i) {
    auto extent = cursor->Take<int64_t>("an extent");
    if (extent < 0 || static_cast<uint64_t>(extent) > limit) {
      cursor->Fail("extent " + std::to_string(extent) + " of axis " + std::to_string(i));
    }
    param->shape.push_back(extent);
    empty |= extent == 0;
    if (extent == 0) continue;
    limit /= static_cast<uint64_t>(extent);
    elements *= static_cast<uint64_t>(extent);
  }
  return empty ? 0 : elements;
}

Tensor Param::Copy() const {
  Tensor tensor = Tensor::Empty(shape, dtype);
  if (!data.empty()) std::memcpy(tensor.raw_data(), data.data(), data.size());
  return tensor;
}

DLTensor Param::View() const {
  DLTensor view{};
  view.data = const_cast<char*>(data.data());
  view.device = Cpu();
  view.ndim = static_cast<int32_t>(shape.size());
  view.dtype = dtype;
  view.shape = const_cast<int64_t*>(shape.data());
  return view;
}

std::vector<Param> ReadParams(std::string_view blob) {
  Cursor cursor(blob, "the parameter blob");
  if (cursor.Take<uint64_t>("the mark of a blob") != kListMagic) {
    throw Error("GraphError",
                "these bytes are no parameters: the mark of a blob, which save_params writes, is missing");
  }
  cursor.Take<uint64_t>("a reserved word");
  std::vector<Param> params(cursor.Count<uint64_t>(8 + kHeader, "the number of names"));
  for (Param& param : params) param.name = cursor.Bytes(cursor.Take<uint64_t>("the length of a name"), "a name");
  size_t count = cursor.Count<uint64_t>(kHeader, "the number of tensors");
  if (count != params.size()) {
    cursor.Fail(std::to_string(params.size()) + " names and " + std::to_string(count) + " tensors");
  }
  for (Param& param : params) ReadTensor(&cursor, &param);
  cursor.ExpectEnd();
  std::vector<std::string_view> names;
  for (const Param& param : params) names.push_back(param.name);
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    throw Error("GraphError", "the parameter blob has two tensors of the name '" + std::string(*twice) + "'");
  }
  return params;
}

std::string WriteParams(const Tensors& tensors) {
  std::string out;
  Put(&out, kListMagic);
  Put<uint64_t>(&out, 0);
  Put<uint64_t>(&out, tensors.size());
  for (const auto& [name, tensor] : tensors) PutText(&out, name);
  Put<uint64_t>(&out, tensors.size());
  for (const auto& [name, tensor] : tensors) {
    PORTCALL_CHECK(tensor.dtype().lanes == 1, GraphError)
        << "'" << name << "' has elements of type " << ToString(tensor.dtype()) << ": the format of parameters has no "
        << "vectors; give them an axis of their own";
    Tensor host = tensor;
    if (tensor.device().device_type != kDLCPU || !tensor.is_contiguous()) {
      const DLTensor& dl = *tensor.dl_tensor();
      host = Tensor::Empty(std::vector<int64_t>(dl.shape, dl.shape + dl.ndim), dl.dtype);
      host.CopyFrom(tensor);
    }
    PutTensor(&out, *host.dl_tensor());
  }
  return out;
}

}  // namespace portcall::graph
