// SPDX-License-Identifier: Apache-2.0
// Functions that clients and tuners of TVM look up on a server by name, and that the core does not have.
#include <random>

#include "portcall/module.h"
#include "portcall/tensor.h"
#include "session/files.h"
#include "session/graph_json.h"

namespace portcall::session {
namespace {

constexpr double kLow = 1, kHigh = 10;  // of random elements: positive, so that quantized kernels have work to do

// IEEE half precision of a number from 1 to 10, rounded toward zero.
uint16_t HalfOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(((bits >> 23) - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
}

template <typename T, typename Convert> void Fill(void* data, size_t n, std::minstd_rand* random, Convert convert) {
  std::uniform_real_distribution<float> draw(kLow, kHigh);
  for (size_t i = 0; i < n; ++i) static_cast<T*>(data)[i] = convert(draw(*random));
}

template <typename T> void FillWithNumbers(void* data, size_t n, std::minstd_rand* random) {
  Fill<T>(data, n, random, [](float value) { return static_cast<T>(value); });
}

void FillElements(DLDataType dtype, void* data, size_t n, std::minstd_rand* random) {
  const int kind = dtype.code * 1000 + dtype.bits;
  n *= dtype.lanes;
  if (dtype.code == kDLBool) return static_cast<void>(std::memset(data, 1, n));
  if (kind == kDLFloat * 1000 + 64) return FillWithNumbers<double>(data, n, random);
  if (kind == kDLFloat * 1000 + 32) return FillWithNumbers<float>(data, n, random);
  if (kind == kDLFloat * 1000 + 16) return Fill<uint16_t>(data, n, random, HalfOf);
  if (kind == kDLBfloat * 1000 + 16) {
    return Fill<uint16_t>(data, n, random, [](float value) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      return static_cast<uint16_t>(bits >> 16);
    });
  }
  PORTCALL_CHECK(dtype.code == kDLInt || dtype.code == kDLUInt, TypeError)
      << "random_fill cannot fill elements of " << ToString(dtype);
  if (dtype.bits == 64) return FillWithNumbers<int64_t>(data, n, random);
  if (dtype.bits == 32) return FillWithNumbers<int32_t>(data, n, random);
  if (dtype.bits == 16) return FillWithNumbers<int16_t>(data, n, random);
  if (dtype.bits == 8) return FillWithNumbers<int8_t>(data, n, random);
  PORTCALL_THROW(TypeError) << "random_fill cannot fill elements of " << ToString(dtype);
}

void RandomFill(Tensor tensor) {
  static std::minstd_rand random{std::random_device()()};
  Tensor host = Tensor::Empty(tensor.shape(), tensor.dtype());
  FillElements(tensor.dtype(), host.raw_data(), host.numel(), &random);
  tensor.CopyFrom(host);
}

bool RuntimeEnabled(std::string name) {
  if (name == "cpu" || name == "rpc") return true;
  for (const char* other : {"llvm", "stackvm", "tflite", "micro"}) {
    if (name == other) return false;
  }
  int kind = 0;
  if (name == "cuda") kind = kDLCUDA;
  if (name == "opencl") kind = kDLOpenCL;
  if (name == "metal") kind = kDLMetal;
  if (name == "vulkan") kind = kDLVulkan;
  if (name == "rocm") kind = kDLROCM;
  if (name == "hexagon") kind = kDLHexagon;
  if (name == "webgpu") kind = kDLWebGPU;
  if (name == "ext_dev") kind = kDLExtDev;
  PORTCALL_CHECK(kind, ValueError) << "unknown runtime '" << name << "'";
  return Registry::GetRequired("runtime.GetDeviceAttr")(kind, 0, 0).cast<bool>();
}

// The executor of a graph as JSON: a library, perhaps a function that finds weights, device types and ids in turn.
void CreateExecutor(Args args, RetValue* rv) {
  constexpr int64_t kSessionMask = 128;  // TVM adds multiples of it to types of devices of a session
  std::vector<Any> given = {Bytes(PlanOfGraph(args[0].cast<std::string>()))};
  for (int i = 1; i < args.size(); ++i) {
    const std::optional<int64_t> number = args[i].try_cast<int64_t>();
    given.push_back(args[i].cast<Any>());
    if (number && (args.size() - i) % 2 == 0) given.back() = *number % kSessionMask;
  }
  *rv = Registry::GetRequired("portcall.graph.create")
            .CallPacked(reinterpret_cast<const TVMFFIAny*>(given.data()), static_cast<int32_t>(given.size()));
}

template <typename F> void Offer(const char* name, F body) {
  if (!Registry::Get(name).defined()) Registry::Set(name, PackedFunc(std::move(body), name));
}
template <typename F> void OfferTyped(const char* name, F body) { Offer(name, detail::Unpack(std::move(body))); }

}  // namespace

void RegisterStandardNames() {
  Offer("ffi.Shape", [](Args args, RetValue* rv) {
    std::vector<int64_t> extents;
    for (int i = 0; i < args.size(); ++i) extents.push_back(args[i].cast<int64_t>());
    *rv = Shape(extents);
  });
  OfferTyped("ffi.String", [](std::string text) { return text; });
  OfferTyped("rpc.testing.GetShapeSize", [](Shape shape) { return static_cast<int64_t>(shape.size()); });
  OfferTyped("rpc.testing.GetShapeElem", [](Shape shape, int64_t index) {
    PORTCALL_CHECK(index >= 0 && static_cast<size_t>(index) < shape.size(), IndexError)
        << "index " << index << " is out of bounds";
    return shape[static_cast<size_t>(index)];
  });
  Offer("runtime.SystemLib", [](Args args, RetValue* rv) {
    *rv = Registry::GetRequired("ffi.SystemLib")(args.size() ? args[0].cast<std::string>() : std::string());
  });
  for (const char* name : {"tvm.graph_executor.create", "tvm.graph_executor_debug.create", "tvm.graph_runtime.create",
                           "tvm.graph_runtime_debug.create"}) {
    Offer(name, CreateExecutor);
  }
  OfferTyped("runtime.RuntimeEnabled", RuntimeEnabled);
  OfferTyped("ffi.ModuleGetTypeKind", [](Module module) { return module.kind(); });
  OfferTyped("runtime.TVMTensorCopyFromTo", [](Tensor from, Tensor to) { to.CopyFrom(from); });
  OfferTyped("tvm.contrib.random.random_fill", RandomFill);
  OfferTyped("tvm.contrib.random.random_fill_for_measure", RandomFill);
}

}  // namespace portcall::session
