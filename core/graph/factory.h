// SPDX-License-Identifier: Apache-2.0
// Factories: modules of type "GraphExecutorFactory" that hold a graph with its parameters, import its kernels, and make
// executors: factory["default"](device). docs/graph.md lists their functions.
#ifndef PORTCALL_GRAPH_FACTORY_H_
#define PORTCALL_GRAPH_FACTORY_H_

#include <string>

#include "graph/params.h"
#include "portcall/module.h"

namespace portcall::graph {

struct Factory {
  std::string name;  // of the function that makes executors
  String json;
  Bytes plan;
  Tensors params;  // the same for all executors: used in place on the CPU, copied once to every other device
};

// The kernels are what it imports first, now or later. Throws GraphError for a bad plan.
Module MakeFactory(Factory factory, const Module& kernels);

}  // namespace portcall::graph
#endif  // PORTCALL_GRAPH_FACTORY_H_
