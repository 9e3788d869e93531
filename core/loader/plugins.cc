// SPDX-License-Identifier: Apache-2.0
#include "loader/plugins.h"

#include <cstdlib>
#include <mutex>
#include <set>

#include "loader/symbols.h"
#include "portcall/module.h"

namespace portcall::loader {
namespace {

constexpr std::pair<const char*, const char*> kBesideCore[] = {{"relax.VMExecutable", "libportcall_vm.so"},
                                                               {"graph", "libportcall_graph.so"},
                                                               {"lm", "libportcall_lm.so"},
                                                               {"session", "libportcall_session.so"},
                                                               {"ir", "libportcall_ir.so"},
                                                               {"opencl", "libportcall_opencl.so"},
                                                               {"cuda", "libportcall_cuda.so"},
                                                               {"cuda_host", "libportcall_cuda.so"}};

std::string FindInEnvironment(const std::string& kind) {
  const char* given = std::getenv("PORTCALL_DEVICES");
  std::string list = given ? given : "";
  for (size_t at = 0, end = 0; at < list.size(); at = end + 1) {
    end = std::min(list.find(':', at), list.size());
    if (list.compare(at, kind.size() + 1, kind + "=") == 0) {
      return list.substr(at + kind.size() + 1, end - at - kind.size() - 1);
    }
  }
  return {};
}

std::string FindPlugin(const std::string& kind) {
  std::string path = FindInEnvironment(kind);
  for (const auto& [known, library] : kBesideCore) {
    if (path.empty() && kind == known) path = BesideCore(library);
  }
  PackedFunc front_end = Registry::Get("portcall.FindPlugin");
  if (path.empty() && front_end.defined()) path = front_end(kind).cast<std::string>();
  return path;
}

PORTCALL_REGISTER_GLOBAL("portcall.LoadPlugin").set_body_typed(LoadPlugin);

// Functions of plug-ins. The first call opens the library, and its functions take the places of these. Where they are
// linked with the core, they may be there already.
constexpr std::pair<const char*, const char*> kOpened[] = {
    {"portcall.graph.create", "graph"},     {"portcall.graph.create_factory", "graph"},
    {"portcall.graph.check_plan", "graph"}, {"portcall.OpenBundle", "graph"},
    {"portcall.rpc.Connect", "session"},    {"portcall.rpc.OpenSocket", "session"},
    {"portcall.rpc.Admit", "session"},      {"portcall.rpc.Listen", "session"},
    {"portcall.rpc.conditions", "session"}};
[[maybe_unused]] const bool plugins_are_known = [] {
  for (const auto& [name, kind] : kOpened) {
    if (Registry::Get(name).defined()) continue;
    Registry::Register(name).set_body([name = name, kind = kind](Args args, RetValue* rv) {
      LoadPlugin(kind);
      *rv = Registry::GetRequired(name).CallPacked(args.cells(), args.size());
    });
  }
  return true;
}();

}  // namespace

void LoadPlugin(const std::string& kind) {
  static std::mutex mutex;  // not held while a library is loaded: that takes a lock under which plug-ins are looked for
  static auto* done = new std::set<std::string>();
  static auto* loaded = new std::vector<Module>();  // tables of devices must never go
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (done->count(kind)) return;
  }
  std::string path = FindPlugin(kind);
  Module plugin;
  if (!path.empty()) plugin = Module::LoadFromFile(path);  // a file that is loaded already is not loaded again
  std::lock_guard<std::mutex> lock(mutex);
  if (plugin.defined()) loaded->push_back(plugin);
  done->insert(kind);
}

}  // namespace portcall::loader
