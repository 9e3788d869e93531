// SPDX-License-Identifier: Apache-2.0
// A graph of kernels as objects, for passes to change before an executor runs it. Python makes one of graph JSON, and
// JSON of one.
//
//   graph_ir::Graph graph = ir::Sequential({"portcall.graph.validate", "portcall.graph.fold_constants",
//                                           "portcall.graph.remove_dead_code"}, "clean")(graph);
//
// A node is a placeholder (an input; with data: a parameter) or a call of a kernel. It refers to what it reads, so a
// graph is what its outputs reach; the list of its nodes is the order of execution.
#ifndef PORTCALL_GRAPH_IR_H_
#define PORTCALL_GRAPH_IR_H_

#include "module.h"
#include "pass.h"

namespace portcall::graph_ir {

constexpr const char* kPlaceholder = "null";
constexpr const char* kCall = "tvm_op";
constexpr const char* kNop = "__nop";    // a kernel that needs none: a view of its input with another shape
constexpr const char* kCopy = "__copy";  // likewise: its input on another device

struct TensorTypeObj : Object {
  Shape shape;
  DLDataType dtype{kDLFloat, 32, 1};
  int64_t device_type = 0;  // as DLPack numbers them; 0: that of the graph's first device
  PORTCALL_OBJECT(TensorTypeObj, Object, "portcall.graph.TensorType")
  static void Describe(Description<TensorTypeObj>* type);
};
class TensorType : public ObjectRef {
  PORTCALL_OBJECT_REF(TensorType, TensorTypeObj)
};

class GraphNode;
class Value;

struct GraphNodeObj : Object {
  String name;
  String op;                      // kPlaceholder or kCall
  String function;                // the kernel; empty for a placeholder
  Array<Value> inputs;            // what it reads, in the order of the kernel's arguments
  Array<TensorType> outputs;      // what it makes: the kernel's last arguments
  Map<String, String> attrs;      // what else is known of it
  Tensor data;                    // of a parameter; null for everything else
  Array<GraphNode> control_deps;  // nodes that are to run before
  PORTCALL_OBJECT(GraphNodeObj, Object, "portcall.graph.Node")
  static void Describe(Description<GraphNodeObj>* type);
};
class GraphNode : public ObjectRef {
  PORTCALL_OBJECT_REF(GraphNode, GraphNodeObj)
  bool is_parameter() const { return node()->op.view() == kPlaceholder && node()->data.defined(); }
};

// One output of a node.
struct ValueObj : Object {
  GraphNode node;
  int64_t index = 0;
  PORTCALL_OBJECT(ValueObj, Object, "portcall.graph.Value")
  static void Describe(Description<ValueObj>* type);
};
class Value : public ObjectRef {
  PORTCALL_OBJECT_REF(Value, ValueObj)
  Value(GraphNode node, int64_t index) {
    auto* made = NewNode<ValueObj>();
    ptr_ = made;
    made->node = std::move(node);
    made->index = index;
  }
};

struct GraphObj : Object {
  Array<GraphNode> inputs;  // the placeholders, parameters too, in the order of their index
  Array<GraphNode> nodes;   // all, in the order of execution
  Array<Value> outputs;     // the results
  Map<String, Any> attrs;   // what else is known of it
  // What is known of each output of each node, by name, such as "storage_id", an Array. Passes that change the nodes drop
  // it.
  Map<String, Any> value_attrs;
  PORTCALL_OBJECT(GraphObj, Object, "portcall.graph.Graph")
  static void Describe(Description<GraphObj>* type);
};
class Graph : public ObjectRef {
  PORTCALL_OBJECT_REF(Graph, GraphObj)
};

// ---- Passes, which are global functions of these names -----------------------------------------------------------------

// Returns the graph itself, or throws a GraphError that names the node: what it reads does not come before it, an
// output that does not exist, data of another type, names that occur twice, and the like.
inline Graph Validate(const Graph& graph) { return detail::IrFunction("portcall.graph.validate")(graph); }

// Without the nodes that no result needs. Inputs without data stay, for they are how the graph is called; so do calls
// that make nothing, for whatever they do is not in the graph. The graph itself when all are needed.
inline Graph RemoveDeadCode(const Graph& graph) { return detail::IrFunction("portcall.graph.remove_dead_code")(graph); }

// With a parameter in the place of each call that reads parameters only. The kernels run here, on the host: they are
// functions of the context's setting "library", or of what it imports. Calls on other devices stay. The graph itself
// when there is none.
inline Graph FoldConstants(const Graph& graph, const Module& library) {
  ir::PassContext context = ir::PassContext::New();
  context->config = Map<String, Any>({{"library", library}});
  ir::WithContext with(context);
  return detail::IrFunction("portcall.graph.fold_constants")(graph);
}

}  // namespace portcall::graph_ir
#endif  // PORTCALL_GRAPH_IR_H_
