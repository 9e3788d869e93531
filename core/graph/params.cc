// SPDX-License-Identifier: Apache-2.0
#include "graph/params.h"

#include <set>

namespace portcall::graph {
namespace {

constexpr uint64_t kListMagic = 0xF7E58D4F05049CB7;
constexpr uint64_t kTensorMagic = 0xDD5E40F096B4A13F;
constexpr size_t kHeader = 8 + 8 + 4 + 4 + 4 + 4 + 8;  // bytes in front of a tensor's axes
constexpr int32_t kMaxAxes = 64;

// In a blob an element takes whole bytes. Types below a byte are packed nevertheless, at the front.
uint64_t BytesInBlob(DLDataType dtype, size_t elements) { return uint64_t{elements} * ((dtype.bits + 7) / 8); }

void ReadTensor(Cursor* cursor, Param* param) {
  if (cursor->Take<uint64_t>("the mark of a tensor") != kTensorMagic)
    cursor->Fail({"no tensor begins before this byte"});
  cursor->Take<uint64_t>("a reserved word");
  auto device = cursor->Take<int32_t>("a device type");
  if (device != kDLCPU) cursor->Fail({"a tensor on a device of type ", device, ", not on the host"});
  cursor->Take<int32_t>("a device number");
  size_t elements = ReadDescription(cursor, param);
  uint64_t expected = BytesInBlob(param->dtype, elements);
  auto nbytes = cursor->Take<uint64_t>("a size");
  if (nbytes != expected) {
    cursor->Fail({"'", param->name, "' is said to have ", nbytes, " bytes; its shape and type have ", expected});
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

Tensors MakeTensors(const std::vector<Any>& cells) {
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallMapCreate(reinterpret_cast<const TVMFFIAny*>(cells.data()), static_cast<int64_t>(cells.size() / 2),
                          &handle));
  return ObjectRef::Steal<Tensors>(handle);
}

Tensor CompactCopy(const Tensor& tensor, Device device) {
  const DLTensor& dl = *tensor.dl_tensor();
  Tensor made = Tensor::Empty(std::vector<int64_t>(dl.shape, dl.shape + dl.ndim), dl.dtype, device);
  made.CopyFrom(tensor);
  return made;
}

size_t ReadDescription(Cursor* cursor, Param* param) {
  auto ndim = cursor->Take<int32_t>("a number of axes");
  if (ndim < 0 || ndim > kMaxAxes) cursor->Fail({"a tensor with ", ndim, " axes"});
  auto dtype = cursor->Take<DLDataType>("an element type");
  if (dtype.code == kDLOpaqueHandle || dtype.code > kDLFloat4_e2m1fn || dtype.bits == 0 || dtype.bits > 128) {
    cursor->Fail({"no element type has code ", dtype.code, " and ", dtype.bits, " bits"});
  }
  if (dtype.lanes != 1) cursor->Fail({"vectors of ", dtype.lanes, " elements, which the format cuts"});
  if (dtype.code == kDLUInt && dtype.bits == 1) dtype = {kDLBool, 8, 1};  // as older compilers wrote it
  param->dtype = dtype;
  param->shape.resize(static_cast<size_t>(ndim));
  uint64_t elements = 1, limit = (uint64_t{1} << 62) / dtype.bits;
  bool empty = false;
  for (int64_t& extent : param->shape) {
    extent = cursor->Take<int64_t>("an extent");
    if (extent < 0 || static_cast<uint64_t>(extent) > limit) {
      cursor->Fail({"extent ", extent, " of axis ", &extent - param->shape.data()});
    }
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
    ThrowGraphError({"these bytes are not parameters: the mark of a blob, which save_params writes, is missing"});
  }
  cursor.Take<uint64_t>("a reserved word");
  std::vector<Param> params(cursor.Count(8 + kHeader, "the number of names"));
  std::set<std::string_view> names;
  for (Param& param : params) {
    param.name = cursor.Text("a name");
    if (!names.insert(param.name).second) cursor.Fail({"two tensors have the name '", param.name, "'"});
  }
  size_t count = cursor.Count(kHeader, "the number of tensors");
  if (count != params.size()) cursor.Fail({params.size(), " names and ", count, " tensors"});
  for (Param& param : params) ReadTensor(&cursor, &param);
  cursor.ExpectEnd();
  return params;
}

std::string WriteParams(const Tensors& tensors) {
  std::string out;
  Put(&out, kListMagic);
  Put<uint64_t>(&out, 0);
  Put<uint64_t>(&out, tensors.size());
  for (const auto& [name, value] : tensors) PutText(&out, name.cast<std::string_view>());
  Put<uint64_t>(&out, tensors.size());
  for (const auto& [name, value] : tensors) {
    auto tensor = value.cast<Tensor>();
    if (tensor.dtype().lanes != 1) {
      ThrowGraphError({"'", name.cast<std::string_view>(), "' has elements of type ", ToString(tensor.dtype()),
                       ": the format of parameters has no vectors; give them an axis of their own"});
    }
    bool usable = tensor.device().device_type == kDLCPU && tensor.is_contiguous();
    Tensor host = usable ? tensor : CompactCopy(tensor, Cpu());
    PutTensor(&out, *host.dl_tensor());
  }
  return out;
}

}  // namespace portcall::graph
