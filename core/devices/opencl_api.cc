// SPDX-License-Identifier: Apache-2.0
#include "devices/opencl_api.h"

#include <dlfcn.h>

#include <cstdlib>

#include "portcall/error.h"

namespace portcall::opencl {
namespace {

Api Open() {
  Api api;
  const char* path = std::getenv("PORTCALL_LIBOPENCL");
  void* handle = dlopen(path ? path : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    api.missing = why ? why : "libOpenCL.so.1 is not there";
    return api;
  }
#define PORTCALL_OPENCL_FIND(name, result, arguments)                         \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(handle, "cl" #name)); \
  if (!api.name) api.missing = "the OpenCL library is older than 1.2: it lacks cl" #name;
  PORTCALL_OPENCL_FUNCTIONS(PORTCALL_OPENCL_FIND)
#undef PORTCALL_OPENCL_FIND
  return api;
}

// Names of the statuses 0 to -19 and -30 to -68, without "CL_".
constexpr const char* kRunTime[] = {
    "SUCCESS",
    "DEVICE_NOT_FOUND",
    "DEVICE_NOT_AVAILABLE",
    "COMPILER_NOT_AVAILABLE",
    "MEM_OBJECT_ALLOCATION_FAILURE",
    "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
    "PROFILING_INFO_NOT_AVAILABLE",
    "MEM_COPY_OVERLAP",
    "IMAGE_FORMAT_MISMATCH",
    "IMAGE_FORMAT_NOT_SUPPORTED",
    "BUILD_PROGRAM_FAILURE",
    "MAP_FAILURE",
    "MISALIGNED_SUB_BUFFER_OFFSET",
    "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
    "COMPILE_PROGRAM_FAILURE",
    "LINKER_NOT_AVAILABLE",
    "LINK_PROGRAM_FAILURE",
    "DEVICE_PARTITION_FAILED",
    "KERNEL_ARG_INFO_NOT_AVAILABLE",
};
constexpr const char* kArguments[] = {
    "INVALID_VALUE",           "INVALID_DEVICE_TYPE",
    "INVALID_PLATFORM",        "INVALID_DEVICE",
    "INVALID_CONTEXT",         "INVALID_QUEUE_PROPERTIES",
    "INVALID_COMMAND_QUEUE",   "INVALID_HOST_PTR",
    "INVALID_MEM_OBJECT",      "INVALID_IMAGE_FORMAT_DESCRIPTOR",
    "INVALID_IMAGE_SIZE",      "INVALID_SAMPLER",
    "INVALID_BINARY",          "INVALID_BUILD_OPTIONS",
    "INVALID_PROGRAM",         "INVALID_PROGRAM_EXECUTABLE",
    "INVALID_KERNEL_NAME",     "INVALID_KERNEL_DEFINITION",
    "INVALID_KERNEL",          "INVALID_ARG_INDEX",
    "INVALID_ARG_VALUE",       "INVALID_ARG_SIZE",
    "INVALID_KERNEL_ARGS",     "INVALID_WORK_DIMENSION",
    "INVALID_WORK_GROUP_SIZE", "INVALID_WORK_ITEM_SIZE",
    "INVALID_GLOBAL_OFFSET",   "INVALID_EVENT_WAIT_LIST",
    "INVALID_EVENT",           "INVALID_OPERATION",
    "INVALID_GL_OBJECT",       "INVALID_BUFFER_SIZE",
    "INVALID_MIP_LEVEL",       "INVALID_GLOBAL_WORK_SIZE",
    "INVALID_PROPERTY",
};

std::string NameOf(Status status) {
  const int run_time = -status, argument = -30 - status;
  if (run_time >= 0 && run_time < static_cast<int>(std::size(kRunTime))) return std::string("CL_") + kRunTime[run_time];
  if (argument >= 0 && argument < static_cast<int>(std::size(kArguments))) {
    return std::string("CL_") + kArguments[argument];
  }
  return "status " + std::to_string(status);
}

}  // namespace

const Api& Cl() {
  static const auto* api = new Api(Open());  // never destroyed: memory is released until the very end
  return *api;
}

void CheckStatus(Status status, const char* function) {
  if (status == kSuccess) return;
  bool memory = status == kMemObjectAllocationFailure || status == kOutOfHostMemory || status == kInvalidBufferSize;
  PORTCALL_CHECK(!memory, MemoryError) << "out of memory on the OpenCL device: " << function << " failed with "
                                       << NameOf(status);
  PORTCALL_THROW(DeviceError) << function << " failed with " << NameOf(status);
}

}  // namespace portcall::opencl
