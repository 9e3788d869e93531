// SPDX-License-Identifier: Apache-2.0
// Functions that tests and benchmarks of any language may rely on, under the names that tvm-ffi gave them. A library with
// functions of these names takes their place.
#include "portcall/function.h"
#include "runtime/library_globals.h"

namespace portcall {
namespace {

template <typename F> int Register(const char* name, int32_t flags, F body) {
  Registry::Set(name, PackedFunc(std::move(body), name, flags | kFunctionGivesWay));
  return 0;
}

[[maybe_unused]] const int testing_registered[] = {
    Register("testing.nop", kPortcallFunctionShort, [](Args, RetValue*) {}),
    Register("testing.echo", kPortcallFunctionShort, [](Args args, RetValue* rv) { *rv = Any::Copy(args[0].cell()); }),
    Register("testing.apply", kPortcallFunctionShort,
             [](Args args, RetValue* rv) {
               PackedFunc func = args[0];
               *rv = func.CallPacked(args.cells() + 1, args.size() - 1);
             }),
    Register("testing.test_raise_error", 0, detail::Unpack([](std::string kind, std::string message) {
               throw Error(kind, message, ToView(*TVMFFIBacktrace(__FILE__, __LINE__, "testing.test_raise_error", 0)));
             })),
};

}  // namespace
}  // namespace portcall
