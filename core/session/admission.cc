// SPDX-License-Identifier: Apache-2.0
#include "session/admission.h"

#include <algorithm>

#include "portcall/sha256.h"
#include "session/text.h"

namespace portcall::session {
namespace {

constexpr size_t kShownKey = 80;

Words OurWords() { return {{"portcall", std::to_string(kExtensionVersion)}}; }

}  // namespace

void CheckVersion(const Hello& hello, const std::string& key) {
  if (!hello.portcall() || hello.SpeaksOurVersion()) return;
  throw Refused{"is a portcall client of another version: this side speaks version 1", Reply(key, OurWords())};
}

void CheckKey(const Hello& hello, const std::string& key, bool token) {
  if (hello.key != key) {
    throw Refused{"asked for the key '" + hello.key.substr(0, kShownKey) + "'; this server has '" + key + "'",
                  Refusal()};
  }
  if (token && !hello.portcall()) {
    throw Refused{"is a TVM client, which cannot prove that it knows the token", Refusal()};
  }
}

std::string Challenge(const std::string& key, const std::string& nonce) {
  Words words = OurWords();
  words.emplace_back("auth", "token");
  words.emplace_back("nonce", nonce);
  return Reply(key, words);
}

std::string Welcome(const std::string& key, bool portcall, const std::vector<std::string>& features, const Words& more,
                    std::string_view proof) {
  Words words;
  if (portcall) {
    words = OurWords();
    if (!features.empty()) words.emplace_back("features", Join(features));
    words.insert(words.end(), more.begin(), more.end());
  }
  if (!proof.empty()) {
    sha256::Digest digest{};
    std::copy_n(proof.begin(), std::min(proof.size(), sizeof(digest)), digest.begin());
    words.emplace_back("proof", sha256::Hex(digest));
  }
  return Reply(key, words);
}

}  // namespace portcall::session
