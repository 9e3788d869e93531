// SPDX-License-Identifier: Apache-2.0
// Handles, and the table that tells them from what other addons wrapped.
#include "handles.h"

#include <stdlib.h>

// ---- The table: pointers, with open addressing --------------------------------------------------------------------

static size_t SlotOf(const Environment* e, const void* pointer) {
  return (size_t)(((uintptr_t)pointer >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (e->num_slots - 1);
}

static void PutSlot(Environment* e, Handle* handle) {
  size_t i = SlotOf(e, handle);
  while (e->handles[i] != NULL) i = (i + 1) & (e->num_slots - 1);
  e->handles[i] = handle;
}

static bool AddHandle(Environment* e, Handle* handle) {
  if (2 * (e->num_handles + 1) > e->num_slots) {
    const size_t before = e->num_slots;
    Handle** old = e->handles;
    Handle** made = calloc(before == 0 ? 64 : 2 * before, sizeof *made);
    if (made == NULL) return false;
    e->handles = made;
    e->num_slots = before == 0 ? 64 : 2 * before;
    for (size_t i = 0; i < before; ++i) {
      if (old[i] != NULL) PutSlot(e, old[i]);
    }
    free(old);
  }
  ++e->num_handles;
  PutSlot(e, handle);
  return true;
}

static bool HasHandle(const Environment* e, const void* pointer) {
  if (e->num_slots == 0) return false;
  for (size_t i = SlotOf(e, pointer); e->handles[i] != NULL; i = (i + 1) & (e->num_slots - 1)) {
    if (e->handles[i] == pointer) return true;
  }
  return false;
}

static void RemoveHandle(Environment* e, Handle* handle) {
  const size_t mask = e->num_slots - 1;
  size_t hole = SlotOf(e, handle);
  while (e->handles[hole] != handle) hole = (hole + 1) & mask;
  --e->num_handles;
  for (size_t i = (hole + 1) & mask; e->handles[i] != NULL; i = (i + 1) & mask) {
    const size_t home = SlotOf(e, e->handles[i]);
    if (((i - home) & mask) < ((i - hole) & mask)) continue;  // it stays reachable from its home
    e->handles[hole] = e->handles[i];
    hole = i;
  }
  e->handles[hole] = NULL;
}

// ---- Handles ------------------------------------------------------------------------------------------------------

void DisposeHandle(Handle* handle) {
  handle->disposed = true;
  if (handle->calls != 0 || handle->object == NULL) return;
  TVMFFIObject* object = handle->object;
  int64_t counted;
  handle->object = NULL;
  if (handle->counted != 0) napi_adjust_external_memory(handle->environment->env, -handle->counted, &counted);
  handle->counted = 0;
  portcall->object_dec_ref(object);
}

static void FreeHandle(napi_env env, void* data, void* hint) {
  Handle* handle = data;
  Environment* e = handle->environment;
  (void)env, (void)hint;
  DisposeHandle(handle);
  RemoveHandle(e, handle);
  free(handle);
  Release(e);
}

Handle* MakeHandle(Environment* e, TVMFFIObjectHandle object) {
  Handle* handle = calloc(1, sizeof *handle);
  if (handle == NULL || !AddHandle(e, handle)) {
    free(handle);
    portcall->object_dec_ref(object);
    ThrowError(e->env, "RangeError", "there is no memory left for an object");
    return NULL;
  }
  handle->environment = e;
  handle->object = object;
  Retain(e);
  return handle;
}

bool AttachHandle(napi_value target, Handle* handle) {
  napi_env env = handle->environment->env;
  if (target != NULL && napi_wrap(env, target, handle, FreeHandle, NULL, NULL) == napi_ok) return true;
  FreeHandle(env, handle, NULL);
  return false;
}

Handle* HandleOf(Environment* e, napi_value value) {
  void* pointer;
  if (napi_unwrap(e->env, value, &pointer) != napi_ok || !HasHandle(e, pointer)) return NULL;
  return pointer;
}
