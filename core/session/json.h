// SPDX-License-Identifier: Apache-2.0
// JSON that a stranger sent, as a tree. No I/O here.
#ifndef PORTCALL_SESSION_JSON_H_
#define PORTCALL_SESSION_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace portcall::session {

class Json {
 public:
  enum class Kind { kOther, kInteger, kReal, kText, kList, kObject };  // kOther: null, booleans

  // Throws ValueError for what is not JSON, is nested deeper than 64, or has a key twice in one object.
  static Json Parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool True() const { return kind_ == Kind::kOther && number_; }
  // Each throws ValueError where this is not of that kind; `what` names it.
  int64_t Integer(const char* what) const;
  double Number(const char* what) const;  // an integer or not
  const std::string& Text(const char* what) const;
  const std::vector<Json>& List(const char* what) const;
  // The names in an object and their values, in turn.
  const std::vector<Json>& Object(const char* what) const;
  // The value of a name in an object; null where there is none.
  const Json* Find(const char* name, const char* what) const;
  const Json& At(const char* name, const char* what) const;

 private:
  friend class JsonReader;

  Kind kind_ = Kind::kOther;
  int64_t number_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<Json> items_;
};

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_JSON_H_
