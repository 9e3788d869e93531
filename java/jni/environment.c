// SPDX-License-Identifier: Apache-2.0
// The beginning, and threads.
#include <pthread.h>

#include "binding.h"

const PortcallCore* core;
int32_t carrier_type;
jclass upcall;
jmethodID upcall_run, upcall_make_stack, upcall_describe, upcall_make_exception;
_Thread_local Here here;

static JavaVM* machine;
static pthread_key_t attached;

static void Detach(void* unused) {
  (void)unused;
  here = (Here){NULL, NULL};
  (*machine)->DetachCurrentThread(machine);
}

JNIEnv* Environment(void) {
  JNIEnv* env = here.env;
  if (env != NULL) return env;
  if ((*machine)->GetEnv(machine, (void**)&env, JNI_VERSION_1_8) == JNI_OK) return env;
  if ((*machine)->AttachCurrentThreadAsDaemon(machine, (void**)&env, NULL) != JNI_OK) return NULL;
  pthread_setspecific(attached, env);  // the thread is the core's: Java keeps its stack until Detach
  here.env = env;
  here.stack = (char*)(*env)->CallStaticLongMethod(env, upcall, upcall_make_stack);
  if ((*env)->ExceptionCheck(env)) (*env)->ExceptionClear(env), here.stack = NULL;
  return env;
}

void DeleteReference(void* reference) {
  JNIEnv* env = Environment();
  if (env != NULL) (*env)->DeleteGlobalRef(env, reference);
}

EXPORT(void, start)(JNIEnv* env, jclass cls, jclass upcalls) {
  UNUSED(cls);
  const struct {
    jmethodID* id;
    const char *name, *type;
  } methods[] = {{&upcall_run, "run", "(Ljava/lang/Object;II)Z"},
                 {&upcall_make_stack, "makeStack", "()J"},
                 {&upcall_describe, "describe", "(Ljava/lang/Throwable;)[[B"},
                 {&upcall_make_exception, "makeException", "([B[B[BLjava/lang/Throwable;J)Ljava/lang/Throwable;"}};
  upcall = (*env)->NewGlobalRef(env, upcalls);
  for (size_t i = 0; i < sizeof methods / sizeof *methods; ++i) {
    *methods[i].id = (*env)->GetStaticMethodID(env, upcall, methods[i].name, methods[i].type);
    if (*methods[i].id == NULL) return;
  }
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* loaded, void* unused) {
  static const TVMFFIByteArray key = {"portcall.JavaThrowable", 22};
  (void)unused;
  machine = loaded;
  core = PortcallGetCore();
  if (core->struct_size < sizeof *core || pthread_key_create(&attached, Detach) != 0) return JNI_ERR;
  carrier_type = TVMFFITypeGetOrAllocIndex(&key, -1, 1, 0, 0, kTVMFFIObject);
  return JNI_VERSION_1_8;
}
