// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's interface that the plug-in uses, declared from NVIDIA's reference: building needs no headers
// of CUDA. The library itself is opened at first use, so that a machine without a driver has no error before.
#ifndef PORTCALL_DEVICES_CUDA_API_H_
#define PORTCALL_DEVICES_CUDA_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace portcall::cuda {

using Context = struct ContextBody*;
using Stream = struct StreamBody*;
using Event = struct EventBody*;
using Image = struct ImageBody*;  // CUmodule
using Kernel = struct KernelBody*;
using Address = unsigned long long;  // NOLINT(google-runtime-int): CUdeviceptr

using Status = int;  // CUresult
using Number = unsigned;
using Ordinal = int;  // CUdevice

constexpr Status kSuccess = 0, kOutOfMemory = 2, kNotInitialized = 3, kDeinitialized = 4, kNoDevice = 100;
// Of cuDeviceGetAttribute.
constexpr int kMaxThreadsPerBlock = 1, kMaxBlockX = 2, kMaxSharedPerBlock = 8, kWarpSize = 10, kMaxRegisters = 12,
              kClockRate = 13, kMultiprocessors = 16, kL2Bytes = 38, kCapabilityMajor = 75, kCapabilityMinor = 76;
// Of cuFuncSetAttribute, cuModuleLoadDataEx, cuStreamCreate, cuEventCreate and launches.
constexpr int kMaxDynamicShared = 8, kNonPortableCluster = 14;
constexpr int kErrorLog = 5, kErrorLogBytes = 6;
constexpr Number kNonBlocking = 1, kNoTiming = 2;
constexpr int kCooperative = 2, kClusterDimension = 4, kDependentLaunch = 6, kPreferredCluster = 11;

struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    Number extents[3];
    int on;
    char bytes[64];
  } value;
};
struct LaunchConfig {
  Number grid[3], block[3], dynamic_shared;
  Stream stream;
  LaunchAttribute* attributes;
  Number attribute_count;
};
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// X(symbol, arguments): functions of every driver since CUDA 11. Names with _v2 are the present ones of their functions.
#define PORTCALL_CUDA_FUNCTIONS(X)                                                                            \
  X(cuInit, (Number))                                                                                         \
  X(cuDriverGetVersion, (int*))                                                                               \
  X(cuDeviceGetCount, (int*))                                                                                 \
  X(cuDeviceGet, (Ordinal*, int))                                                                             \
  X(cuDeviceGetName, (char*, int, Ordinal))                                                                   \
  X(cuDeviceGetAttribute, (int*, int, Ordinal))                                                               \
  X(cuDeviceTotalMem_v2, (size_t*, Ordinal))                                                                  \
  X(cuDevicePrimaryCtxRetain, (Context*, Ordinal))                                                            \
  X(cuCtxGetCurrent, (Context*))                                                                              \
  X(cuCtxSetCurrent, (Context))                                                                               \
  X(cuCtxSynchronize, ())                                                                                     \
  X(cuMemGetInfo_v2, (size_t*, size_t*))                                                                      \
  X(cuMemAlloc_v2, (Address*, size_t))                                                                        \
  X(cuMemFree_v2, (Address))                                                                                  \
  X(cuMemAllocHost_v2, (void**, size_t))                                                                      \
  X(cuMemFreeHost, (void*))                                                                                   \
  X(cuMemcpyHtoDAsync_v2, (Address, const void*, size_t, Stream))                                             \
  X(cuMemcpyDtoHAsync_v2, (void*, Address, size_t, Stream))                                                   \
  X(cuMemcpyDtoDAsync_v2, (Address, Address, size_t, Stream))                                                 \
  X(cuMemcpyPeerAsync, (Address, Context, Address, Context, size_t, Stream))                                  \
  X(cuStreamCreate, (Stream*, Number))                                                                        \
  X(cuStreamDestroy_v2, (Stream))                                                                             \
  X(cuStreamSynchronize, (Stream))                                                                            \
  X(cuStreamWaitEvent, (Stream, Event, Number))                                                               \
  X(cuEventCreate, (Event*, Number))                                                                          \
  X(cuEventRecord, (Event, Stream))                                                                           \
  X(cuEventSynchronize, (Event))                                                                              \
  X(cuEventElapsedTime, (float*, Event, Event))                                                               \
  X(cuEventDestroy_v2, (Event))                                                                               \
  X(cuModuleLoadDataEx, (Image*, const void*, Number, int*, void**))                                          \
  X(cuModuleUnload, (Image))                                                                                  \
  X(cuModuleGetFunction, (Kernel*, Image, const char*))                                                       \
  X(cuFuncSetAttribute, (Kernel, int, int))                                                                   \
  X(cuLaunchKernel, (Kernel, Number, Number, Number, Number, Number, Number, Number, Stream, void**, void**)) \
  X(cuGetErrorName, (Status, const char**))                                                                   \
  X(cuGetErrorString, (Status, const char**))

// Functions that older drivers lack, where they are null: of CUDA 11.8 and 12.0.
#define PORTCALL_CUDA_NEWER_FUNCTIONS(X)                                                                      \
  X(cuLaunchKernelEx, (const LaunchConfig*, Kernel, void**, void**))                                          \
  X(cuTensorMapEncodeTiled, (TensorMap*, int, Number, void*, const uint64_t*, const uint64_t*, const Number*, \
                             const Number*, int, int, int, int))

struct Api {
#define PORTCALL_CUDA_MEMBER(name, arguments) Status(*name) arguments = nullptr;
  PORTCALL_CUDA_FUNCTIONS(PORTCALL_CUDA_MEMBER)
  PORTCALL_CUDA_NEWER_FUNCTIONS(PORTCALL_CUDA_MEMBER)
#undef PORTCALL_CUDA_MEMBER
  std::string missing;  // why there is no CUDA; empty: there is
};

// Opens the driver and initializes it: PORTCALL_LIBCUDA, or libcuda.so.1. Tries again where that failed before.
const Api& Cu();

// Throws what a status means: MemoryError or DeviceError, with the driver's words.
void CheckStatus(Status status, const char* function);

#define PORTCALL_CU(name, ...) ::portcall::cuda::CheckStatus(::portcall::cuda::Cu().name(__VA_ARGS__), #name)

}  // namespace portcall::cuda
#endif  // PORTCALL_DEVICES_CUDA_API_H_
