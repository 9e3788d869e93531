// SPDX-License-Identifier: Apache-2.0
// The core in Java, by JNI, in C11: libportcall_jni.so. Java writes cells (TVMFFIAny) into the memory of its thread's stack
// and reads them there, so a call crosses the border once, and C looks into no object of Java on the way.
//
// How it is built: all of java/jni/*.c, with core/include and the JDK's headers, linked to libportcall.so, which lies beside it
// (so do libportcall_graph.so, _session.so, _vm.so and _ir.so, which the core opens when they are needed):
//   cc -std=gnu11 -O2 -fPIC -fvisibility=hidden -shared java/jni/*.c -Icore/include -I$JAVA_HOME/include{,/linux}
//      -L$DIR -lportcall -Wl,-rpath,'$ORIGIN' -Wl,-z,nodelete -lpthread -o $DIR/libportcall_jni.so
//   javac --release 17 -d $CLASSES java/src/org/portcall/*.java
//   java -Dportcall.library.path=$DIR -cp $CLASSES …
//
// A stack: at 0 a word, the offset of its free part. Above, frames, one within the other: the cell of the result, those of the
// arguments, then text, small arrays and what else the arguments point to. Text and bytes that C writes for Java are cells of
// types of their own, with the size in the padding and the offset in the stack.
#ifndef PORTCALL_JAVA_BINDING_H_
#define PORTCALL_JAVA_BINDING_H_

#include <jni.h>
#include <stdbool.h>

#include "portcall/c_api.h"

#define STACK_BYTES 65536
#define RESERVED 4096  // of a frame, for text
#define TEXT_HERE (-8)
#define BYTES_HERE (-9)
#define EXPORT(type, name) JNIEXPORT type JNICALL Java_org_portcall_Native_##name
#define UNUSED(cls) ((void)(cls))

// ---- environment.c ------------------------------------------------------------------------------------------------

extern const PortcallCore* core;
extern int32_t carrier_type;  // of objects that hold an exception of Java
extern jclass upcall;         // org.portcall.Upcall
extern jmethodID upcall_run, upcall_make_stack, upcall_describe, upcall_make_exception;

// What this thread has while Java calls the core in it, or for good where the core's own thread called Java.
typedef struct Here {
  char* stack;
  JNIEnv* env;
} Here;
extern _Thread_local Here here;

// NULL where Java takes no more threads, or is gone.
JNIEnv* Environment(void);
// A deleter of the core, for a global reference: any thread.
void DeleteReference(void* reference);

// ---- errors.c -----------------------------------------------------------------------------------------------------

// Throws the error in the slot of this thread.
void ThrowRaised(JNIEnv* env);
// Puts the pending exception into the slot; returns -1.
int RaisePending(JNIEnv* env);
// The object that was made; or 0, thrown. (By its address: C evaluates arguments in any order.)
jlong Checked(JNIEnv* env, int status, const TVMFFIObjectHandle* made);

// ---- values.c -----------------------------------------------------------------------------------------------------

// The bytes of an array until GiveBack. False: Java throws, having no memory.
bool Borrow(JNIEnv* env, jbyteArray array, TVMFFIByteArray* text);
void GiveBack(JNIEnv* env, jbyteArray array, const TVMFFIByteArray* text);
jbyteArray MakeBytes(JNIEnv* env, TVMFFIByteArray bytes);
// Copies text and bytes of a cell to *end in the stack, where they fit below the limit.
void Reach(TVMFFIAny* cell, char* stack, int64_t* end, int64_t limit);

static inline const void* BodyOf(jlong object) { return (const TVMFFIObject*)object + 1; }

#endif  // PORTCALL_JAVA_BINDING_H_
