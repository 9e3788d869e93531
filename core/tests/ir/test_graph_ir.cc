// SPDX-License-Identifier: Apache-2.0
#include "portcall/graph_ir.h"

#include "portcall/pass.h"
#include "tests/ir/nodes.h"

using namespace nodes;
using graph_ir::Graph;
using graph_ir::GraphNode;
using graph_ir::TensorType;
using graph_ir::Value;

namespace {

constexpr DLDataType kFloat{kDLFloat, 32, 1};

TensorType Type(std::initializer_list<int64_t> shape) {
  TensorType type = Make<TensorType>();
  type->shape = Shape(shape);
  return type;
}

GraphNode MakeNode(const char* name, const char* op, const char* function, const std::vector<Value>& inputs,
                   const std::vector<TensorType>& outputs) {
  GraphNode node = Make<GraphNode>();
  node->name = name;
  node->op = op;
  node->function = function;
  node->inputs = Array<Value>(inputs);
  node->outputs = Array<TensorType>(outputs);
  return node;
}

GraphNode Input(const char* name, int64_t size = 2) {
  return MakeNode(name, graph_ir::kPlaceholder, "", {}, {Type({size})});
}

GraphNode Parameter(const char* name, const std::vector<float>& values) {
  GraphNode node = Input(name, static_cast<int64_t>(values.size()));
  node->data = Tensor::Empty({static_cast<int64_t>(values.size())}, kFloat);
  std::copy(values.begin(), values.end(), node->data.data<float>());
  return node;
}

GraphNode Call(const char* name, const char* function, const std::vector<GraphNode>& inputs, int64_t size = 2) {
  std::vector<Value> values;
  for (const GraphNode& node : inputs) values.emplace_back(node, 0);
  return MakeNode(name, graph_ir::kCall, function, values, {Type({size})});
}

Graph MakeGraph(const std::vector<GraphNode>& nodes, const std::vector<GraphNode>& outputs) {
  std::vector<GraphNode> inputs;
  std::vector<Value> results;
  for (const GraphNode& node : nodes) {
    if (node->op.view() == graph_ir::kPlaceholder) inputs.push_back(node);
  }
  for (const GraphNode& node : outputs) results.emplace_back(node, 0);
  Graph graph = Make<Graph>();
  graph->inputs = Array<GraphNode>(inputs);
  graph->nodes = Array<GraphNode>(nodes);
  graph->outputs = Array<Value>(results);
  graph->value_attrs = Map<String, Any>({{"storage_id", Array<Any>{1, 2}}});
  return graph;
}

std::string Names(const Array<GraphNode>& nodes) {
  std::string names;
  for (const GraphNode& node : nodes) names += (names.empty() ? "" : " ") + node->name.str();
  return names;
}

std::vector<float> Values(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

// Kernels: add(a, b, out); split(a, first, second); flat(a, out), which wants one dimension.
class Kernels : public ModuleNode {
 public:
  const char* kind() const override { return "test_kernels"; }
  PackedFunc GetFunction(const std::string& name, const Module&) override {
    if (name == "add") {
      return PackedFunc([](Args args, RetValue*) {
        Tensor a = args[0], b = args[1], out = args[2];
        for (size_t i = 0; i < out.numel(); ++i) out.data<float>()[i] = a.data<float>()[i] + b.data<float>()[i];
      });
    }
    if (name == "split") {
      return PackedFunc([](Args args, RetValue*) {
        Tensor a = args[0], first = args[1], second = args[2];
        first.data<float>()[0] = a.data<float>()[0];
        second.data<float>()[0] = a.data<float>()[1];
      });
    }
    if (name == "flat") {
      return PackedFunc([](Args args, RetValue*) {
        TensorView a = args[0], out = args[1];
        PORTCALL_CHECK(a.ndim() == 1 && out.ndim() == 1, ValueError) << "not flat";
        std::copy(a.data<float>(), a.data<float>() + a.numel(), out.data<float>());
      });
    }
    if (name == "fails") return PackedFunc([](Args, RetValue*) { PORTCALL_THROW(ValueError) << "bad weights"; });
    return nullptr;
  }
};

Module Library() { return Module(std::make_unique<Kernels>()); }

std::string Flaw(const Graph& graph) {
  return Thrown([&] { graph_ir::Validate(graph); });
}

}  // namespace

TEST("a sound graph passes validation as it is") {
  GraphNode x = Input("x"), w = Parameter("w", {1, 2}), sum = Call("sum", "add", {x, w});
  Graph graph = MakeGraph({x, w, sum}, {sum});
  CHECK(graph_ir::Validate(graph).same_as(graph));
  Any again = ir::LoadJson(ir::SaveJson(graph));
  CHECK_EQ(ir::FirstMismatch(again, graph), "");
  CHECK(graph_ir::Validate(again).defined());
}

TEST("what is wrong with a graph is said with the node's name") {
  GraphNode x = Input("x"), sum = Call("sum", "add", {x, x});
  CHECK_EQ(Flaw(MakeGraph({sum, x}, {sum})),
           "GraphError: what node number 0, 'sum', reads, an output of 'x', is not made before");
  CHECK_EQ(Flaw(MakeGraph({x, sum, sum}, {sum})), "GraphError: node number 2, 'sum', is in the list a second time");
  CHECK_EQ(Flaw(MakeGraph({x}, {})), "GraphError: the graph has no results");
  CHECK_EQ(Flaw(MakeGraph({x}, {sum})), "GraphError: a result of the graph, an output of 'sum', is not made before");
  CHECK_EQ(Flaw(MakeGraph({x, Input("x")}, {x})),
           "GraphError: node number 1, 'x', has the name of another placeholder; inputs are set by name");
  Graph no_input = MakeGraph({x, sum}, {sum});
  no_input->inputs = Array<GraphNode>(std::vector<GraphNode>());
  CHECK_EQ(Flaw(no_input), "GraphError: the placeholder 'x' is not among the inputs");
  Graph call_as_input = MakeGraph({x, sum}, {sum});
  call_as_input->inputs.push_back(sum);
  CHECK_EQ(Flaw(call_as_input), "GraphError: the input 'sum' is a call, not a placeholder");
  Graph missing = MakeGraph({x, sum}, {sum});
  missing->outputs = Array<Value>{Value(sum, 1)};
  CHECK_EQ(Flaw(missing), "GraphError: a result of the graph is output 1 of 'sum', which has 1");
  CHECK_EQ(Flaw(MakeGraph({x, MakeNode("c", "conv", "f", {}, {})}, {x})),
           "GraphError: node number 1, 'c', has the op 'conv', which is neither 'null' nor 'tvm_op'");
  CHECK_EQ(Flaw(MakeGraph({x, Call("c", "", {x})}, {x})), "GraphError: node number 1, 'c', is a call of no function");
  CHECK_EQ(Flaw(MakeGraph({x, Call("", "f", {x})}, {x})), "GraphError: node number 1, '', needs a name");
  CHECK_EQ(Flaw(MakeGraph({x, Input("y", -1)}, {x})),
           "GraphError: node number 1, 'y', has an output of shape (-1,); extents are 0 or more");
  CHECK_EQ(
      Flaw(MakeGraph({x, Call("view", "__nop", {x}, 3)}, {x})),
      "GraphError: node number 1, 'view', calls __nop with float32 (2,) for float32 (3,); both must be of one size");
  GraphNode w = Parameter("w", {1, 2, 3});
  w->outputs = Array<TensorType>{Type({2})};
  CHECK_EQ(Flaw(MakeGraph({x, w}, {x})),
           "GraphError: node number 1, 'w', is of type float32 (2,), but its data of float32 (3,)");
  GraphNode late = Call("late", "f", {x});
  late->control_deps = Array<GraphNode>{sum};
  CHECK_EQ(Flaw(MakeGraph({x, late, sum}, {late})),
           "GraphError: node number 1, 'late', is to run after 'sum', which does not come before it");
}

TEST("an error about a graph has the name of the node with it") {
  GraphNode x = Input("x"), sum = Call("sum", "add", {x, x});
  auto node_of = [](const Graph& graph) {
    try {
      graph_ir::Validate(graph);
    } catch (const Error& error) {
      auto* cell = &static_cast<ErrorObj*>(error.ref().get())->cell;
      if (!cell->extra_context) return std::string("none");
      auto facts = ObjectRef::Borrow<Array<Any>>(cell->extra_context);
      CHECK_EQ(facts[0].cast<std::string>(), "portcall.GraphError");
      return facts[1].cast<std::string>();
    }
    return std::string("no error");
  };
  CHECK_EQ(node_of(MakeGraph({sum, x}, {sum})), "sum");
  CHECK_EQ(node_of(MakeGraph({x}, {sum})), "sum");
  CHECK_EQ(node_of(MakeGraph({x, x}, {x})), "x");
  Graph no_input = MakeGraph({x, sum}, {sum}), no_result = MakeGraph({x}, {});
  no_input->inputs = Array<GraphNode>(std::vector<GraphNode>());
  CHECK_EQ(node_of(no_input), "x");
  no_input->inputs = Array<GraphNode>{x, sum};
  CHECK_EQ(node_of(no_input), "sum");
  CHECK_EQ(node_of(no_result), "none");
}

TEST("dead code is what no result needs; inputs and calls without outputs stay") {
  GraphNode x = Input("x"), unused = Input("unused"), w = Parameter("w", {1, 2}), dead_w = Parameter("dead_w", {1, 2});
  GraphNode sum = Call("sum", "add", {x, w}), dead = Call("dead", "add", {sum, dead_w}),
            first = Call("first", "f", {x});
  GraphNode effect = MakeNode("effect", graph_ir::kCall, "log", {Value(x, 0)}, {});
  sum->control_deps = Array<GraphNode>{first};
  Graph graph = MakeGraph({x, unused, w, dead_w, first, sum, dead, effect}, {sum});
  Graph clean = graph_ir::RemoveDeadCode(graph);
  CHECK_EQ(Names(clean->nodes), "x unused w first sum effect");
  CHECK_EQ(Names(clean->inputs), "x unused w");
  CHECK(clean->value_attrs.empty());
  CHECK_EQ(Names(graph->nodes), "x unused w dead_w first sum dead effect");
  CHECK(graph_ir::RemoveDeadCode(clean).same_as(clean));
}

TEST("calls of parameters alone are run, and parameters stand in their place") {
  GraphNode x = Input("x"), a = Parameter("a", {1, 2}), b = Parameter("b", {10, 20});
  GraphNode ab = Call("a", "add", {a, b}),
            twice = Call("twice", "add", {ab, ab});  // "a" is the name of a placeholder too
  GraphNode parts = MakeNode("parts", graph_ir::kCall, "split", {Value(twice, 0)}, {Type({1}), Type({1})});
  GraphNode view = MakeNode("view", graph_ir::kCall, "__nop", {Value(ab, 0)}, {Type({2, 1})});
  GraphNode flat = MakeNode("flat", graph_ir::kCall, "flat", {Value(view, 0)}, {Type({2, 1})});
  flat->attrs = Map<String, String>({{"flatten_data", "1"}});
  GraphNode out = MakeNode("out", graph_ir::kCall, "add", {Value(x, 0), Value(parts, 1)}, {Type({1})});
  GraphNode remote = Call("remote", "add", {a, b});
  TensorType elsewhere = Type({2});
  elsewhere->device_type = kDLCUDA;
  remote->outputs = Array<TensorType>{elsewhere};
  GraphNode last = MakeNode("last", graph_ir::kCall, "f", {Value(out, 0), Value(flat, 0)}, {Type({1})});
  last->control_deps = Array<GraphNode>{twice, out};
  Graph graph = MakeGraph({x, a, b, ab, twice, parts, view, flat, out, remote, last}, {last, out});
  graph_ir::Validate(graph);
  Graph folded = graph_ir::FoldConstants(graph, Library());
  graph_ir::Validate(folded);
  CHECK_EQ(Names(folded->nodes), "x a b a_1 twice parts_0 parts_1 view flat out remote last");
  CHECK_EQ(Names(folded->inputs), "x a b a_1 twice parts_0 parts_1 view flat");
  CHECK(Values(folded->nodes[4]->data) == std::vector<float>({22, 44}));
  CHECK(Values(folded->nodes[6]->data) == std::vector<float>({44}));
  CHECK(Values(folded->nodes[8]->data) == std::vector<float>({11, 22}));
  CHECK_EQ(ToString(folded->nodes[7]->outputs[0]->shape), "(2, 1)");
  CHECK_EQ(folded->nodes[7]->data.ndim(), 2);
  CHECK(folded->nodes[9]->inputs[1]->node.same_as(folded->nodes[6]));
  CHECK(folded->outputs[1]->node.same_as(folded->nodes[9]));
  CHECK_EQ(Names(folded->nodes[11]->control_deps), "out");
  CHECK(folded->nodes[11]->control_deps[0].same_as(folded->nodes[9]));
  CHECK_EQ(graph->nodes[8]->inputs[1]->node->name.view(), "parts");
  CHECK(folded->value_attrs.empty());
  CHECK(graph_ir::FoldConstants(folded, Library()).same_as(folded));
  CHECK_EQ(Names(graph_ir::RemoveDeadCode(folded)->nodes), "x parts_1 flat out last");
}

TEST("as passes they take the library from the context, and errors say at which node") {
  GraphNode a = Parameter("a", {1, 2}), bad = Call("bad", "fails", {a});
  Graph graph = MakeGraph({a, bad}, {bad});
  ir::Sequential clean({"portcall.graph.validate", "portcall.graph.fold_constants", "portcall.graph.remove_dead_code"},
                       "clean");
  CHECK_EQ(Thrown([&] { clean(graph); }),
           "ValueError: folding constants takes the kernels' library: run it in a PassContext with "
           "config={'library': library}");
  ir::PassContext context = ir::PassContext::New();
  context->config = Map<String, Any>({{"library", Library()}});
  ir::WithContext with(context);
  try {
    clean(graph);
    CHECK(false);
  } catch (const Error& error) {
    CHECK_EQ(error.what(), "ValueError: bad weights");
    CHECK(Contains(error.backtrace(), "  Note: at node 'bad' of the graph\n"));
    CHECK(Contains(error.backtrace(), "  Note: in pass 'portcall.graph.fold_constants', number 2 of 3 in 'clean'\n"));
  }
  GraphNode lacks = Call("lacks", "no_such", {a});
  CHECK_EQ(Thrown([&] { clean(MakeGraph({a, lacks}, {lacks})); }),
           "GraphError: node 'lacks' calls 'no_such', which the library lacks");
  GraphNode sum = Call("sum", "add", {a, a});
  Graph done = clean(MakeGraph({a, sum}, {sum}));
  CHECK_EQ(Names(done->nodes), "sum");
}
