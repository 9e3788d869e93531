// SPDX-License-Identifier: Apache-2.0
// The core opens libportcall_vm when the first library brings an executable: this program is not linked with it.
#include "tests/vm/assembler.h"

using namespace vm_test;

namespace {

int Twice(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = 2 * args[0].v_int64;
  return 0;
}

// What a compiler embeds: the import tree, then each module.
std::string Embedded(const std::string& payload) {
  Payload blob;
  blob.Words({0, 1, 1});
  blob.Words({1});
  blob.Text("relax.VMExecutable");
  blob.Text(payload);
  blob.Text("_lib");
  Payload sized;
  sized.Put<uint64_t>(blob.size());
  return sized + blob;
}

}  // namespace

TEST("an executable in code that is linked into the program is its root module") {
  Assembler a;
  a.Begin("main", {"x"}, 2);
  a.Call(1, "twice", {Reg(0)});
  a.Return(1);
  static std::string blob = Embedded(a.Write());
  Check(TVMFFIEnvModRegisterSystemLibSymbol("vmtest___tvm_ffi__library_bin", blob.data()));
  Check(TVMFFIEnvModRegisterSystemLibSymbol("__tvm_ffi_vmtest_twice", reinterpret_cast<void*>(&Twice)));
  Module executable = Registry::Get("ffi.SystemLib")("vmtest_");
  CHECK_EQ(executable.kind(), "relax.VMExecutable");
  CHECK_EQ(executable.imports().size(), 1);
  CHECK_EQ(SetUp(executable)["main"](21).cast<int64_t>(), 42);
}
