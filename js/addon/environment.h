// SPDX-License-Identifier: Apache-2.0
// The core in Node: a Node-API addon in C, one binary for Node 20 and later. js/src/native is its other half.
//
// Rules
//  * A function that returns bool or napi_value returns false or NULL with an exception of JavaScript pending.
//  * A function that returns int is called by the core: 0, or -1 with an error in the thread's slot (c_api.h).
//  * An Environment belongs to one thread of JavaScript. Other threads touch only what its lock guards.
//  * A file includes headers below it only (tests/test_layers.py).
#ifndef PORTCALL_ADDON_ENVIRONMENT_H_
#define PORTCALL_ADDON_ENVIRONMENT_H_

#define NAPI_VERSION 8
#include <node_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "portcall/c_api.h"

extern const PortcallCore* portcall;  // the core's functions
extern int32_t carrier_type;          // of objects of the core that only carry one of JavaScript

// Functions of JavaScript that the addon calls, in the order of `start`'s arguments (js/src/native/hooks.ts).
typedef enum { kMake, kLower, kError, kDescribe, kNumHooks } Hook;

typedef struct Handle Handle;
typedef struct Kept Kept;
typedef struct Visit Visit;
typedef struct Registered Registered;

// How functions of the core and of JavaScript call each other. Values, which may be functions, are below that.
typedef struct Callers {
  napi_callback to_core;             // `data` is the function's Handle
  TVMFFISafeCallType to_javascript;  // `self` is the function, Kept
} Callers;

// One thread of JavaScript: the main one, or a worker.
typedef struct Environment {
  atomic_int users;   // the thread itself, its handles, and what the core keeps of it
  atomic_bool ended;  // the thread is gone, or is going
  pthread_t thread;
  napi_env env;
  Callers callers;
  napi_ref hooks[kNumHooks];
  Handle** handles;  // a hash table: which pointers of wrapped objects are ours
  size_t num_handles, num_slots;
  Registered* registered;
  int32_t unscoped;  // calls of JavaScript without a scope of their own, which takes time

  pthread_mutex_t lock;
  pthread_cond_t answered;        // a visit is over
  napi_threadsafe_function wake;  // makes the thread look at the two lists
  Kept* doomed;
  Visit *visits, **last_visit;
  Visit* current;  // whose function runs; only the thread itself writes it
  bool abandoned;  // nobody is called any more
} Environment;

Environment* StartEnvironment(napi_env env, Callers callers);
bool IsHere(Environment* e);  // whether this is its thread, and it goes on
void Retain(Environment* e);
void Release(Environment* e);
// Notes a name that the environment registered, so that it goes with it. Takes the reference.
void NoteRegistered(Environment* e, const char* name, size_t size, TVMFFIObjectHandle function);

// Calls a hook. NULL with a pending exception when it throws.
napi_value CallHook(Environment* e, Hook hook, size_t count, const napi_value* args);
// Whether a value may have one more level of arrays within arrays. V8 guards the stack when its own functions are called, and
// ends the process when it finds itself too far below: so from time to time one of them is called.
bool MayDescend(Environment* e, int depth);
int64_t PartOf(napi_env env, napi_value parts, uint32_t i);  // a whole number of the array that a hook returned
void ThrowError(napi_env env, const char* kind, const char* message);

// Something of JavaScript that the core keeps: a function, an array, an error.
struct Kept {
  Environment* environment;
  napi_ref reference;
  Kept* next;
};
Kept* Keep(Environment* e, napi_value value);
void ReleaseKept(void* kept);  // from any thread

// A call of a function of JavaScript by a thread that an asynchronous call uses: it waits for the answer.
struct Visit {
  int (*run)(Visit* visit, TVMFFIAny* result);  // in the thread of JavaScript
  Kept* function;
  const TVMFFIAny* args;
  int32_t count;
  TVMFFIAny* result;
  int status;
  TVMFFIObjectHandle error;
  bool over;
  Visit* next;
};
int VisitJavaScript(Visit* visit);
void AbandonVisits(Environment* e);  // all of them fail, from now on as well

static inline void ClearCell(TVMFFIAny* cell) {
  if (cell->type_index >= kTVMFFIObject) portcall->object_dec_ref(cell->v_obj);
  cell->type_index = kTVMFFINone;
}

#endif  // PORTCALL_ADDON_ENVIRONMENT_H_
