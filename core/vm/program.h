// SPDX-License-Identifier: Apache-2.0
// A program: an executable with its functions found, and the argument cells of every call laid out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vm/builtin.h"
#include "vm/executable.h"

namespace portcall::vm {

// What make_closure makes. It does not hold the machine, which is given when it is called.
struct ClosureObj : Object {
  static constexpr const char* kTypeKey = "relax.vm.Closure";
  static constexpr bool kHoldsObjects = true;
  std::shared_ptr<const Executable> executable;
  int64_t function;
  std::vector<Any> bound;  // appended to the arguments
  ClosureObj(std::shared_ptr<const Executable> e, int64_t f, std::vector<Any> b)
      : executable(std::move(e)), function(f), bound(std::move(b)) {}
};
class Closure : public ObjectRef {
  PORTCALL_OBJECT_REF(Closure, ClosureObj)
};
// The closure in a cell, or null.
ClosureObj* TryClosure(const TVMFFIAny& cell);

// One instruction, ready to run.
struct Step {
  enum Action : uint8_t {
    kCallFunction,  // by address
    kCallClosure,   // vm.builtin.invoke_closure
    kEnter,         // a function of the executable
    kCallCompiled,
    kClear,  // vm.builtin.null_value, the most frequent call
    kReturnValue,
    kJump,
    kBranch,
  };
  Action action;
  bool foreign;         // a function of the user, whose result is checked
  int32_t target = -1;  // the register of a result, of a value to return or of a condition; -1: none
  int32_t jump = 1;
  int32_t num_args = 0, num_patches = 0;
  int32_t function = -1;
  const TVMFFIAny* cells = nullptr;  // immediates, constants and functions in their places
  const struct Patch* patches = nullptr;
  TVMFFISafeCallType call = nullptr;
  void* self = nullptr;
};

// A register that is filled into the cells of a call.
struct Patch {
  int32_t position, source;
};

struct Routine {
  std::vector<Step> steps;
  int32_t num_registers = 0;
};

struct Program {
  std::vector<Any> constants;        // on the first device
  std::vector<Any> functions;        // a PackedFunc or a Closure each
  std::vector<PackedFunc> compiled;  // by function; null for those of other kinds
  std::vector<Routine> routines;     // by function; empty for those of other kinds
  std::vector<TVMFFIAny> cells;      // of all steps, in order
  std::vector<Patch> patches;        // of all steps, in order
};

// Takes functions from the modules, then from the global functions; FunctionNotFoundError names all that are missing.
// `machine` is what the instructions call the machine.
std::unique_ptr<Program> Link(const std::shared_ptr<const Executable>& executable, const Arguments& imports,
                              const Device& device, void* machine);

}  // namespace portcall::vm
