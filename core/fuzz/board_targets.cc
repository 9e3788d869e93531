// SPDX-License-Identifier: Apache-2.0
// The promises of the server without Python: any hello gives what a client said, or RemoteProtocolError, and no more is
// read than belongs to it; a path stays in its folder; JSON that is written is read as the same; a graph gives a plan that
// the core reads, or GraphError.
#include <algorithm>
#include <string>
#include <string_view>

#include "board/log.h"
#include "fuzz/promises.h"
#include "fuzz/targets.h"
#include "graph/plan.h"
#include "session/folder.h"
#include "session/graph_json.h"
#include "session/hello.h"
#include "session/json.h"

using namespace portcall;
using namespace portcall::board;
using namespace portcall::session;

namespace {

void Hear(std::string_view bytes) {
  std::string received;
  while (size_t missing = MissingOfHello(received)) {
    Promise(received.size() + missing <= 8 + 4096);
    if (bytes.empty()) return;
    const size_t n = std::min(missing, bytes.size());
    received += bytes.substr(0, n);
    bytes.remove_prefix(n);
  }
  const Hello hello = ParseHello(received);
  Promise(hello.Timeout() >= 0 && hello.Timeout() <= kMostSeconds);
  Promise(hello.Features().size() <= 5);
  if (hello.portcall()) hello.SpeaksOurVersion();
}

void WriteAgain(const Json& value, int depth) {
  if (value.kind() == Json::Kind::kText) {
    Promise(Json::Parse(Quoted(value.Text("a text"))).Text("the same") == value.Text("a text"));
  }
  Promise(depth <= 65);
  if (value.kind() == Json::Kind::kList) {
    for (const Json& item : value.List("a list")) WriteAgain(item, depth + 1);
  }
  if (value.kind() == Json::Kind::kObject) {
    for (const Json& item : value.Object("an object")) WriteAgain(item, depth + 1);
  }
}

void FindPath(std::string_view path) {
  static const Folder folder("/tmp", 0);
  const std::string found = folder.Path(path);
  Promise(found.compare(0, 4, "/tmp") == 0 && (found.size() == 4 || found[4] == '/'));
  Promise((found + "/").find("/../") == std::string::npos && found.find('\0') == std::string::npos);
}

}  // namespace

void FuzzBoardHello(const uint8_t* data, size_t size) {
  MayFail("RemoteProtocolError", [&] { Hear({reinterpret_cast<const char*>(data), size}); });
}

void FuzzBoardFiles(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (*data % 3 == 0) {
    try {
      FindPath(text);
    } catch (const Error& error) {
      Promise(error.kind() == "PermissionError" || error.kind() == "ValueError");
    }
  } else if (*data % 3 == 1) {
    MayFail("ValueError", [&] { WriteAgain(Json::Parse(text), 0); });
  } else {
    MayFail("GraphError", [&] { graph::DecodePlan(PlanOfGraph(text)); });
  }
}
