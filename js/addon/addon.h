// SPDX-License-Identifier: Apache-2.0
// The core in Node: a Node-API addon in C, one binary for Node 20 and later. js/src/native is its other half.
//
// Rules
//  * A function that returns bool or napi_value returns false or NULL with an exception of JavaScript pending.
//  * A function that returns int is called by the core: 0, or -1 with an error in the thread's slot (c_api.h).
//  * An Environment belongs to one thread of JavaScript. Other threads touch only what its lock guards.
#ifndef PORTCALL_ADDON_H_
#define PORTCALL_ADDON_H_

#define NAPI_VERSION 8
#include <node_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "portcall/c_api.h"

#define DEEPEST 500          // arrays within arrays: each level takes stack
#define FAST_ARGUMENTS 8     // of calls without memory from the heap
#define MOST_UNSCOPED 8      // calls of JavaScript whose values may stay until the core's call that made them is over
#define SMALL_TEXT 7         // bytes that a cell itself holds
#define ALIGNMENT 64         // bytes: what compiled code expects of tensors
#define SAFE_INTEGER 0x1p53  // below it every whole number is exact as a double

extern const PortcallCore* portcall;  // the core's functions
extern int32_t carrier_type;          // of objects of the core that only carry one of JavaScript

// ---- Environments -------------------------------------------------------------------------------------------------

// Functions of JavaScript that the addon calls, in the order of `start`'s arguments (js/src/native/hooks.ts).
typedef enum { kMake, kLower, kError, kDescribe, kNumHooks } Hook;

typedef struct Handle Handle;
typedef struct Kept Kept;
typedef struct Visit Visit;
typedef struct Registered Registered;

// One thread of JavaScript: the main one, or a worker.
typedef struct Environment {
  atomic_int users;   // the thread itself, its handles, and what the core keeps of it
  atomic_bool ended;  // the thread is gone, or is going
  pthread_t thread;
  napi_env env;
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
  Visit* current;  // whose function runs
  bool abandoned;  // nobody is called any more
} Environment;

Environment* StartEnvironment(napi_env env);
bool IsHere(Environment* e);  // whether this is its thread, and it goes on
void Retain(Environment* e);
void Release(Environment* e);
// Notes a name that the environment registered, so that it goes with it. Takes the reference.
void NoteRegistered(Environment* e, const char* name, size_t size, TVMFFIObjectHandle function);

// Calls a hook. NULL with a pending exception when it throws.
napi_value CallHook(Environment* e, Hook hook, size_t count, const napi_value* args);
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

// ---- Handles: objects of JavaScript that stand for one of the core -------------------------------------------------

struct Handle {
  Environment* environment;
  TVMFFIObject* object;  // NULL once it was disposed of
  TVMFFISafeCallType call;
  void* self;
  int32_t flags;    // of the function
  int32_t calls;    // that are going on; it is freed after the last one
  bool disposed;    // by the user
  int64_t counted;  // bytes that the garbage collector was told of
};

Handle* MakeHandle(Environment* e, TVMFFIObjectHandle object);  // takes the reference, also when it fails
bool AttachHandle(napi_value target, Handle* handle);           // on failure the handle is gone
Handle* HandleOf(Environment* e, napi_value value);             // NULL: it is none of ours
void DisposeHandle(Handle* handle);
bool AddHandle(Environment* e, Handle* handle);
bool HasHandle(const Environment* e, const void* pointer);
void RemoveHandle(Environment* e, Handle* handle);

// ---- Values -------------------------------------------------------------------------------------------------------

// Writes a value; the cell owns what it holds. On failure it holds nothing.
bool PutValue(Environment* e, napi_value value, TVMFFIAny* cell, int depth);
// Reads a cell; an owned one gives its reference up, also when it fails.
napi_value GetValue(Environment* e, const TVMFFIAny* cell, bool owned);
void ClearCell(TVMFFIAny* cell);
napi_value MakeText(napi_env env, const char* data, size_t size);

// ---- Tensors ------------------------------------------------------------------------------------------------------

static inline DLTensor* TensorOf(TVMFFIObjectHandle object) { return (DLTensor*)((TVMFFIObject*)object + 1); }
int64_t SizeOf(const DLTensor* tensor);  // bytes
// Describes a typed array as a tensor of one dimension: false when it is none of a type that tensors have.
bool DescribeArray(napi_env env, napi_value array, DLTensor* tensor, int64_t* extent);
// A tensor object over the memory of an array, which it keeps.
bool PutArray(Environment* e, napi_value array, const DLTensor* tensor, TVMFFIAny* cell);
// The same for an array with a shape: [tag, array, shape, code, bits, lanes].
bool PutShapedArray(Environment* e, napi_value parts, TVMFFIAny* cell);
napi_value WrapTensor(Environment* e, TVMFFIObjectHandle object);  // takes the reference
bool IsCompact(const DLTensor* tensor);
int64_t PartOf(napi_env env, napi_value parts, uint32_t i);  // a whole number of an array
napi_value AllocateTensor(napi_env env, napi_callback_info info);
napi_value BufferOfTensor(napi_env env, napi_callback_info info);
napi_value DetachBuffer(napi_env env, napi_callback_info info);

// ---- Functions ----------------------------------------------------------------------------------------------------

// What an argument holds until the call is over: a reference, and an aligned copy of the tensor.
typedef struct Held {
  TVMFFIObject* object;
  TVMFFIObject* copy;
} Held;
// Gives compiled code an aligned, compact copy of the tensor in `cell`, where that is needed. `held` are those before it.
bool AlignArgument(Environment* e, TVMFFIAny* cell, Held* held, const Held* first);
void ReleaseHeld(Held* held, const Held* end);

napi_value WrapFunction(Environment* e, TVMFFIObjectHandle object, const char* name);  // takes the reference
// A function of JavaScript as a function of the core; NULL with an exception.
TVMFFIObjectHandle MakeFunction(Environment* e, napi_value function, const char* name);
// Throws the error of the thread's slot: an object that JavaScript threw is thrown again.
void ThrowRaised(Environment* e);
napi_value ErrorToValue(Environment* e, TVMFFIObjectHandle error);  // takes the reference
TVMFFIObjectHandle MakeCarrier(Environment* e, napi_value value);   // NULL: there is no memory left
napi_value CarriedBy(Environment* e, const TVMFFIObject* object);   // NULL: nothing of this thread
// Leaves the pending exception in the thread's slot, for the core.
int RaisePending(Environment* e);
int CallHere(Kept* function, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
napi_value CallAsync(napi_env env, napi_callback_info info);
extern _Thread_local Environment* visited;  // for the threads of asynchronous calls

#endif  // PORTCALL_ADDON_H_
