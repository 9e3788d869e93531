// SPDX-License-Identifier: Apache-2.0
// The first bytes of a connection (docs/wire.md, sections 1 and 8). No I/O here.
#ifndef PORTCALL_SESSION_HELLO_H_
#define PORTCALL_SESSION_HELLO_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "facts/wire.h"

namespace portcall::session {

using namespace facts;  // what a hello and a reply begin with, features, limits

// What a client says of itself. The functions throw RemoteProtocolError.
struct Hello {
  std::string key;
  std::map<std::string, std::string> options;

  bool portcall() const { return options.count("portcall") != 0; }
  double Timeout() const;                     // of its session, in seconds; 0 when it asks for none
  bool SpeaksOurVersion() const;              // of the extensions between portcall peers
  std::vector<std::string> Features() const;  // of those that both have, sorted
};

// Minimum number of missing bytes of a hello; reading no more than this never consumes session data.
size_t MissingOfHello(std::string_view received);
Hello ParseHello(std::string_view whole);

using Words = std::vector<std::pair<std::string, std::string>>;  // -name=value
std::string Reply(const std::string& key, const Words& words);
std::string Refusal();
std::string Notice(std::string_view text);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_HELLO_H_
