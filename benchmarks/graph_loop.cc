// SPDX-License-Identifier: Apache-2.0
// What a run of a graph is compared with: the same calls, with their arguments prepared likewise, one after the other.
#include <portcall/function.h>
#include <portcall/tensor.h>

#include <vector>

using namespace portcall;

struct Loop {
  PackedFunc kernel;
  std::vector<Any> args;  // two for each call
};

// make_loop(kernel, x, y, count): a function that calls kernel(x, y), kernel(y, x), … `count` times.
static PackedFunc MakeLoop(PackedFunc kernel, Tensor x, Tensor y, int64_t count) {
  Loop loop{std::move(kernel), {}};
  for (int64_t i = 0; i < count; ++i) {
    loop.args.emplace_back(i % 2 ? y : x);
    loop.args.emplace_back(i % 2 ? x : y);
  }
  return PackedFunc([loop = std::move(loop)](Args, RetValue*) {
    PortcallFunctionInfo info;
    PortcallFunctionGetInfo(loop.kernel.get(), &info);
    auto* args = reinterpret_cast<const TVMFFIAny*>(loop.args.data());
    for (size_t i = 0; i < loop.args.size(); i += 2) {
      TVMFFIAny result{};
      if (info.call(info.self, args + i, 2, &result) != 0) ThrowRaised();
    }
  });
}

PORTCALL_EXPORT_TYPED(make_loop, MakeLoop)
