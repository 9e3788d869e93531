// SPDX-License-Identifier: Apache-2.0
// Parallel loops of compiled code where there is one thread: every launch is one task, which any number allows.
#include "portcall/function.h"

using namespace portcall;

int TVMBackendParallelLaunch(FTVMParallelLambda lambda, void* cdata, int num_task) {
  return Guard([&] {
    PORTCALL_CHECK(lambda != nullptr && num_task >= 0, ValueError) << "a parallel loop needs a function and a number";
    TVMParallelGroupEnv env{nullptr, 1};
    Check(lambda(0, &env, cdata));
  });
}

int TVMBackendParallelBarrier(int, TVMParallelGroupEnv*) { return 0; }

PORTCALL_REGISTER_GLOBAL("runtime.NumThreads").set_body_typed([] { return 1; });
PORTCALL_REGISTER_GLOBAL("runtime.config_threadpool").set_body([](Args, RetValue*) {});
