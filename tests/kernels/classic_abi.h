// SPDX-License-Identifier: Apache-2.0
// The classic ABI (0.6 to 0.20) as a library sees it.
//
// Rules: a library imports nothing; what it calls is reached through context pointers that the loader fills
// before the first call. A slot the loader does not know stays NULL.

#ifndef CLASSIC_ABI_H_
#define CLASSIC_ABI_H_

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;

typedef union {
  int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
} TVMValue;

typedef struct {
  void* sync_handle;
  int32_t num_task;
} TVMParallelGroupEnv;

enum {
  kTVMArgInt = 0,
  kTVMArgFloat = 2,
  kTVMOpaqueHandle = 3,
  kTVMNullptr = 4,
  kTVMDLTensorHandle = 7,
  kTVMPackedFuncHandle = 10,
  kTVMStr = 11,
  kTVMNDArrayHandle = 13,
};

enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLCPU = 1 };

#define CLASSIC_EXPORT __attribute__((visibility("default")))

typedef int (*FTVMParallelLambda)(int task_id, TVMParallelGroupEnv* env, void* cdata);

#endif  // CLASSIC_ABI_H_
