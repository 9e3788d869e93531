// SPDX-License-Identifier: Apache-2.0
#include "session/json.h"

#include <cstdlib>
#include <set>

#include "bytes/utf8.h"
#include "ir/text.h"
#include "portcall/error.h"

namespace portcall::session {

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Json Whole() {
    if (!bytes::IsUtf8(text_)) Fail("the text is not UTF-8");
    Json value = Value(0);
    SkipSpace();
    if (at_ != text_.size()) Fail("the end is expected");
    return value;
  }

 private:
  using Kind = Json::Kind;
  static constexpr int kDeepest = 64;

  [[noreturn]] void Fail(const char* what) const {
    PORTCALL_THROW(ValueError) << "not JSON: at byte " << at_ << ": " << what;
  }

  void SkipSpace() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  // Takes a character that comes next, perhaps after whitespace.
  bool Accept(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Json Value(int depth) {
    if (depth > kDeepest) Fail("it is nested too deep");
    Json value;
    if (Accept('"')) {
      value.kind_ = Kind::kText;
      value.text_ = String();
    } else if (Accept('[')) {
      value.kind_ = Kind::kList;
      if (Accept(']')) return value;
      do value.items_.push_back(Value(depth + 1));
      while (Accept(','));
      if (!Accept(']')) Fail("']' is expected");
    } else if (Accept('{')) {
      value.kind_ = Kind::kObject;
      if (Accept('}')) return value;
      std::set<std::string> names;
      do {
        Json name;
        if (!Accept('"')) Fail("a name is expected");
        name.kind_ = Kind::kText;
        name.text_ = String();
        if (!names.insert(name.text_).second) Fail("this name is there already");
        value.items_.push_back(std::move(name));
        if (!Accept(':')) Fail("':' is expected");
        value.items_.push_back(Value(depth + 1));
      } while (Accept(','));
      if (!Accept('}')) Fail("'}' is expected");
    } else {
      Word(&value);
    }
    return value;
  }

  void Word(Json* value) {
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:]}", at_), text_.size());
    const std::string word(text_.substr(at_, end - at_));
    char* stop = nullptr;
    errno = 0;
    value->number_ = std::strtoll(word.c_str(), &stop, 10);
    const bool digits = !word.empty() && word.find_first_not_of("-0123456789") == std::string::npos;
    if (digits && !*stop && errno == 0) {
      value->kind_ = Kind::kInteger;
    } else if (word != "null" && word != "true" && word != "false") {
      if (word.empty() || word.find_first_not_of("-+.0123456789eE") != std::string::npos) Fail("a value is expected");
      value->real_ = std::strtod(word.c_str(), &stop);
      value->kind_ = Kind::kReal;
      if (*stop) Fail("a number is expected");
    } else {
      value->number_ = word == "true";
    }
    at_ = end;
  }

  // The rest of a string.
  std::string String() {
    std::string text;
    for (;;) {
      const size_t end = text_.find_first_of("\"\\", at_);
      if (end == std::string_view::npos) Fail("the string does not end");
      for (char c : text_.substr(at_, end - at_)) {
        if (static_cast<uint8_t>(c) < 0x20) Fail("a control character is in the string");
        text += c;
      }
      at_ = end + 1;
      if (text_[end] == '"') return text;
      Escape(&text);
    }
  }

  void Escape(std::string* text) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char name = at_ < text_.size() ? text_[at_++] : '\0';
    const size_t found = kNames.find(name);
    if (found != std::string_view::npos) return text->push_back(kMeanings[found]);
    if (name != 'u') Fail("there is no such escape");
    uint32_t code = Hex();
    if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const uint32_t second = Hex();
      if (second < 0xdc00 || second > 0xdfff) Fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
    }
    if (code >= 0xd800 && code < 0xe000) Fail("half of a surrogate pair");
    ir::AppendUtf8(code, text);
  }

  uint32_t Hex() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = at_ < text_.size() ? text_[at_++] : '\0';
      const size_t digit = std::string_view("0123456789abcdef0123456789ABCDEF").find(c);
      if (digit == std::string_view::npos) Fail("four hexadecimal digits are expected");
      code = code << 4 | (digit & 15);
    }
    return code;
  }

  std::string_view text_;
  size_t at_ = 0;
};

Json Json::Parse(std::string_view text) { return JsonReader(text).Whole(); }

namespace {
void Expect(bool right, const char* what, const char* kind) {
  PORTCALL_CHECK(right, ValueError) << what << ": " << kind << " is expected";
}
}  // namespace

int64_t Json::Integer(const char* what) const {
  Expect(kind_ == Kind::kInteger, what, "a whole number");
  return number_;
}

double Json::Number(const char* what) const {
  Expect(kind_ == Kind::kInteger || kind_ == Kind::kReal, what, "a number");
  return kind_ == Kind::kReal ? real_ : static_cast<double>(number_);
}

const std::string& Json::Text(const char* what) const {
  Expect(kind_ == Kind::kText, what, "a text");
  return text_;
}

const std::vector<Json>& Json::List(const char* what) const {
  Expect(kind_ == Kind::kList, what, "a list");
  return items_;
}

const std::vector<Json>& Json::Object(const char* what) const {
  Expect(kind_ == Kind::kObject, what, "an object");
  return items_;
}

const Json* Json::Find(const char* name, const char* what) const {
  const std::vector<Json>& items = Object(what);
  for (size_t i = 0; i < items.size(); i += 2) {
    if (items[i].text_ == name) return &items[i + 1];
  }
  return nullptr;
}

const Json& Json::At(const char* name, const char* what) const {
  const Json* found = Find(name, what);
  PORTCALL_CHECK(found, ValueError) << what << ": it has no '" << name << "'";
  return *found;
}

}  // namespace portcall::session
