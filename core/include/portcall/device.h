// SPDX-License-Identifier: Apache-2.0
// Device: (kind, index) on this machine. A kind is plugged in by registering a PortcallDeviceAPI (c_api.h).
#ifndef PORTCALL_DEVICE_H_
#define PORTCALL_DEVICE_H_

#include <string>

#include "value.h"

// Where the compiler looks for operators of types that C declares: outside of any namespace.
inline bool operator==(const DLDevice& a, const DLDevice& b) noexcept {
  return a.device_type == b.device_type && a.device_id == b.device_id;
}
inline bool operator!=(const DLDevice& a, const DLDevice& b) noexcept { return !(a == b); }

namespace portcall {

using Device = DLDevice;

inline Device Cpu(int32_t index = 0) noexcept { return {kDLCPU, index}; }

// The table of a kind; throws DeviceError when nothing registered it.
inline const PortcallDeviceAPI& DeviceApiOf(Device device) {
  const PortcallDeviceAPI* api = nullptr;
  Check(PORTCALL_CALL(PortcallDeviceGetAPI)(device.device_type, &api));
  return *api;
}

// A registration at load time: `static DeviceRegistration reg(kDLExtDev, table);`
class DeviceRegistration {
 public:
  DeviceRegistration(int32_t device_type, const PortcallDeviceAPI& api) {
    CheckAtLoad(PORTCALL_CALL(PortcallDeviceRegister)(device_type, &api));
  }
};

// "cpu", "cuda", …; "device(<n>)" for a kind without a name.
inline std::string DeviceKindName(int32_t device_type) {
  switch (device_type) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return "cuda";
    case kDLCUDAHost:
      return "cuda_host";
    case kDLOpenCL:
      return "opencl";
    case kDLVulkan:
      return "vulkan";
    case kDLMetal:
      return "metal";
    case kDLVPI:
      return "vpi";
    case kDLROCM:
      return "rocm";
    case kDLROCMHost:
      return "rocm_host";
    case kDLExtDev:
      return "ext_dev";
    case kDLCUDAManaged:
      return "cuda_managed";
    case kDLOneAPI:
      return "oneapi";
    case kDLWebGPU:
      return "webgpu";
    case kDLHexagon:
      return "hexagon";
    case kDLMAIA:
      return "maia";
    case kDLTrn:
      return "trn";
    default:
      return "device(" + std::to_string(device_type) + ")";
  }
}

inline std::string ToString(Device device) {
  return DeviceKindName(device.device_type) + ":" + std::to_string(device.device_id);
}

// The device that ToString calls so; "cuda" is "cuda:0". Throws ValueError for other text, and not for a kind that
// is not registered: DeviceApiOf does.
inline Device DeviceFromString(std::string_view text) {
  std::string_view kind = text.substr(0, text.find(':')), index = text.substr(kind.size());
  for (int32_t device_type = kDLCPU; device_type <= kDLTrn; ++device_type) {
    if (DeviceKindName(device_type) != kind) continue;
    if (index.empty()) return {device_type, 0};
    std::string digits(index.substr(1));
    bool number = !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == std::string::npos;
    if (number) return {device_type, std::stoi(digits)};
  }
  PORTCALL_THROW(ValueError) << "no device is called '" << text
                             << "': a device is a kind and an index, as cpu:0 or cuda:1";
}

namespace detail {
inline ErrorText& operator<<(ErrorText& out, const DLDevice& device) { return out << ToString(device); }
}  // namespace detail
}  // namespace portcall

template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const DLDevice& device) {
  return out << portcall::ToString(device);
}

#endif  // PORTCALL_DEVICE_H_
