// SPDX-License-Identifier: Apache-2.0
// Modules of kind "cuda": PTX, a cubin, a fatbin, or source. The image is loaded into a GPU at the first call there.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/cuda_device.h"
#include "devices/kernel_module.h"
#include "devices/nvrtc.h"
#include "portcall/tensor.h"

namespace portcall::cuda {
namespace {

constexpr size_t kPortableCluster = 8;  // blocks of a cluster that every GPU with clusters takes

// A kernel on one GPU.
struct Loaded {
  Kernel kernel = nullptr;
  std::atomic<size_t> dynamic_shared{0};  // the most that was asked for
  std::atomic<bool> large_clusters{false};
  std::mutex mutex;
};

class CudaModuleNode : public devices::KernelModuleNode {
 public:
  using KernelModuleNode::KernelModuleNode;
  ~CudaModuleNode() override;

  const char* kind() const override { return "cuda"; }
  PackedFunc GetFunction(const std::string& name, const Module& self) override;

 private:
  Image LoadImage(int32_t index);
  Loaded* Load(const std::string& name, int32_t index);

  std::mutex mutex_;
  std::map<int32_t, Image> images_;
  std::map<std::pair<std::string, int32_t>, Loaded> loaded_;
};

CudaModuleNode::~CudaModuleNode() {
  for (auto [index, image] : images_) {
    (void)Guard([index = index, image = image] {
      Scope scope(index, Scope::kFree);
      Cu().cuCtxSynchronize();  // kernels of the image may run still
      Cu().cuModuleUnload(image);
    });
  }
}

// The GPU's own image. PTX ends with a NUL, which c_str() has.
Image CudaModuleNode::LoadImage(int32_t index) {
  auto found = images_.find(index);
  if (found != images_.end()) return found->second;
  const bool is_source = payload().format == "cuda";
  const std::string code = is_source ? CompileSource(payload().code, GpuAt(index).Capability("")) : payload().code;
  std::vector<char> log(16384);
  int options[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  Image image = nullptr;
  const Status status = Cu().cuModuleLoadDataEx(&image, code.c_str(), 2, options, values);
  PORTCALL_CHECK(status == kSuccess || !log[0], CompileError)
      << "the driver cannot load the module (" << payload().format << "):\n"
      << log.data();
  CheckStatus(status, "cuModuleLoadDataEx");
  images_.emplace(index, image);
  return image;
}

Loaded* CudaModuleNode::Load(const std::string& name, int32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  Image image = LoadImage(index);
  Loaded& loaded = loaded_[{name, index}];
  if (!loaded.kernel) PORTCALL_CU(cuModuleGetFunction, &loaded.kernel, image, name.c_str());
  return &loaded;
}

// ---- Launch ---------------------------------------------------------------------------------------------------------

// What a launch needs beyond what every kernel may have. Asked for once, and again for more.
void Permit(Loaded* loaded, const payload::Launch& launch) {
  if (launch.dynamic_shared > loaded->dynamic_shared.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> lock(loaded->mutex);  // a thread that wants less must not come last
    const size_t most = std::max(launch.dynamic_shared, loaded->dynamic_shared.load());
    PORTCALL_CU(cuFuncSetAttribute, loaded->kernel, kMaxDynamicShared, static_cast<int>(most));
    loaded->dynamic_shared.store(most, std::memory_order_relaxed);
  }
  const size_t* cluster = launch.extents + payload::Launch::kCluster;
  if (cluster[0] * cluster[1] * cluster[2] > kPortableCluster && !loaded->large_clusters.load()) {
    PORTCALL_CU(cuFuncSetAttribute, loaded->kernel, kNonPortableCluster, 1);
    loaded->large_clusters.store(true);
  }
}

struct Extents {
  Number of[payload::Launch::kExtents];

  explicit Extents(const payload::Launch& launch) {
    for (size_t i = 0; i < payload::Launch::kExtents; ++i) {
      PORTCALL_CHECK(launch.extents[i] <= UINT32_MAX, ValueError)
          << "a launch of " << launch.extents[i] << " blocks or threads (at most " << UINT32_MAX << ")";
      of[i] = static_cast<Number>(launch.extents[i]);
    }
  }
  const Number* grid() const { return of + payload::Launch::kGrid; }
  const Number* block() const { return of + payload::Launch::kBlock; }
};

bool HasAxis(const payload::Kernel& kernel, uint8_t first) {
  return std::any_of(kernel.axes.begin(), kernel.axes.end(),
                     [first](uint8_t axis) { return axis >= first && axis < first + 3; });
}

void LaunchPlain(Kernel kernel, const Extents& extents, size_t shared, cuda::Stream stream, void** arguments) {
  const Number *grid = extents.grid(), *block = extents.block();
  PORTCALL_CU(cuLaunchKernel, kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2],
              static_cast<Number>(shared), stream, arguments, nullptr);
}

void LaunchWithAttributes(const payload::Kernel& described, Kernel kernel, const Extents& extents, size_t shared,
                          cuda::Stream stream, void** arguments) {
  PORTCALL_CHECK(Cu().cuLaunchKernelEx, DeviceError)
      << "a cluster, cooperative or dependent launch needs a driver of CUDA 11.8 or later";
  std::vector<LaunchAttribute> attributes;
  auto add = [&](int id) -> LaunchAttribute& {
    attributes.emplace_back().id = id;
    return attributes.back();
  };
  for (auto [id, axis] : {std::pair(kClusterDimension, payload::Launch::kCluster),
                          std::pair(kPreferredCluster, payload::Launch::kPreferredCluster)}) {
    if (HasAxis(described, axis)) std::copy_n(extents.of + axis, 3, add(id).value.extents);
  }
  if (described.cooperative) add(kCooperative).value.on = 1;
  if (described.programmatic_dependent) add(kDependentLaunch).value.on = 1;
  LaunchConfig config{};
  std::copy_n(extents.grid(), 3, config.grid);
  std::copy_n(extents.block(), 3, config.block);
  config.dynamic_shared = static_cast<Number>(shared);
  config.stream = stream;
  config.attributes = attributes.data();
  config.attribute_count = static_cast<Number>(attributes.size());
  PORTCALL_CU(cuLaunchKernelEx, &config, kernel, arguments, nullptr);
}

void Launch(const payload::Kernel& described, Loaded* loaded, int32_t index, Args args) {
  const payload::Launch launch = payload::ReadLaunch(described, args);
  payload::ArgumentAddresses addresses(described, args);
  const Extents extents(launch);
  auto* stream = static_cast<cuda::Stream>(TVMFFIEnvGetStream(kDLCUDA, index));
  Permit(loaded, launch);
  if (described.cluster || described.cooperative || described.programmatic_dependent) {
    LaunchWithAttributes(described, loaded->kernel, extents, launch.dynamic_shared, stream, addresses.data());
  } else {
    LaunchPlain(loaded->kernel, extents, launch.dynamic_shared, stream, addresses.data());
  }
}

PackedFunc CudaModuleNode::GetFunction(const std::string& name, const Module& self) {
  const payload::Kernel* kernel = FindKernel(name);
  if (!kernel) return nullptr;
  // A slot for each GPU: a launch finds its kernel without a lock once it has been loaded.
  auto slots = std::make_shared<std::vector<std::atomic<Loaded*>>>(std::max<size_t>(GpuCount(), 1));
  return PackedFunc(
      [this, self, name, kernel, slots](Args args, RetValue*) {
        const int32_t index = CurrentGpu();
        Scope scope(index);
        std::atomic<Loaded*>& slot = slots->at(static_cast<size_t>(index));
        Loaded* loaded = slot.load(std::memory_order_acquire);
        if (!loaded) slot.store(loaded = Load(name, index), std::memory_order_release);
        Launch(*kernel, loaded, index, args);
      },
      name);
}

// ---- Tensor maps ----------------------------------------------------------------------------------------------------

constexpr int64_t kMaxRank = 5;

// CUtensorMapDataType of elements: whole numbers without a type there, and floats of a byte, are bytes there.
int ElementTypeOf(DLDataType type) {
  static constexpr struct {
    int code, bits, element;
  } kTypes[] = {{kDLUInt, 16, 1}, {kDLUInt, 32, 2},  {kDLInt, 32, 3},   {kDLUInt, 64, 4},  {kDLInt, 64, 5},
                {kDLInt, 16, 1},  {kDLFloat, 16, 6}, {kDLFloat, 32, 7}, {kDLFloat, 64, 8}, {kDLBfloat, 16, 9}};
  if (type.lanes == 1 && type.bits == 8) return 0;
  for (auto [code, bits, element] : kTypes) {
    if (type.code == code && type.bits == bits && type.lanes == 1) return element;
  }
  PORTCALL_THROW(ValueError) << "a tensor map of " << ToString(type) << ", which the driver has not";
}

// (map, dtype, rank, data, extents, strides in bytes but the first's 1 element, box, strides in elements, interleave,
// swizzle, promotion to L2, fill), each extent or stride a value, as the host code of TVM 0.21 and later calls it.
void EncodeTensorMap(Args args, RetValue*) {
  Scope scope(CurrentGpu());
  PORTCALL_CHECK(Cu().cuTensorMapEncodeTiled, DeviceError) << "tensor maps need a driver of CUDA 12.0 or later";
  const int64_t rank = args.size() > 3 ? args[2].cast<int64_t>() : 1;
  PORTCALL_CHECK(rank >= 1 && rank <= kMaxRank, ValueError)
      << "a tensor map of rank " << rank << " (must be 1 to " << kMaxRank << ")";
  const auto count = static_cast<int>(4 * rank + 7);
  if (args.size() != count) detail::ThrowCountError(args.function(), count, args.size());
  auto* map = args[0].cast<void*>();
  PORTCALL_CHECK(map && reinterpret_cast<uintptr_t>(map) % alignof(TensorMap) == 0, ValueError)
      << "a tensor map at " << map << " (must be a multiple of " << alignof(TensorMap) << ")";
  uint64_t extents[kMaxRank], strides[kMaxRank];
  Number box[kMaxRank], steps[kMaxRank];
  int next = 4;
  for (int64_t i = 0; i < rank; ++i) extents[i] = args[next++].cast<uint64_t>();
  for (int64_t i = 0; i < rank - 1; ++i) strides[i] = args[next++].cast<uint64_t>();
  for (int64_t i = 0; i < rank; ++i) box[i] = args[next++].cast<Number>();
  for (int64_t i = 0; i < rank; ++i) steps[i] = args[next++].cast<Number>();
  const int modes[] = {args[next].cast<int>(), args[next + 1].cast<int>(), args[next + 2].cast<int>(),
                       args[next + 3].cast<int>()};
  PORTCALL_CU(cuTensorMapEncodeTiled, static_cast<TensorMap*>(map), ElementTypeOf(args[1].cast<DLDataType>()),
              static_cast<Number>(rank), args[3].cast<void*>(), extents, strides, box, steps, modes[0], modes[1],
              modes[2], modes[3]);
}

PORTCALL_REGISTER_GLOBAL("runtime.cuTensorMapEncodeTiled").set_body(EncodeTensorMap);
PORTCALL_REGISTER_GLOBAL("portcall.CudaCompilerVersion").set_body_typed(CompilerVersion);
PORTCALL_REGISTER_GLOBAL("ffi.Module.load_from_bytes.cuda").set_body_typed([](Bytes bytes) {
  return Module(std::make_unique<CudaModuleNode>(payload::Decode(bytes.view())));
});

}  // namespace
}  // namespace portcall::cuda
