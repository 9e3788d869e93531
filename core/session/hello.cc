// SPDX-License-Identifier: Apache-2.0
#include "session/hello.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "bytes/byte_order.h"
#include "bytes/utf8.h"
#include "portcall/error.h"
#include "session/text.h"

namespace portcall::session {

using bytes::BytesOf, bytes::NumberAt;
namespace {

constexpr size_t kHeadBytes = 8;

std::string Message(int32_t code, std::string_view text) {
  return BytesOf(code) + BytesOf(static_cast<int32_t>(text.size())) + std::string(text);
}

std::string OptionOf(const Hello& hello, const char* name, const char* otherwise = "") {
  auto found = hello.options.find(name);
  return found == hello.options.end() ? otherwise : found->second;
}

int VersionOf(const std::string& text) {
  const bool digits = !text.empty() && text.size() < 8 && text.find_first_not_of("0123456789") == std::string::npos;
  PORTCALL_CHECK(digits, RemoteProtocolError) << "the option -portcall='" << text.substr(0, 40) << "' is not a version";
  return static_cast<int>(std::strtol(text.c_str(), nullptr, 10));
}

// Digits, with a fraction and an exponent or without (docs/wire.md, section 1).
bool IsDecimal(std::string_view text) {
  auto take_digits = [&text] {
    const size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count > 0;
  };
  auto take = [&text](std::string_view any) {
    const bool found = !text.empty() && any.find(text[0]) != std::string_view::npos;
    if (found) text.remove_prefix(1);
    return found;
  };
  if (!take_digits() || (take(".") && !take_digits())) return false;
  if (!take("eE")) return text.empty();
  take("+-");
  return take_digits() && text.empty();
}

}  // namespace

double Hello::Timeout() const {
  std::string text = OptionOf(*this, "seconds");
  if (text.empty()) text = OptionOf(*this, "timeout", "0");
  PORTCALL_CHECK(IsDecimal(text), RemoteProtocolError)
      << "the option -timeout='" << text << "' is not a number of seconds";
  const double seconds = std::strtod(text.c_str(), nullptr);
  PORTCALL_CHECK(seconds >= 0 && seconds <= kMostSeconds, RemoteProtocolError)
      << "the option -timeout=" << text << " is out of range";
  return seconds;
}

bool Hello::SpeaksOurVersion() const {
  return VersionOf(OptionOf(*this, "portcall")) >= kOldestExtension &&
         VersionOf(OptionOf(*this, "oldest", "1")) <= kExtensionVersion;
}

std::vector<std::string> Hello::Features() const {
  std::vector<std::string> both;
  const std::vector<std::string> theirs = Split(OptionOf(*this, "features"), ",");
  for (const char* ours : kFeatures) {
    for (const std::string& name : theirs) {
      if (name != ours) continue;
      both.emplace_back(ours);
      break;
    }
  }
  return both;
}

size_t MissingOfHello(std::string_view received) {
  if (received.size() >= 4) {
    PORTCALL_CHECK(NumberAt<int32_t>(received.data()) == kMagic, RemoteProtocolError)
        << "the peer does not speak the RPC protocol (wrong magic number)";
  }
  if (received.size() < 4) return 4 - received.size();
  if (received.size() < kHeadBytes) return kHeadBytes - received.size();
  const int32_t size = NumberAt<int32_t>(received.data() + 4);
  PORTCALL_CHECK(size > 0 && static_cast<size_t>(size) <= kMaxKeyBytes, RemoteProtocolError)
      << "the peer's key has a length of " << size;
  return kHeadBytes + static_cast<size_t>(size) - received.size();
}

Hello ParseHello(std::string_view whole) {
  const std::string_view text = whole.substr(kHeadBytes);
  PORTCALL_CHECK(bytes::IsUtf8(text), RemoteProtocolError) << "the peer's key is not UTF-8";
  const std::vector<std::string> words = Split(text, kBlanks);
  constexpr std::string_view kRole = "client:";
  PORTCALL_CHECK(!words.empty() && words[0].compare(0, kRole.size(), kRole) == 0, RemoteProtocolError)
      << "the peer is not a client: it sent '" << text.substr(0, 80) << "'";
  Hello hello;
  hello.key = words[0].substr(kRole.size());
  for (size_t i = 1; i < words.size(); ++i) {
    std::string_view word = words[i];
    if (word[0] == '-') word.remove_prefix(1);
    const size_t equals = std::min(word.find('='), word.size());
    hello.options[std::string(word.substr(0, equals))] = std::string(word.substr(std::min(equals + 1, word.size())));
  }
  return hello;
}

std::string Reply(const std::string& key, const Words& words) {
  std::string text = "server:" + key;
  for (const auto& [name, value] : words) text.append(" -").append(name).append("=").append(value);
  return Message(kMagic, text);
}

std::string Refusal() { return BytesOf(kMismatch); }

std::string Notice(std::string_view text) { return Message(kNotice, text); }

}  // namespace portcall::session
