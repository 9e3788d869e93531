// SPDX-License-Identifier: Apache-2.0
// Errors: an exception of Java comes back as the same object.
#include "binding.h"

void ThrowRaised(JNIEnv* env) {
  static const TVMFFIErrorCell unknown = {.kind = {"RuntimeError", 12},
                                          .message = {"a call failed without an error", 30}};
  TVMFFIObjectHandle error = NULL;
  core->error_move_from_raised(&error);
  if ((*env)->ExceptionCheck(env)) {  // Java has no memory, and says so
    if (error != NULL) core->object_dec_ref(error);
    return;
  }
  const TVMFFIErrorCell* cell = error == NULL ? &unknown : BodyOf((jlong)error);
  const TVMFFIObject* context = cell->extra_context;
  const int32_t type = context == NULL ? 0 : context->type_index;
  jobject original = type == carrier_type ? *(const jobject*)(context + 1) : NULL;
  jbyteArray kind = MakeBytes(env, cell->kind);
  jbyteArray message = kind == NULL ? NULL : MakeBytes(env, cell->message);
  jbyteArray trace = message == NULL ? NULL : MakeBytes(env, cell->backtrace);
  if (trace != NULL) {
    jobject thrown = (*env)->CallStaticObjectMethod(env, upcall, upcall_make_exception, kind, message, trace, original,
                                                    type == kTVMFFIArray ? (jlong)context : 0);
    if (!(*env)->ExceptionCheck(env)) (*env)->Throw(env, thrown);
  }
  if (error != NULL) core->object_dec_ref(error);
}

// The parts that Java tells of an exception: kind, message and trace. False where it fails in that.
static bool Describe(JNIEnv* env, jthrowable thrown, jbyteArray arrays[3], TVMFFIByteArray parts[3]) {
  jobjectArray texts = (*env)->CallStaticObjectMethod(env, upcall, upcall_describe, thrown);
  bool told = !(*env)->ExceptionCheck(env);
  for (int i = 0; told && i < 3; ++i) {
    arrays[i] = (*env)->GetObjectArrayElement(env, texts, i);
    told = Borrow(env, arrays[i], &parts[i]);
  }
  if (!told) (*env)->ExceptionClear(env);
  if (texts != NULL) (*env)->DeleteLocalRef(env, texts);
  return told;
}

int RaisePending(JNIEnv* env) {
  static const TVMFFIByteArray untold[3] = {
      {"RuntimeError", 12}, {"an exception of Java that has no text", 37}, {"", 0}};
  TVMFFIByteArray parts[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
  jbyteArray arrays[3] = {NULL, NULL, NULL};
  jthrowable thrown = (*env)->ExceptionOccurred(env);
  TVMFFIObjectHandle carrier = NULL, error = NULL;
  (*env)->ExceptionClear(env);
  jobject kept = (*env)->NewGlobalRef(env, thrown);
  if (kept != NULL && core->object_create_opaque(kept, carrier_type, DeleteReference, &carrier) != 0) {
    (*env)->DeleteGlobalRef(env, kept);
  }
  const TVMFFIByteArray* told = Describe(env, thrown, arrays, parts) ? parts : untold;
  if (core->error_create(told, told + 1, told + 2, NULL, carrier, &error) == 0) {
    core->error_set_raised(error);
    core->object_dec_ref(error);
  }
  if (carrier != NULL) core->object_dec_ref(carrier);
  for (int i = 0; i < 3; ++i) {
    if (arrays[i] == NULL) continue;
    if (parts[i].data != NULL) GiveBack(env, arrays[i], &parts[i]);
    (*env)->DeleteLocalRef(env, arrays[i]);
  }
  (*env)->DeleteLocalRef(env, thrown);
  return -1;
}

jlong Checked(JNIEnv* env, int status, const TVMFFIObjectHandle* made) {
  if (status != 0) ThrowRaised(env);
  return status == 0 && made != NULL ? (jlong)*made : 0;
}
