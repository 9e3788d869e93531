// SPDX-License-Identifier: Apache-2.0
// The JSON form: {"portcall_json": 1, "nodes": [node, …], "root": value}
//
//   node    {"demo.Add": {"lhs": value, …}}                  an object: the key of its type, its fields by name
//           {"ffi.Array": [value, …]}   {"ffi.List": …}
//           {"ffi.Map": [[key, value], …]}   {"ffi.Dict": …}
//           {"ffi.Tensor": {"dtype": "float32", "shape": [2, 3], "data": "<base64>"}}
//           {"ffi.List": {"ref": 3, "items": [value, …]}}    the contents of node 3, a List that stands there empty: so
//           {"ffi.Dict": {"ref": …, "items": [[key, value], …]}}   graphs are written that contain themselves
//   value   null, true, 12, 1.5, "text"                      a number is a float if it has a point or an exponent
//           {"ref": 3}                                       node 3, which comes before this one
//           {"float": "nan"} (or "inf", "-inf")  {"int": "-0x1f…"} beyond 64 bits
//           {"bytes": "<base64>"}  {"str": "<base64>"} of text that is not UTF-8
//           {"dtype": "float32x4"} (or [code, bits, lanes], if it has no name)
//           {"device": [1, 0]}  {"shape": [2, 3]}
#include <charconv>
#include <cmath>

#include "bytes/utf8.h"
#include "ir/save.h"
#include "ir/text.h"

namespace portcall::ir {
namespace {

// The pieces that are the same for every object of a type.
struct TypeText {
  std::string open;                 // {"demo.Add":{
  std::vector<std::string> fields;  // "lhs":
};

void AppendEscaped(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (char c : text) {
    switch (c) {
      case '"':
      case '\\':
        (*out += '\\') += c;
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\r':
        *out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) *out += c;
        else ((*out += "\\u00") += kHex[c >> 4]) += kHex[c & 15];
    }
  }
}

class JsonWriter {
 public:
  JsonWriter(Types* types, int32_t indent) : types_(types), separator_(indent < 0 ? "" : "\n") {
    if (indent >= 0) separator_.append(static_cast<size_t>(indent), ' ');
    between_ = indent < 0 ? "," : ", ";
    colon_ = indent < 0 ? ":" : ": ";
    outer_ = separator_;
    if (indent > 0) separator_.append(static_cast<size_t>(indent), ' ');
  }

  std::string Write(const TVMFFIAny& root, bool put_off) {
    out_ = "{" + outer_ + "\"portcall_json\"" + colon_ + "1," + outer_ + "\"nodes\"" + colon_ + "[";
    Saver<JsonWriter> saver(types_, this, put_off);
    uint32_t number = saver.Run(root);
    out_ += saver.num_nodes() ? outer_ : "";
    out_ += "]," + outer_ + "\"root\"" + colon_;
    const uint32_t* refs = &number;
    Value(root, &refs);
    out_ += outer_.empty() ? "}" : "\n}\n";
    return std::move(out_);
  }

  void Node(const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs) {
    if (num_nodes_++ > 0) out_ += ',';
    out_ += separator_;
    out_ += TextOf(type).open;
    if (type.form == Form::kTensor) TensorContent(*reinterpret_cast<const DLTensor*>(obj + 1));
    else Parts(obj, type, num_parts, refs);
    out_ += '}';
  }

  void Contents(uint32_t number, const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs) {
    ++num_nodes_;
    out_ += "," + separator_ + TextOf(type).open + "{\"ref\"" + colon_;
    Integer(number);
    out_ += between_ + "\"items\"" + colon_;
    Parts(obj, type, num_parts, refs);
    out_ += "}}";
  }

 private:
  // {"lhs":1,"rhs":2} of fields, [1,2] of items, [[1,2],[3,4]] of pairs
  void Parts(const TVMFFIObject* obj, const Type& type, size_t num_parts, const uint32_t* refs) {
    const std::vector<std::string>& names = TextOf(type).fields;
    const bool fields = type.form == Form::kFields, pairs = type.form == Form::kPairs;
    TVMFFIAny space;
    const TVMFFIAny* pair = nullptr;
    out_ += fields ? '{' : '[';
    for (size_t i = 0; i < num_parts; ++i) {
      if (i > 0) out_ += between_;
      if (fields) out_ += names[i];
      if (pairs && i % 2 == 0) out_ += '[';
      Value(*types_->Part(obj, type, i, &space, &pair), &refs);
      if (pairs && i % 2 == 1) out_ += ']';
    }
    out_ += fields ? '}' : ']';
  }

  void TensorContent(const DLTensor& tensor) {
    Tensor space;
    out_ += '{';
    DataType(tensor.dtype);
    out_ += between_ + "\"shape\"" + colon_;
    Integers(tensor.shape, static_cast<size_t>(tensor.ndim));
    out_ += between_ + "\"data\"" + colon_ + "\"";
    AppendBase64(BytesOf(tensor, &space), &out_);
    out_ += "\"}";
  }

  void Value(const TVMFFIAny& value, const uint32_t** refs) {
    if (IsNode(value)) {
      out_ += "{\"ref\"" + colon_;
      Integer(*(*refs)++);
      out_ += '}';
      return;
    }
    if (auto text = TryString(value)) return Text(*text);
    if (auto bytes = TryBytes(value)) return Base64("bytes", *bytes);
    switch (value.type_index) {
      case kTVMFFINone:
        out_ += "null";
        return;
      case kTVMFFIBool:
        out_ += value.v_int64 ? "true" : "false";
        return;
      case kTVMFFIInt:
        return Integer(value.v_int64);
      case kTVMFFIFloat:
        return Float(value.v_float64);
      case kTVMFFIDataType:
        out_ += '{';
        DataType(value.v_dtype);
        out_ += '}';
        return;
      case kTVMFFIDevice: {
        const int64_t device[] = {static_cast<int64_t>(value.v_device.device_type), value.v_device.device_id};
        out_ += "{\"device\"" + colon_;
        Integers(device, 2);
        out_ += '}';
        return;
      }
      case kTVMFFIShape: {
        const TVMFFIShapeCell& cell = static_cast<ShapeObj*>(value.v_obj)->cell;
        out_ += "{\"shape\"" + colon_;
        Integers(cell.data, cell.size);
        out_ += '}';
        return;
      }
      default:
        out_ += "{\"int\"" + colon_ + "\"" + HexFromWords(ToView(TVMFFIBigIntGetContentByteArray(&value))) + "\"}";
    }
  }

  void Text(std::string_view text) {
    bool plain = true;
    for (signed char c : text) plain &= c >= ' ' && c != '"' && c != '\\';  // above 127: negative
    if (!plain && !bytes::IsUtf8(text)) return Base64("str", text);
    out_ += '"';
    if (plain) out_ += text;
    else AppendEscaped(text, &out_);
    out_ += '"';
  }

  void Base64(const char* kind, std::string_view bytes) {
    out_.append("{\"").append(kind).append("\"").append(colon_).append("\"");
    AppendBase64(bytes, &out_);
    out_ += "\"}";
  }

  void DataType(DLDataType dtype) {
    std::string name = ToString(dtype);
    TVMFFIByteArray text = ToByteArray(name);
    DLDataType named{};
    out_ += "\"dtype\"" + colon_;
    if (TVMFFIDataTypeFromString(&text, &named) == 0 && named == dtype) {
      out_ += "\"" + name + "\"";
      return;
    }
    const int64_t numbers[] = {dtype.code, dtype.bits, dtype.lanes};
    Integers(numbers, 3);
  }

  void Integer(int64_t value) {
    char digits[24];
    out_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }

  void Integers(const int64_t* values, size_t n) {
    out_ += '[';
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) out_ += between_;
      Integer(values[i]);
    }
    out_ += ']';
  }

  void Float(double value) {
    if (!std::isfinite(value)) {
      const char* name = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
      out_ += "{\"float\"" + colon_ + "\"" + name + "\"}";
      return;
    }
    const size_t start = out_.size();
    AppendDouble(value, &out_);
    if (out_.find_first_of(".e", start) == std::string::npos) out_ += ".0";
  }

  const TypeText& TextOf(const Type& type) {
    const size_t i = type.number;
    if (i >= texts_.size()) texts_.resize(i + 16);
    TypeText& text = texts_[i];
    if (!text.open.empty()) return text;
    text.open = "{\"";
    AppendEscaped(type.key, &text.open);
    text.open += "\"" + colon_;
    for (const Field& field : type.fields) {
      std::string& name = text.fields.emplace_back("\"");
      AppendEscaped(field.name, &name);
      name += "\"" + colon_;
    }
    return text;
  }

  Types* types_;
  std::string outer_, separator_, between_, colon_;
  std::vector<TypeText> texts_;
  std::string out_;
  size_t num_nodes_ = 0;
};

// indent: None for one line; else a line for each node, indented by that many blanks.
PORTCALL_REGISTER_GLOBAL("portcall.ir.SaveJson").set_body_typed([](Any value, std::optional<int32_t> indent) {
  Types types(true);
  const int32_t blanks = indent.value_or(-1);
  return String(Save([&](bool put_off) { return JsonWriter(&types, blanks).Write(value.cell(), put_off); }));
});

}  // namespace
}  // namespace portcall::ir
