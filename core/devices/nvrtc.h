// SPDX-License-Identifier: Apache-2.0
// NVRTC, NVIDIA's compiler as a library, for modules that hold CUDA source. It is opened at first use, and needs no GPU.
#ifndef PORTCALL_DEVICES_NVRTC_H_
#define PORTCALL_DEVICES_NVRTC_H_

#include <string>

namespace portcall::cuda {

// Such as "12.9". Throws CompileError where there is none, with what to install.
std::string CompilerVersion();

// A cubin for GPUs of the compute capability, such as "90"; PTX where NVRTC is older than they are. Throws CompileError.
std::string CompileSource(const std::string& source, const std::string& capability);

}  // namespace portcall::cuda
#endif  // PORTCALL_DEVICES_NVRTC_H_
