// SPDX-License-Identifier: Apache-2.0
#include "session/hello.h"

#include "bytes/byte_order.h"
#include "portcall/error.h"
#include "tests/check.h"

using namespace portcall;
using namespace portcall::session;
using bytes::BytesOf;

namespace {

std::string Message(uint32_t code, const std::string& text) {
  return BytesOf(code) + BytesOf(static_cast<uint32_t>(text.size())) + text;
}

Hello HelloOf(const std::string& words) { return ParseHello(Message(0xFF271, words)); }

double TimeOf(const std::string& option) { return HelloOf("client: " + option).Timeout(); }

}  // namespace

TEST("a hello is read no further than its end") {
  const std::string whole = Message(0xFF271, "client:k");
  for (size_t size = 0; size < whole.size(); ++size) {
    const size_t missing = MissingOfHello(whole.substr(0, size));
    CHECK(missing > 0 && size + missing <= whole.size());
  }
  CHECK_EQ(MissingOfHello(whole), 0);
}

TEST("a hello of another protocol, or of no length, is refused as soon as that is known") {
  CHECK_THROWS(MissingOfHello("GET "), Error);
  CHECK_EQ(MissingOfHello("GET"), 1);
  for (const uint32_t size : {0u, 4097u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    CHECK_THROWS(MissingOfHello(BytesOf(0xFF271) + BytesOf(size)), Error);
  }
  CHECK_EQ(MissingOfHello(BytesOf(0xFF271) + BytesOf(4096)), 4096);
}

TEST("a hello has a key and options, of which the last one of a name holds") {
  const Hello hello = HelloOf("client:a.b  -portcall=1\t-x -y=1=2 -y=\n--z=3");
  CHECK_EQ(hello.key, "a.b");
  CHECK(hello.portcall());
  CHECK_EQ(hello.options.size(), 4);
  CHECK_EQ(hello.options.at("x"), "");
  CHECK_EQ(hello.options.at("y"), "");
  CHECK_EQ(hello.options.at("-z"), "3");
  CHECK(!HelloOf("client:").portcall());
  CHECK_EQ(HelloOf("client:").key, "");
}

TEST("what is no client's hello is refused") {
  for (const char* words : {"", " ", "server:k", "clien", "client", "k client:"}) CHECK_THROWS(HelloOf(words), Error);
  CHECK_THROWS(HelloOf("client:\xff"), Error);
  CHECK_THROWS(HelloOf("client:\xed\xa0\x80"), Error);
}

TEST("the time of a session is a decimal number of seconds") {
  CHECK_EQ(TimeOf(""), 0);
  CHECK_EQ(TimeOf("-timeout=7"), 7);
  CHECK_EQ(TimeOf("-timeout=7 -seconds=0.25"), 0.25);
  CHECK_EQ(TimeOf("-seconds=1.5e+2"), 150);
  CHECK_EQ(TimeOf("-seconds=1e9"), 1e9);
  for (const char* text : {"1e10", "1e999", "-1", "+1", ".5", "1.", "0x10", "1_0", "inf", "nan", "1e", "١"}) {
    CHECK_THROWS(TimeOf("-timeout=" + std::string(text)), Error);
  }
}

TEST("versions of the extensions overlap, or do not") {
  CHECK(HelloOf("client: -portcall=1").SpeaksOurVersion());
  CHECK(HelloOf("client: -portcall=99 -oldest=1").SpeaksOurVersion());
  CHECK(!HelloOf("client: -portcall=99 -oldest=99").SpeaksOurVersion());
  CHECK(!HelloOf("client: -portcall=0").SpeaksOurVersion());
  for (const char* version : {"", "x", "-1", "1.0", "99999999"}) {
    CHECK_THROWS(HelloOf("client: -portcall=" + std::string(version)).SpeaksOurVersion(), Error);
  }
}

TEST("features are those that both have, known by their whole names") {
  const auto features = [](const std::string& names) { return HelloOf("client: -features=" + names).Features(); };
  CHECK(features("values,new,callback,callback") == (std::vector<std::string>{"callback", "values"}));
  CHECK(features("callback2,xpost,,").empty());
  CHECK(HelloOf("client:").Features().empty());
}

TEST("replies are written as clients read them") {
  CHECK_EQ(Reply("k", {{"a", "1"}, {"b", ""}}), Message(0xFF271, "server:k -a=1 -b="));
  CHECK_EQ(Notice("2 wait"), Message(0xFF274, "2 wait"));
  CHECK_EQ(Refusal(), BytesOf(0xFF273));
}
