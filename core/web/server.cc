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

// This core as a session. A call leaves with Waits when its function returned a promise.
class WebSession : public Session {
 public:
  explicit WebSession(std::shared_ptr<Session> inner)
      : inner_(std::move(inner)),
        is_promise_(inner_->GetFunction("portcall.web.IsPromise")),
        settled_(inner_->GetFunction("portcall.web.Settled")) {}

  void Call(uint64_t function, const Sequence& args, CallResult* result) override {
    inner_->Call(function, args, result);
    if (result->type != JsObjectType() || result->value.type == kByValue) return;
    const uint64_t object = result->value.v_handle;
    Sequence one;
    one.push_back(WireValue::Handle(kRemoteObject, object));
    CallResult answer;
    inner_->Call(is_promise_, one, &answer);
    if (!answer.value.v_int64) return;
    inner_->Free(object);
    throw Waits();
  }
  void Settled(CallResult* result) { inner_->Call(settled_, {}, result); }

  uint64_t GetFunction(std::string_view name) override { return inner_->GetFunction(name); }
  void Free(uint64_t handle) override { inner_->Free(handle); }
  uint64_t Alloc(const WireTensor& like, std::optional<std::string_view> scope) override {
    return inner_->Alloc(like, scope);
  }
  uint64_t AllocData(DLDevice device, uint64_t nbytes, uint64_t alignment, DLDataType hint) override {
    return inner_->AllocData(device, nbytes, alignment, hint);
  }
  void FreeData(DLDevice device, uint64_t data) override { inner_->FreeData(device, data); }
  void CopyTo(const WireTensor& to, const void* from, uint64_t nbytes) override { inner_->CopyTo(to, from, nbytes); }
  void CopyFrom(const WireTensor& from, void* to, uint64_t nbytes) override { inner_->CopyFrom(from, to, nbytes); }
  void CopyAmong(const WireTensor& from, const WireTensor& to, uint64_t stream) override {
    inner_->CopyAmong(from, to, stream);
  }
  void* Address(const WireTensor& tensor, uint64_t nbytes, Access access, Any* owner) override {
    return inner_->Address(tensor, nbytes, access, owner);
  }
  WireValue GetAttr(DLDevice device, int64_t attr, Any* owner) override { return inner_->GetAttr(device, attr, owner); }
  void SetDevice(DLDevice device) override { inner_->SetDevice(device); }
  uint64_t CreateStream(DLDevice device) override { return inner_->CreateStream(device); }
  void FreeStream(DLDevice device, uint64_t stream) override { inner_->FreeStream(device, stream); }
  void SetStream(DLDevice device, uint64_t stream) override { inner_->SetStream(device, stream); }
  uint64_t GetStream(DLDevice device) override { return inner_->GetStream(device); }
  void SyncStream(DLDevice device, uint64_t stream) override { inner_->SyncStream(device, stream); }
  bool by_value() const override { return inner_->by_value(); }
  void Close() override { inner_->Close(); }
  bool closed() const override { return inner_->closed(); }

 private:
  std::shared_ptr<Session> inner_;
  uint64_t is_promise_, settled_;
};

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
      : session(std::make_shared<WebSession>(
            MakeLocalSession(std::move(patterns), features.find("values") != features.npos))),
        endpoint(session, OptionsFor(features, max_frame)) {}

  int State() {
    if (endpoint.closed()) return kPortcallWebClosed;
    return endpoint.output().full() ? kPortcallWebFull : kPortcallWebNeedsBytes;
  }

  std::shared_ptr<WebSession> session;
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
      server->session->Settled(&result);
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
