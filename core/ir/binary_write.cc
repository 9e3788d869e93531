// SPDX-License-Identifier: Apache-2.0
// Writes graphs of objects in the binary form.
#include "ir/binary.h"
#include "ir/hash_bytes.h"
#include "ir/save.h"

namespace portcall::ir {
namespace {

class Output {
 public:
  void Byte(uint8_t value) { bytes_ += static_cast<char>(value); }
  void Number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) Byte(static_cast<uint8_t>(value | 0x80));
    Byte(static_cast<uint8_t>(value));
  }
  void Signed(int64_t value) { Number(Zigzag(value)); }
  void Text(std::string_view text) {
    Number(text.size());
    bytes_ += text;
  }
  template <typename T> void Raw(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void Append(std::string_view bytes) { bytes_ += bytes; }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

class BinaryWriter {
 public:
  explicit BinaryWriter(Types* types) : types_(types) {}

  std::string Write(const TVMFFIAny& root, bool put_off) {
    Saver<BinaryWriter> saver(types_, this, put_off);
    uint32_t number = saver.Run(root);
    Output out;
    out.Append(kMagic);
    out.Byte(kBinaryVersion);
    out.Number(num_types_);
    out.Append(type_list_.bytes());
    out.Number(num_nodes_);
    out.Append(nodes_.bytes());
    nodes_.bytes().clear();
    const uint32_t* refs = &number;
    Value(root, &refs);
    out.Append(nodes_.bytes());
    out.Raw(HashBytes(out.bytes()));
    return std::move(out.bytes());
  }

  void Node(const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs) {
    nodes_.Number(KindOf(type));
    if (type.form == Form::kTensor) TensorContent(*reinterpret_cast<const DLTensor*>(obj + 1));
    else Parts(obj, type, num_parts, refs);
    ++num_nodes_;
  }

  void Contents(uint32_t number, const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs) {
    nodes_.Number(kContents);
    nodes_.Number(num_nodes_ - number);
    Parts(obj, type, num_parts, refs);
    ++num_nodes_;
  }

 private:
  void Parts(const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs) {
    TVMFFIAny space;
    const TVMFFIAny* pair = nullptr;
    if (type.form != Form::kFields) nodes_.Number(type.form == Form::kPairs ? num_parts / 2 : num_parts);
    for (size_t i = 0; i < num_parts; ++i) Value(*types_->Part(obj, type, i, &space, &pair), &refs);
  }

  uint64_t KindOf(const Type& type) {
    switch (type.index) {
      case kTVMFFIArray:
        return kArrayNode;
      case kTVMFFIList:
        return kListNode;
      case kTVMFFIMap:
        return kMapNode;
      case kTVMFFIDict:
        return kDictNode;
      case kTVMFFITensor:
        return kTensorNode;
      default:
        break;
    }
    const size_t i = type.number;
    if (i >= kinds_.size()) kinds_.resize(i + 16);
    if (kinds_[i] == 0) {
      kinds_[i] = kFirstType + num_types_++;
      type_list_.Text(type.key);
      type_list_.Number(type.fields.size());
      for (const Field& field : type.fields) type_list_.Text(field.name);
    }
    return kinds_[i];
  }

  void TensorContent(const DLTensor& tensor) {
    Tensor space;
    DataType(tensor.dtype);
    nodes_.Number(static_cast<uint64_t>(tensor.ndim));
    for (int32_t i = 0; i < tensor.ndim; ++i) nodes_.Signed(tensor.shape[i]);
    nodes_.Text(BytesOf(tensor, &space));
  }

  void DataType(DLDataType dtype) {
    nodes_.Byte(dtype.code);
    nodes_.Byte(dtype.bits);
    nodes_.Raw(dtype.lanes);
  }

  void Put(Tag tag) { nodes_.Byte(static_cast<uint8_t>(tag)); }
  void Put(Tag tag, std::string_view text) {
    Put(tag);
    nodes_.Text(text);
  }

  void Value(const TVMFFIAny& value, const uint32_t** refs) {
    if (IsNode(value)) {
      Put(Tag::kNode);
      nodes_.Number(num_nodes_ - *(*refs)++);
      return;
    }
    if (auto text = TryString(value)) return Put(Tag::kText, *text);
    if (auto bytes = TryBytes(value)) return Put(Tag::kBytes, *bytes);
    switch (value.type_index) {
      case kTVMFFINone:
        return Put(Tag::kNone);
      case kTVMFFIBool:
        return Put(value.v_int64 ? Tag::kTrue : Tag::kFalse);
      case kTVMFFIInt:
        Put(Tag::kInt);
        return nodes_.Signed(value.v_int64);
      case kTVMFFIFloat:
        Put(Tag::kFloat);
        return nodes_.Raw(value.v_float64);
      case kTVMFFIDataType:
        Put(Tag::kDataType);
        return DataType(value.v_dtype);
      case kTVMFFIDevice:
        Put(Tag::kDevice);
        nodes_.Signed(value.v_device.device_type);
        return nodes_.Signed(value.v_device.device_id);
      case kTVMFFIShape: {
        const TVMFFIShapeCell& cell = static_cast<ShapeObj*>(value.v_obj)->cell;
        Put(Tag::kShape);
        nodes_.Number(cell.size);
        for (size_t i = 0; i < cell.size; ++i) nodes_.Signed(cell.data[i]);
        return;
      }
      default:
        Put(Tag::kWideInt, ToView(TVMFFIBigIntGetContentByteArray(&value)));
    }
  }

  Types* types_;
  Output nodes_, type_list_;
  std::vector<uint64_t> kinds_;
  uint64_t num_types_ = 0, num_nodes_ = 0;
};

PORTCALL_REGISTER_GLOBAL("portcall.ir.ToBytes").set_body_typed([](Any value) {
  Types types(true);
  return Bytes(Save([&](bool put_off) { return BinaryWriter(&types).Write(value.cell(), put_off); }));
});

}  // namespace
}  // namespace portcall::ir
