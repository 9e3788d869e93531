// SPDX-License-Identifier: Apache-2.0
// Functions that clients and tuners of TVM look up on a server by name, and that the core does not have.
#include <algorithm>
#include <cstring>
#include <random>

#include "portcall/module.h"
#include "portcall/tensor.h"
#include "session/files.h"
#include "session/graph_json.h"

namespace portcall::session {
namespace {

constexpr float kLow = 1, kHigh = 10;  // of random elements: positive, so that quantized kernels have work to do
constexpr size_t kDistinct = 1 << 16;  // elements of random_fill_for_measure before they repeat

// Floats that C++ does not have.
struct SmallFloat {
  int code, bits, mantissa, bias;
};
constexpr SmallFloat kSmallFloats[] = {
    {kDLFloat, 16, 10, 15},        {kDLBfloat, 16, 7, 127},           {kDLFloat8_e3m4, 8, 4, 3},
    {kDLFloat8_e4m3, 8, 3, 7},     {kDLFloat8_e4m3b11fnuz, 8, 3, 11}, {kDLFloat8_e4m3fn, 8, 3, 7},
    {kDLFloat8_e4m3fnuz, 8, 3, 8}, {kDLFloat8_e5m2, 8, 2, 15},        {kDLFloat8_e5m2fnuz, 8, 2, 16},
    {kDLFloat8_e8m0fnu, 8, 0, 127}};

template <typename T, typename Convert> void Fill(void* data, size_t n, Convert convert) {
  static std::minstd_rand random{std::random_device()()};
  std::uniform_real_distribution<float> draw(kLow, kHigh);
  for (size_t i = 0; i < n; ++i) static_cast<T*>(data)[i] = convert(draw(random));
}

template <typename T> void FillWithNumbers(void* data, size_t n) {
  Fill<T>(data, n, [](float value) { return static_cast<T>(value); });
}

template <typename T> void FillWithSmallFloats(const SmallFloat& type, void* data, size_t n) {
  Fill<T>(data, n, [&](float value) {  // a number from 1 to 10, rounded toward zero
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return static_cast<T>(((bits >> 23) - 127 + type.bias) << type.mantissa |
                          (bits >> (23 - type.mantissa) & ((1u << type.mantissa) - 1)));
  });
}

void FillElements(DLDataType dtype, void* data, size_t n) {
  const int bits = dtype.bits;
  if (dtype.code == kDLBool) return static_cast<void>(std::memset(data, 1, n));
  if (dtype.code == kDLFloat && bits == 64) return FillWithNumbers<double>(data, n);
  if (dtype.code == kDLFloat && bits == 32) return FillWithNumbers<float>(data, n);
  for (const SmallFloat& type : kSmallFloats) {
    if (dtype.code != type.code || bits != type.bits) continue;
    return bits == 16 ? FillWithSmallFloats<uint16_t>(type, data, n) : FillWithSmallFloats<uint8_t>(type, data, n);
  }
  const bool integers = dtype.code == kDLInt || dtype.code == kDLUInt;
  if (integers && bits == 64) return FillWithNumbers<int64_t>(data, n);
  if (integers && bits == 32) return FillWithNumbers<int32_t>(data, n);
  if (integers && bits == 16) return FillWithNumbers<int16_t>(data, n);
  if (integers && bits == 8) return FillWithNumbers<int8_t>(data, n);
  PORTCALL_THROW(TypeError) << "random_fill cannot fill elements of " << ToString(dtype);
}

// Fills a tensor with random numbers, of which so many at the most are distinct.
void RandomFill(const Tensor& tensor, size_t distinct) {
  Tensor host = Tensor::Empty(tensor.shape(), tensor.dtype());
  const size_t n = static_cast<size_t>(host.numel()) * tensor.dtype().lanes, drawn = std::min(n, distinct);
  auto* data = static_cast<char*>(host.raw_data());
  FillElements(tensor.dtype(), data, drawn);
  const size_t all = host.nbytes(), first = n ? all / n * drawn : 0;
  for (size_t done = first; done < all; done += first) std::memcpy(data + done, data, std::min(first, all - done));
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
  for (const char* name : {"tvm.graph_executor.create", "tvm.graph_executor_debug.create", "tvm.graph_runtime.create",
                           "tvm.graph_runtime_debug.create"}) {
    Offer(name, CreateExecutor);
  }
  OfferTyped("runtime.RuntimeEnabled", RuntimeEnabled);
  OfferTyped("ffi.ModuleGetTypeKind", [](Module module) { return module.kind(); });
  OfferTyped("runtime.TVMTensorCopyFromTo", [](Tensor from, Tensor to) { to.CopyFrom(from); });
  OfferTyped("tvm.contrib.random.random_fill", [](Tensor tensor) { RandomFill(tensor, SIZE_MAX); });
  OfferTyped("tvm.contrib.random.random_fill_for_measure", [](Tensor tensor) { RandomFill(tensor, kDistinct); });
}

}  // namespace portcall::session
