// SPDX-License-Identifier: Apache-2.0
// Tensors over the memory of arrays of JavaScript, and arrays over the memory of tensors: neither way copies.
#include "tensors.h"

#include <string.h>

#include "errors.h"
#include "handles.h"

#define MOST_DIMENSIONS 64

static int64_t CountOf(const DLTensor* tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  return count;
}

int64_t SizeOf(const DLTensor* tensor) { return (CountOf(tensor) * tensor->dtype.bits * tensor->dtype.lanes + 7) / 8; }

bool IsCompact(const DLTensor* tensor) {
  int64_t expected = 1;
  if (tensor->strides == NULL) return true;
  for (int i = tensor->ndim - 1; i >= 0; --i) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) return CountOf(tensor) == 0;
    expected *= tensor->shape[i];
  }
  return true;
}

static char* StartOf(const DLTensor* tensor) { return (char*)tensor->data + tensor->byte_offset; }

// ---- From JavaScript ----------------------------------------------------------------------------------------------

bool DescribeArray(napi_env env, napi_value array, DLTensor* tensor, int64_t* extent) {
  static const uint8_t codes[] = {kDLInt,  kDLUInt,  0,        kDLInt, kDLUInt, kDLInt,
                                  kDLUInt, kDLFloat, kDLFloat, kDLInt, kDLUInt};
  static const uint8_t bits[] = {8, 8, 0, 16, 16, 32, 32, 32, 64, 64, 64};
  napi_typedarray_type type = (napi_typedarray_type)-1;
  size_t length;
  memset(tensor, 0, sizeof *tensor);
  napi_get_typedarray_info(env, array, &type, &length, &tensor->data, NULL, NULL);
  if ((size_t)type >= sizeof codes || bits[type] == 0) return false;
  tensor->device.device_type = kDLCPU;
  tensor->ndim = 1;
  tensor->dtype.code = codes[type];
  tensor->dtype.bits = bits[type];
  tensor->dtype.lanes = 1;
  tensor->shape = extent;
  *extent = (int64_t)length;
  return true;
}

bool PutArray(Environment* e, napi_value array, const DLTensor* tensor, TVMFFIAny* cell) {
  TVMFFIObjectHandle object = NULL;
  Kept* owner = Keep(e, array);
  if (owner == NULL) {
    ThrowError(e->env, "RangeError", "there is no memory left for a tensor");
    return false;
  }
  if (portcall->tensor_from_memory(tensor, 0, owner, ReleaseKept, &object) != 0) {
    ReleaseKept(owner);
    ThrowRaised(e);
    return false;
  }
  cell->type_index = kTVMFFITensor;
  cell->v_obj = object;
  return true;
}

// Whether the extents and the bytes are numbers of 63 bits. (JavaScript checks shapes when it makes them.)
static bool HasSize(const DLTensor* tensor) {
  int64_t bits = tensor->dtype.bits * tensor->dtype.lanes;
  for (int i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] < 0 || __builtin_mul_overflow(bits, tensor->shape[i], &bits)) return false;
  }
  return bits <= INT64_MAX - 7;
}

// Reads dimensions and type from `first` on: shape, code, bits, lanes.
static bool ReadDescription(napi_env env, napi_value parts, uint32_t first, DLTensor* tensor, int64_t* shape) {
  napi_value extents;
  uint32_t count = 0;
  napi_get_element(env, parts, first, &extents);
  napi_get_array_length(env, extents, &count);
  if (count > MOST_DIMENSIONS) {
    ThrowError(env, "RangeError", "a tensor has 64 dimensions at most");
    return false;
  }
  for (uint32_t i = 0; i < count; ++i) shape[i] = PartOf(env, extents, i);
  tensor->device.device_type = kDLCPU;
  tensor->ndim = (int32_t)count;
  tensor->shape = shape;
  tensor->dtype.code = (uint8_t)PartOf(env, parts, first + 1);
  tensor->dtype.bits = (uint8_t)PartOf(env, parts, first + 2);
  tensor->dtype.lanes = (uint16_t)PartOf(env, parts, first + 3);
  if (!HasSize(tensor)) ThrowError(env, "RangeError", "a tensor is too large, or has a negative extent");
  return HasSize(tensor);
}

// The memory of a typed array, and its bytes.
static bool FindMemory(napi_env env, napi_value array, void** data, size_t* nbytes) {
  static const uint8_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 2};
  napi_typedarray_type type = (napi_typedarray_type)-1;
  if (napi_get_typedarray_info(env, array, &type, nbytes, data, NULL, NULL) != napi_ok) return false;
  if ((size_t)type >= sizeof sizes) return false;
  *nbytes *= sizes[type];
  return true;
}

bool PutShapedArray(Environment* e, napi_value parts, TVMFFIAny* cell) {
  DLTensor tensor = {0};
  int64_t shape[MOST_DIMENSIONS];
  napi_value array;
  size_t length;
  napi_get_element(e->env, parts, 1, &array);
  if (!ReadDescription(e->env, parts, 2, &tensor, shape)) return false;
  if (!FindMemory(e->env, array, &tensor.data, &length) || (int64_t)length != SizeOf(&tensor)) {
    ThrowError(e->env, "TypeError", "the array of a tensor has another size than before, or went to another thread");
    return false;
  }
  return PutArray(e, array, &tensor, cell);
}

// ---- To JavaScript ------------------------------------------------------------------------------------------------

static napi_value MakeNumber(napi_env env, int64_t number) {
  napi_value value = NULL;
  napi_create_double(env, (double)number, &value);
  return value;
}

napi_value WrapTensor(Environment* e, TVMFFIObjectHandle object) {
  const DLTensor* tensor = TensorOf(object);
  napi_env env = e->env;
  napi_value args[5];
  Handle* handle = MakeHandle(e, object);
  if (handle == NULL) return NULL;
  args[0] = MakeNumber(env, kTVMFFITensor);
  napi_create_array_with_length(env, (size_t)tensor->ndim, &args[1]);
  for (int i = 0; i < tensor->ndim; ++i) napi_set_element(env, args[1], (uint32_t)i, MakeNumber(env, tensor->shape[i]));
  args[2] = MakeNumber(env, tensor->dtype.code);
  args[3] = MakeNumber(env, tensor->dtype.bits);
  args[4] = MakeNumber(env, tensor->dtype.lanes);
  napi_value target = CallHook(e, kMake, 5, args);
  return AttachHandle(target, handle) ? target : NULL;
}

// allocate([shape, code, bits, lanes]): a tensor of the core, 64-byte aligned, uninitialised.
napi_value AllocateTensor(napi_env env, napi_callback_info info) {
  Environment* e;
  DLTensor tensor = {0};
  int64_t shape[MOST_DIMENSIONS], counted;
  napi_value parts, target;
  size_t count = 1;
  TVMFFIObjectHandle object = NULL;
  napi_get_instance_data(env, (void**)&e);
  napi_get_cb_info(env, info, &count, &parts, NULL, NULL);
  if (!ReadDescription(env, parts, 0, &tensor, shape)) return NULL;
  if (portcall->tensor_alloc(&tensor, &object) != 0) {
    ThrowRaised(e);
    return NULL;
  }
  const int64_t nbytes = SizeOf(&tensor);
  target = WrapTensor(e, object);
  if (target == NULL) return NULL;
  HandleOf(e, target)->counted = nbytes;
  napi_adjust_external_memory(env, nbytes, &counted);
  return target;
}

static void ReleaseObject(napi_env env, void* data, void* object) {
  (void)env, (void)data;
  portcall->object_dec_ref(object);
}

// buffer(tensor): an ArrayBuffer over its memory, which it keeps.
napi_value BufferOfTensor(napi_env env, napi_callback_info info) {
  Environment* e;
  napi_value target, buffer = NULL;
  size_t count = 1;
  napi_get_instance_data(env, (void**)&e);
  napi_get_cb_info(env, info, &count, &target, NULL, NULL);
  Handle* handle = HandleOf(e, target);
  if (handle == NULL || handle->disposed) {
    ThrowError(env, "TypeError", "the tensor was disposed of");
    return NULL;
  }
  const DLTensor* tensor = TensorOf(handle->object);
  const int64_t nbytes = SizeOf(tensor);
  if (tensor->device.device_type != kDLCPU) {
    ThrowError(env, "TypeError", "the tensor is not in the host's memory");
  } else if (!IsCompact(tensor)) {
    ThrowError(env, "TypeError", "the tensor has gaps between its elements");
  } else if (nbytes == 0) {
    napi_create_arraybuffer(env, 0, NULL, &buffer);
  } else {
    portcall->object_inc_ref(handle->object);
    if (napi_create_external_arraybuffer(env, StartOf(tensor), (size_t)nbytes, ReleaseObject, handle->object,
                                         &buffer) != napi_ok) {
      portcall->object_dec_ref(handle->object);
      ThrowError(env, "Error", "this program allows no arrays over memory of the core");
    }
  }
  return buffer;
}

// detach(buffer): its arrays become empty, and it gives the memory back.
napi_value DetachBuffer(napi_env env, napi_callback_info info) {
  napi_value buffer;
  size_t count = 1;
  napi_get_cb_info(env, info, &count, &buffer, NULL, NULL);
  napi_detach_arraybuffer(env, buffer);
  return NULL;
}

// ---- Compiled code ------------------------------------------------------------------------------------------------

static bool CopyOf(Environment* e, TVMFFIObjectHandle object, const Held* first, const Held* held, TVMFFIObject** out) {
  const DLTensor* tensor = TensorOf(object);
  TVMFFIObjectHandle copy = NULL;
  for (; first != held; ++first) {  // the same memory twice gets one copy
    if (first->copy != NULL && StartOf(TensorOf(first->object)) == StartOf(tensor) &&
        SizeOf(TensorOf(first->object)) == SizeOf(tensor) && TensorOf(first->copy)->ndim == tensor->ndim) {
      *out = first->copy;
      portcall->object_inc_ref(first->copy);
      return true;
    }
  }
  if (portcall->tensor_alloc(tensor, &copy) != 0) {
    ThrowRaised(e);
    return false;
  }
  if (portcall->tensor_copy(tensor, TensorOf(copy)) != 0) {
    ThrowRaised(e);
    portcall->object_dec_ref(copy);
    return false;
  }
  *out = copy;
  return true;
}

bool AlignArgument(Environment* e, TVMFFIAny* cell, Held* held, const Held* first) {
  const DLTensor* tensor = TensorOf(cell->v_obj);
  if (portcall->tensor_get_flags(cell->v_obj) & DLPACK_FLAG_BITMASK_READ_ONLY) {
    ThrowError(e->env, "TypeError", "compiled code may write to a tensor, and this one is read-only: pass a copy");
    return false;
  }
  if (tensor->device.device_type != kDLCPU || (IsCompact(tensor) && (uintptr_t)StartOf(tensor) % ALIGNMENT == 0)) {
    return true;
  }
  if (!CopyOf(e, cell->v_obj, first, held, &held->copy)) return false;
  cell->v_obj = held->copy;
  return true;
}

void ReleaseHeld(Held* held, const Held* end) {
  for (; held != end; ++held) {
    if (held->copy != NULL) {
      portcall->tensor_copy(TensorOf(held->copy), TensorOf(held->object));
      portcall->object_dec_ref(held->copy);
    }
    portcall->object_dec_ref(held->object);
  }
}
