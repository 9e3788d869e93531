// SPDX-License-Identifier: Apache-2.0
// The part of the OpenCL 1.2 interface that the plug-in uses, declared from the Khronos specification: building needs no
// headers of OpenCL. The library itself is opened at first use, so that a machine without OpenCL has no error before.
#ifndef PORTCALL_DEVICES_OPENCL_API_H_
#define PORTCALL_DEVICES_OPENCL_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace portcall::opencl {

using Platform = struct PlatformBody*;
using DeviceId = struct DeviceIdBody*;
using Context = struct ContextBody*;
using Queue = struct QueueBody*;
using Memory = struct MemoryBody*;
using Program = struct ProgramBody*;
using Kernel = struct KernelBody*;
using Event = struct EventBody*;

using Status = int32_t;
using Number = uint32_t;
using Bits = uint64_t;

constexpr Status kSuccess = 0, kMemObjectAllocationFailure = -4, kOutOfHostMemory = -6,
                 kMisalignedSubBufferOffset = -13, kInvalidBufferSize = -61;
constexpr Bits kAnyDevice = 0xFFFFFFFF, kProfiling = 1 << 1, kReadWrite = 1 << 0;
constexpr Number kRegion = 0x1220, kBuildLog = 0x1183, kBinarySizes = 0x1165, kBinaries = 0x1166,
                 kCommandStart = 0x1282, kCommandEnd = 0x1283;
// Of clGetDeviceInfo.
constexpr Number kComputeUnits = 0x1002, kMaxWorkItemSizes = 0x1005, kMaxWorkGroupSize = 0x1004,
                 kClockFrequency = 0x100C, kImageMaxWidth = 0x1011, kImageMaxHeight = 0x1012, kImageSupport = 0x1016,
                 kAddressAlignBits = 0x1019, kGlobalCache = 0x101E, kGlobalMemory = 0x101F, kLocalMemory = 0x1023,
                 kName = 0x102B, kVendor = 0x102C, kDriverVersion = 0x102D, kVersion = 0x102F, kImageMaxLayers = 0x1041,
                 kImagePitchAlignment = 0x104A;
// Of images.
constexpr Number kRgba = 0x10B5, kHalfFloat = 0x10DD, kFloat = 0x10DE, kBuffer = 0x10F0, kImageArray = 0x10F3,
                 kMemoryType = 0x1100, kImageElementSize = 0x1111, kImageWidth = 0x1114, kImageHeight = 0x1115,
                 kImageLayers = 0x1117;

struct Region {
  size_t origin, size;
};
struct ImageFormat {
  Number order, type;
};
struct ImageShape {  // cl_image_desc
  Number type;
  size_t width, height, depth, layers, row_pitch, slice_pitch;
  Number mip_levels, samples;
  Memory source;
};

// X(name without "cl", result, arguments)
#define PORTCALL_OPENCL_FUNCTIONS(X)                                                                                  \
  X(GetPlatformIDs, Status, (Number, Platform*, Number*))                                                             \
  X(GetDeviceIDs, Status, (Platform, Bits, Number, DeviceId*, Number*))                                               \
  X(GetDeviceInfo, Status, (DeviceId, Number, size_t, void*, size_t*))                                                \
  X(CreateContext, Context,                                                                                           \
    (const intptr_t*, Number, const DeviceId*, void (*)(const char*, const void*, size_t, void*), void*, Status*))    \
  X(CreateCommandQueue, Queue, (Context, DeviceId, Bits, Status*))                                                    \
  X(ReleaseCommandQueue, Status, (Queue))                                                                             \
  X(CreateBuffer, Memory, (Context, Bits, size_t, void*, Status*))                                                    \
  X(CreateSubBuffer, Memory, (Memory, Bits, Number, const void*, Status*))                                            \
  X(ReleaseMemObject, Status, (Memory))                                                                               \
  X(CreateImage, Memory, (Context, Bits, const ImageFormat*, const ImageShape*, void*, Status*))                      \
  X(GetMemObjectInfo, Status, (Memory, Number, size_t, void*, size_t*))                                               \
  X(GetImageInfo, Status, (Memory, Number, size_t, void*, size_t*))                                                   \
  X(EnqueueReadImage, Status,                                                                                         \
    (Queue, Memory, Number, const size_t*, const size_t*, size_t, size_t, void*, Number, const Event*, Event*))       \
  X(EnqueueWriteImage, Status,                                                                                        \
    (Queue, Memory, Number, const size_t*, const size_t*, size_t, size_t, const void*, Number, const Event*, Event*)) \
  X(EnqueueCopyImage, Status,                                                                                         \
    (Queue, Memory, Memory, const size_t*, const size_t*, const size_t*, Number, const Event*, Event*))               \
  X(EnqueueCopyImageToBuffer, Status,                                                                                 \
    (Queue, Memory, Memory, const size_t*, const size_t*, size_t, Number, const Event*, Event*))                      \
  X(EnqueueCopyBufferToImage, Status,                                                                                 \
    (Queue, Memory, Memory, size_t, const size_t*, const size_t*, Number, const Event*, Event*))                      \
  X(EnqueueReadBuffer, Status, (Queue, Memory, Number, size_t, size_t, void*, Number, const Event*, Event*))          \
  X(EnqueueWriteBuffer, Status, (Queue, Memory, Number, size_t, size_t, const void*, Number, const Event*, Event*))   \
  X(EnqueueCopyBuffer, Status, (Queue, Memory, Memory, size_t, size_t, size_t, Number, const Event*, Event*))         \
  X(EnqueueMarkerWithWaitList, Status, (Queue, Number, const Event*, Event*))                                         \
  X(EnqueueBarrierWithWaitList, Status, (Queue, Number, const Event*, Event*))                                        \
  X(Finish, Status, (Queue))                                                                                          \
  X(Flush, Status, (Queue))                                                                                           \
  X(CreateProgramWithSource, Program, (Context, Number, const char**, const size_t*, Status*))                        \
  X(CreateProgramWithBinary, Program,                                                                                 \
    (Context, Number, const DeviceId*, const size_t*, const unsigned char**, Status*, Status*))                       \
  X(BuildProgram, Status, (Program, Number, const DeviceId*, const char*, void (*)(Program, void*), void*))           \
  X(GetProgramInfo, Status, (Program, Number, size_t, void*, size_t*))                                                \
  X(GetProgramBuildInfo, Status, (Program, DeviceId, Number, size_t, void*, size_t*))                                 \
  X(ReleaseProgram, Status, (Program))                                                                                \
  X(CreateKernel, Kernel, (Program, const char*, Status*))                                                            \
  X(ReleaseKernel, Status, (Kernel))                                                                                  \
  X(SetKernelArg, Status, (Kernel, Number, size_t, const void*))                                                      \
  X(EnqueueNDRangeKernel, Status,                                                                                     \
    (Queue, Kernel, Number, const size_t*, const size_t*, const size_t*, Number, const Event*, Event*))               \
  X(WaitForEvents, Status, (Number, const Event*))                                                                    \
  X(GetEventProfilingInfo, Status, (Event, Number, size_t, void*, size_t*))                                           \
  X(RetainEvent, Status, (Event))                                                                                     \
  X(ReleaseEvent, Status, (Event))

struct Api {
#define PORTCALL_OPENCL_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  PORTCALL_OPENCL_FUNCTIONS(PORTCALL_OPENCL_MEMBER)
#undef PORTCALL_OPENCL_MEMBER
  std::string missing;  // why there is no OpenCL; empty: there is
};

// Opens the library: PORTCALL_LIBOPENCL, or libOpenCL.so.1.
const Api& Cl();

// Throws what a status means: MemoryError or DeviceError, with the name that the specification has for it.
void CheckStatus(Status status, const char* function);

#define PORTCALL_CL(name, ...) ::portcall::opencl::CheckStatus(::portcall::opencl::Cl().name(__VA_ARGS__), "cl" #name)

}  // namespace portcall::opencl
#endif  // PORTCALL_DEVICES_OPENCL_API_H_
