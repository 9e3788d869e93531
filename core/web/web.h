// SPDX-License-Identifier: Apache-2.0
// The door for JavaScript, beside c_api.h: its imports, and functions for JavaScript alone.
#ifndef PORTCALL_WEB_WEB_H_
#define PORTCALL_WEB_WEB_H_

#include "portcall/c_api.h"

#define PORTCALL_WEB_IMPORT(NAME) __attribute__((import_module("portcall"), import_name(NAME)))

extern "C" {

// Calls function number `self` of JavaScript; 0, -1 with an error raised, or kPortcallWebPending: it returned a promise, for
// which this call may wait.
PORTCALL_WEB_IMPORT("call")
int portcall_web_call(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result);
#define kPortcallWebPending 1
// Waits for that promise: what runs is suspended, and goes on later. Then its value, or -1 with its error raised.
PORTCALL_WEB_IMPORT("wait") void portcall_web_wait(void);
PORTCALL_WEB_IMPORT("settled") int portcall_web_settled(TVMFFIAny* result);
// That function has no references left.
PORTCALL_WEB_IMPORT("free") void portcall_web_free(void* self);

// A function of JavaScript as a function object; `name` may be null.
PORTCALL_API int PortcallWebFunction(void* self, const char* name, TVMFFIObjectHandle* out);
// Any object of JavaScript as an object of the type "portcall.JSObject", which the core only carries.
PORTCALL_API int PortcallWebObject(void* self, TVMFFIObjectHandle* out);

// A library that JavaScript placed in this memory: the names and addresses of what it exports.
PORTCALL_API int PortcallWebModule(const TVMFFIByteArray* names, void* const* addresses, int32_t count,
                                   TVMFFIObjectHandle* out);

// ---- A session, served by the endpoint from an event loop of JavaScript -------------------------------------------

typedef struct PortcallWebServer PortcallWebServer;

// Offers the functions of the registry whose names match one of `count` patterns. `features` are the extensions that
// both sides have, by name. `max_frame`: bytes of a message. JavaScript has registered two functions before:
// "portcall.web.IsPromise" says whether an object is one, and "portcall.web.Settled" returns the value of the last one that
// was, or raises its error.
PORTCALL_API int PortcallWebServerCreate(const TVMFFIByteArray* patterns, int32_t count,
                                         const TVMFFIByteArray* features, int64_t max_frame, PortcallWebServer** out);
PORTCALL_API int PortcallWebServerFree(PortcallWebServer* server);

// Where the next bytes of the client go, and how many fit there; then how many were put there.
PORTCALL_API int PortcallWebServerSpace(PortcallWebServer* server, TVMFFIByteArray* out);
PORTCALL_API int PortcallWebServerFilled(PortcallWebServer* server, int32_t nbytes);

#define kPortcallWebNeedsBytes 0  // all that came is served
#define kPortcallWebFull 1        // send the output, then call it again
#define kPortcallWebClosed 2      // send the output; the session is over
#define kPortcallWebWaits 3       // for a promise
#define kPortcallWebError (-1)

// Serves what has come, up to one of these. After a trap, which no C++ sees, comes PortcallWebServerFailed.
PORTCALL_API int PortcallWebServerServe(PortcallWebServer* server);
// The promise is settled: answers the request.
PORTCALL_API int PortcallWebServerSettled(PortcallWebServer* server);
// Answers the request that is served with an error.
PORTCALL_API int PortcallWebServerFailed(PortcallWebServer* server, const TVMFFIByteArray* kind,
                                         const TVMFFIByteArray* message);

// Bytes for the client, empty when there are none, and how many of them were sent.
PORTCALL_API int PortcallWebServerOutput(PortcallWebServer* server, TVMFFIByteArray* out);
PORTCALL_API int PortcallWebServerSent(PortcallWebServer* server, int32_t nbytes);
// The client is gone. Returns 1 when that was between two messages.
PORTCALL_API int PortcallWebServerLost(PortcallWebServer* server);
}

namespace portcall {
int32_t JsObjectType();  // of PortcallWebObject
}

#endif  // PORTCALL_WEB_WEB_H_
