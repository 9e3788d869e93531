// SPDX-License-Identifier: Apache-2.0
// Functions that tests and benchmarks of any language may rely on, under the names that tvm-ffi gave them.
#include "portcall/function.h"

namespace portcall {
namespace {

PORTCALL_REGISTER_GLOBAL("testing.nop").set_short().set_body([](Args, RetValue*) {});
PORTCALL_REGISTER_GLOBAL("testing.echo").set_short().set_body([](Args args, RetValue* rv) {
  *rv = Any::Copy(args[0].cell());
});
PORTCALL_REGISTER_GLOBAL("testing.apply").set_short().set_body([](Args args, RetValue* rv) {
  PackedFunc func = args[0];
  *rv = func.CallPacked(args.cells() + 1, args.size() - 1);
});
PORTCALL_REGISTER_GLOBAL("testing.test_raise_error").set_body_typed([](std::string kind, std::string message) {
  throw Error(kind, message, ToView(*TVMFFIBacktrace(__FILE__, __LINE__, "testing.test_raise_error", 0)));
});

}  // namespace
}  // namespace portcall
