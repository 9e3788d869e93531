// SPDX-License-Identifier: Apache-2.0
// A program on TVM's C++ headers, of any release from 0.8 to 0.19: `tvm_compat_app LIBRARY` prints "done".
#include <tvm/runtime/module.h>
#include <tvm/runtime/ndarray.h>
#include <tvm/runtime/packed_func.h>
#include <tvm/runtime/registry.h>

#include <cstdio>
#include <thread>

using namespace tvm::runtime;

TVM_REGISTER_GLOBAL("app.twice").set_body([](TVMArgs args, TVMRetValue* rv) { *rv = 2 * args[0].operator int(); });
TVM_REGISTER_GLOBAL("app.first").set_body([](TVMArgs args, TVMRetValue* rv) { *rv = args[0].operator NDArray(); });
TVM_REGISTER_GLOBAL("app.text").set_body([](TVMArgs args, TVMRetValue* rv) { *rv = args[0].operator std::string(); });
TVM_REGISTER_GLOBAL("app.fail").set_body([](TVMArgs, TVMRetValue*) { LOG(FATAL) << "on purpose"; });
TVM_REGISTER_GLOBAL("app.none").set_body([](TVMArgs, TVMRetValue*) {});
TVM_REGISTER_GLOBAL("app.bytes").set_body([](TVMArgs, TVMRetValue* rv) { *rv = TVMByteArray{"a\0b", 3}; });
TVM_REGISTER_GLOBAL("app.apply").set_body([](TVMArgs args, TVMRetValue* rv) {
  PackedFunc function = args[0];
  *rv = function(args[1].operator int());
});

static PackedFunc Global(const char* name) {
  const PackedFunc* found = Registry::Get(name);
  ICHECK(found != nullptr && found == Registry::Get(name));
  return *found;
}

static void Arrays(Module library) {
  const DLDevice cpu{kDLCPU, 0};
  const DLDataType float32{kDLFloat, 32, 1};
  NDArray x = NDArray::Empty({2, 2}, float32, cpu), y = NDArray::Empty({2, 2}, float32, cpu);
  float values[] = {1, 2, 3, 4};
  x.CopyFromBytes(values, sizeof(values));
  library.GetFunction("scaled")(x, y, 2.0);
  y.CopyToBytes(values, sizeof(values));
  ICHECK_EQ(values[3], 8);
  ICHECK(y.IsContiguous() && y->strides == nullptr);
  ICHECK(y.Shape().size() == 2 && y.DataType().bits() == 32);
  NDArray copy = y.CopyTo(cpu);
  NDArray view = NDArray::FromDLPack(copy.ToDLPack());
  ICHECK(view->data == copy->data && view->data != y->data);
  copy = NDArray();
  NDArray same = Global("app.first")(view), echoed = library.GetFunction("echo")(view);
  view = NDArray();
  ICHECK(same->data == echoed->data && static_cast<float*>(same->data)[3] == 8);
}

static void Values(Module library) {
  PackedFunc echo = library.GetFunction("echo");
  ICHECK_EQ(echo(7).operator int(), 7);
  ICHECK(echo(true).operator bool());
  ICHECK_EQ(echo(0.5).operator double(), 0.5);
  ICHECK_EQ(echo("text").operator std::string(), "text");
  ICHECK_EQ(echo(String("text")).operator std::string(), "text");
  ICHECK_EQ(Global("app.text")(String("text")).operator std::string(), "text");
  ICHECK_EQ(Global("app.bytes")().operator std::string(), std::string("a\0b", 3));
  ICHECK_EQ(echo(DLDevice{kDLCPU, 3}).operator DLDevice().device_id, 3);
  ICHECK_EQ(echo(nullptr).type_code(), kTVMNullptr);
  ICHECK_EQ(Global("app.none")().type_code(), kTVMNullptr);
  Module module = echo(library);
  ICHECK(module.GetFunction("echo") != nullptr && module.GetFunction("none") == nullptr);
}

static void Functions(Module library) {
  int calls = 0;
  PackedFunc callback([&calls](TVMArgs args, TVMRetValue* rv) { *rv = args[0].operator int() + ++calls; });
  ICHECK_EQ(library.GetFunction("apply")(callback, 41).operator int(), 42);
  ICHECK_EQ(Global("app.apply")(callback, 40).operator int(), 42);
  PackedFunc adder = library.GetFunction("adder")(10);
  ICHECK_EQ(adder(5).operator int(), 15);
  ICHECK(Registry::Get("no.such") == nullptr);
  Registry::Register("app.twice", true).set_body([](TVMArgs, TVMRetValue* rv) { *rv = 7; });
  ICHECK_EQ(Global("app.twice")(1).operator int(), 7);
  const size_t names = Registry::ListNames().size();
  ICHECK(Registry::Remove("app.twice"));
  ICHECK_EQ(Registry::ListNames().size() + 1, names);
  std::thread threads[4];  // one looks a function up while others call it
  for (auto& thread : threads) {
    thread = std::thread([] {
      for (int i = 0; i < 1000; ++i) (*Registry::Get("app.none"))();
    });
  }
  for (auto& thread : threads) thread.join();
}

static void Errors(Module library) {
  int refused = 0;
  auto check = [&refused](const char* words, auto call) {
    try {
      call();
    } catch (const Error& error) {
      ++refused;
      if (std::string(error.what()).find(words) == std::string::npos) throw;
    }
  };
  check("ValueError: of the library", [&] { library.GetFunction("fail")(); });
  check("on purpose", [] { Global("app.fail")(); });
  check("expected float", [&] { library.GetFunction("half")("text"); });
  check("import itself", [&] { library.Import(library); });
  check("no.so", [] { Module::LoadFromFile("no.so"); });
  check("app.none", [] { Registry::Register("app.none").set_body([](TVMArgs, TVMRetValue*) {}); });
  // Objects of either side are no values of the other.
  check("TypeError", [&] { library.GetFunction("echo")(ShapeTuple({1, 2})); });
  check("TypeError", [&] { library.GetFunction("list")(); });
  check("TypeError", [&] { library.GetFunction("pass_list")(Global("app.none")); });
  ICHECK_EQ(refused, 9);
}

int main(int, char** argv) {
  Module library = Module::LoadFromFile(argv[1]);
  ICHECK_EQ(Global("app.twice")(21).operator int(), 42);
  Arrays(library);
  Values(library);
  Functions(library);
  Errors(library);
  LOG(INFO) << "a message";
  std::puts("done");
}
