// SPDX-License-Identifier: Apache-2.0
#include "graph/factory.h"

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "graph/bundle.h"
#include "graph/executor.h"
#include "src/mapped_file.h"

namespace portcall::graph {
namespace {

Tensor NewLike(const Tensor& tensor, Device device) {
  const DLTensor& dl = *tensor.dl_tensor();
  Tensor made = Tensor::Empty(std::vector<int64_t>(dl.shape, dl.shape + dl.ndim), dl.dtype, device);
  made.CopyFrom(tensor);
  return made;
}

bool IsUsableInPlace(const Tensor& tensor) {
  return tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.raw_data()) % kTensorAlignment == 0;
}

class FactoryNode : public ModuleNode {
 public:
  explicit FactoryNode(Factory factory) : factory_(std::move(factory)) {
    DecodePlan(factory_.plan);
    for (auto& [name, tensor] : factory_.params) {
      if (tensor.device().device_type == kDLCPU && !IsUsableInPlace(tensor)) tensor = NewLike(tensor, Cpu());
    }
  }

  const char* kind() const override { return "GraphExecutorFactory"; }
  std::string EntryName() override { return factory_.name; }
  std::vector<std::string> FunctionNames() override {
    return {factory_.name,      "debug_create",          "get_graph_json",
            "get_graph_params", "get_graph_params_blob", "remove_params"};
  }

  PackedFunc GetFunction(const std::string& name, const Module& self) override {
    using Body = void (FactoryNode::*)(const Module& self, Args args, RetValue* rv);
    static constexpr std::pair<const char*, Body> kFunctions[] = {{"debug_create", &FactoryNode::DebugCreate},
                                                                  {"get_graph_json", &FactoryNode::GetJson},
                                                                  {"get_graph_params", &FactoryNode::GetParams},
                                                                  {"get_graph_params_blob", &FactoryNode::GetBlob},
                                                                  {"remove_params", &FactoryNode::RemoveParams}};
    Body found = name == factory_.name ? &FactoryNode::Create : nullptr;
    for (const auto& [known, body] : kFunctions) {
      if (!found && name == known) found = body;
    }
    if (!found) return nullptr;
    return PackedFunc([this, self, found](Args args, RetValue* rv) { (this->*found)(self, args, rv); }, name);
  }

 private:
  void Create(const Module& self, Args args, RetValue* rv) { *rv = MakeExecutor(self, args, 0); }

  // Every executor can do what TVM's debug executor does.
  void DebugCreate(const Module& self, Args args, RetValue* rv) {
    auto name = args[0].cast<std::string>();
    PORTCALL_CHECK(name == factory_.name, ValueError)
        << "this library has one graph, '" << factory_.name << "', and none of the name '" << name << "'";
    *rv = MakeExecutor(self, args, 1);
  }
  void GetJson(const Module&, Args, RetValue* rv) { *rv = factory_.json; }
  void GetParams(const Module&, Args, RetValue* rv) { *rv = Map<std::string, Tensor>(factory_.params); }
  void GetBlob(const Module&, Args, RetValue* rv) { *rv = Bytes(WriteParams(factory_.params)); }
  void RemoveParams(const Module& self, Args, RetValue* rv) {
    *rv = MakeFactory({factory_.name, factory_.json, factory_.plan, {}}, Kernels(self));
  }

  Module Kernels(const Module& self) const {
    std::vector<Module> imports = self.imports();
    PORTCALL_CHECK(!imports.empty(), ValueError)
        << "the graph '" << factory_.name << "' has no kernels: let its factory import their library";
    return imports[0];
  }

  // The devices are the arguments from `first` on.
  Module MakeExecutor(const Module& self, Args args, int first) {
    Any plan{Bytes(factory_.plan)}, kernels{Kernels(self)};
    std::vector<TVMFFIAny> cells{plan.cell(), kernels.cell()};
    cells.insert(cells.end(), args.cells() + first, args.cells() + args.size());
    PORTCALL_CHECK(cells.size() > 2, ValueError) << args.function() << " takes the device to run on";
    Module made = Registry::Get("portcall.graph.create")
                      .CallPacked(cells.data(), static_cast<int32_t>(cells.size()))
                      .cast<Module>();
    auto* executor = static_cast<Executor*>(static_cast<ModuleNode*>(PortcallModuleGetNode(made.get())));
    Executor::Inside inside(executor);
    for (const auto& [name, tensor] : factory_.params) {
      int64_t found = executor->FindInput(name);
      if (found < 0) continue;  // as with load_params
      auto input = static_cast<size_t>(found);
      executor->SetParam(input, On(executor->InputDevice(input), name, tensor));
    }
    return made;
  }

  // The one copy on a device that all executors there use, for as long as one of them is alive.
  Tensor On(Device device, const std::string& name, const Tensor& tensor) {
    if (device.device_type == kDLCPU || tensor.device() == device) return tensor;
    std::lock_guard<std::mutex> lock(mutex_);
    WeakRef& known = copies_[{name, device.device_type, device.device_id}];
    if (ObjectRef copy = known.lock()) return ObjectRef::Borrow<Tensor>(copy.get());
    Tensor copy = NewLike(tensor, device);
    known = WeakRef(copy);
    return copy;
  }

  Factory factory_;
  std::mutex mutex_;
  std::map<std::tuple<std::string, int, int>, WeakRef> copies_;
};

// ---- Bundles --------------------------------------------------------------------------------------------------------

// The file stays mapped for as long as a parameter in it is used.
Tensor InPlace(const std::shared_ptr<MappedFile>& file, const Param& param) {
  DLTensor description = param.View();
  auto owner = std::make_unique<std::shared_ptr<MappedFile>>(file);
  auto release = [](void* held) { delete static_cast<std::shared_ptr<MappedFile>*>(held); };
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallTensorFromMemory(&description, DLPACK_FLAG_BITMASK_READ_ONLY, owner.get(), release, &handle));
  owner.release();
  return ObjectRef::Steal<Tensor>(handle);
}

Module OpenBundle(const std::string& path, uint64_t index_offset, uint64_t index_bytes, const Module& kernels) {
  auto file = std::make_shared<MappedFile>(path);
  const char* start = file->At<char>(0, index_offset + index_bytes);
  PORTCALL_CHECK(start, GraphError) << "the file was cut while it was read";
  BundleIndex index = ReadBundleIndex({start, index_offset + index_bytes}, index_bytes);
  Factory factory{std::string(index.name), std::string(index.json), Bytes(index.plan), {}};
  for (const Param& param : index.params) factory.params.emplace_back(param.name, InPlace(file, param));
  return MakeFactory(std::move(factory), kernels);
}

Tensors TensorsOf(const ArgValue& params) {
  Tensors tensors;
  if (std::optional<std::string_view> blob = TryBytes(params.cell())) {
    for (const Param& param : ReadParams(*blob)) tensors.emplace_back(param.name, param.Copy());
  } else {
    tensors = params.cast<Map<std::string, Tensor>>().items();
  }
  return tensors;
}

PORTCALL_REGISTER_GLOBAL("portcall.OpenBundle").set_body_typed(OpenBundle);
PORTCALL_REGISTER_GLOBAL("portcall.graph.create_factory").set_body([](Args args, RetValue* rv) {
  if (args.size() != 5) detail::ThrowCountError(args.function(), 5, args.size());
  *rv =
      MakeFactory({args[4].cast<std::string>(), args[2].cast<std::string>(), args[0].cast<Bytes>(), TensorsOf(args[3])},
                  args[1].cast<Module>());
});

}  // namespace

Module MakeFactory(Factory factory, const Module& kernels) {
  Module made(std::make_unique<FactoryNode>(std::move(factory)));
  if (kernels.defined()) made.Import(kernels);
  return made;
}

}  // namespace portcall::graph
