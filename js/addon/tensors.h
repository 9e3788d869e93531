// SPDX-License-Identifier: Apache-2.0
// Tensors over the memory of arrays of JavaScript, and arrays over the memory of tensors.
#ifndef PORTCALL_ADDON_TENSORS_H_
#define PORTCALL_ADDON_TENSORS_H_

#include "environment.h"

#define ALIGNMENT 64  // bytes: what compiled code expects of tensors

static inline DLTensor* TensorOf(TVMFFIObjectHandle object) { return (DLTensor*)((TVMFFIObject*)object + 1); }
int64_t SizeOf(const DLTensor* tensor);  // bytes
bool IsCompact(const DLTensor* tensor);
// Describes a typed array as a tensor of one dimension: false when it is none of a type that tensors have.
bool DescribeArray(napi_env env, napi_value array, DLTensor* tensor, int64_t* extent);
// A tensor object over the memory of an array, which it keeps.
bool PutArray(Environment* e, napi_value array, const DLTensor* tensor, TVMFFIAny* cell);
// The same for an array with a shape: [tag, array, shape, code, bits, lanes].
bool PutShapedArray(Environment* e, napi_value parts, TVMFFIAny* cell);
napi_value WrapTensor(Environment* e, TVMFFIObjectHandle object);  // takes the reference

// Functions of the addon.
napi_value AllocateTensor(napi_env env, napi_callback_info info);
napi_value BufferOfTensor(napi_env env, napi_callback_info info);
napi_value DetachBuffer(napi_env env, napi_callback_info info);

// What an argument holds until the call is over: a reference, and an aligned copy of the tensor.
typedef struct Held {
  TVMFFIObject* object;
  TVMFFIObject* copy;
} Held;
// Gives compiled code an aligned, compact copy of the tensor in `cell`, where that is needed. `held` are those before it.
bool AlignArgument(Environment* e, TVMFFIAny* cell, Held* held, const Held* first);
void ReleaseHeld(Held* held, const Held* end);

#endif  // PORTCALL_ADDON_TENSORS_H_
