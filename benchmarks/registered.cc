// SPDX-License-Identifier: Apache-2.0
// The same empty function registered twice, short and not: what releasing the interpreter lock costs.
#include <portcall/function.h>

using namespace portcall;

static void Register() {
  auto nop = [](Args, RetValue*) {};
  Registry::Register("portcall_benchmark.keeps_lock", true).set_short().set_body(nop);
  Registry::Register("portcall_benchmark.releases_lock", true).set_body(nop);
}

PORTCALL_EXPORT_TYPED(register_functions, Register)
