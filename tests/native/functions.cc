// SPDX-License-Identifier: Apache-2.0
// Functions for the Python tests, written as a user writes them: on portcall's public headers.
#include <portcall/portcall.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>

using namespace portcall;

namespace {

// ---- Values -------------------------------------------------------------------------------------------------------

PORTCALL_REGISTER_GLOBAL("portcall_test.type_index").set_body([](Args args, RetValue* rv) {
  *rv = args[0].type_index();
});
PORTCALL_REGISTER_GLOBAL("portcall_test.return_owned").set_body([](Args args, RetValue* rv) { *rv = Any(args[0]); });
PORTCALL_REGISTER_GLOBAL("portcall_test.text_of").set_body([](Args args, RetValue* rv) {
  std::string_view text = args[0];
  *rv = Bytes(text);
});
PORTCALL_REGISTER_GLOBAL("portcall_test.text_from").set_body([](Args args, RetValue* rv) {
  Bytes content = args[0];
  *rv = String(content.view());
});
PORTCALL_REGISTER_GLOBAL("portcall_test.add").set_body([](Args args, RetValue* rv) {
  int a = args[0], b = args[1];
  *rv = a + b;
});
PORTCALL_REGISTER_GLOBAL("portcall_test.int8").set_body_typed([](int8_t x) { return x; });
PORTCALL_REGISTER_GLOBAL("portcall_test.uint64").set_body_typed([](uint64_t x) { return x; });
PORTCALL_REGISTER_GLOBAL("portcall_test.all_ones").set_body_typed([] { return ~uint64_t{0}; });
PORTCALL_REGISTER_GLOBAL("portcall_test.sum").set_body_typed([](Array<int64_t> items) {
  int64_t total = 0;
  for (int64_t item : items.vector()) total += item;
  return total;
});
PORTCALL_REGISTER_GLOBAL("portcall_test.look_up").set_body_typed([](Map<String, Any> map, String key) {
  return map.at(key);
});
PORTCALL_REGISTER_GLOBAL("portcall_test.maybe").set_body_typed([](std::optional<int64_t> x) { return x.has_value(); });
PORTCALL_REGISTER_GLOBAL("portcall_test.volume").set_body_typed([](Shape shape) {
  int64_t volume = 1;
  for (int64_t extent : shape) volume *= extent;
  return volume;
});

struct Counter {
  int64_t value = 0;
  int64_t Add(int64_t n) { return value += n; }
};
PORTCALL_REGISTER_GLOBAL("portcall_test.counter").set_body_typed([] {
  auto counter = std::make_shared<Counter>();
  return PackedFunc([counter](Args args, RetValue* rv) { *rv = counter->Add(args[0]); }, "counter");
});

// ---- Errors -------------------------------------------------------------------------------------------------------

[[gnu::noinline]] void InnermostFunction(int64_t n) {
  PORTCALL_CHECK(n < 0, ValueError) << "refused " << n << " in the innermost function";
}
PORTCALL_REGISTER_GLOBAL("portcall_test.refuse").set_body_typed([](int64_t n) { InnermostFunction(n); });
PORTCALL_REGISTER_GLOBAL("portcall_test.throw_standard").set_body_typed([](std::string what) {
  if (what == "bad_alloc") throw std::bad_alloc();
  if (what == "out_of_range") throw std::out_of_range("beyond the end");
  if (what == "invalid_argument") throw std::invalid_argument("no good");
  if (what == "runtime_error") throw std::runtime_error("went wrong");
  throw 42;
});
// Calls a function and says what arrived in C++.
PORTCALL_REGISTER_GLOBAL("portcall_test.kind_of_error").set_body_typed([](PackedFunc func) {
  try {
    func();
  } catch (const Error& error) {
    return std::string(error.kind()) + "|" + std::string(error.message());
  }
  return std::string("no error");
});
PORTCALL_REGISTER_GLOBAL("portcall_test.backtrace_of_error").set_body_typed([](PackedFunc func) {
  try {
    func();
  } catch (const Error& error) {
    return std::string(error.backtrace());
  }
  return std::string();
});

// ---- Calls back ---------------------------------------------------------------------------------------------------

PORTCALL_REGISTER_GLOBAL("portcall_test.call_typed")
    .set_body_typed([](TypedPackedFunc<int64_t(int64_t, int64_t)> func) { return func(3, 4); });

// Runs `body` in a thread of its own and hands its error to the caller.
template <typename Body> void InThread(Body body) {
  std::optional<Error> error;
  std::thread thread([&] {
    try {
      body();
    } catch (const Error& e) {
      error = e;
    }
  });
  thread.join();
  if (error) throw *error;
}

// ---- What stays behind a call ---------------------------------------------------------------------------------------

Any& Kept() {
  static auto* kept = new Any();
  return *kept;
}

// ---- Threads --------------------------------------------------------------------------------------------------------

std::mutex gate_mutex;
std::condition_variable gate_changed;
bool gate_open = false;

// ---- Tensors --------------------------------------------------------------------------------------------------------

// Calls `func` with a description that ends with this call, as generated code passes tensors on.
void Lend(PackedFunc func) {
  alignas(64) float data[4] = {1, 2, 3, 4};
  int64_t shape[1] = {4};
  DLTensor tensor{};
  tensor.data = data;
  tensor.device = Cpu();
  tensor.ndim = 1;
  tensor.dtype = DataTypeOf<float>();
  tensor.shape = shape;
  func(&tensor);
  PORTCALL_CHECK(data[0] == 10, ValueError) << "the function did not write into the tensor";
}

}  // namespace

PORTCALL_EXPORT_TYPED(add, [](int64_t a, int64_t b) { return a + b; })
PORTCALL_EXPORT_TYPED(apply, [](PackedFunc func, Any argument) -> Any { return func(argument); })
PORTCALL_EXPORT_TYPED(refuse, [](int64_t n) { InnermostFunction(n); })
PORTCALL_EXPORT_TYPED(address_of, [](TensorView x) { return reinterpret_cast<int64_t>(x.raw_data()); })
PORTCALL_EXPORT_TYPED(strides_of, [](TensorView x) {
  const DLTensor& dl = *x.dl_tensor();
  return Shape(dl.strides, dl.strides ? static_cast<size_t>(dl.ndim) : 0);
})
PORTCALL_EXPORT_TYPED(describe, [](TensorView x) {
  return ToString(x.dtype()) + ToString(Shape(x.dl_tensor()->shape, static_cast<size_t>(x.ndim())));
})
PORTCALL_EXPORT_TYPED(add_one, [](TensorView x, TensorView y) {
  const float* from = x.data<float>();
  float* to = y.data<float>();
  for (size_t i = 0; i < x.numel(); ++i) to[i] = from[i] + 1;
})
PORTCALL_EXPORT_TYPED(fill, [](TensorView x, double value) {
  float* to = x.data<float>();
  for (size_t i = 0; i < x.numel(); ++i) to[i] = static_cast<float>(value);
})
PORTCALL_EXPORT_TYPED(fill_then_fail, [](TensorView x) {
  float* to = x.data<float>();
  for (size_t i = 0; i < x.numel(); ++i) to[i] = -1;
  PORTCALL_THROW(ValueError) << "failed half way";
})
// The same tensor, added to itself through both arguments: 1 where they are one memory, twice that where a copy was made.
PORTCALL_EXPORT_TYPED(same_memory, [](TensorView x, TensorView y) { return x.raw_data() == y.raw_data(); })
PORTCALL_EXPORT_TYPED(lend, [](PackedFunc func) { Lend(func); })
PORTCALL_EXPORT_TYPED(make, [](int64_t n) {
  Tensor made = Tensor::Empty({n}, DataTypeOf<float>());
  for (int64_t i = 0; i < n; ++i) made.data<float>()[i] = static_cast<float>(i);
  return made;
})

PORTCALL_EXPORT_TYPED(keep, [](Any value) { Kept() = value; })
PORTCALL_EXPORT_TYPED(kept, []() -> Any { return Kept(); })
PORTCALL_EXPORT_TYPED(drop, [] { Kept().reset(); })
PORTCALL_EXPORT_TYPED(drop_in_thread, [] { InThread([] { Kept().reset(); }); })
PORTCALL_EXPORT_TYPED(call_kept, [](int64_t x) -> Any { return Kept().cast<PackedFunc>()(x); })
PORTCALL_EXPORT_TYPED(call_in_thread, [](PackedFunc func, Any argument) -> Any {
  Any result;
  InThread([&] { result = func(argument); });
  return result;
})

// Waits until another thread opens the gate: forever, if the interpreter lock is held meanwhile. The limit turns that
// into a failing test.
PORTCALL_EXPORT_TYPED(wait_at_gate, [] {
  std::unique_lock<std::mutex> lock(gate_mutex);
  bool opened = gate_changed.wait_for(lock, std::chrono::seconds(30), [] { return gate_open; });
  gate_open = false;
  return opened;
})
PORTCALL_EXPORT_TYPED(open_gate, [] {
  std::lock_guard<std::mutex> lock(gate_mutex);
  gate_open = true;
  gate_changed.notify_all();
})

extern "C" {
__attribute__((visibility("default"))) int __tvm_ffi_throw_number(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) {
  throw 5;
}
__attribute__((visibility("default"))) int __tvm_ffi_fail_silently(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) {
  return -1;
}
__attribute__((visibility("default"))) int __tvm_ffi_return_borrowed_tensor(void*, const TVMFFIAny* args, int32_t,
                                                                            TVMFFIAny* result) {
  return Guard([&] { *result = Any(TryDLTensor(args[0])).release(); });
}
__attribute__((visibility("default"))) int __tvm_ffi_return_unknown_index(void*, const TVMFFIAny*, int32_t,
                                                                          TVMFFIAny* result) {
  result->type_index = 55;  // below 64, so no object; the ABI gives it no meaning
  result->zero_padding = 0;
  result->v_int64 = 0;
  return 0;
}
}
