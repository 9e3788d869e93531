// SPDX-License-Identifier: Apache-2.0
#include "portcall/container.h"
#include "portcall/module.h"

namespace portcall::rpc {
namespace {

// What a client asks of a remote module.
PORTCALL_REGISTER_GLOBAL("portcall.rpc.ModuleGetSource").set_body_typed([](Module module, std::string format) {
  return Registry::Get("ffi.ModuleInspectSource")(module, format).cast<Bytes>();
});
PORTCALL_REGISTER_GLOBAL("portcall.rpc.ModuleFunctionNames").set_body_typed([](Module module) {
  std::string all;  // a zero after each: any client can read it, whatever values it knows
  for (const std::string& name : module.FunctionNames()) all.append(name).push_back('\0');
  return Bytes(all);
});
// Whether it is compiled code, which may write to any tensor.
PORTCALL_REGISTER_GLOBAL("portcall.rpc.ModuleFunctionIsCompiled").set_body_typed([](PackedFunc func) {
  PORTCALL_CHECK(func.defined(), TypeError) << "ModuleFunctionIsCompiled() takes a function, got None";
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(func.get(), &info);
  return (info.flags & kPortcallFunctionLibrary) != 0;
});
PORTCALL_REGISTER_GLOBAL("tvm.rpc.server.ModuleGetFunction")
    .set_body_typed([](Module module, std::string name, bool query_imports) {
      return module.GetFunction(name, query_imports);
    });
PORTCALL_REGISTER_GLOBAL("tvm.rpc.server.ImportModule").set_body_typed([](Module parent, Module child) {
  parent.Import(child);
});

}  // namespace
}  // namespace portcall::rpc
