// SPDX-License-Identifier: Apache-2.0
// Calls, both ways, and the registry.
#include <string.h>

#include "binding.h"

// ---- Java calls the core ------------------------------------------------------------------------------------------

// The first cell of the frame gets the result: the caller owns it, unless it is text that was copied behind the frame.
EXPORT(void, call)(JNIEnv* env, jclass cls, jlong call, jlong self, jlong stack, jint frame, jint n) {
  UNUSED(cls);
  TVMFFIAny* cells = (TVMFFIAny*)((char*)stack + frame);
  const Here before = here;
  memset(cells, 0, sizeof *cells);
  here = (Here){(char*)stack, env};
  const int status = ((TVMFFISafeCallType)call)((void*)self, cells + 1, n, cells);
  here = before;
  if (status != 0) return ThrowRaised(env);
  if (cells->type_index == kTVMFFIStr || cells->type_index == kTVMFFIBytes) {
    TVMFFIObject* text = cells->v_obj;
    int64_t end = *(int64_t*)stack;  // behind the arguments, which may have memory that is still to be copied back
    Reach(cells, (char*)stack, &end, STACK_BYTES);
    if (cells->type_index < kTVMFFIObject) core->object_dec_ref(text);
  }
}

// ---- The core calls Java ------------------------------------------------------------------------------------------

static int Fail(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

// An argument as Java may read it. Text that is borrowed, and too long for the stack, becomes an object for this call, which
// the padding tells.
static void TakeArgument(TVMFFIAny* cell, char* stack, int64_t* end, int64_t limit) {
  TVMFFIAny owned;
  if (cell->type_index == kTVMFFIObjectRValueRef) {  // what may be taken is only looked at
    TVMFFIObject* object = *(TVMFFIObject**)cell->v_ptr;
    *cell = (TVMFFIAny){.type_index = object == NULL ? kTVMFFINone : object->type_index, .v_obj = object};
  }
  if (cell->type_index >= kTVMFFIObject) cell->zero_padding = 0;
  Reach(cell, stack, end, limit);
  if (cell->type_index != kTVMFFIRawStr && cell->type_index != kTVMFFIByteArrayPtr) return;
  if (core->any_view_to_owned(cell, &owned) != 0) owned = (TVMFFIAny){.type_index = kTVMFFINone};
  *cell = owned;
  if (cell->type_index >= kTVMFFIObject) cell->zero_padding = 1;
}

static int CallJava(void* body, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  JNIEnv* env = Environment();
  if (env == NULL) return Fail("RuntimeError", "Java takes no more threads");
  char* stack = here.stack;
  if (stack == NULL) {
    stack = (char*)(*env)->CallStaticLongMethod(env, upcall, upcall_make_stack);
    if ((*env)->ExceptionCheck(env)) return RaisePending(env);
  }
  int64_t* top = (int64_t*)stack;
  const int64_t frame = *top, behind = frame + 16 * ((int64_t)n + 1);
  if (behind + 2 * RESERVED > STACK_BYTES) {
    return n > 1000 ? Fail("ValueError", "a function of Java takes at most 1,000 arguments")
                    : Fail("RecursionError", "calls of Java within calls of Java go too deep");
  }
  TVMFFIAny* cells = (TVMFFIAny*)(stack + frame);
  int64_t end = behind;
  cells[0] = (TVMFFIAny){.type_index = kTVMFFINone};
  for (int32_t i = 1; i <= n; ++i) {
    cells[i] = args[i - 1];
    TakeArgument(&cells[i], stack, &end, behind + RESERVED);
  }
  *top = (end + 15) & ~INT64_C(15);
  const jboolean owned = (*env)->CallStaticBooleanMethod(env, upcall, upcall_run, (jobject)body, (jint)frame, (jint)n);
  *top = frame;
  for (int32_t i = 1; i <= n; ++i) {
    if (cells[i].type_index >= kTVMFFIObject && cells[i].zero_padding != 0) core->object_dec_ref(cells[i].v_obj);
  }
  if ((*env)->ExceptionCheck(env)) return RaisePending(env);
  if (owned) *result = cells[0];
  return 0;
}

// The name is for messages: one that is very long is left out.
EXPORT(jlong, makeFunction)(JNIEnv* env, jclass cls, jobject body, jbyteArray name) {
  UNUSED(cls);
  TVMFFIObjectHandle made = NULL;
  char text[256] = "";
  jsize size = name == NULL ? 0 : (*env)->GetArrayLength(env, name);
  if (size >= (jsize)sizeof text) size = 0;
  if (size > 0) (*env)->GetByteArrayRegion(env, name, 0, size, (jbyte*)text);
  jobject kept = (*env)->NewGlobalRef(env, body);
  if (kept == NULL) return 0;
  const int status = core->function_create(kept, CallJava, DeleteReference, 0, size == 0 ? NULL : text, &made);
  if (status != 0) (*env)->DeleteGlobalRef(env, kept);
  return Checked(env, status, &made);
}

// ---- The registry -------------------------------------------------------------------------------------------------

EXPORT(jlong, global)(JNIEnv* env, jclass cls, jbyteArray name) {
  UNUSED(cls);
  TVMFFIObjectHandle found = NULL;
  TVMFFIByteArray text;
  if (!Borrow(env, name, &text)) return 0;
  const int status = core->function_get_global(&text, &found);
  GiveBack(env, name, &text);
  return Checked(env, status, &found);
}

EXPORT(void, setGlobal)(JNIEnv* env, jclass cls, jbyteArray name, jlong function, jboolean override) {
  UNUSED(cls);
  TVMFFIByteArray text;
  if (!Borrow(env, name, &text)) return;
  const int status = core->function_set_global(&text, (void*)function, override);
  GiveBack(env, name, &text);
  Checked(env, status, NULL);
}

// What to call, and the flags of a function; its name.
EXPORT(jbyteArray, functionInfo)(JNIEnv* env, jclass cls, jlong function, jlongArray out) {
  UNUSED(cls);
  PortcallFunctionInfo about;
  core->function_get_info((void*)function, &about);
  const jlong numbers[] = {(jlong)about.call, (jlong)about.self, about.flags};
  (*env)->SetLongArrayRegion(env, out, 0, 3, numbers);
  return about.name[0] == 0 ? NULL : MakeBytes(env, (TVMFFIByteArray){about.name, strlen(about.name)});
}
