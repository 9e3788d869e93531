// SPDX-License-Identifier: Apache-2.0
#include "session/json.h"

#include "portcall/error.h"
#include "tests/check.h"

using namespace portcall;
using portcall::session::Json;

namespace {
std::string TextOf(const char* json) { return Json::Parse(json).Text("it"); }
}  // namespace

TEST("JSON is read as a tree") {
  const Json json = Json::Parse(R"( {"a": [1, -2.5, "x"], "b": {}, "c": [], "d": null, "e": true} )");
  CHECK_EQ(json.Object("it").size(), 10);
  const std::vector<Json>& list = json.At("a", "it").List("a");
  CHECK_EQ(list[0].Integer("0"), 1);
  CHECK_EQ(list[0].Number("0"), 1);
  CHECK_EQ(list[1].Number("1"), -2.5);
  CHECK_EQ(list[2].Text("2"), "x");
  CHECK(json.At("b", "it").Object("b").empty() && json.At("c", "it").List("c").empty());
  CHECK(json.At("e", "it").True() && !json.At("d", "it").True());
  CHECK(json.Find("f", "it") == nullptr);
  CHECK_THROWS(json.At("f", "it"), Error);
}

TEST("a value of JSON is taken as what it is alone") {
  const Json number = Json::Parse("7"), real = Json::Parse("7.0"), text = Json::Parse("\"7\"");
  CHECK_THROWS(number.Text("it"), Error);
  CHECK_THROWS(real.Integer("it"), Error);
  CHECK_THROWS(text.Number("it"), Error);
  CHECK_THROWS(text.List("it"), Error);
  CHECK_THROWS(Json::Parse("[]").Object("it"), Error);
  CHECK_THROWS(Json::Parse("{}").List("it"), Error);
  CHECK(!number.True());
}

TEST("numbers of JSON that no integer holds are real ones") {
  CHECK_EQ(Json::Parse("9223372036854775807").Integer("it"), INT64_MAX);
  CHECK_EQ(Json::Parse("-9223372036854775808").Integer("it"), INT64_MIN);
  CHECK_THROWS(Json::Parse("9223372036854775808").Integer("it"), Error);
  CHECK_EQ(Json::Parse("9223372036854775808").Number("it"), 9223372036854775808.0);
  CHECK_EQ(Json::Parse("1e3").Number("it"), 1000);
}

TEST("strings of JSON have escapes, of all of Unicode") {
  CHECK_EQ(TextOf(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  CHECK_EQ(TextOf(R"("\u00fc\u20AC")"), "ü€");
  CHECK_EQ(TextOf(R"("\ud83d\ude00")"), "😀");
  CHECK_EQ(TextOf(R"("\u0000")").size(), 1);
  CHECK_EQ(TextOf("\"ü😀\""), "ü😀");
}

TEST("what is not JSON is refused") {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[",
                           "\"",
                           "[1",
                           "[1,",
                           "[1,]",
                           "[,]",
                           "{1: 2}",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\": 1,}",
                           "{\"a\": 1 ",
                           "1 2",
                           "[1 2]",
                           "nul",
                           "True",
                           "-",
                           "--1",
                           "1-2",
                           "1.2.3",
                           "e",
                           "0x10",
                           "NaN",
                           "Infinity",
                           "'a'",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\u123g\"",
                           "\"\\ud83d\"",
                           "\"\\ude00\"",
                           "\"\\ud83d\\u0041\"",
                           "\"\n\"",
                           "\"\\\"",
                           "\"\xff\"",
                           "\"\xed\xa0\x80\"",
                           "[]]",
                           "{}}",
                           "// x"}) {
    CHECK_THROWS(Json::Parse(text), Error);
  }
  CHECK_THROWS(Json::Parse(std::string_view("1\0", 2)), Error);
  CHECK_THROWS(Json::Parse(R"({"a": 1, "a": 2})"), Error);  // which one would hold?
}

TEST("JSON may be nested as deep as any message is, and no deeper") {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(Json::Parse(nested(64)).kind() == Json::Kind::kList);
  CHECK_THROWS(Json::Parse(nested(66)), Error);
  CHECK_THROWS(Json::Parse(std::string(1 << 20, '[')), Error);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK_THROWS(Json::Parse(objects), Error);
}
