// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "fuzz/targets.h"
#include "portcall/portcall.h"

using namespace portcall;

namespace {

// Stands for a kernel: reads and writes each tensor as its description says.
void Kernel(Args args, RetValue*) {
  for (int i = 0; i < args.size(); ++i) {
    std::optional<TensorView> tensor = args[i].try_cast<TensorView>();
    if (!tensor) continue;
    if (reinterpret_cast<uintptr_t>(tensor->raw_data()) % kTensorAlignment != 0) continue;
    if (i + 1 == args.size() && tensor->numel()) std::memset(tensor->raw_data(), 1, tensor->nbytes());
    volatile uint8_t sum = 0;
    for (size_t at = 0; at < tensor->nbytes(); ++at) sum = sum + static_cast<uint8_t*>(tensor->raw_data())[at];
  }
}

// Has every function that is not the runtime's own.
class AnyLibrary : public ModuleNode {
 public:
  const char* kind() const override { return "library"; }
  PackedFunc GetFunction(const std::string& name, const Module&) override {
    return Registry::Get(name).defined() ? PackedFunc() : PackedFunc(Kernel, name);
  }
};

// So many calls at most: a function that calls itself twice would not end.
constexpr int kMostCalls = 2000;

void RunAll(const Module& executable) {
  executable["as_text"]();
  executable["describe"]();
  auto machine = executable["vm_load_executable"]().cast<Module>();
  machine["vm_initialization"](1, 0, 2);
  int calls = 0;
  machine["set_instrument"](
      PackedFunc([&](Args, RetValue*) { PORTCALL_CHECK(++calls < kMostCalls, TimeoutError) << "enough"; }));
  Tensor tensor = Tensor::Empty({4}, DataTypeOf<float>());
  std::memset(tensor.raw_data(), 0, tensor.nbytes());
  for (const std::string& name : machine.FunctionNames()) {
    for (const Any& value : {Any(tensor), Any(1), Any(Array<Any>{tensor, Array<Any>{tensor, tensor}})}) {
      std::vector<Any> args(machine["get_function_arity"](name).cast<size_t>(), value);
      try {
        calls = 0;
        machine[name].CallPacked(reinterpret_cast<const TVMFFIAny*>(args.data()), static_cast<int32_t>(args.size()));
      } catch (const Error&) {
        // Any error will do; the next call must work all the same.
      }
    }
  }
  machine["set_instrument"](nullptr);
}

}  // namespace

void FuzzVmExecutable(const uint8_t* data, size_t size) {
  try {
    std::string bytes(reinterpret_cast<const char*>(data), size);
    auto executable =
        Registry::GetRequired("ffi.Module.load_from_bytes.relax.VMExecutable")(Bytes(bytes)).cast<Module>();
    executable.Import(Module(std::make_unique<AnyLibrary>()));
    RunAll(executable);
  } catch (const Error& error) {
    bool expected = error.kind() == "ModuleLoadError" || error.kind() == "FunctionNotFoundError";
    if (!expected) __builtin_trap();
  }
  Registry::Get("vm.builtin.memory_manager.clear")();
}
