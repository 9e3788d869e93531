// SPDX-License-Identifier: Apache-2.0
// Threads of JavaScript: what each has, how other threads reach it, and how it ends.
#include "environment.h"

#include <stdlib.h>
#include <string.h>

#define DEEPEST 500          // arrays within arrays
#define LEVELS_UNGUARDED 16  // of these take no more stack than V8 leaves to functions in C

const PortcallCore* portcall;
int32_t carrier_type;

struct Registered {
  TVMFFIObjectHandle function;
  Registered* next;
  size_t size;
  char name[];
};

bool IsHere(Environment* e) { return !atomic_load(&e->ended) && pthread_equal(e->thread, pthread_self()); }

void Retain(Environment* e) { atomic_fetch_add(&e->users, 1); }

void Release(Environment* e) {
  if (atomic_fetch_sub(&e->users, 1) != 1) return;
  pthread_mutex_destroy(&e->lock);
  pthread_cond_destroy(&e->answered);
  free(e->handles);
  free(e);
}

// ---- What the core keeps ------------------------------------------------------------------------------------------

Kept* Keep(Environment* e, napi_value value) {
  Kept* kept = malloc(sizeof *kept);
  if (kept == NULL) return NULL;
  kept->environment = e;
  kept->next = NULL;
  if (napi_create_reference(e->env, value, 1, &kept->reference) != napi_ok) {
    free(kept);
    return NULL;
  }
  Retain(e);
  return kept;
}

static void FreeKept(Kept* kept) {
  Environment* e = kept->environment;
  if (!atomic_load(&e->ended)) napi_delete_reference(e->env, kept->reference);  // otherwise it went with the thread
  free(kept);
  Release(e);
}

void ReleaseKept(void* pointer) {
  Kept* kept = pointer;
  Environment* e = kept->environment;
  if (IsHere(e)) return FreeKept(kept);
  pthread_mutex_lock(&e->lock);
  const bool queued = !atomic_load(&e->ended);
  if (queued) {
    kept->next = e->doomed;
    e->doomed = kept;
    if (kept->next == NULL) napi_call_threadsafe_function(e->wake, NULL, napi_tsfn_nonblocking);
  }
  pthread_mutex_unlock(&e->lock);
  if (!queued) FreeKept(kept);
}

static void FreeDoomed(Environment* e) {
  pthread_mutex_lock(&e->lock);
  Kept* kept = e->doomed;
  e->doomed = NULL;
  pthread_mutex_unlock(&e->lock);
  while (kept != NULL) {
    Kept* next = kept->next;
    FreeKept(kept);
    kept = next;
  }
}

// ---- Visits -------------------------------------------------------------------------------------------------------

int VisitJavaScript(Visit* visit) {
  Environment* e = visit->function->environment;
  visit->status = -1;
  visit->error = NULL;
  visit->over = false;
  visit->next = NULL;
  pthread_mutex_lock(&e->lock);
  if (!e->abandoned) {
    *e->last_visit = visit;
    e->last_visit = &visit->next;
    napi_call_threadsafe_function(e->wake, NULL, napi_tsfn_nonblocking);
    while (!visit->over) pthread_cond_wait(&e->answered, &e->lock);
  }
  pthread_mutex_unlock(&e->lock);
  if (visit->error != NULL) {
    portcall->error_set_raised(visit->error);
    portcall->object_dec_ref(visit->error);
  } else if (visit->status != 0) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "the thread of a JavaScript function has ended");
  }
  return visit->status;
}

// The visit is over; from here on its memory is the other thread's again. The lock is held.
static void Answer(Environment* e, Visit* visit) {
  visit->over = true;
  pthread_cond_broadcast(&e->answered);
}

// Calls the function of the first visit, if there is one. The thread may end within the call.
static bool CallNext(Environment* e) {
  TVMFFIAny result = {0};
  TVMFFIObjectHandle error = NULL;
  pthread_mutex_lock(&e->lock);
  Visit* visit = e->visits;
  if (visit != NULL && (e->visits = visit->next) == NULL) e->last_visit = &e->visits;
  e->current = visit;
  pthread_mutex_unlock(&e->lock);
  if (visit == NULL) return false;
  const int status = visit->run(visit, &result);
  if (status != 0) portcall->error_move_from_raised(&error);
  pthread_mutex_lock(&e->lock);
  const bool waits = e->current == visit;
  if (waits) {
    visit->status = status;
    visit->error = error;
    if (status == 0) *visit->result = result;
    Answer(e, visit);
  }
  e->current = NULL;
  pthread_mutex_unlock(&e->lock);
  if (!waits) {
    ClearCell(&result);
    if (error != NULL) portcall->object_dec_ref(error);
  }
  return waits;
}

void AbandonVisits(Environment* e) {
  pthread_mutex_lock(&e->lock);
  e->abandoned = true;
  if (e->current != NULL) Answer(e, e->current);
  e->current = NULL;
  while (e->visits != NULL) {
    Visit* visit = e->visits;
    e->visits = visit->next;
    Answer(e, visit);
  }
  e->last_visit = &e->visits;
  pthread_mutex_unlock(&e->lock);
}

// Runs in the thread of JavaScript, when another one has put something into its lists. No `env`: it is too late, and `End`
// has done everything.
static void Look(napi_env env, napi_value unused, void* context, void* data) {
  (void)unused, (void)data;
  if (env == NULL) return;
  Environment* e = context;
  Retain(e);
  FreeDoomed(e);
  while (CallNext(e)) continue;
  Release(e);
}

// ---- Begin and end ------------------------------------------------------------------------------------------------

void NoteRegistered(Environment* e, const char* name, size_t size, TVMFFIObjectHandle function) {
  Registered** at = &e->registered;
  while (*at != NULL && ((*at)->size != size || memcmp((*at)->name, name, size) != 0)) at = &(*at)->next;
  if (*at == NULL) {
    Registered* made = malloc(sizeof *made + size);
    if (made == NULL) {
      portcall->object_dec_ref(function);
      return;
    }
    made->next = NULL;
    made->size = size;
    memcpy(made->name, name, size);
    *at = made;
  } else {
    portcall->object_dec_ref((*at)->function);
  }
  (*at)->function = function;
}

// Takes the functions of a thread that ends out of the registry, unless others have taken their places.
static void RemoveRegistered(Environment* e) {
  for (Registered *each = e->registered, *next; each != NULL; each = next) {
    const TVMFFIByteArray name = {each->name, each->size};
    TVMFFIObjectHandle now = NULL;
    int removed;
    portcall->function_get_global(&name, &now);
    if (now == each->function) PortcallFunctionRemoveGlobal(&name, &removed);
    if (now != NULL) portcall->object_dec_ref(now);
    portcall->object_dec_ref(each->function);
    next = each->next;
    free(each);
  }
  e->registered = NULL;
}

static void End(void* data) {
  Environment* e = data;
  napi_handle_scope scope = NULL;
  napi_open_handle_scope(e->env, &scope);  // deleters of what goes now may call functions of JavaScript, which fails
  RemoveRegistered(e);
  AbandonVisits(e);
  FreeDoomed(e);
  pthread_mutex_lock(&e->lock);
  atomic_store(&e->ended, true);
  pthread_mutex_unlock(&e->lock);
  FreeDoomed(e);
  if (scope != NULL) napi_close_handle_scope(e->env, scope);
  Release(e);
}

Environment* StartEnvironment(napi_env env, Callers callers) {
  Environment* e = calloc(1, sizeof *e);
  napi_value name;
  if (e == NULL) return NULL;
  atomic_init(&e->users, 1);
  atomic_init(&e->ended, false);
  e->thread = pthread_self();
  e->env = env;
  e->callers = callers;
  e->last_visit = &e->visits;
  pthread_mutex_init(&e->lock, NULL);
  pthread_cond_init(&e->answered, NULL);
  if (napi_create_string_utf8(env, "portcall", NAPI_AUTO_LENGTH, &name) != napi_ok ||
      napi_create_threadsafe_function(env, NULL, NULL, name, 0, 1, NULL, NULL, e, Look, &e->wake) != napi_ok) {
    Release(e);
    return NULL;
  }
  napi_unref_threadsafe_function(env, e->wake);  // alone it keeps no process alive
  napi_add_env_cleanup_hook(env, End, e);
  napi_set_instance_data(env, e, NULL, NULL);
  return e;
}

// ---- Hooks --------------------------------------------------------------------------------------------------------

napi_value CallHook(Environment* e, Hook hook, size_t count, const napi_value* args) {
  napi_value function, undefined, result;
  napi_get_undefined(e->env, &undefined);
  if (napi_get_reference_value(e->env, e->hooks[hook], &function) != napi_ok) return NULL;
  return napi_call_function(e->env, undefined, function, count, args, &result) == napi_ok ? result : NULL;
}

bool MayDescend(Environment* e, int depth) {
  napi_value text;
  if (depth >= DEEPEST) {
    ThrowError(e->env, "RangeError", "a value has too many levels, or contains itself");
    return false;
  }
  if (depth % LEVELS_UNGUARDED != LEVELS_UNGUARDED - 1) return true;
  return napi_create_string_latin1(e->env, "", 0, &text) == napi_ok && CallHook(e, kLower, 1, &text) != NULL;
}

int64_t PartOf(napi_env env, napi_value parts, uint32_t i) {
  napi_value part;
  int64_t value = 0;
  if (napi_get_element(env, parts, i, &part) == napi_ok) napi_get_value_int64(env, part, &value);
  return value;
}

void ThrowError(napi_env env, const char* kind, const char* message) {
  if (strcmp(kind, "TypeError") == 0) {
    napi_throw_type_error(env, NULL, message);
  } else if (strcmp(kind, "RangeError") == 0) {
    napi_throw_range_error(env, NULL, message);
  } else {
    napi_throw_error(env, NULL, message);
  }
}
