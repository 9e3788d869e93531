// SPDX-License-Identifier: Apache-2.0
// Tensors and their memory.
#include <string.h>

#include "binding.h"

#define MOST_DIMENSIONS 64

static DLTensor* TensorOf(jlong object) { return (DLTensor*)BodyOf(object); }

static bool IsCompact(const DLTensor* t) {
  int64_t expected = 1;
  for (int i = t->ndim - 1; t->strides != NULL && i >= 0; expected *= t->shape[i--]) {
    if (t->shape[i] == 0) return true;
    if (t->shape[i] != 1 && t->strides[i] != expected) return false;
  }
  return true;
}

// A description with its extents in `extents`. False: Java throws.
static bool Describe(JNIEnv* env, jlongArray shape, jint dtype, jlong device, DLTensor* tensor, int64_t* extents) {
  memset(tensor, 0, sizeof *tensor);
  tensor->ndim = (*env)->GetArrayLength(env, shape);
  if (tensor->ndim > MOST_DIMENSIONS) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "a tensor of Java has at most 64 dimensions");
    return ThrowRaised(env), false;
  }
  (*env)->GetLongArrayRegion(env, shape, 0, tensor->ndim, (jlong*)extents);
  tensor->shape = extents;
  tensor->device = (DLDevice){(DLDeviceType)(int32_t)device, (int32_t)(device >> 32)};
  tensor->dtype = (DLDataType){(uint8_t)dtype, (uint8_t)(dtype >> 8), (uint16_t)(dtype >> 16)};
  return true;
}

EXPORT(jlong, allocate)(JNIEnv* env, jclass cls, jlongArray shape, jint dtype, jlong device) {
  UNUSED(cls);
  DLTensor like;
  int64_t extents[MOST_DIMENSIONS];
  TVMFFIObjectHandle made = NULL;
  if (!Describe(env, shape, dtype, device, &like, extents)) return 0;
  return Checked(env, core->tensor_alloc(&like, &made), &made);
}

// Over the memory of a direct buffer, which lives as long.
EXPORT(jlong, wrap)(JNIEnv* env, jclass cls, jobject buffer, jlong offset, jlongArray shape, jint dtype,
                    jboolean fixed) {
  UNUSED(cls);
  DLTensor like;
  int64_t extents[MOST_DIMENSIONS];
  TVMFFIObjectHandle made = NULL;
  if (!Describe(env, shape, dtype, kDLCPU, &like, extents)) return 0;
  like.data = (char*)(*env)->GetDirectBufferAddress(env, buffer) + offset;
  jobject owner = (*env)->NewGlobalRef(env, buffer);
  if (owner == NULL) return 0;
  const uint64_t flags = fixed ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
  const int status = core->tensor_from_memory(&like, flags, owner, DeleteReference, &made);
  if (status != 0) (*env)->DeleteGlobalRef(env, owner);
  return Checked(env, status, &made);
}

// The same elements in another shape. Java has seen that they are as many, and compact.
EXPORT(jlong, reshape)(JNIEnv* env, jclass cls, jlong object, jlongArray shape, jlong first) {
  UNUSED(cls);
  DLTensor like;
  int64_t extents[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
  TVMFFIObjectHandle made = NULL;
  const DLTensor* t = TensorOf(object);
  if (!Describe(env, shape, 0, 0, &like, extents)) return 0;
  like.dtype = t->dtype, like.device = t->device, like.data = t->data;
  like.byte_offset = t->byte_offset + (uint64_t)first;
  like.strides = strides;
  int64_t each = 1;
  for (int i = like.ndim - 1; i >= 0; --i) strides[i] = each, each *= extents[i];
  return Checked(env, core->tensor_create_view((void*)object, &like, &made), &made);
}

// [address, dtype, device type | id << 32, whether it is compact 1 | read-only 2 | nobody else has it 4, extents...]
EXPORT(jlongArray, tensorInfo)(JNIEnv* env, jclass cls, jlong object) {
  UNUSED(cls);
  const DLTensor* t = TensorOf(object);
  const bool fixed = core->tensor_get_flags((void*)object) & DLPACK_FLAG_BITMASK_READ_ONLY;
  const uint64_t count = __atomic_load_n(&((TVMFFIObject*)object)->combined_ref_count, __ATOMIC_RELAXED);
  const jlong head[] = {(jlong)t->data + (jlong)t->byte_offset,
                        t->dtype.code | t->dtype.bits << 8 | t->dtype.lanes << 16,
                        (jlong)t->device.device_type | (jlong)t->device.device_id << 32,
                        (IsCompact(t) ? 1 : 0) | (fixed ? 2 : 0) | ((uint32_t)count == 1 ? 4 : 0)};
  jlongArray made = (*env)->NewLongArray(env, 4 + t->ndim);
  if (made == NULL) return NULL;
  (*env)->SetLongArrayRegion(env, made, 0, 4, head);
  if (t->ndim != 0) (*env)->SetLongArrayRegion(env, made, 4, t->ndim, (const jlong*)t->shape);
  return made;
}

EXPORT(jlong, address)(JNIEnv* env, jclass cls, jobject buffer) {
  UNUSED(cls);
  return (jlong)(*env)->GetDirectBufferAddress(env, buffer);
}

EXPORT(jobject, buffer)(JNIEnv* env, jclass cls, jlong address, jlong nbytes) {
  UNUSED(cls);
  return (*env)->NewDirectByteBuffer(env, (void*)address, nbytes);
}

EXPORT(void, copy)(JNIEnv* env, jclass cls, jlong from, jlong to) {
  UNUSED(cls);
  if (core->tensor_copy(TensorOf(from), TensorOf(to)) != 0) ThrowRaised(env);
}

// A borrowed tensor, of an argument: a copy that Java may keep.
EXPORT(jlong, copyView)(JNIEnv* env, jclass cls, jlong view) {
  UNUSED(cls);
  TVMFFIObjectHandle made = NULL;
  int status = core->tensor_alloc((DLTensor*)view, &made);
  if (status == 0 && core->tensor_copy((DLTensor*)view, TensorOf((jlong)made)) != 0) {
    core->object_dec_ref(made);
    status = -1;
  }
  return Checked(env, status, &made);
}

// What Java wrote into the copy goes back. Memory that it only read may be read-only.
EXPORT(void, returnView)(JNIEnv* env, jclass cls, jlong copy, jlong borrowed) {
  UNUSED(cls);
  DLTensor* view = (DLTensor*)borrowed;
  const DLTensor* from = TensorOf(copy);
  if (view->device.device_type == kDLCPU && IsCompact(view)) {
    uint64_t bits = (uint64_t)view->dtype.bits * view->dtype.lanes;
    for (int i = 0; i < view->ndim; ++i) bits *= (uint64_t)view->shape[i];
    if (memcmp((char*)view->data + view->byte_offset, from->data, (size_t)((bits + 7) / 8)) == 0) return;
  }
  if (core->tensor_copy(from, view) != 0) ThrowRaised(env);
}
