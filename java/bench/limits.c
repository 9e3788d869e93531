// SPDX-License-Identifier: Apache-2.0
// The limits of JNI, which no binding is below: a native method that does nothing, and one that calls such a method of Java.
#include <jni.h>

static jclass bench;
static jmethodID nothing;

JNIEXPORT void JNICALL Java_org_portcall_Bench_start(JNIEnv* env, jclass cls) {
  bench = (*env)->NewGlobalRef(env, cls);
  nothing = (*env)->GetStaticMethodID(env, bench, "nothing", "()Z");
}

JNIEXPORT void JNICALL Java_org_portcall_Bench_empty(JNIEnv* env, jclass cls) { (void)env, (void)cls; }

JNIEXPORT void JNICALL Java_org_portcall_Bench_emptyUp(JNIEnv* env, jclass cls) {
  (void)cls;
  (*env)->CallStaticBooleanMethod(env, bench, nothing);
}
