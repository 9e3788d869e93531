// SPDX-License-Identifier: Apache-2.0
// The reader of what json_write.cc writes. Any bytes give a value or ValueError, which says where: node and field, line
// and column. The grammar nests a few levels deep only, so that nothing here can use up the stack.
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

#include "bytes/utf8.h"
#include "ir/load.h"
#include "ir/text.h"

namespace portcall::ir {
namespace {

constexpr int kMaxSkippedDepth = 64;
constexpr int64_t kVersion = 1;

// The form of text that json.org describes, token by token.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}
  virtual ~Scanner() = default;

 protected:
  [[noreturn]] void Fail(const std::string& reason) const {
    size_t line = 1, column = 1;
    for (const char* c = begin_; c < at_; ++c) {
      column = *c == '\n' ? 1 : column + 1;
      line += *c == '\n';
    }
    PORTCALL_THROW(ValueError) << Path() << reason << " (line " << line << ", column " << column << ")";
  }
  // What is being read, for messages.
  virtual std::string Path() const = 0;

  char Peek() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
    return at_ < end_ ? *at_ : '\0';
  }
  void Expect(char c) {
    if (Peek() != c) Fail(std::string("expected '") + c + "', got " + Got());
    ++at_;
  }
  bool Take(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  // After an item of a list that `close` ends: whether there is another one.
  bool More(char close) {
    if (Take(',')) return true;
    if (Peek() != close) Fail(std::string("expected ',' or '") + close + "', got " + Got());
    ++at_;
    return false;
  }
  bool TakeWord(std::string_view word) {
    if (static_cast<size_t>(end_ - at_) < word.size() || std::string_view(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::string Got() {
    Peek();
    if (at_ >= end_) return "the end of the text";
    auto c = static_cast<unsigned char>(*at_);
    if (c < ' ' || c >= 0x7f) return "byte " + std::to_string(c);
    return {'\'', *at_, '\''};  // of a sum of texts emscripten's compiler made one of two objects, by chance
  }

  // A text in quotes; valid until the next one is read.
  std::string_view Text() {
    Expect('"');
    const char* start = at_;
    bool ascii = true;
    while (at_ < end_ && *at_ != '"' && *at_ != '\\' && static_cast<unsigned char>(*at_) >= ' ') {
      ascii &= static_cast<signed char>(*at_++) >= 0;
    }
    std::string_view text(start, static_cast<size_t>(at_ - start));
    if (at_ >= end_ || *at_ != '"') text = EscapedText(start, &ascii);
    if (!ascii && !bytes::IsUtf8(text)) Fail("a text that is not UTF-8");
    ++at_;
    return text;
  }

  struct Number {
    bool is_float;
    int64_t i;
    double f;
  };
  Number TakeNumber() {
    const char* start = at_;
    Take('-');
    if (!TakeDigits()) Fail("expected a value, got " + Got());
    if (*start == '0' ? at_ - start > 1 : (start[0] == '-' && start[1] == '0' && at_ - start > 2)) {
      Fail("a number that starts with 0");
    }
    Number number{};
    if (at_ < end_ && *at_ == '.') {
      number.is_float = true;
      ++at_;
      if (!TakeDigits()) Fail("a number without digits after its point");
    }
    if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
      number.is_float = true;
      ++at_;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!TakeDigits()) Fail("a number without digits in its exponent");
    }
    const bool read = number.is_float ? ReadDouble({start, static_cast<size_t>(at_ - start)}, &number.f)
                                      : std::from_chars(start, at_, number.i).ec == std::errc();
    if (!read) {
      Fail(number.is_float ? "a float beyond the range of doubles"
                           : "an integer beyond 64 bits, which is written as {\"int\": \"0x…\"}");
    }
    return number;
  }

  void Skip() {
    std::string open;  // brackets that are to be closed
    do {
      switch (Peek()) {
        case '{':
        case '[':
          open += *at_++ == '{' ? '}' : ']';
          if (open.size() > kMaxSkippedDepth) Fail("brackets nested too deeply");
          if (open.back() == '}' && Peek() != '}') Key();
          if (Peek() != open.back()) continue;
          break;
        case '"':
          Text();
          break;
        default:
          if (!TakeWord("null") && !TakeWord("true") && !TakeWord("false")) TakeNumber();
      }
      while (!open.empty() && Peek() == open.back()) {
        ++at_;
        open.pop_back();
      }
      if (open.empty()) return;
      Expect(',');
      if (open.back() == '}') Key();
    } while (true);
  }
  std::string_view Key() {
    std::string_view key = Text();
    Expect(':');
    return key;
  }

  const char* begin_;
  const char* at_;
  const char* end_;

 private:
  bool TakeDigits() {
    const char* start = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ > start;
  }

  std::string_view EscapedText(const char* start, bool* ascii) {
    text_.assign(start, at_);
    while (at_ < end_ && *at_ != '"') {
      auto c = static_cast<unsigned char>(*at_++);
      if (c < ' ') Fail("a control character in a text");
      *ascii &= c < 0x80;
      if (c != '\\') text_ += static_cast<char>(c);
      else Escape(ascii);
    }
    if (at_ >= end_) Fail("a text without an end");
    return text_;
  }

  void Escape(bool* ascii) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    char c = at_ < end_ ? *at_++ : '\0';
    if (size_t i = kNames.find(c); i != std::string_view::npos) {
      text_ += kMeant[i];
      return;
    }
    if (c != 'u') Fail("an unknown escape in a text");
    uint32_t code = HexCode();
    if (code >= 0xd800 && code < 0xdc00) {
      uint32_t low = TakeWord("\\u") ? HexCode() : 0;
      if (low < 0xdc00 || low >= 0xe000) Fail("half a surrogate pair in a text");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
      Fail("half a surrogate pair in a text");
    }
    *ascii &= code < 0x80;
    AppendUtf8(code, &text_);
  }

  uint32_t HexCode() {
    uint32_t code = 0;
    if (end_ - at_ < 4 || std::from_chars(at_, at_ + 4, code, 16).ptr != at_ + 4) Fail("\\u needs four digits");
    at_ += 4;
    return code;
  }

  std::string text_;
};

class JsonReader : Scanner {
 public:
  JsonReader(Types* types, std::string_view text, LoadLimits limits)
      : Scanner(text), types_(types), builder_(limits, [this](const std::string& reason) { Fail(reason); }) {}

  Any Read() {
    Expect('{');
    const char *nodes = nullptr, *root = nullptr;
    bool versioned = false, read = false;
    if (!Take('}')) {
      do {
        std::string_view key = Text();
        if (key == "portcall_json" && !versioned) {
          Expect(':');
          CheckVersion();
          versioned = true;
        } else if (key == "nodes" && !nodes) {
          Expect(':');
          nodes = at_;
          read = versioned;
          if (read) Nodes();
          else Skip();
        } else if (key == "root" && !root) {
          Expect(':');
          root = at_;
          Skip();
        } else {
          Fail((key == "portcall_json" || key == "nodes" || key == "root" ? "a second " : "an unknown ") + Quote(key));
        }
      } while (More('}'));
    }
    if (Peek() != '\0' || at_ < end_) Fail("there is more after the end: " + Got());
    if (!versioned) Fail("\"portcall_json\", the version, is missing");
    if (!nodes) Fail("\"nodes\" are missing");
    if (!root) Fail("\"root\" is missing");
    if (!read) {
      at_ = nodes;
      Nodes();
    }
    at_ = root;
    place_ = Place::kRoot;
    builder_.Begin(0);
    Any value = Any::Copy(Value());
    builder_.Finish(types_);
    return value;
  }

 private:
  enum class Place { kTop, kNode, kType, kPart, kRoot };

  std::string Path() const override {
    if (place_ == Place::kTop) return "";
    if (place_ == Place::kRoot) return "root: ";
    std::string path = "nodes[" + std::to_string(node_) + "]";
    if (place_ != Place::kNode) path.append(" (").append(type_->key).append(")");
    if (place_ == Place::kPart) path += PartText();
    return path + ": ";
  }

  std::string PartText() const {
    if (!part_name_.empty()) return "." + std::string(part_name_);
    size_t part = builder_.num_parts();
    if (type_->form == Form::kPairs) return "[" + std::to_string(part / 2) + (part % 2 ? "].value" : "].key");
    return "[" + std::to_string(part) + "]";
  }

  void CheckVersion() {
    Peek();
    int64_t version = Integer("the version");
    if (version != kVersion) {
      Fail("version " + std::to_string(version) + " of the format; this portcall reads version " +
           std::to_string(kVersion));
    }
  }

  void Nodes() {
    Expect('[');
    if (Take(']')) return;
    do {
      place_ = Place::kNode;
      Node();
      place_ = Place::kTop;
    } while (More(']'));
  }

  void Node() {
    node_ = builder_.num_nodes();
    Expect('{');
    std::string_view key = Text();
    type_ = TypeOf(key);
    place_ = Place::kType;
    part_name_ = {};
    Expect(':');
    switch (type_->form) {
      case Form::kFields:
        Fields();
        builder_.MakeObject(*type_);
        break;
      case Form::kTensor:
        TensorNode();
        break;
      default:
        if (Peek() == '{' && (type_->index == kTVMFFIList || type_->index == kTVMFFIDict)) {
          Contents();
          break;
        }
        Items();
        builder_.MakeContainer(type_->index);
    }
    Expect('}');
  }

  // {"ref": 3, "items": […]}
  void Contents() {
    std::optional<uint64_t> number;
    bool items = false;
    Expect('{');
    do {
      std::string_view name = Text();
      const bool is_ref = name == "ref";
      if (is_ref ? number.has_value() : name != "items" || items) {
        Fail("contents have one ref and items, got " + Quote(name));
      }
      Expect(':');
      if (is_ref) number = static_cast<uint64_t>((Peek(), Integer("a reference")));
      else Items();
      items |= !is_ref;
    } while (More('}'));
    if (!number || !items) Fail("contents need ref and items");
    builder_.CheckEmpty(*number, type_->index);
    builder_.PutContents(*number);
  }

  const Type* TypeOf(std::string_view key) {
    if (type_ && type_->key == key) return type_;
    auto [it, added] = type_of_.try_emplace(std::string(key), nullptr);
    if (!added) return it->second;
    TVMFFIByteArray name = ToByteArray(key);
    int32_t index = TVMFFITypeGetOrAllocIndex(&name, -1, 0, 0, 1, -2);
    if (index < 0) Fail("the type " + Quote(key) + " is unknown; is what defines it loaded?");
    const Type& type = types_->Of(index);
    if (type.form == Form::kValue || type.form == Form::kOpaque ||
        (type.form == Form::kFields && !type.can_be_made())) {
      Fail("no node is made of the type " + Quote(key));
    }
    return it->second = &type;
  }

  void Fields() {
    const std::vector<Field>& fields = type_->fields;
    builder_.Begin(fields.size());
    Expect('{');
    if (Take('}')) return;
    size_t next = 0;
    do {
      std::string_view name = Text();
      size_t i = next;
      if (i >= fields.size() || fields[i].name != name) {  // not in the order of the type
        for (i = 0; i < fields.size() && fields[i].name != name; ++i) {
        }
        if (i == fields.size()) Fail("the type has no field " + Quote(name));
      }
      place_ = Place::kPart;
      part_name_ = fields[i].name;
      if (builder_.parts()[i].type_index != kTVMFFIUnchanged) Fail("is given twice");
      Expect(':');
      builder_.parts()[i] = Value();
      place_ = Place::kType;
      next = i + 1;
    } while (More('}'));
  }

  void Items() {
    const bool pairs = type_->form == Form::kPairs;
    builder_.Begin(0);
    Expect('[');
    if (Take(']')) return;
    place_ = Place::kPart;
    do {
      if (pairs) {
        Expect('[');
        builder_.Append(Value());
        Expect(',');
      }
      builder_.Append(Value());
      if (pairs) Expect(']');
    } while (More(']'));
    place_ = Place::kType;
  }

  void TensorNode() {
    std::optional<DLDataType> dtype;
    std::optional<std::vector<int64_t>> shape;
    std::optional<std::string> data;
    builder_.Begin(0);
    Expect('{');
    do {
      std::string_view name = Text();
      place_ = Place::kPart;
      if (name == "dtype" && !dtype) {
        part_name_ = "dtype";
        Expect(':');
        dtype = DataType();
      } else if (name == "shape" && !shape) {
        part_name_ = "shape";
        Expect(':');
        shape = Integers("an extent");
      } else if (name == "data" && !data) {
        part_name_ = "data";
        Expect(':');
        data = Text();
      } else {
        place_ = Place::kType;
        Fail("a tensor has one dtype, one shape and one data, got " + Quote(name));
      }
      place_ = Place::kType;
    } while (More('}'));
    if (!dtype || !shape || !data) Fail("a tensor needs dtype, shape and data");
    size_t size = builder_.TensorBytes(*dtype, *shape);
    int64_t given = Base64Size(*data);
    if (given < 0) Fail("data is not base64");
    if (static_cast<size_t>(given) != size) {
      Fail("data has " + std::to_string(given) + " bytes, the shape needs " + std::to_string(size));
    }
    builder_.MakeTensor(*dtype, *shape, [&](char* to) {
      if (!DecodeBase64(*data, to)) Fail("data is not base64");
    });
  }

  TVMFFIAny Value() {
    TVMFFIAny cell;
    detail::SetCell(&cell, kTVMFFINone);
    switch (Peek()) {
      case '{':
        return Tagged();
      case '[':
        Fail("a list stands in a node of its own, {\"ffi.Array\": […]}, and is referred to");
      case '"':
        return builder_.Keep(Any(String(Text())));
      case 'n':
        if (TakeWord("null")) return cell;
        break;
      case 't':
      case 'f':
        cell.type_index = kTVMFFIBool;
        cell.v_int64 = *at_ == 't';
        if (TakeWord("true") || TakeWord("false")) return cell;
        break;
      default: {
        Number number = TakeNumber();
        cell.type_index = number.is_float ? kTVMFFIFloat : kTVMFFIInt;
        if (number.is_float) cell.v_float64 = number.f;
        else cell.v_int64 = number.i;
        return cell;
      }
    }
    Fail("expected a value, got " + Got());
  }

  // {"kind": …}
  TVMFFIAny Tagged() {
    Expect('{');
    if (Peek() == '}') Fail("an empty {}; a value has one of ref, float, int, bytes, str, dtype, device, shape");
    std::string kind(Text());
    Expect(':');
    TVMFFIAny cell;
    if (kind == "ref") {
      int64_t number = (Peek(), Integer("a reference"));
      cell = builder_.Refer(static_cast<uint64_t>(number));  // a negative one is far too large
    } else {
      cell = builder_.Keep(Special(kind));
    }
    Expect('}');
    return cell;
  }

  Any Special(std::string_view kind) {
    if (kind == "float") return Float(Text());
    if (kind == "int") return WideInteger(Text());
    if (kind == "bytes") return Bytes(Base64());
    if (kind == "str") return String(Base64());
    if (kind == "dtype") return DataType();
    if (kind == "shape") return Shape(Integers("an extent"));
    if (kind == "device") {
      std::vector<int64_t> numbers = Integers("a number");
      if (numbers.size() != 2) Fail("a device is [kind, number]");
      auto fits = [](int64_t n) { return n >= 0 && n <= std::numeric_limits<int32_t>::max(); };
      if (!fits(numbers[0]) || !fits(numbers[1])) Fail("no device has such numbers");
      return DLDevice{static_cast<DLDeviceType>(numbers[0]), static_cast<int32_t>(numbers[1])};
    }
    Fail("an unknown kind of value, " + Quote(kind));
  }

  Any Float(std::string_view name) {
    if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (name == "inf") return std::numeric_limits<double>::infinity();
    if (name == "-inf") return -std::numeric_limits<double>::infinity();
    Fail("a float that is not a number is written \"nan\", \"inf\" or \"-inf\", got " + Quote(name));
  }

  Any WideInteger(std::string_view text) {
    std::string words;
    if (!WordsFromHex(text, &words)) Fail("a wide integer is written as \"0x…\" or \"-0x…\", got " + Quote(text));
    TVMFFIByteArray bytes = ToByteArray(words);
    Any value;
    Check(TVMFFIBigIntFromByteArray(&bytes, value.out()));
    return value;
  }

  std::string Base64() {
    std::string_view text = Text();
    int64_t size = Base64Size(text);
    std::string bytes(static_cast<size_t>(std::max<int64_t>(size, 0)), '\0');
    if (size < 0 || !DecodeBase64(text, bytes.data())) Fail("is not base64");
    return bytes;
  }

  DLDataType DataType() {
    if (Peek() == '[') return NamelessDataType();
    std::string_view text = Text();
    TVMFFIByteArray name = ToByteArray(text);
    DLDataType dtype;
    if (TVMFFIDataTypeFromString(&name, &dtype) != 0) {
      TVMFFIObjectHandle error = nullptr;
      TVMFFIErrorMoveFromRaised(&error);
      Fail(std::string(Error(ObjectRef::Steal(error)).message()));
    }
    return dtype;
  }

  DLDataType NamelessDataType() {
    std::vector<int64_t> numbers = Integers("a number");
    auto fits = [&](size_t i, int64_t most) { return numbers[i] >= 0 && numbers[i] <= most; };
    if (numbers.size() != 3 || !fits(0, 255) || !fits(1, 255) || !fits(2, 65535)) {
      Fail("a data type is a name, or [code, bits, lanes]");
    }
    return {static_cast<uint8_t>(numbers[0]), static_cast<uint8_t>(numbers[1]), static_cast<uint16_t>(numbers[2])};
  }

  std::vector<int64_t> Integers(const char* what) {
    std::vector<int64_t> values;
    Expect('[');
    if (Take(']')) return values;
    do values.push_back((Peek(), Integer(what)));
    while (More(']'));
    return values;
  }

  int64_t Integer(const char* what) {
    char c = Peek();
    if (c != '-' && (c < '0' || c > '9')) Fail(std::string(what) + " is an integer, got " + Got());
    Number number = TakeNumber();
    if (number.is_float) Fail(std::string(what) + " is an integer, got a float");
    return number.i;
  }

  Types* types_;
  Builder builder_;
  std::unordered_map<std::string, const Type*> type_of_;
  Place place_ = Place::kTop;
  size_t node_ = 0;
  const Type* type_ = nullptr;
  std::string_view part_name_;
};

PORTCALL_REGISTER_GLOBAL("portcall.ir.LoadJson")
    .set_body_typed([](String text, uint64_t max_nodes, uint64_t max_depth) {
      Types types(true);
      return JsonReader(&types, text, {max_nodes, max_depth}).Read();
    });

}  // namespace
}  // namespace portcall::ir
