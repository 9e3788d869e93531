// SPDX-License-Identifier: Apache-2.0
// Graphs as JSON, which clients of TVM send: read, and planned for the core. No I/O here.
#ifndef PORTCALL_SESSION_GRAPH_JSON_H_
#define PORTCALL_SESSION_GRAPH_JSON_H_

#include <string>
#include <string_view>

namespace portcall::session {

// Returns the plan of a graph (docs/graph.md); the core checks it once more. Memory is that of the graph's storage ids
// where they are sound, and else is shared by one slot after the other. Throws GraphError.
std::string PlanOfGraph(std::string_view json);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_GRAPH_JSON_H_
