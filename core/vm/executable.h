// SPDX-License-Identifier: Apache-2.0
// The executable of a Relax VM: what apache-tvm writes into a library beside the kernels (docs/vm.md has the format).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "portcall/portcall.h"

namespace portcall::vm {

// Two registers are special: "none", and the machine itself.
constexpr int64_t kNoRegister = int64_t{1} << 54;
constexpr int64_t kMachineRegister = kNoRegister + 1;

constexpr int32_t kMostDimensions = 64;  // of a tensor

enum FunctionKind : int32_t {
  kPacked = 0,    // called by name: a kernel of the library, or a global function
  kBytecode = 1,  // instructions
  kCompiled = 2,  // machine code in the library, named kCompiledPrefix + name
};
constexpr const char* kCompiledPrefix = "__vmtir__";

enum Opcode : int64_t { kCall = 1, kReturn = 2, kGoto = 3, kIf = 4 };

struct Function {
  FunctionKind kind;
  std::string name;
  int64_t begin, end;  // instructions
  int64_t num_args, num_registers;
  std::vector<std::string> params;
};

// One operand of a call: its kind is in the upper 8 bits, a signed value in the lower 56.
struct Operand {
  enum Kind : uint8_t { kRegister = 0, kImmediate = 1, kConstant = 2, kFunction = 3 };
  uint8_t kind;
  int64_t value;
  explicit Operand(int64_t word)
      : kind(static_cast<uint8_t>(word >> 56)), value(static_cast<int64_t>(static_cast<uint64_t>(word) << 8) >> 8) {}
};

// The words of one call: kCall, result, function, number of operands, operands.
struct CallWords {
  int64_t result, function, num_operands;
  const int64_t* operands;
  explicit CallWords(const int64_t* word)
      : result(word[1]), function(word[2]), num_operands(word[3]), operands(word + 4) {}
};

// Every index, size and operand in it has been checked.
struct Executable {
  std::vector<Function> functions;
  std::vector<int64_t> by_name;  // indices of functions, in the order of their names
  std::vector<Any> constants;
  std::vector<int64_t> offsets;  // where an instruction begins in the code
  std::vector<int64_t> code;

  const int64_t* WordsAt(int64_t instruction) const { return code.data() + offsets[static_cast<size_t>(instruction)]; }
  const Function& FunctionAt(int64_t i) const { return functions[static_cast<size_t>(i)]; }
  int64_t Find(std::string_view name) const;  // -1: none
};

// ModuleLoadError: the bytes are damaged, or of a version that is not known.
std::shared_ptr<const Executable> ReadExecutable(std::string_view bytes);

std::string Listing(const Executable& executable);      // the functions and instructions, as TVM writes them
std::string Summary(const Executable& executable);      // numbers, in one line
std::string Description(const Executable& executable);  // JSON: functions and constants

}  // namespace portcall::vm
