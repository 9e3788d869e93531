// SPDX-License-Identifier: Apache-2.0
// What tvm_compat_app.cc and classic_app.c call.
#include <portcall/portcall.h>

using namespace portcall;

PORTCALL_EXPORT_TYPED(scaled, [](TensorView x, TensorView y, float factor) {
  for (size_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = factor * x.data<float>()[i];
})
PORTCALL_EXPORT_TYPED(echo, [](Any value) { return value; })
PORTCALL_EXPORT_TYPED(half, [](double value) { return value / 2; })
PORTCALL_EXPORT_TYPED(apply, [](PackedFunc function, int value) -> int { return function(value); })
PORTCALL_EXPORT_TYPED(adder, [](int a) { return TypedPackedFunc<int(int)>([a](int b) { return a + b; }); })
PORTCALL_EXPORT_TYPED(list, [] { return Array<int>{1, 2}; })
PORTCALL_EXPORT_TYPED(pass_list, [](PackedFunc function) { return function(Array<int>{1, 2}); })
PORTCALL_EXPORT_TYPED(fail, [] { PORTCALL_THROW(ValueError) << "of the library"; })
