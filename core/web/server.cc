// SPDX-License-Identifier: Apache-2.0
// A session that JavaScript's event loop serves: bytes go from its buffers to where they belong, and out from where they
// lie.
#include <cstring>
#include <new>

#include "portcall/module.h"
#include "rpc/endpoint.h"
#include "rpc/local_session.h"
#include "web/web.h"

namespace portcall::rpc {
namespace {

struct Waits {};  // goes past the endpoint, which answers no error of C++ that it does not know

// Leaves a call whose function returned a promise.
void LeavePromise(const Any& result) {
  if (result.type_index() != JsObjectType()) return;
  if (Registry::GetRequired("portcall.web.IsPromise")(result).cast<bool>()) throw Waits();
}

std::string_view ViewOf(const TVMFFIByteArray& text) { return {text.data, text.size}; }

EndpointOptions OptionsFor(std::string_view features, int64_t max_frame) {
  EndpointOptions options;
  options.max_frame = static_cast<uint64_t>(max_frame);
  options.tracebacks = features.find("traceback") != features.npos;
  return options;
}

}  // namespace

void BeginCall(facts::Call*, std::string_view, const TVMFFIAny*, size_t) {}  // no session here has a record

}  // namespace portcall::rpc

using namespace portcall;
using namespace portcall::rpc;

struct PortcallWebServer {
  PortcallWebServer(std::vector<std::string> patterns, std::string_view features, int64_t max_frame)
      : session(MakeLocalSession(std::move(patterns), features.find("values") != features.npos, nullptr, LeavePromise)),
        settled(session->GetFunction("portcall.web.Settled")),
        endpoint(session, OptionsFor(features, max_frame)) {}

  int State() {
    if (endpoint.closed()) return kPortcallWebClosed;
    return endpoint.output().full() ? kPortcallWebFull : kPortcallWebNeedsBytes;
  }

  std::shared_ptr<Session> session;
  uint64_t settled;  // returns, or throws, what the last promise became
  Endpoint endpoint;
};

int PortcallWebServerCreate(const TVMFFIByteArray* patterns, int32_t count, const TVMFFIByteArray* features,
                            int64_t max_frame, PortcallWebServer** out) {
  return Guard([&] {
    std::vector<std::string> all;
    for (int32_t i = 0; i < count; ++i) all.emplace_back(ViewOf(patterns[i]));
    *out = new PortcallWebServer(std::move(all), ViewOf(*features), max_frame);
  });
}

int PortcallWebServerFree(PortcallWebServer* server) {
  return Guard([&] { delete server; });
}

int PortcallWebServerSpace(PortcallWebServer* server, TVMFFIByteArray* out) {
  return Guard([&] {
    auto [space, room] = server->endpoint.Space();
    *out = {space, room};
  });
}

int PortcallWebServerFilled(PortcallWebServer* server, int32_t nbytes) {
  return Guard([&] { server->endpoint.Filled(static_cast<size_t>(nbytes)); });
}

int PortcallWebServerServe(PortcallWebServer* server) {
  int state = kPortcallWebWaits;
  int status = Guard([&] {
    try {
      bool more = server->endpoint.Serve();
      state = server->State();
      if (more && state == kPortcallWebNeedsBytes) state = kPortcallWebFull;
    } catch (const Waits&) {
    }
  });
  return status ? kPortcallWebError : state;
}

int PortcallWebServerSettled(PortcallWebServer* server) {
  return Guard([&] {
    CallResult result;
    try {
      server->session->Call(server->settled, {}, &result);
      server->endpoint.ReturnResult(&result);
    } catch (const Error& error) {
      server->endpoint.Exception(error);
    }
  });
}

int PortcallWebServerFailed(PortcallWebServer* server, const TVMFFIByteArray* kind, const TVMFFIByteArray* message) {
  return Guard([&] { server->endpoint.Exception(Error(std::string(ViewOf(*kind)), std::string(ViewOf(*message)))); });
}

int PortcallWebServerOutput(PortcallWebServer* server, TVMFFIByteArray* out) {
  return Guard([&] {
    std::vector<Chunk> chunks = server->endpoint.output().Chunks(1);
    *out = {};
    if (!chunks.empty()) *out = {static_cast<const char*>(chunks[0].data), chunks[0].size};
  });
}

int PortcallWebServerSent(PortcallWebServer* server, int32_t nbytes) {
  return Guard([&] { server->endpoint.output().Sent(static_cast<size_t>(nbytes)); });
}

int PortcallWebServerLost(PortcallWebServer* server) { return server->endpoint.PeerClosed() ? 1 : 0; }
