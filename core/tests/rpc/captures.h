// SPDX-License-Identifier: Apache-2.0
// Reads tests/rpc/captures.txt: what apache-tvm said on the wire.
#pragma once

#include <fstream>
#include <string>
#include <vector>

namespace rpc_test {

struct Capture {
  std::string name;
  bool from_client;
  std::string bytes;

  bool is(const char* word) const { return name.find(word) != std::string::npos; }
  // Whether it is a frame of a session, rather than of a handshake, a tracker or a proxy.
  bool is_frame() const {
    if (name.rfind("tracker", 0) == 0 || name.rfind("proxy", 0) == 0 || bytes.size() < 12) return false;
    return bytes.substr(4, 4) == std::string(4, '\0');  // the upper half of a length; a handshake has text there
  }
};

inline std::vector<Capture> ReadCaptures() {
  std::vector<Capture> captures;
  std::ifstream file(PORTCALL_TEST_CAPTURES);
  std::string name;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("== ", 0) == 0) name = line.substr(3);
    if (line.rfind("> ", 0) != 0 && line.rfind("< ", 0) != 0) continue;
    Capture capture{name, line[0] == '>', ""};
    for (size_t i = 2; i + 1 < line.size() && line[i] != ' '; i += 2) {
      capture.bytes.push_back(static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16)));
    }
    captures.push_back(std::move(capture));
  }
  return captures;
}

}  // namespace rpc_test
