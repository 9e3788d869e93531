// SPDX-License-Identifier: Apache-2.0
#include "portcall/graph_ir.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace portcall::graph_ir {

void TensorTypeObj::Describe(Description<TensorTypeObj>* type) {
  type->doc("What a value of a graph is: shape, type of its elements, kind of device.");
  type->field("shape", &TensorTypeObj::shape);
  type->field("dtype", &TensorTypeObj::dtype).set_default(DLDataType{kDLFloat, 32, 1});
  type->field("device_type", &TensorTypeObj::device_type, "of DLPack; 0: the graph's first device").set_default(0);
}

void GraphNodeObj::Describe(Description<GraphNodeObj>* type) {
  auto nothing = [] { return Array<Any>(std::vector<Any>()); };
  type->doc("A placeholder, which is a parameter if it has data, or a call of a kernel.");
  type->compare_as(kTVMFFISEqHashKindDAGNode);
  type->field("name", &GraphNodeObj::name);
  type->field("op", &GraphNodeObj::op, "'null' for a placeholder, 'tvm_op' for a call").set_default(kPlaceholder);
  type->field("function", &GraphNodeObj::function, "the kernel").set_default("");
  type->field("inputs", &GraphNodeObj::inputs, "what it reads").set_default_factory(nothing);
  type->field("outputs", &GraphNodeObj::outputs, "what it makes").set_default_factory(nothing);
  type->field("attrs", &GraphNodeObj::attrs, "what else is known of it").set_default_factory([] {
    return Map<String, String>(std::vector<std::pair<String, String>>());
  });
  type->field("data", &GraphNodeObj::data, "of a parameter").set_default(nullptr);
  type->field("control_deps", &GraphNodeObj::control_deps, "nodes that run before").set_default_factory(nothing);
}

void ValueObj::Describe(Description<ValueObj>* type) {
  type->doc("One output of a node.");
  type->field("node", &ValueObj::node);
  type->field("index", &ValueObj::index).set_default(0);
}

void GraphObj::Describe(Description<GraphObj>* type) {
  auto nothing = [] { return Map<String, Any>(std::vector<std::pair<String, Any>>()); };
  type->doc("A graph of kernels.");
  type->field("inputs", &GraphObj::inputs, "the placeholders, parameters too");
  type->field("nodes", &GraphObj::nodes, "all, in the order of execution");
  type->field("outputs", &GraphObj::outputs, "the results");
  type->field("attrs", &GraphObj::attrs, "what else is known of it").set_default_factory(nothing);
  type->field("value_attrs", &GraphObj::value_attrs, "what is known of each output of each node")
      .set_default_factory(nothing);
}

namespace {

PORTCALL_REGISTER_OBJECT(TensorTypeObj);
PORTCALL_REGISTER_OBJECT(GraphNodeObj);
PORTCALL_REGISTER_OBJECT(ValueObj);
PORTCALL_REGISTER_OBJECT(GraphObj);

std::string Quoted(const String& name) { return "'" + name.str() + "'"; }

std::string Describe(const TensorType& type) {
  return ToString(type->dtype) + " " + ToString(type->shape) +
         (type->device_type ? " on devices of type " + std::to_string(type->device_type) : "");
}

// Runs `body`. What it throws, GraphErrors, has the name of the node with it: `.node` in Python.
template <typename F> void AtNode(const GraphNode& node, F body) {
  try {
    body();
  } catch (const Error& error) {
    if (!node.defined()) throw;
    throw Error(error.kind(), error.message(), error.backtrace(), nullptr,
                Array<Any>{"portcall.GraphError", node->name});
  }
}

// Checks a graph node by node, in the order of execution.
class Validator {
 public:
  explicit Validator(const Graph& graph) : graph_(graph) {}

  void Run() {
    PORTCALL_CHECK(graph_.defined(), TypeError) << "expected a graph, got None";
    for (const GraphNode& node : graph_->nodes) {
      AtNode(node, [&] { Check(node); });
      ++number_;
    }
    for (const GraphNode& node : graph_->inputs) AtNode(node, [&] { CheckInput(node); });
    for (const GraphNode& node : graph_->nodes) AtNode(node, [&] { CheckListed(node); });
    PORTCALL_CHECK(!graph_->outputs.empty(), GraphError) << "the graph has no results";
    for (const Value& value : graph_->outputs) {
      AtNode(value.defined() ? value->node : nullptr, [&] { CheckValue(value, "a result of the graph"); });
    }
  }

 private:
  std::string Here(const GraphNode& node) const {
    return "node number " + std::to_string(number_) + ", " + Quoted(node->name) + ",";
  }

  void Check(const GraphNode& node) {
    PORTCALL_CHECK(node.defined(), GraphError) << "node number " << number_ << " is None";
    PORTCALL_CHECK(places_.emplace(node.get(), number_).second, GraphError)
        << Here(node) << " is in the list a second time";
    PORTCALL_CHECK(!node->name.view().empty(), GraphError) << Here(node) << " needs a name";
    for (const TensorType& type : node->outputs) {
      PORTCALL_CHECK(type.defined(), GraphError) << Here(node) << " has an output without a type";
      PORTCALL_CHECK(std::all_of(type->shape.begin(), type->shape.end(), [](int64_t n) { return n >= 0; }), GraphError)
          << Here(node) << " has an output of shape " << ToString(type->shape) << "; extents are 0 or more";
    }
    if (node->op.view() == kPlaceholder) return CheckPlaceholder(node);
    PORTCALL_CHECK(node->op.view() == kCall, GraphError)
        << Here(node) << " has the op " << Quoted(node->op) << ", which is neither '" << kPlaceholder << "' nor '"
        << kCall << "'";
    PORTCALL_CHECK(!node->function.view().empty(), GraphError) << Here(node) << " is a call of no function";
    PORTCALL_CHECK(!node->data.defined(), GraphError) << Here(node) << " has data, which only parameters have";
    for (const Value& value : node->inputs) CheckValue(value, "what " + Here(node) + " reads");
    for (const GraphNode& before : node->control_deps) {
      PORTCALL_CHECK(before.defined() && places_.count(before.get()), GraphError)
          << Here(node) << " is to run after " << (before.defined() ? Quoted(before->name) : "None")
          << ", which does not come before it";
    }
    if (node->function.view() == kNop || node->function.view() == kCopy) CheckBuiltIn(node);
  }

  void CheckPlaceholder(const GraphNode& node) {
    PORTCALL_CHECK(names_.insert(node->name.str()).second, GraphError)
        << Here(node) << " has the name of another placeholder; inputs are set by name";
    PORTCALL_CHECK(node->inputs.empty() && node->function.view().empty(), GraphError)
        << Here(node) << " is a placeholder, and cannot read anything or call a function";
    PORTCALL_CHECK(node->outputs.size() == 1, GraphError)
        << Here(node) << " is a placeholder, which has one output, not " << node->outputs.size();
    if (!node->data.defined()) return;
    TensorType type = node->outputs[0];
    Shape shape(node->data.dl_tensor()->shape, static_cast<size_t>(node->data.ndim()));
    PORTCALL_CHECK(node->data.dtype() == type->dtype &&
                       std::equal(shape.begin(), shape.end(), type->shape.begin(), type->shape.end()),
                   GraphError)
        << Here(node) << " is of type " << Describe(type) << ", but its data of " << ToString(node->data.dtype()) << " "
        << ToString(shape);
  }

  void CheckBuiltIn(const GraphNode& node) {
    PORTCALL_CHECK(node->inputs.size() == 1 && node->outputs.size() == 1, GraphError)
        << Here(node) << " calls " << node->function.view() << ", which has one input and one output, not "
        << node->inputs.size() << " and " << node->outputs.size();
    TensorType from = TypeOf(node->inputs[0]), to = node->outputs[0];
    PORTCALL_CHECK(NumBytes(from) == NumBytes(to), GraphError)
        << Here(node) << " calls " << node->function.view() << " with " << Describe(from) << " for " << Describe(to)
        << "; both must be of one size";
  }

  void CheckInput(const GraphNode& node) {
    PORTCALL_CHECK(node.defined() && places_.count(node.get()), GraphError)
        << "the input " << (node.defined() ? Quoted(node->name) : "None") << " is not among the nodes";
    PORTCALL_CHECK(node->op.view() == kPlaceholder, GraphError)
        << "the input " << Quoted(node->name) << " is a call, not a placeholder";
    PORTCALL_CHECK(inputs_.insert(node.get()).second, GraphError)
        << "the input " << Quoted(node->name) << " is in the list a second time";
  }

  void CheckListed(const GraphNode& node) {
    PORTCALL_CHECK(node->op.view() != kPlaceholder || inputs_.count(node.get()), GraphError)
        << "the placeholder " << Quoted(node->name) << " is not among the inputs";
  }

  void CheckValue(const Value& value, const std::string& what) {
    PORTCALL_CHECK(value.defined() && value->node.defined(), GraphError) << what << " is None";
    const GraphNode& node = value->node;
    PORTCALL_CHECK(places_.count(node.get()), GraphError)
        << what << ", an output of " << Quoted(node->name) << ", is not made before";
    PORTCALL_CHECK(value->index >= 0 && static_cast<size_t>(value->index) < node->outputs.size(), GraphError)
        << what << " is output " << value->index << " of " << Quoted(node->name) << ", which has "
        << node->outputs.size();
  }

  static TensorType TypeOf(const Value& value) { return value->node->outputs[static_cast<size_t>(value->index)]; }
  static double NumBytes(const TensorType& type) {  // of any shape, without overflow
    double bits = type->dtype.bits * type->dtype.lanes;
    for (int64_t extent : type->shape) bits *= static_cast<double>(extent);
    return bits;
  }

  const Graph& graph_;
  int64_t number_ = 0;
  std::unordered_map<const TVMFFIObject*, int64_t> places_;
  std::unordered_set<const TVMFFIObject*> inputs_;
  std::unordered_set<std::string> names_;  // of placeholders
};

// A graph like this one with other nodes.
Graph WithNodes(const Graph& graph, const std::vector<GraphNode>& inputs, const std::vector<GraphNode>& nodes,
                const std::vector<Value>& outputs) {
  Graph made = Make<Graph>();
  made->inputs = Array<GraphNode>(inputs);
  made->nodes = Array<GraphNode>(nodes);
  made->outputs = Array<Value>(outputs);
  made->attrs = graph->attrs;
  made->value_attrs = Map<String, Any>(std::vector<std::pair<String, Any>>());
  return made;
}

// Replaces calls by parameters, in the order of execution.
class Folder {
 public:
  Folder(const Graph& graph, const Module& library) : graph_(graph), library_(library) {
    for (const GraphNode& node : graph->inputs) {
      inputs_.push_back(node);
      names_.insert(node->name.str());
    }
  }

  Graph Run() {
    bool changed = false;
    for (const GraphNode& node : graph_->nodes) {
      GraphNode now = WithNewInputs(node);
      if (IsConstant(now)) {
        changed = true;
        Fold(node, now);
      } else {
        nodes_.push_back(now);
        if (!now.same_as(node)) renewed_.emplace(node.get(), now);
      }
    }
    if (!changed) return graph_;
    std::vector<Value> outputs;
    for (const Value& value : graph_->outputs) outputs.push_back(NewValue(value));
    return WithNodes(graph_, inputs_, nodes_, outputs);
  }

 private:
  Value NewValue(const Value& value) const {
    auto folded = folded_.find(value->node.get());
    if (folded != folded_.end()) return {folded->second[static_cast<size_t>(value->index)], 0};
    auto renewed = renewed_.find(value->node.get());
    return renewed == renewed_.end() ? value : Value(renewed->second, value->index);
  }

  GraphNode WithNewInputs(GraphNode node) {
    std::vector<Value> inputs;
    std::vector<GraphNode> deps;
    bool same = true;
    for (const Value& value : node->inputs) {
      inputs.push_back(NewValue(value));
      same &= inputs.back().same_as(value);
    }
    for (const GraphNode& dep : node->control_deps) {
      auto renewed = renewed_.find(dep.get());
      same &= renewed == renewed_.end() && !folded_.count(dep.get());
      if (!folded_.count(dep.get())) deps.push_back(renewed == renewed_.end() ? dep : renewed->second);
    }
    if (same) return node;
    GraphNodeObj* copy = CopyOnWrite(&node);
    copy->inputs = Array<Value>(inputs);
    copy->control_deps = Array<GraphNode>(deps);
    return node;
  }

  static bool IsConstant(const GraphNode& node) {
    if (node->op.view() != kCall || node->function.view() == kCopy || node->outputs.empty()) return false;
    for (const TensorType& type : node->outputs) {
      if (type->device_type != 0 && type->device_type != kDLCPU) return false;
    }
    return !node->inputs.empty() && std::all_of(node->inputs.begin(), node->inputs.end(),
                                                [](const Value& value) { return value->node.is_parameter(); });
  }

  void Fold(const GraphNode& before, const GraphNode& node) {
    std::vector<Tensor> results;
    for (const TensorType& type : node->outputs) {
      results.push_back(Tensor::Empty({type->shape.begin(), type->shape.end()}, type->dtype));
    }
    try {
      Compute(node, results);
    } catch (const Error& error) {
      error.AddNote("at node '" + node->name.str() + "' of the graph");
      throw;
    }
    std::vector<GraphNode>& made = folded_[before.get()];
    for (size_t i = 0; i < results.size(); ++i) {
      GraphNode parameter = Make<GraphNode>();
      parameter->name = FreeName(node->name.str() + (results.size() == 1 ? "" : "_" + std::to_string(i)));
      parameter->op = kPlaceholder;
      parameter->inputs = Array<Value>(std::vector<Value>());
      parameter->outputs = Array<TensorType>{node->outputs[i]};
      parameter->attrs = Map<String, String>(std::vector<std::pair<String, String>>());
      parameter->data = results[i];
      parameter->control_deps = Array<GraphNode>(std::vector<GraphNode>());
      made.push_back(parameter);
      nodes_.push_back(parameter);
      inputs_.push_back(parameter);
    }
  }

  // The name of the call, which is gone, if no other placeholder has it.
  std::string FreeName(const std::string& name) {
    std::string free = name;
    for (int i = 1; !names_.insert(free).second; ++i) free = name + "_" + std::to_string(i);
    return free;
  }

  void Compute(const GraphNode& node, const std::vector<Tensor>& results) {
    std::vector<Tensor> tensors;
    for (const Value& value : node->inputs) tensors.push_back(OnHost(value->node->data));
    if (node->function.view() == kNop) {
      DLTensor flat = *tensors[0].dl_tensor();  // of the shape of the result, which is as large
      flat.shape = results[0].dl_tensor()->shape;
      flat.strides = results[0].dl_tensor()->strides;
      flat.ndim = results[0].ndim();
      flat.dtype = results[0].dtype();
      return results[0].CopyFrom(flat);
    }
    PackedFunc kernel = library_.GetFunction(node->function.str(), true);
    AtNode(node, [&] {
      PORTCALL_CHECK(kernel.defined(), GraphError)
          << "node '" << node->name.view() << "' calls '" << node->function.view() << "', which the library lacks";
    });
    tensors.insert(tensors.end(), results.begin(), results.end());
    std::vector<DLTensor> flat;
    std::vector<int64_t> extents;
    flat.reserve(tensors.size());
    extents.reserve(tensors.size());
    std::vector<Any> args;
    const bool flatten = node->attrs.find("flatten_data").value_or("0").view() == "1";
    for (const Tensor& tensor : tensors) {
      if (!flatten) {
        args.emplace_back(tensor);
        continue;
      }
      extents.push_back(static_cast<int64_t>(tensor.numel()));
      flat.push_back(*tensor.dl_tensor());
      flat.back().ndim = 1;
      flat.back().shape = &extents.back();
      flat.back().strides = nullptr;
      args.emplace_back(&flat.back());
    }
    kernel.CallPacked(reinterpret_cast<const TVMFFIAny*>(args.data()), static_cast<int32_t>(args.size()));
  }

  // As compiled kernels want it: compact, aligned, in the host's memory.
  static Tensor OnHost(const Tensor& tensor) {
    const bool aligned = reinterpret_cast<uintptr_t>(tensor.raw_data()) % kTensorAlignment == 0;
    if (tensor.device().device_type == kDLCPU && tensor.is_contiguous() && aligned) return tensor;
    const DLTensor& dl = *tensor.dl_tensor();
    Tensor copy = Tensor::Empty({dl.shape, dl.shape + dl.ndim}, dl.dtype);
    copy.CopyFrom(tensor);
    return copy;
  }

  const Graph& graph_;
  const Module& library_;
  std::unordered_map<const TVMFFIObject*, std::vector<GraphNode>>
      folded_;                                                  // parameters in the place of a call's outputs
  std::unordered_map<const TVMFFIObject*, GraphNode> renewed_;  // nodes whose inputs were replaced
  std::vector<GraphNode> nodes_, inputs_;
  std::unordered_set<std::string> names_;  // of placeholders
};

Graph WithoutDeadCode(const Graph& graph) {
  PORTCALL_CHECK(graph.defined(), TypeError) << "expected a graph, got None";
  std::unordered_set<const TVMFFIObject*> needed;
  for (const Value& value : graph->outputs) needed.insert(value->node.get());
  std::vector<GraphNode> nodes = graph->nodes.vector(), inputs = graph->inputs.vector();
  for (size_t i = nodes.size(); i-- > 0;) {  // what needs a node comes behind it
    const GraphNode& node = nodes[i];
    const bool stays = node->op.view() == kPlaceholder ? !node->data.defined() : node->outputs.empty();
    if (!stays && !needed.count(node.get())) continue;
    needed.insert(node.get());
    for (const Value& value : node->inputs) needed.insert(value->node.get());
    for (const GraphNode& dep : node->control_deps) needed.insert(dep.get());
  }
  auto is_dead = [&](const GraphNode& node) { return !needed.count(node.get()); };
  const size_t before = nodes.size();
  nodes.erase(std::remove_if(nodes.begin(), nodes.end(), is_dead), nodes.end());
  inputs.erase(std::remove_if(inputs.begin(), inputs.end(), is_dead), inputs.end());
  return nodes.size() == before ? graph : WithNodes(graph, inputs, nodes, graph->outputs.vector());
}

PORTCALL_REGISTER_GLOBAL("portcall.graph.validate").set_body_typed([](Graph graph) {
  Validator(graph).Run();
  return graph;
});
PORTCALL_REGISTER_GLOBAL("portcall.graph.remove_dead_code").set_body_typed(WithoutDeadCode);
PORTCALL_REGISTER_GLOBAL("portcall.graph.fold_constants").set_body_typed([](Graph graph) {
  auto library = ir::PassContext::Current().Setting("library").try_cast<Module>();
  PORTCALL_CHECK(library && library->defined(), ValueError)
      << "folding constants takes the kernels' library: run it in a PassContext with config={'library': library}";
  PORTCALL_CHECK(graph.defined(), TypeError) << "expected a graph, got None";
  return Folder(graph, *library).Run();
});

}  // namespace
}  // namespace portcall::graph_ir
