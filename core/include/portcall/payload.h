// SPDX-License-Identifier: Apache-2.0
// The modules of device kernels that TVM's compilers embed in libraries, kinds "opencl", "cuda" and "hip", for plug-ins
// that run them: what the payload holds, and how the arguments of a call become those of a launch.
//
//   payload  text format, then a count of kernels, each (text key, INFO), then text code
//   INFO     text name, list of argument types (code u8, bits u8, lanes u16), list of launch parameters (text), and since
//            TVM 0.21 a list of u32, one an argument: 1 is a tensor map
//
// A text is a u64 length and its bytes, a list a u64 count and its items; numbers are little-endian. The bytes do not say
// whether the last list is in them: it is where it has a number for each argument and the reading ends with the bytes.
// core/loader/embedded.cc and src/portcall/inspect/_kernels.py read the same layout; a test compares all three.
#ifndef PORTCALL_PAYLOAD_H_
#define PORTCALL_PAYLOAD_H_

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "function.h"
#include "tensor.h"

namespace portcall::payload {

// How a kernel takes an argument, which is 64 bits in its cell.
enum class Argument : uint8_t {
  kBuffer,     // the pointer in the cell
  kWord64,     // the cell's bits: int64, float64
  kInt32,      // their lower half: int32, uint32
  kFloat32,    // the cell's double, rounded
  kTensorMap,  // 128 bytes, which the pointer in the cell points to
};

struct Kernel {
  std::vector<Argument> arguments;
  std::vector<uint8_t> axes;  // value i of a launch sets Launch::extents[axes[i]]
  uint32_t work_dim = 1;      // the highest axis that is named, and 1
  bool dynamic_shared = false;
  bool cooperative = false;
  bool programmatic_dependent = false;
  bool cluster = false;
  std::string unsupported;  // why it cannot be launched; empty: it can
};

struct Payload {
  std::string format;  // "cl", "cuda", "ptx", "cubin", …: what `code` is
  std::string code;
  std::map<std::string, Kernel> kernels;
};

// The extents of a launch and its bytes of dynamic shared memory.
struct Launch {
  enum : uint8_t { kGrid = 0, kBlock = 3, kCluster = 6, kPreferredCluster = 9, kExtents = 12 };
  size_t extents[kExtents] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};  // x, y, z of each
  size_t dynamic_shared = 0;
};

namespace detail {

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T> T Take() {
    T value;
    std::memcpy(&value, Bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view Bytes(uint64_t n) {
    PORTCALL_CHECK(n <= bytes_.size(), ModuleLoadError)
        << "the module of kernels is damaged: a length goes past the end";
    std::string_view part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }
  std::string_view Text() { return Bytes(Take<uint64_t>()); }
  bool done() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

inline void AddArgument(Kernel* kernel, DLDataType type) {
  const bool whole = type.code == kDLInt || type.code == kDLUInt, real = type.code == kDLFloat;
  Argument argument = Argument::kBuffer;
  if (type.lanes == 1 && type.bits == 64 && (whole || real)) {
    argument = Argument::kWord64;
  } else if (type.lanes == 1 && type.bits == 32 && (whole || real)) {
    argument = whole ? Argument::kInt32 : Argument::kFloat32;
  } else if (type.lanes != 1 || type.code != kDLOpaqueHandle) {
    kernel->unsupported = "it takes an argument of type (" + std::to_string(type.code) + ", " +
                          std::to_string(type.bits) + ", " + std::to_string(type.lanes) + "), which no launch passes";
  }
  kernel->arguments.push_back(argument);
}

inline void AddLaunchParameter(Kernel* kernel, std::string_view name) {
  static constexpr std::pair<std::string_view, uint8_t> kAxes[] = {
      {"blockIdx.", Launch::kGrid},
      {"threadIdx.", Launch::kBlock},
      {"clusterCtaIdx.", Launch::kCluster},
      {"preferredClusterCtaIdx.", Launch::kPreferredCluster}};
  for (auto [prefix, first] : kAxes) {
    auto axis = static_cast<uint8_t>(name.size() == prefix.size() + 1 ? name.back() - 'x' : 3);
    if (name.substr(0, prefix.size()) != prefix || axis > 2) continue;
    kernel->axes.push_back(static_cast<uint8_t>(first + axis));
    if (first <= Launch::kBlock) kernel->work_dim = std::max<uint32_t>(kernel->work_dim, axis + 1u);
    kernel->cluster = kernel->cluster || first == Launch::kCluster;
    return;
  }
  std::string_view tag = name.substr(name.find('.') + 1);  // after "tir." or "tirx."
  if (tag == "use_dyn_shared_memory") {
    kernel->dynamic_shared = true;  // its value is the last one
  } else if (tag == "use_cooperative_launch") {
    kernel->cooperative = true;
  } else if (tag == "use_programtic_dependent_launch") {  // sic
    kernel->programmatic_dependent = true;
  } else {
    kernel->unsupported = "its launch parameter '" + std::string(name) + "' is unknown";
  }
}

inline Payload Decode(std::string_view bytes, bool with_tags) {
  Reader reader(bytes);
  Payload payload;
  payload.format = reader.Text();
  for (auto n = reader.Take<uint64_t>(); n > 0; --n) {
    std::string name(reader.Text());
    reader.Text();  // the name once more
    Kernel kernel;
    for (auto m = reader.Take<uint64_t>(); m > 0; --m) AddArgument(&kernel, reader.Take<DLDataType>());
    for (auto m = reader.Take<uint64_t>(); m > 0; --m) AddLaunchParameter(&kernel, reader.Text());
    PORTCALL_CHECK(!with_tags || reader.Take<uint64_t>() == kernel.arguments.size(), ModuleLoadError)
        << "the module of kernels is damaged: the tags are not as many as the arguments";
    for (Argument& argument : kernel.arguments) {
      if (with_tags && reader.Take<uint32_t>()) argument = Argument::kTensorMap;
    }
    payload.kernels.emplace(std::move(name), std::move(kernel));
  }
  payload.code = reader.Text();
  PORTCALL_CHECK(reader.done(), ModuleLoadError) << "the module of kernels is damaged: bytes follow its end";
  return payload;
}

}  // namespace detail

// Throws a ModuleLoadError for damaged bytes. A kernel that cannot be launched is no damage: CheckLaunchable says so.
inline Payload Decode(std::string_view bytes) {
  try {
    return detail::Decode(bytes, true);
  } catch (const Error&) {
    return detail::Decode(bytes, false);
  }
}

// Throws a DeviceError for a kernel that cannot be launched.
inline void CheckLaunchable(const Kernel& kernel, std::string_view name) {
  PORTCALL_CHECK(kernel.unsupported.empty(), DeviceError)
      << "the kernel '" << name << "' cannot be launched: " << kernel.unsupported;
}

// The launch that the values after the kernel's arguments describe. An extent of 0, of a dynamic shape, counts as 1.
// Throws what CheckLaunchable does.
inline Launch ReadLaunch(const Kernel& kernel, Args args) {
  CheckLaunchable(kernel, args.function());
  const size_t count = kernel.arguments.size() + kernel.axes.size() + kernel.dynamic_shared;
  if (static_cast<size_t>(args.size()) != count) {
    portcall::detail::ThrowCountError(args.function(), static_cast<int>(count), args.size());
  }
  const TVMFFIAny* values = args.cells() + kernel.arguments.size();
  Launch launch;
  for (size_t i = 0; i < kernel.axes.size(); ++i) {
    if (values[i].v_int64 > 0) launch.extents[kernel.axes[i]] = static_cast<size_t>(values[i].v_int64);
  }
  if (kernel.dynamic_shared) launch.dynamic_shared = static_cast<size_t>(values[kernel.axes.size()].v_int64);
  return launch;
}

// The bytes of a launch's arguments, and where each begins. A tensor stands for its data.
class ArgumentAddresses {
 public:
  ArgumentAddresses(const Kernel& kernel, Args args) {
    const size_t count = kernel.arguments.size();
    if (count > kInline) {
      more_values_.resize(count);
      more_addresses_.resize(count);
      values_ = more_values_.data();
      addresses_ = more_addresses_.data();
    }
    for (size_t i = 0; i < count; ++i) {
      addresses_[i] = &values_[i];
      values_[i] = BitsOf(kernel.arguments[i], args, static_cast<int>(i));
      if (kernel.arguments[i] == Argument::kTensorMap) addresses_[i] = args.cells()[i].v_ptr;
    }
  }
  ArgumentAddresses(const ArgumentAddresses&) = delete;
  ArgumentAddresses& operator=(const ArgumentAddresses&) = delete;

  static bool IsNarrow(const Kernel& kernel, size_t i) {
    return kernel.arguments[i] == Argument::kInt32 || kernel.arguments[i] == Argument::kFloat32;
  }
  void** data() { return addresses_; }

 private:
  static constexpr size_t kInline = 32;  // no memory is asked for up to here

  static uint64_t BitsOf(Argument argument, Args args, int i) {
    ArgValue value = args[i];
    switch (argument) {
      case Argument::kInt32:
        return static_cast<uint32_t>(value.cast<int64_t>());
      case Argument::kFloat32: {
        auto rounded = static_cast<float>(value.cast<double>());
        uint32_t bits = 0;
        std::memcpy(&bits, &rounded, sizeof(bits));
        return bits;
      }
      case Argument::kWord64:
        return value.type_index() == kTVMFFIFloat ? value.cell().v_uint64
                                                  : static_cast<uint64_t>(value.cast<int64_t>());
      case Argument::kTensorMap:
        PORTCALL_CHECK(value.cast<void*>(), ValueError)
            << args.function() << "(): argument #" << i << " is no tensor map";
        return 0;
      case Argument::kBuffer:
        break;
    }
    const DLTensor* tensor = TryDLTensor(value.cell());
    return tensor ? reinterpret_cast<uint64_t>(tensor->data) + tensor->byte_offset
                  : reinterpret_cast<uint64_t>(value.cast<void*>());
  }

  uint64_t inline_values_[kInline];
  void* inline_addresses_[kInline];
  uint64_t* values_ = inline_values_;
  void** addresses_ = inline_addresses_;
  std::vector<uint64_t> more_values_;
  std::vector<void*> more_addresses_;
};

}  // namespace portcall::payload
#endif  // PORTCALL_PAYLOAD_H_
