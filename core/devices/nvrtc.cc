// SPDX-License-Identifier: Apache-2.0
#include "devices/nvrtc.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "devices/binary_cache.h"
#include "portcall/container.h"
#include "portcall/function.h"

namespace portcall::cuda {
namespace {

using Program = struct ProgramBody*;

constexpr int kInvalidOption = 5;  // nvrtcResult: also for an architecture that it does not know

#define PORTCALL_NVRTC_FUNCTIONS(X)                                                                        \
  X(nvrtcCreateProgram, (Program*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(nvrtcCompileProgram, (Program, int, const char* const*))                                               \
  X(nvrtcDestroyProgram, (Program*))                                                                       \
  X(nvrtcGetProgramLogSize, (Program, size_t*))                                                            \
  X(nvrtcGetProgramLog, (Program, char*))                                                                  \
  X(nvrtcGetCUBINSize, (Program, size_t*))                                                                 \
  X(nvrtcGetCUBIN, (Program, char*))                                                                       \
  X(nvrtcGetPTXSize, (Program, size_t*))                                                                   \
  X(nvrtcGetPTX, (Program, char*))                                                                         \
  X(nvrtcGetNumSupportedArchs, (int*))                                                                     \
  X(nvrtcGetSupportedArchs, (int*))                                                                        \
  X(nvrtcVersion, (int*, int*))
// ---- Where it is ----------------------------------------------------------------------------------------------------

// Folders as those of a CUDA toolkit, with "lib" or "lib64" and "include": the variables' and the nvidia packages'.
std::vector<std::string> ToolkitFolders() {
  std::vector<std::string> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* folder = std::getenv(name)) folders.emplace_back(folder);
  }
  PackedFunc front_end = Registry::Get("portcall.FindNvidiaFolders");
  if (front_end.defined()) {
    for (const std::string& folder : front_end().cast<Array<std::string>>()) folders.push_back(folder);
  }
  folders.emplace_back("/usr/local/cuda");
  return folders;
}

std::vector<std::string> IncludeOptions() {
  std::vector<std::string> options;
  for (const std::string& folder : ToolkitFolders()) {
    for (const char* below : {"/include", "/include/cccl"}) {
      if (access((folder + below).c_str(), R_OK) == 0) options.push_back("--include-path=" + folder + below);
    }
  }
  return options;
}

void* OpenLibrary() {
  std::vector<std::string> candidates;
  if (const char* path = std::getenv("PORTCALL_LIBNVRTC")) {
    candidates = {path};
  } else {
    const char* const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};
    for (const std::string& folder : ToolkitFolders()) {
      for (const char* name : names) {
        for (const char* below : {"/lib64/", "/lib/"}) candidates.push_back(folder + below + name);
      }
    }
    candidates.insert(candidates.end(), std::begin(names), std::end(names));
  }
  for (const std::string& path : candidates) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  }
  const char* given = std::getenv("PORTCALL_LIBNVRTC");
  PORTCALL_THROW(CompileError) << "the module holds CUDA source, and there is no NVRTC to compile it"
                               << (given ? std::string(" at ") + given : "")
                               << "; pip install nvidia-cuda-nvrtc-cu12, or set CUDA_HOME to a CUDA toolkit";
}

struct Nvrtc {
#define PORTCALL_NVRTC_MEMBER(name, arguments) int(*name) arguments = nullptr;
  PORTCALL_NVRTC_FUNCTIONS(PORTCALL_NVRTC_MEMBER)
#undef PORTCALL_NVRTC_MEMBER
};

const Nvrtc& Compiler() {
  static const Nvrtc nvrtc = [] {  // what throws is tried again
    void* handle = OpenLibrary();
    Nvrtc found;
#define PORTCALL_NVRTC_FIND(name, arguments)                                 \
  found.name = reinterpret_cast<decltype(found.name)>(dlsym(handle, #name)); \
  PORTCALL_CHECK(found.name, CompileError) << "NVRTC is older than CUDA 11.2: it lacks " #name;
    PORTCALL_NVRTC_FUNCTIONS(PORTCALL_NVRTC_FIND)
#undef PORTCALL_NVRTC_FIND
    return found;
  }();
  return nvrtc;
}

// ---- Headers --------------------------------------------------------------------------------------------------------

// Source of TVM includes two headers of libcu++, which are 17 MB in a package that NVRTC does not come with, and take a
// second or two to compile; it uses this much of them. cuda.h is for compilers of host code: NVRTC cannot read it.
constexpr const char* kHeaderNames[] = {"cuda.h", "cuda/std/cstdint", "cuda/std/type_traits"};
constexpr const char* kHeaders[] = {
    R"(#pragma once
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef CUtensorMap_st CUtensorMap;
)",
    R"(#pragma once
namespace cuda { namespace std {
using int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = long long;
using uint8_t = unsigned char; using uint16_t = unsigned short; using uint32_t = unsigned int;
using uint64_t = unsigned long long;
} }
)",
    R"(#pragma once
namespace cuda { namespace std {
template <class T, T v> struct integral_constant { static constexpr T value = v; };
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T, class... Others> inline constexpr bool is_one_of = (is_same_v<T, Others> || ...);
template <class T> struct is_integral
    : integral_constant<bool, is_one_of<T, bool, char, signed char, unsigned char, short, unsigned short, int, unsigned,
                                        long, unsigned long, long long, unsigned long long>> {};
template <class T> struct is_floating_point : integral_constant<bool, is_one_of<T, float, double>> {};
template <class T, bool = is_integral<T>::value || is_floating_point<T>::value> struct is_signed : false_type {};
template <class T> struct is_signed<T, true> : integral_constant<bool, (T(-1) < T(0))> {};
template <class T> struct is_unsigned : integral_constant<bool, is_integral<T>::value && !is_signed<T>::value> {};
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool, class T, class> struct conditional { using type = T; };
template <class T, class U> struct conditional<false, T, U> { using type = U; };
} }
)"};

// ---- Compiling ------------------------------------------------------------------------------------------------------

class Compilation {
 public:
  // All of our headers, or cuda.h alone.
  Compilation(const std::string& source, bool own_headers) {
    const int count = own_headers ? static_cast<int>(std::size(kHeaders)) : 1;
    const int status = nvrtc_.nvrtcCreateProgram(&program_, source.c_str(), "module.cu", count, kHeaders, kHeaderNames);
    PORTCALL_CHECK(status == 0, CompileError) << "nvrtcCreateProgram failed with status " << status;
  }
  ~Compilation() { nvrtc_.nvrtcDestroyProgram(&program_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  int Compile(const std::string& architecture, const std::vector<std::string>& includes) {
    std::vector<std::string> options = {"--gpu-architecture=" + architecture, "--std=c++17", "-default-device"};
    options.insert(options.end(), includes.begin(), includes.end());
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
  }
  std::string Log() const { return Text(nvrtc_.nvrtcGetProgramLogSize, nvrtc_.nvrtcGetProgramLog); }
  std::string Image(bool binary) const {
    return binary ? Text(nvrtc_.nvrtcGetCUBINSize, nvrtc_.nvrtcGetCUBIN)
                  : Text(nvrtc_.nvrtcGetPTXSize, nvrtc_.nvrtcGetPTX);
  }

 private:
  std::string Text(int (*size_of)(Program, size_t*), int (*get)(Program, char*)) const {
    size_t size = 0;
    std::string text;
    if (size_of(program_, &size) == 0) text.resize(size);
    if (size && get(program_, text.data()) != 0) text.clear();
    return text;
  }

  const Nvrtc& nvrtc_ = Compiler();
  Program program_ = nullptr;
};

// The newest that NVRTC knows, of those whose PTX GPUs of the capability run.
std::string NewestVirtual(const std::string& capability) {
  int count = 0, newest = 0;
  Compiler().nvrtcGetNumSupportedArchs(&count);
  std::vector<int> known(static_cast<size_t>(count));
  Compiler().nvrtcGetSupportedArchs(known.data());
  for (int architecture : known) {
    if (architecture <= std::stoi(capability)) newest = std::max(newest, architecture);
  }
  return "compute_" + std::to_string(newest);
}

struct Result {
  int status = 0;
  std::string image, log;
};

// The first of the architectures that NVRTC knows. "a" stands for what only GPUs of this one capability have.
Result TryCompile(const std::string& source, const std::string& capability, bool own_headers,
                  const std::vector<std::string>& includes) {
  Result result;
  for (const std::string& architecture : {"sm_" + capability + "a", "sm_" + capability, NewestVirtual(capability)}) {
    if (architecture.back() == 'a' && std::stoi(capability) < 90) continue;
    Compilation compilation(source, own_headers);
    result.status = compilation.Compile(architecture, includes);
    if (result.status == 0) result.image = compilation.Image(architecture[0] == 's');
    result.log = compilation.Log();
    if (result.status != kInvalidOption) break;
  }
  return result;
}

}  // namespace

std::string CompilerVersion() {
  int major = 0, minor = 0;
  Compiler().nvrtcVersion(&major, &minor);
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string CompileSource(const std::string& source, const std::string& capability) {
  const std::vector<std::string> includes = IncludeOptions();
  std::string headers;
  for (const char* header : kHeaders) headers += header;
  for (const std::string& option : includes) headers += option;
  const std::string key = devices::CacheKey({"cuda", CompilerVersion(), capability, headers, source});
  if (std::string image = devices::FindBinary(key); !image.empty()) return image;
  Result result = TryCompile(source, capability, true, includes);
  if (result.status != 0) result = TryCompile(source, capability, false, includes);  // more of libcu++ than we have
  if (result.status == 0 && !result.image.empty()) {
    devices::KeepBinary(key, result.image);
    return result.image;
  }
  const bool header_is_missing = result.log.find("could not open source file") != std::string::npos ||
                                 result.log.find("cannot open source file") != std::string::npos;
  PORTCALL_THROW(CompileError) << "NVRTC cannot compile the module for sm_" << capability << ":\n"
                               << result.log.c_str()
                               << (header_is_missing ? "install the headers: pip install nvidia-cuda-runtime-cu12 "
                                                       "nvidia-cuda-cccl-cu12, or set CUDA_HOME to a CUDA toolkit"
                                                     : "");
}

}  // namespace portcall::cuda
