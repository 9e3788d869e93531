// SPDX-License-Identifier: Apache-2.0
// What a binding sets for a session of a client, and sees of it.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "portcall/container.h"
#include "portcall/module.h"
#include "rpc/remote_objects.h"
#include "rpc/remote_session.h"
#include "rpc/remote_values.h"

namespace portcall::rpc {
namespace {

Map<String, Any> StatsOf(Module root) {
  auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get());
  SessionStats stats = remote ? remote->stats() : SessionStats();
  return Map<String, Any>({{"requests", static_cast<int64_t>(stats.requests)},
                           {"bytes_sent", static_cast<int64_t>(stats.bytes_sent)},
                           {"bytes_received", static_cast<int64_t>(stats.bytes_received)},
                           {"waited", stats.waited},
                           {"run", stats.run},
                           {"copy", stats.copy},
                           {"fetch", stats.fetch}});
}

// The request that is on its way: what it is, seconds since it began and since bytes came or went, bytes sent, to send,
// received and to receive. Nothing where there is none.
Array<Any> ActivityOf(Module root) {
  auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get());
  Activity now = remote ? remote->activity() : Activity();
  if (now.code == Code::kNone) return {};
  auto count = [](uint64_t bytes) { return Any(static_cast<int64_t>(bytes)); };
  return Array<Any>({Any(now.what), Any(now.seconds), Any(now.silent), count(now.sent), count(now.to_send),
                     count(now.received), count(now.to_receive)});
}

PORTCALL_REGISTER_GLOBAL("portcall.rpc.OnTheirWay").set_body_typed([](Module root) {
  auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get());
  return static_cast<int64_t>(remote ? remote->on_their_way() : 0);
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.SessionName").set_body_typed([](Module root) {
  return NameOf(SessionOf(root));
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.SetCallTimeout").set_body_typed([](Module root, double seconds) {
  if (auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get())) remote->set_call_timeout(seconds);
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.SetHeartbeat").set_body_typed([](Module root, double seconds) {
  if (auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get())) remote->set_silence(seconds);
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.SetExplain").set_body_typed([](Module root, PackedFunc explain) {
  if (auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get())) remote->set_explain(std::move(explain));
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.SetOutput").set_body_typed([](Module root, PackedFunc output) {
  if (auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get())) remote->set_output(std::move(output));
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.Stats").set_body_typed(StatsOf);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.Activity").set_body_typed(ActivityOf);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.UseFeatures").set_body_typed([](Module root, std::vector<std::string> features) {
  auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get());
  auto has = [&](const char* name) { return std::find(features.begin(), features.end(), name) != features.end(); };
  if (!remote) return;
  remote->set_pipelined(has("pipeline"));
  remote->set_posts(has("post"));
  remote->set_by_value(has("values"));
  remote->set_calls_back(has("callback"));
  remote->set_cancels(has("cancel"));
});
// Begins or ends the pipeline of this thread: the number of the session it is to have, and had; 0 for none.
PORTCALL_REGISTER_GLOBAL("portcall.rpc.SetPipeline").set_body_typed([](int64_t session) {
  return reinterpret_cast<int64_t>(std::exchange(pipelined_session, reinterpret_cast<const Session*>(session)));
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.Sync").set_body_typed([](Module root) {
  if (auto* remote = dynamic_cast<RemoteSession*>(SessionOf(root).get())) remote->Sync();
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.Close").set_body_typed([](Module root) { SessionOf(root)->Close(); });
PORTCALL_REGISTER_GLOBAL("portcall.rpc.IsClosed").set_body_typed([](Module root) { return SessionOf(root)->closed(); });
// A number that no other live session has.
PORTCALL_REGISTER_GLOBAL("portcall.rpc.SessionId").set_body_typed([](Module root) {
  return reinterpret_cast<int64_t>(SessionOf(root).get());
});

}  // namespace
}  // namespace portcall::rpc
