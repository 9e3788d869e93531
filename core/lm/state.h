// SPDX-License-Identifier: Apache-2.0
// What a language model keeps from token to token, with the functions that all kinds of it have.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vm/builtin.h"

namespace portcall::lm {

using bytes::Throw;
using vm::Arguments;
using vm::Builtin;
using vm::Result;

class State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  virtual ~State() = default;
  virtual void Clear() = 0;
  virtual void Add(int64_t id) = 0;
  virtual void Remove(int64_t id) = 0;
  virtual void Fork(int64_t parent, int64_t child, int64_t at) = 0;
  virtual void Pop(int64_t id, int64_t count) = 0;
  virtual void Begin(const std::vector<int64_t>& ids, const std::vector<int64_t>& counts) = 0;
  virtual void End() = 0;

  std::recursive_mutex mutex;  // a kernel may be a function of the user, who calls back
};

// The types have TVM's names.
struct StateObj : Object {
  static constexpr const char* kTypeKey = "relax.vm.KVState";
  static constexpr bool kHoldsObjects = true;
  std::unique_ptr<State> state;
  explicit StateObj(std::unique_ptr<State> s) : state(std::move(s)) {}
};

// The state of an argument; TypeError for other values.
State& StateAt(const Arguments& args, int32_t i);

double FloatAt(const Arguments& args, int32_t i);
// The function of an argument; null if it is something else and may be.
PackedFunc FunctionAt(const Arguments& args, int32_t i, bool required = true);

}  // namespace portcall::lm
