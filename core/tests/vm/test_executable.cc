// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "tests/vm/assembler.h"

using namespace vm_test;

namespace {

// main(x) { y = make_tuple(x, "text"); if (x) return y; return x }, with a constant of each kind.
Assembler Example() {
  Assembler a;
  int64_t text = a.Text("text");
  a.ShapeOf({2, 3});
  a.DType(DataTypeOf<float>());
  a.Floats({1, 2, 3});
  Payload number;
  number.Put<int64_t>(-5);
  a.Constant(kTVMFFIInt, number);
  Payload real;
  real.Put(0.5);
  a.Constant(kTVMFFIFloat, real);
  a.Packed("vm.builtin.make_tuple");
  a.Begin("main", {"x"}, 2);
  a.Call(1, "vm.builtin.make_tuple", {Reg(0), text});
  a.If(0, 2);
  a.Return(1);
  a.Return(0);
  return a;
}

std::string Refused(const Assembler& assembler) {
  return Thrown([&] { Load(assembler.Write()); });
}
std::string RefusedWith(const std::function<void(Assembler*)>& change) {
  Assembler a = Example();
  change(&a);
  return Refused(a);
}
bool IsDamaged(const std::string& error) { return Contains(error, "ModuleLoadError: the executable is damaged: "); }

}  // namespace

TEST("an executable is listed as TVM lists it") {
  CHECK_EQ(Load(Example().Write())["as_text"]().cast<std::string>(),
           "@vm.builtin.make_tuple packed_func;\n\n"
           "@main:\n"
           "  call  vm.builtin.make_tuple in: %0, c[0]     dst: %1\n"
           "  If    %0, 2\n"
           "  ret   %1\n"
           "  ret   %0\n\n");
}

TEST("an executable describes its functions and constants as JSON") {
  CHECK_EQ(
      Load(Example().Write())["describe"]().cast<std::string>(),
      R"({"functions": [{"name": "vm.builtin.make_tuple", "kind": "packed", "params": [], "registers": 0, )"
      R"("instructions": 0}, {"name": "main", "kind": "bytecode", "params": ["x"], "registers": 2, "instructions": 4}], )"
      R"("constants": [{"type": "str", "value": "text"}, {"type": "shape", "value": [2, 3]}, )"
      R"({"type": "dtype", "value": "float32"}, {"type": "tensor", "dtype": "float32", "shape": [3], "nbytes": 12}, )"
      R"({"type": "int", "value": -5}, {"type": "float", "value": "0.5"}]})");
}

TEST("an executable that TVM 0.22 wrote has no memory scopes") {
  Assembler a = Example();
  a.magic = kMagic1;
  CHECK_EQ(MachineOf(a)["main"](0).cast<int64_t>(), 0);
}

TEST("an executable that is cut off anywhere is refused") {
  std::string whole = Example().Write();
  for (size_t n = 0; n < whole.size(); ++n) {
    CHECK(Contains(Thrown([&] { Load(whole.substr(0, n)); }), "ModuleLoadError: "));
  }
  CHECK(IsDamaged(Thrown([&] { Load(whole + "x"); })));
}

TEST("executables of other formats are refused with a reason") {
  CHECK(Contains(Thrown([] { Load("something else entirely"); }), "not an executable of a Relax VM"));
  CHECK(Contains(RefusedWith([](Assembler* a) { a->version = "0.15"; }), "the executable has version '0.15'"));
  Assembler old = Example();
  old.magic = kMagic1;
  Payload with_length;
  with_length.Text(old.Write());
  CHECK(Contains(Thrown([&] { Load(with_length); }), "TVM 0.20 or 0.21 compiled this executable"));
  CHECK(Contains(RefusedWith([](Assembler* a) { a->scopes = {{3, "global.texture"}}; }), "'global.texture'"));
  CHECK_EQ(RefusedWith([](Assembler* a) { a->scopes = {{3, "global"}}; }), "");
}

TEST("every index and size of an executable is checked when it is loaded") {
  const std::vector<std::function<void(Assembler*)>> changes = {
      [](Assembler* a) { a->functions[0].kind = 3; },
      [](Assembler* a) { a->functions[0].name = "main"; },
      [](Assembler* a) { a->functions[1].begin = -1; },
      [](Assembler* a) { a->functions[1].begin = 4; },
      [](Assembler* a) { a->functions[1].end = 5; },
      [](Assembler* a) { a->functions[1].end = 2; },
      [](Assembler* a) { a->functions[1].args = -1; },
      [](Assembler* a) { a->functions[1].args = 3; },
      [](Assembler* a) { a->functions[1].registers = int64_t{1} << 40; },
      [](Assembler* a) { a->functions[1].registers = 1; },
      [](Assembler* a) { a->functions.push_back({2, "compiled", 0, 0, 1, 1, {}}); },
      [](Assembler* a) { a->offsets[0] = -1; },
      [](Assembler* a) { a->offsets[3] = 100; },
      [](Assembler* a) { a->code[0] = 5; },
      [](Assembler* a) { a->code[1] = 2; },  // the result of the call
      [](Assembler* a) { a->code[1] = -1; },
      [](Assembler* a) { a->code[2] = 2; },  // its function
      [](Assembler* a) { a->code[2] = -1; },
      [](Assembler* a) { a->code[3] = 100; },  // the number of its operands
      [](Assembler* a) { a->code[3] = -1; },
      [](Assembler* a) { a->code[4] = Reg(2); },  // its operands
      [](Assembler* a) { a->code[4] = Const(6); },
      [](Assembler* a) { a->code[4] = Func(2); },
      [](Assembler* a) { a->code[4] = int64_t{4} << 56; },
      [](Assembler* a) { a->code[8] = 0; },  // jumps
      [](Assembler* a) { a->code[8] = -1; },
      [](Assembler* a) { a->code[8] = 3; },
      [](Assembler* a) { a->code[7] = 9; },   // the condition
      [](Assembler* a) { a->code[10] = 2; },  // what is returned
      [](Assembler* a) { a->code.pop_back(); },
      [](Assembler* a) { a->Call(1, "vm.builtin.make_tuple", {}); },  // nothing after a call
      [](Assembler* a) { a->If(0, 1); },
      [](Assembler* a) { a->Goto(-1); },
      [](Assembler* a) { a->constants[0][0] = 9; },
      [](Assembler* a) { a->constants[3][28] = 9; },   // the dimensions of a tensor
      [](Assembler* a) { a->constants[3][33] = 64; },  // its data type
      [](Assembler* a) { a->constants[3][36] = 4; },   // its extent
      [](Assembler* a) { a->constants[3][43] = '\x80'; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    std::string error = RefusedWith(changes[i]);
    CHECK_EQ(std::to_string(i) + (IsDamaged(error) ? "" : ": " + error), std::to_string(i));
  }
  CHECK_EQ(Refused(Example()), "");
}
