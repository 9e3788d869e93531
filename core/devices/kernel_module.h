// SPDX-License-Identifier: Apache-2.0
// What the modules of all plug-ins for devices have in common: a payload, its kernels by name, its code as source.
#ifndef PORTCALL_DEVICES_KERNEL_MODULE_H_
#define PORTCALL_DEVICES_KERNEL_MODULE_H_

#include <string>
#include <utility>
#include <vector>

#include "portcall/module.h"
#include "portcall/payload.h"

namespace portcall::devices {

class KernelModuleNode : public ModuleNode {
 public:
  explicit KernelModuleNode(payload::Payload payload) : payload_(std::move(payload)) {}

  std::vector<std::string> FunctionNames() override {
    std::vector<std::string> names;
    for (const auto& [name, kernel] : payload_.kernels) names.push_back(name);
    return names;
  }
  std::string GetSource(const std::string& format) override {
    if (format.empty() || format == payload_.format) return payload_.code;
    return ModuleNode::GetSource(format);
  }

 protected:
  // Null: there is none of that name. Throws a DeviceError for one that cannot be launched.
  const payload::Kernel* FindKernel(const std::string& name) const {
    auto it = payload_.kernels.find(name);
    if (it == payload_.kernels.end()) return nullptr;
    payload::CheckLaunchable(it->second, name);
    return &it->second;
  }
  const payload::Payload& payload() const { return payload_; }

 private:
  payload::Payload payload_;
};

}  // namespace portcall::devices
#endif  // PORTCALL_DEVICES_KERNEL_MODULE_H_
