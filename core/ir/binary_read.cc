// SPDX-License-Identifier: Apache-2.0
// The reader of the binary form. Any bytes give a value or ValueError with the position; nothing is allocated on the word
// of a number alone.
#include <cstring>
#include <limits>

#include "bytes/cursor.h"
#include "ir/binary.h"
#include "ir/hash_bytes.h"
#include "ir/load.h"

namespace portcall::ir {
namespace {

class BinaryReader : public bytes::Cursor<BinaryReader> {
 public:
  BinaryReader(Types* types, std::string_view bytes, LoadLimits limits)
      : Cursor(bytes), types_(types), builder_(limits, [this](const std::string& reason) { Fail(reason); }) {}

  Any Read() {
    CheckFrame();
    for (uint64_t n = Count("types", 2); n > 0; --n) file_types_.push_back(ReadType());
    for (uint64_t n = Count("nodes", 2); n > 0; --n) {
      in_node_ = true;
      Node();
    }
    in_node_ = false;
    builder_.Begin(0);
    Any root = Any::Copy(Value());
    if (left()) Fail(std::to_string(left()) + " bytes too many");
    builder_.Finish(types_);
    return root;
  }

  [[noreturn]] void FailShort(const char* what, uint64_t wanted) const {
    if (*what == 0) Fail("the bytes end too early");
    Fail(std::string(what) + " of " + std::to_string(wanted) + " bytes where " + std::to_string(left()) + " are left");
  }

 private:
  struct FileType {
    const Type* type;
    std::vector<uint32_t> fields;  // their places in the type
  };

  [[noreturn]] void Fail(const std::string& reason) const {
    std::string where = "byte " + std::to_string(at_);
    if (in_node_) where += ", node " + std::to_string(node_);
    if (in_node_ && type_) where.append(" (").append(type_->key).append(")");
    PORTCALL_THROW(ValueError) << where << ": " << reason;
  }

  void CheckFrame() {
    if (bytes_.substr(0, kMagic.size()) != kMagic) Fail("not the bytes of an object");
    at_ = kMagic.size();
    uint8_t version = Byte();
    if (version != kBinaryVersion) {
      Fail("version " + std::to_string(version) + " of the format; this portcall reads version " +
           std::to_string(kBinaryVersion));
    }
    if (left() < kChecksumSize) Fail("the bytes end too early");
    std::string_view content = bytes_.substr(0, bytes_.size() - kChecksumSize);
    if (bytes::NumberAt<uint64_t>(content.data() + content.size()) != HashBytes(content)) {
      Fail("the checksum is wrong: the bytes were cut short or changed");
    }
    bytes_ = content;
  }

  uint8_t Byte() { return Take<uint8_t>(); }
  uint64_t Number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte = Byte();
      if (shift == 63 && byte > 1) break;
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    Fail("a number beyond 64 bits");
  }
  int64_t Signed() { return Unzigzag(Number()); }
  std::string_view Text() { return Bytes(Number(), "a text"); }
  // A number of things, each of which needs so many bytes at least.
  uint64_t Count(const char* what, size_t least) {
    uint64_t n = Number();
    if (!CanHold(n, least)) {
      Fail(std::to_string(n) + " " + what + " where " + std::to_string(left()) + " bytes are left");
    }
    return n;
  }

  FileType ReadType() {
    std::string_view key = Text();
    TVMFFIByteArray name = ToByteArray(key);
    int32_t index = TVMFFITypeGetOrAllocIndex(&name, -1, 0, 0, 1, -2);
    if (index < 0) Fail("the type " + Quote(key) + " is unknown; is what defines it loaded?");
    FileType file_type{&types_->Of(index), {}};
    const std::vector<Field>& fields = file_type.type->fields;
    if (file_type.type->form != Form::kFields || !file_type.type->can_be_made()) {
      Fail("no object is made of the type " + Quote(key));
    }
    std::vector<bool> seen(fields.size());
    for (uint64_t n = Count("fields", 1); n > 0; --n) {
      std::string_view field = Text();
      uint32_t i = 0;
      while (i < fields.size() && fields[i].name != field) ++i;
      if (i == fields.size()) Fail("the type " + Quote(key) + " has no field " + Quote(field));
      if (seen[i]) Fail("the type " + Quote(key) + " has its field " + Quote(field) + " twice");
      seen[i] = true;
      file_type.fields.push_back(i);
    }
    return file_type;
  }

  void Node() {
    node_ = builder_.num_nodes();
    type_ = nullptr;
    uint64_t kind = Number();
    if (kind >= kFirstType) return Object(kind - kFirstType);
    switch (kind) {
      case kArrayNode:
        return Container(kTVMFFIArray, 1);
      case kListNode:
        return Container(kTVMFFIList, 1);
      case kMapNode:
        return Container(kTVMFFIMap, 2);
      case kDictNode:
        return Container(kTVMFFIDict, 2);
      case kTensorNode:
        return TensorNode();
      case kContents:
        return Contents();
      default:
        Fail("an unknown kind of node, " + std::to_string(kind));
    }
  }

  void Object(uint64_t number) {
    if (number >= file_types_.size()) Fail("there is no type " + std::to_string(number));
    const FileType& file_type = file_types_[number];
    type_ = file_type.type;
    builder_.Begin(type_->fields.size());
    for (uint32_t i : file_type.fields) builder_.parts()[i] = Value();
    builder_.MakeObject(*type_);
  }

  void Container(int32_t type_index, size_t each) {
    Items(each);
    builder_.MakeContainer(type_index);
  }

  void Contents() {
    const uint64_t number = builder_.num_nodes() - Number();  // too far back is far too large
    const int32_t type_index = builder_.CheckEmpty(number, 0);
    Items(type_index == kTVMFFIList ? 1 : 2);
    builder_.PutContents(number);
  }

  void Items(size_t each) {
    builder_.Begin(0);
    for (uint64_t n = Count("items", each) * each; n > 0; --n) builder_.Append(Value());
  }

  void TensorNode() {
    builder_.Begin(0);
    DLDataType dtype = Take<DLDataType>();
    std::vector<int64_t> shape = Extents();
    size_t size = builder_.TensorBytes(dtype, shape);
    std::string_view content = Text();
    if (content.size() != size) {
      Fail(std::to_string(content.size()) + " bytes of a tensor that needs " + std::to_string(size));
    }
    builder_.MakeTensor(dtype, shape, [&](char* to) { std::memcpy(to, content.data(), size); });
  }

  std::vector<int64_t> Extents() {
    std::vector<int64_t> extents;
    for (uint64_t n = Count("extents", 1); n > 0; --n) extents.push_back(Signed());
    return extents;
  }

  TVMFFIAny Value() {
    TVMFFIAny cell;
    detail::SetCell(&cell, kTVMFFINone);
    auto tag = static_cast<Tag>(Byte());
    switch (tag) {
      case Tag::kNone:
        return cell;
      case Tag::kFalse:
      case Tag::kTrue:
        cell.type_index = kTVMFFIBool;
        cell.v_int64 = tag == Tag::kTrue;
        return cell;
      case Tag::kInt:
        cell.type_index = kTVMFFIInt;
        cell.v_int64 = Signed();
        return cell;
      case Tag::kFloat:
        cell.type_index = kTVMFFIFloat;
        cell.v_float64 = Take<double>();
        return cell;
      case Tag::kNode:
        return builder_.Refer(builder_.num_nodes() - Number());  // too far back is far too large
      default:
        return builder_.Keep(Special(tag));
    }
  }

  Any Special(Tag tag) {
    switch (tag) {
      case Tag::kText:
        return String(Text());
      case Tag::kBytes:
        return portcall::Bytes(Text());
      case Tag::kWideInt: {
        TVMFFIByteArray words = ToByteArray(Text());
        if (words.size == 0 || words.size % 8 != 0) Fail("a wide integer of " + std::to_string(words.size) + " bytes");
        Any value;
        Check(TVMFFIBigIntFromByteArray(&words, value.out()));
        return value;
      }
      case Tag::kDataType:
        return Take<DLDataType>();
      case Tag::kDevice: {
        int64_t kind = Signed(), number = Signed();
        constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
        if (kind < 0 || kind > kMost || number < 0 || number > kMost) Fail("no device has such numbers");
        return DLDevice{static_cast<DLDeviceType>(kind), static_cast<int32_t>(number)};
      }
      case Tag::kShape:
        return Shape(Extents());
      default:
        Fail("an unknown kind of value, " + std::to_string(static_cast<int>(tag)));
    }
  }

  Types* types_;
  Builder builder_;
  std::vector<FileType> file_types_;
  const Type* type_ = nullptr;
  size_t node_ = 0;
  bool in_node_ = false;
};

PORTCALL_REGISTER_GLOBAL("portcall.ir.FromBytes")
    .set_body_typed([](portcall::Bytes bytes, uint64_t max_nodes, uint64_t max_depth) {
      Types types(true);
      return BinaryReader(&types, bytes, {max_nodes, max_depth}).Read();
    });

}  // namespace
}  // namespace portcall::ir
