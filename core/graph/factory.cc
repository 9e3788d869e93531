// SPDX-License-Identifier: Apache-2.0
#include "graph/factory.h"

#include <memory>
#include <mutex>

#include "graph/bundle.h"
#include "graph/executor.h"
#include "loader/mapped_file.h"
#include "runtime/tensor_view.h"

namespace portcall::graph {
namespace {

[[noreturn]] void ThrowValueError(std::initializer_list<Piece> why) { throw Error("ValueError", Join(why)); }

// A tensor that kernels can use where it is.
Tensor Aligned(const Tensor& tensor) {
  bool aligned = reinterpret_cast<uintptr_t>(tensor.raw_data()) % kTensorAlignment == 0 && tensor.is_contiguous();
  return aligned || tensor.device().device_type != kDLCPU ? tensor : CompactCopy(tensor, Cpu());
}

class FactoryNode : public ModuleNode {
 public:
  explicit FactoryNode(Factory factory) : factory_(std::move(factory)) {
    DecodePlan(factory_.plan);
    std::vector<Any> cells;
    for (const auto& [name, tensor] : factory_.params) {
      cells.push_back(name);
      cells.push_back(Any(Aligned(tensor.cast<Tensor>())));
    }
    factory_.params = MakeTensors(cells);
  }

  const char* kind() const override { return "GraphExecutorFactory"; }
  std::string EntryName() override { return factory_.name; }
  std::vector<std::string> FunctionNames() override {
    std::vector<std::string> names{factory_.name};
    for (const Function& function : kFunctions) names.push_back(std::string(function.name));
    return names;
  }

  PackedFunc GetFunction(const std::string& name, const Module& self) override {
    Body body = name == factory_.name ? &FactoryNode::Create : nullptr;
    for (const Function& function : kFunctions) {
      if (!body && name == function.name) body = function.body;
    }
    if (!body) return nullptr;
    return PackedFunc([this, self, body](Args args, RetValue* rv) { (this->*body)(self, args, rv); }, name);
  }

 private:
  using Body = void (FactoryNode::*)(const Module& self, Args args, RetValue* rv);
  struct Function {
    const char* name;
    Body body;
  };
  static const Function kFunctions[5];

  // The parameters on a device that is not the host, for as long as an executor uses them.
  struct Copies {
    Device device;
    std::vector<WeakRef> tensors;
  };

  void Create(const Module& self, Args args, RetValue* rv) { *rv = MakeExecutor(self, args, 0); }

  // Every executor can do what TVM's debug executor does.
  void DebugCreate(const Module& self, Args args, RetValue* rv) {
    auto name = args[0].cast<std::string>();
    if (name != factory_.name) {
      ThrowValueError({"this library has one graph, '", factory_.name, "', not '", name, "'"});
    }
    *rv = MakeExecutor(self, args, 1);
  }
  void GetJson(const Module&, Args, RetValue* rv) { *rv = factory_.json; }
  void GetParams(const Module&, Args, RetValue* rv) { *rv = factory_.params; }
  void GetBlob(const Module&, Args, RetValue* rv) { *rv = Bytes(WriteParams(factory_.params)); }
  void RemoveParams(const Module& self, Args, RetValue* rv) {
    *rv = MakeFactory({factory_.name, factory_.json, factory_.plan, MakeTensors({})}, Kernels(self));
  }

  Module Kernels(const Module& self) const {
    auto imports = Registry::Get("ffi.ModuleImports")(self).cast<Array<Any>>();
    if (imports.empty()) {
      ThrowValueError({"the graph '", factory_.name, "' has no kernels: let its factory import their library"});
    }
    return imports[0].cast<Module>();
  }

  // The devices are the arguments from `first` on.
  Module MakeExecutor(const Module& self, Args args, int first) {
    Any plan{factory_.plan}, kernels{Kernels(self)};
    std::vector<TVMFFIAny> cells{plan.cell(), kernels.cell()};
    cells.insert(cells.end(), args.cells() + first, args.cells() + args.size());
    if (cells.size() == 2) ThrowValueError({args.function(), " takes the device to run on"});
    auto made = Registry::Get("portcall.graph.create")
                    .CallPacked(cells.data(), static_cast<int32_t>(cells.size()))
                    .cast<Module>();
    auto* executor = static_cast<Executor*>(static_cast<ModuleNode*>(PortcallModuleGetNode(made.get())));
    Executor::Inside inside(executor);
    size_t i = 0;
    for (const auto& [name, tensor] : factory_.params) {
      int64_t input = executor->FindInput(name.cast<std::string_view>());
      if (input >= 0) {  // others are ignored, as by load_params
        auto index = static_cast<size_t>(input);
        executor->SetParam(index, On(executor->InputDevice(index), i, tensor.cast<Tensor>()));
      }
      ++i;
    }
    return made;
  }

  Tensor On(Device device, size_t param, const Tensor& tensor) {
    if (device.device_type == kDLCPU || tensor.device() == device) return tensor;
    std::lock_guard<std::mutex> lock(mutex_);
    size_t at = 0;
    while (at < copies_.size() && !(copies_[at].device == device)) ++at;
    if (at == copies_.size()) copies_.push_back({device, std::vector<WeakRef>(factory_.params.size())});
    WeakRef& known = copies_[at].tensors[param];
    if (ObjectRef copy = known.lock()) return ObjectRef::Borrow<Tensor>(copy.get());
    Tensor copy = CompactCopy(tensor, device);
    known = WeakRef(copy);
    return copy;
  }

  Factory factory_;
  std::mutex mutex_;
  std::vector<Copies> copies_;
};

const FactoryNode::Function FactoryNode::kFunctions[5] = {{"debug_create", &FactoryNode::DebugCreate},
                                                          {"get_graph_json", &FactoryNode::GetJson},
                                                          {"get_graph_params", &FactoryNode::GetParams},
                                                          {"get_graph_params_blob", &FactoryNode::GetBlob},
                                                          {"remove_params", &FactoryNode::RemoveParams}};

// ---- Where factories come from --------------------------------------------------------------------------------------

// A file as one tensor, which owns the mapping and cannot be written to.
Tensor MapFile(const std::string& path) {
  auto file = std::make_unique<loader::MappedFile>(path);
  auto size = static_cast<int64_t>(file->size());
  DLTensor bytes{const_cast<char*>(file->At<char>(0)), Cpu(), 1, {kDLUInt, 8, 1}, &size, nullptr, 0};
  TVMFFIObjectHandle handle = nullptr;
  auto release = [](void* owner) { delete static_cast<loader::MappedFile*>(owner); };
  Check(PortcallTensorFromMemory(&bytes, DLPACK_FLAG_BITMASK_READ_ONLY, file.get(), release, &handle));
  (void)file.release();
  return ObjectRef::Steal<Tensor>(handle);
}

// Tensors over the memory of `owner`, or with their own memory where it is null.
Tensors TensorsOf(const std::vector<Param>& params, const Tensor& owner) {
  std::vector<Any> cells;
  for (const Param& param : params) {
    Tensor tensor;
    if (owner.defined()) {
      tensor = ViewInto(owner, param.View(), DLPACK_FLAG_BITMASK_READ_ONLY);
    } else {
      tensor = param.Copy();
    }
    cells.push_back(Any(String(param.name)));
    cells.push_back(Any(std::move(tensor)));
  }
  return MakeTensors(cells);
}

// The functions below take the places of those in loader/plugins.cc, which open this library.

// (path or bytes as a tensor, where the index begins, its size, the library in front of it)
[[maybe_unused]] const Registry open_bundle =
    Registry::Register("portcall.OpenBundle", true).set_body([](Args args, RetValue* rv) {
      bool read = args[0].type_index() == kTVMFFITensor;
      Tensor file = read ? args[0].cast<Tensor>() : MapFile(args[0].cast<std::string>());
      auto index_offset = args[1].cast<int64_t>(), index_bytes = args[2].cast<int64_t>();
      if (index_offset + index_bytes > file.dl_tensor()->shape[0])
        ThrowGraphError({"the file was cut while it was read"});
      std::string_view bytes(static_cast<const char*>(file.raw_data()),
                             static_cast<size_t>(index_offset + index_bytes));
      BundleIndex index = ReadBundleIndex(bytes, static_cast<size_t>(index_bytes));
      *rv = MakeFactory({std::string(index.name), index.json, Bytes(index.plan), TensorsOf(index.params, file)},
                        args[3].cast<Module>());
    });

// (plan, kernels or None, graph JSON, parameters by name or as a blob, name)
[[maybe_unused]] const Registry create_factory =
    Registry::Register("portcall.graph.create_factory", true).set_body([](Args args, RetValue* rv) {
      std::optional<std::string_view> blob = TryBytes(args[3].cell());
      *rv = MakeFactory({args[4].cast<std::string>(), args[2].cast<String>(), args[0].cast<Bytes>(),
                         blob ? TensorsOf(ReadParams(*blob), nullptr) : args[3].cast<Tensors>()},
                        args[1].cast<Module>());
    });

}  // namespace

Module MakeFactory(Factory factory, const Module& kernels) {
  Module made(std::make_unique<FactoryNode>(std::move(factory)));
  if (kernels.defined()) made.Import(kernels);
  return made;
}

}  // namespace portcall::graph
