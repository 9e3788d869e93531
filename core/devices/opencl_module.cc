// SPDX-License-Identifier: Apache-2.0
// Modules of kind "opencl": source, or a binary. Kernels are built when they are first called on a device.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/binary_cache.h"
#include "devices/kernel_module.h"
#include "devices/opencl_device.h"

namespace portcall::opencl {
namespace {

// A kernel on one device.
struct Built {
  Program program = nullptr;
  Kernel kernel = nullptr;
  std::mutex mutex;  // a kernel's arguments are its state
};

class ClModuleNode : public devices::KernelModuleNode {
 public:
  using KernelModuleNode::KernelModuleNode;
  ~ClModuleNode() override {
    for (auto& [key, built] : built_) {
      Cl().ReleaseKernel(built->kernel);
      Cl().ReleaseProgram(built->program);
    }
  }

  const char* kind() const override { return "opencl"; }
  PackedFunc GetFunction(const std::string& name, const Module& self) override;

 private:
  std::string SourceOf(const std::string& name) const;
  Program BuildFromSource(const std::string& name, const ClDevice& device) const;
  Program MakeProgram(const std::string& name, const ClDevice& device) const;
  Built* Build(const std::string& name, int32_t index);
  std::vector<bool> ImageArguments(const std::string& name, size_t count) const;

  std::mutex mutex_;
  std::map<std::pair<std::string, int32_t>, std::unique_ptr<Built>> built_;
};

// A line "// Function: NAME" stands before each kernel with all that it needs, since TVM 0.8. Older source is one part.
std::string ClModuleNode::SourceOf(const std::string& name) const {
  const std::string mark = "// Function: ", line = mark + name + "\n";
  size_t begin = payload().code.find(line);
  if (begin == std::string::npos) return payload().code;
  begin += line.size();
  return payload().code.substr(begin, payload().code.find(mark, begin) - begin);
}

// Which of the kernel's arguments are images; empty where the module holds a binary, which does not say.
std::vector<bool> ClModuleNode::ImageArguments(const std::string& name, size_t count) const {
  if (payload().format != "cl") return {};
  std::vector<bool> images(count);
  const std::string code = SourceOf(name);
  size_t begin = code.find("void " + name + "(");
  const size_t end = std::min(code.find(')', begin), code.size());
  for (size_t i = 0; i < count && begin < end; ++i) {
    const size_t comma = std::min(code.find(',', begin), end);
    const std::string argument = code.substr(begin, comma - begin);
    PORTCALL_CHECK(argument.find("image2d_t") == argument.npos, ModuleLoadError)
        << "the kernel '" << name
        << "' takes an image without layers (image2d_t), as early releases of TVM wrote them; "
        << "compile it by a release that writes image2d_array_t";
    images[i] = argument.find("image2d_") != argument.npos;
    begin = comma + 1;
  }
  return images;
}

// Null where the driver refuses it.
Program ProgramOfBinary(const ClDevice& device, const std::string& binary) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  const DeviceId id = device.id();
  Status status = kSuccess;
  Program program = Cl().CreateProgramWithBinary(device.context(), 1, &id, &size, &bytes, nullptr, &status);
  if (status != kSuccess) return nullptr;
  if (Cl().BuildProgram(program, 1, &id, "", nullptr, nullptr) == kSuccess) return program;
  Cl().ReleaseProgram(program);
  return nullptr;
}

// Empty where the driver does not give it.
std::string BinaryOf(Program program) {
  size_t size = 0;
  if (Cl().GetProgramInfo(program, kBinarySizes, sizeof(size), &size, nullptr) != kSuccess) return {};
  std::string binary(size, '\0');
  char* data = binary.data();
  if (Cl().GetProgramInfo(program, kBinaries, sizeof(data), static_cast<void*>(&data), nullptr) != kSuccess) return {};
  return binary;
}

Program ClModuleNode::BuildFromSource(const std::string& name, const ClDevice& device) const {
  const std::string code = SourceOf(name),
                    key = devices::CacheKey({"opencl", device.Text(kVendor), device.Text(kName), device.Text(kVersion),
                                             device.Text(kDriverVersion), code});
  const std::string binary = devices::FindBinary(key);
  if (Program program = binary.empty() ? nullptr : ProgramOfBinary(device, binary)) return program;
  const char* text = code.data();
  const size_t size = code.size();
  const DeviceId id = device.id();
  Status status = kSuccess;
  Program program = Cl().CreateProgramWithSource(device.context(), 1, &text, &size, &status);
  CheckStatus(status, "clCreateProgramWithSource");
  if (Cl().BuildProgram(program, 1, &id, "", nullptr, nullptr) == kSuccess) {
    devices::KeepBinary(key, BinaryOf(program));
    return program;
  }
  size_t length = 0;
  Cl().GetProgramBuildInfo(program, id, kBuildLog, 0, nullptr, &length);
  std::string log(length, '\0');
  Cl().GetProgramBuildInfo(program, id, kBuildLog, length, log.data(), nullptr);
  Cl().ReleaseProgram(program);
  PORTCALL_THROW(CompileError) << "the OpenCL driver cannot build the kernel '" << name << "' for "
                               << device.Text(kName) << ":\n"
                               << (length > 1 ? log.c_str() : "it does not say why");
}

Program ClModuleNode::MakeProgram(const std::string& name, const ClDevice& device) const {
  if (payload().format == "cl") return BuildFromSource(name, device);
  Program program = ProgramOfBinary(device, payload().code);
  PORTCALL_CHECK(program, CompileError) << "the OpenCL driver refuses the binary (" << payload().format
                                        << ") of the kernel '" << name << "' for " << device.Text(kName);
  return program;
}

Built* ClModuleNode::Build(const std::string& name, int32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = built_.find({name, index});
  if (found != built_.end()) return found->second.get();
  auto built = std::make_unique<Built>();
  built->program = MakeProgram(name, DeviceAt(index));
  Status status = kSuccess;
  built->kernel = Cl().CreateKernel(built->program, name.c_str(), &status);
  if (status != kSuccess) Cl().ReleaseProgram(built->program);
  CheckStatus(status, "clCreateKernel");
  return built_.emplace(std::pair(name, index), std::move(built)).first->second.get();
}

// An image in place of a buffer, or the reverse, crashes drivers.
void CheckImages(const payload::Kernel& kernel, const std::vector<bool>& images, Args args, void** addresses) {
  for (size_t i = 0; i < images.size(); ++i) {
    if (kernel.arguments[i] != payload::Argument::kBuffer) continue;
    const bool given = IsImage(*static_cast<void**>(addresses[i]));
    PORTCALL_CHECK(given == images[i], ValueError)
        << args.function() << "(): argument #" << i << " must be " << (images[i] ? "an image" : "a buffer")
        << "; the memory scopes global.texture… make images";
  }
}

void Launch(const payload::Kernel& kernel, const std::vector<bool>& images, Built* built, int32_t index, Args args) {
  payload::Launch launch = payload::ReadLaunch(kernel, args);
  payload::ArgumentAddresses addresses(kernel, args);
  CheckImages(kernel, images, args, addresses.data());
  size_t* local = launch.extents + payload::Launch::kBlock;
  for (int i = 0; i < 3; ++i) launch.extents[i] *= local[i];  // OpenCL counts work items, not groups
  Queue queue = QueueOf(index, TVMFFIEnvGetStream(kDLOpenCL, index));
  std::lock_guard<std::mutex> lock(built->mutex);
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    const bool buffer = kernel.arguments[i] == payload::Argument::kBuffer;
    const size_t size = payload::ArgumentAddresses::IsNarrow(kernel, i) ? 4 : buffer ? sizeof(Memory) : 8;
    PORTCALL_CL(SetKernelArg, built->kernel, static_cast<Number>(i), size, addresses.data()[i]);
  }
  Timed timed;
  PORTCALL_CL(EnqueueNDRangeKernel, queue, built->kernel, kernel.work_dim, nullptr, launch.extents, local, 0, nullptr,
              timed.out());
}

PackedFunc ClModuleNode::GetFunction(const std::string& name, const Module& self) {
  const payload::Kernel* kernel = FindKernel(name);
  if (!kernel) return nullptr;
  PORTCALL_CHECK(!kernel->dynamic_shared, ModuleLoadError)
      << "the kernel '" << name << "' uses dynamic shared memory (scope shared.dyn), which TVM's OpenCL code makes "
      << "private to each thread: its results would be wrong; compile it with the scope 'shared'";
  const std::vector<bool> images = ImageArguments(name, kernel->arguments.size());
  // A slot for each device: a launch finds its kernel without a lock once it has been built.
  auto slots = std::make_shared<std::vector<std::atomic<Built*>>>(std::max<size_t>(DeviceCount(), 1));
  return PackedFunc(
      [this, self, name, kernel, images, slots](Args args, RetValue*) {
        const int32_t index = CurrentDevice();
        DeviceAt(index);
        std::atomic<Built*>& slot = (*slots)[static_cast<size_t>(index)];
        Built* built = slot.load(std::memory_order_acquire);
        if (!built) slot.store(built = Build(name, index), std::memory_order_release);
        Launch(*kernel, images, built, index, args);
      },
      name);
}

PORTCALL_REGISTER_GLOBAL("ffi.Module.load_from_bytes.opencl").set_body_typed([](Bytes bytes) {
  return Module(std::make_unique<ClModuleNode>(payload::Decode(bytes.view())));
});

}  // namespace
}  // namespace portcall::opencl
