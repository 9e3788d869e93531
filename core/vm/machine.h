// SPDX-License-Identifier: Apache-2.0
// A machine runs the functions of an executable. It is set up once, for its devices: then every function is found and
// the argument cells of every call are laid out. A call copies its row of cells, fills the registers in, and calls.
//
// Registers lie on separate stacks in the heap, one for each thread. So functions of the executable may call each
// other a million levels deep, and several threads may use one machine.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vm/memory.h"
#include "vm/program.h"

namespace portcall::vm {

struct Place {
  Device device;
  Pool* pool;  // null: memory is freed at once
};

// How often each function was called, and for how long.
struct Profile {
  struct Row {
    int64_t calls = 0, nanoseconds = 0;
  };
  std::vector<Row> rows;  // by function
};

class Machine {
 public:
  // `imports`: a tuple of the modules that have the kernels.
  Machine(std::shared_ptr<const Executable> executable, Any imports)
      : executable_(std::move(executable)), imports_(std::move(imports)) {}

  // (kind, index, kind of allocator) for each device, the last one being the host.
  void SetUp(const Arguments& args);

  const Executable& executable() const { return *executable_; }
  // The function that can be called by that name; -1: none.
  int64_t Find(std::string_view name) const;
  // The same; ValueError when there is none.
  int64_t Required(std::string_view name) const;

  // Runs a function with arguments as Input makes them.
  Any Run(int64_t function, const std::vector<Any>& args, Profile* profile = nullptr);
  // Runs a function, a closure, or a function of this process.
  void InvokeObject(const TVMFFIAny& callee, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);

  // A value of the user as functions of the executable may have it: tensors on the first device, compact and aligned.
  Any Input(const TVMFFIAny& value) const;
  void CheckReady() const;  // RuntimeError: the machine was not set up

  // A function called around each call; null: none any more.
  void SetInstrument(PackedFunc instrument);

  const Place& PlaceAt(int64_t index) const;  // -1: the last one
  const Device& device() const { return places_[0].device; }

  // The machine of this thread that a pointer of compiled code means; TypeError for any other.
  static Machine* Current(const TVMFFIAny& cell);

 private:
  class Entered;
  class Frames;
  class Interpreter;

  void Invoke(int64_t function, const TVMFFIAny* args, int32_t num_args, Profile* profile, TVMFFIAny* result);
  void RunCompiled(int64_t function, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);
  void CallOut(const Step& step, const TVMFFIAny* cells, Profile* profile, TVMFFIAny* out);
  void CallInstrumented(const PackedFunc& instrument, const Step& step, const TVMFFIAny* cells, TVMFFIAny* out);
  PackedFunc Instrument();
  void CheckCount(int64_t function, int32_t num_args) const;
  std::string Describe(const Routine& routine, const Step* step) const;

  std::shared_ptr<const Executable> executable_;
  Any imports_;
  std::vector<Place> places_;
  std::atomic<bool> ready_{false};
  std::mutex mutex_;  // guards setting up, and the instrument
  PackedFunc instrument_;
  std::atomic<bool> instrumented_{false};

  std::unique_ptr<Program> program_;  // made when it is set up
};

}  // namespace portcall::vm
