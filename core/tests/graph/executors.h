// SPDX-License-Identifier: Apache-2.0
// Kernels, tensors and graphs for the tests of executors.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "tests/check.h"
#include "tests/graph/plan_writer.h"
#include "tests/helpers.h"

namespace portcall::tests {

// A library of functions of this test.
class Kernels : public ModuleNode {
 public:
  explicit Kernels(std::map<std::string, PackedFunc> functions) : functions_(std::move(functions)) {}
  const char* kind() const override { return "library"; }
  PackedFunc GetFunction(const std::string& name, const Module&) override {
    auto it = functions_.find(name);
    return it == functions_.end() ? PackedFunc() : it->second;
  }
  std::vector<std::string> FunctionNames() override {
    std::vector<std::string> names;
    for (const auto& [name, function] : functions_) names.push_back(name);
    return names;
  }

 private:
  std::map<std::string, PackedFunc> functions_;
};

inline Module Library(std::map<std::string, PackedFunc> functions) {
  return Module(std::make_unique<Kernels>(std::move(functions)));
}

inline float* Data(const Tensor& tensor) { return static_cast<float*>(tensor.raw_data()); }

inline Tensor Filled(const std::vector<int64_t>& shape, float first) {
  Tensor tensor = Tensor::Empty(shape, kFloat32);
  for (size_t i = 0; i < tensor.numel(); ++i) Data(tensor)[i] = first + static_cast<float>(i);
  return tensor;
}

inline std::string Show(const Tensor& tensor) {
  std::string text;
  for (size_t i = 0; i < tensor.numel(); ++i) text += (i ? " " : "") + std::to_string(int(Data(tensor)[i]));
  return text;
}

inline PackedFunc AddTo() {  // out = a + b, by element
  return PackedFunc([](Args args, RetValue*) {
    Tensor a = args[0], b = args[1], out = args[2];
    CHECK_EQ(args.size(), 3);
    for (size_t i = 0; i < out.numel(); ++i) Data(out)[i] = Data(a)[i] + Data(b)[i];
  });
}

inline PackedFunc AddOne() {
  return PackedFunc([](Args args, RetValue*) {
    Tensor a = args[0], out = args[1];
    for (size_t i = 0; i < out.numel(); ++i) Data(out)[i] = Data(a)[i] + 1;
  });
}

inline Module Usual() { return Library({{"add", AddTo()}, {"add_one", AddOne()}}); }

template <typename... D> Module Create(const PlanWriter& plan, const Module& library, D... devices) {
  return Registry::Get("portcall.graph.create")(Bytes(plan.Encode()), library, devices...);
}

// A module's function, called.
template <typename... A> RetValue Do(const Module& module, const char* name, A&&... args) {
  PackedFunc function = module.GetFunction(name);
  CHECK(function.defined());
  return function(std::forward<A>(args)...);
}

template <typename... A> std::string Fails(const Module& module, const char* name, A... args) {
  return Thrown([&] { Do(module, name, args...); });
}

// y = (x + w) + 1, of three elements.
inline PlanWriter Sum() {
  PlanWriter plan;
  uint32_t x = plan.Input("x", {3}), w = plan.Input("w", {3});
  plan.heads = {plan.Call("add_one", {plan.Call("add", {x, w}, {3})}, {3})};
  return plan;
}

inline Module SumExecutor() { return Create(Sum(), Usual(), Cpu()); }

inline std::string States(const Module& module) {
  std::string text;
  auto states = Do(module, "get_input_states").cast<Bytes>();
  for (char state : states.view()) text += static_cast<char>('0' + state);
  return text;
}

inline std::vector<double> Doubles(const Bytes& bytes, size_t skip) {
  std::vector<double> numbers((bytes.size() - skip) / sizeof(double));
  std::memcpy(numbers.data(), bytes.data() + skip, bytes.size() - skip);
  return numbers;
}

inline Tensor OffBy(size_t bytes, const std::vector<int64_t>& shape) {  // a tensor at an address that is not aligned
  Tensor base = Tensor::Empty({4096}, {kDLUInt, 8, 1});
  DLTensor view = *base.dl_tensor();
  view.data = static_cast<char*>(view.data) + bytes;
  view.dtype = kFloat32;
  view.ndim = static_cast<int32_t>(shape.size());
  view.shape = const_cast<int64_t*>(shape.data());
  view.strides = nullptr;
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

inline Tensor Slice(const Tensor& base, uint64_t offset,
                    const std::vector<int64_t>& shape) {  // whose address has an offset
  DLTensor view = *base.dl_tensor();
  view.byte_offset += offset;
  view.ndim = static_cast<int32_t>(shape.size());
  view.shape = const_cast<int64_t*>(shape.data());
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

inline Tensor Strided(int64_t n) {  // every second of 2n elements: 0, 2, 4, …
  Tensor base = Filled({2 * n}, 0);
  DLTensor view = *base.dl_tensor();
  int64_t stride = 2;
  view.shape = &n;
  view.strides = &stride;
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(base.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

inline Tensor ReadOnly(const Tensor& tensor) {
  TVMFFIObjectHandle handle = nullptr;
  Retain(tensor.get());
  Check(PortcallTensorFromMemory(
      tensor.dl_tensor(), DLPACK_FLAG_BITMASK_READ_ONLY, tensor.get(),
      [](void* owner) { Release(static_cast<TVMFFIObject*>(owner)); }, &handle));
  return ObjectRef::Steal<Tensor>(handle);
}

}  // namespace portcall::tests
