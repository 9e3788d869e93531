// SPDX-License-Identifier: Apache-2.0
// Passes: functions that turn one object into another, named, timed and composed. Written in any language; what runs
// them is in libportcall_ir.
//
//   ir::Sequential pipeline({ir::Pass("demo.fold", Fold), "demo.simplify"}, "demo.pipeline");
//   ir::PassContext context = ir::PassContext::New();
//   context->level = 3;
//   ir::WithContext with(context);  // the current one of this thread, as long as this lives
//   Expr better = pipeline(expr);
//
// An error that leaves a pass says in a note which one it was, and where in which Sequential.
#ifndef PORTCALL_PASS_H_
#define PORTCALL_PASS_H_

#include <string>
#include <utility>
#include <vector>

#include "ir.h"

namespace portcall::ir {

struct PassObj : Object {
  String name;
  PackedFunc run;     // of one argument, the object; null for a Sequential
  int64_t level = 0;  // in a Sequential it runs in contexts of at least this level
  // Passes that must have run before it in its Sequential, which runs those that have not.
  Array<String> required{std::vector<String>()};
  PORTCALL_OBJECT(PassObj, Object, "portcall.ir.Pass")
  static void Describe(Description<PassObj>* type);
};

struct SequentialObj : PassObj {
  Array<Any> passes{std::vector<Any>()};  // each a pass, a function, or the name of either
  PORTCALL_OBJECT(SequentialObj, PassObj, "portcall.ir.Sequential")
  static void Describe(Description<SequentialObj>* type);
};

// One pass that ran.
struct PassTimingObj : Object {
  String name;
  double seconds = 0;
  int64_t depth = 0;    // 0: called by the user; 1: by that one, or in that Sequential; and so on
  bool failed = false;  // whether it ended with an error
  PORTCALL_OBJECT(PassTimingObj, Object, "portcall.ir.PassTiming")
  static void Describe(Description<PassTimingObj>* type);
};

// How passes run: which, with what settings, and what came of it. In use in one thread at a time.
struct PassContextObj : Object {
  int64_t level = 2;
  Array<String> required{std::vector<String>()};                   // run whatever their level
  Array<String> disabled{std::vector<String>()};                   // left out of every Sequential
  Map<String, Any> config{std::vector<std::pair<String, Any>>()};  // settings by name, for passes to read
  List<Any> timings;                                               // of PassTiming, in the order of their ends
  PackedFunc before, after;  // called with pass and object around each pass; may be null
  PORTCALL_OBJECT(PassContextObj, Object, "portcall.ir.PassContext")
  static void Describe(Description<PassContextObj>* type);
};

class PassContext : public ObjectRef {
  PORTCALL_OBJECT_REF(PassContext, PassContextObj)

  static PassContext New() { return ObjectRef::Steal<PassContext>(NewNode<PassContextObj>()); }
  // That of this thread: the innermost that was entered, or else one with the defaults, for the time of one pass.
  static PassContext Current() { return detail::IrFunction("portcall.ir.CurrentPassContext")(); }
  // A setting; `otherwise` when there is none.
  Any Setting(const std::string& name, const Any& otherwise = {}) const {
    return node()->config.find(name).value_or(otherwise);
  }
};

class Pass : public ObjectRef {
  PORTCALL_OBJECT_REF(Pass, PassObj)

  // From any callable of one argument.
  template <typename F>
  Pass(const std::string& name, F body, int64_t level = 0, const std::vector<String>& required = {}) {
    auto* node = NewNode<PassObj>();
    ptr_ = node;
    node->name = name;
    if constexpr (std::is_base_of_v<PackedFunc, F>) node->run = std::move(body);
    else node->run = PackedFunc(detail::Unpack(std::move(body)), name);
    node->level = level;
    node->required = Array<String>(required);
  }
  // The global function of that name as a pass, with level and required passes if somebody registered those.
  static Pass Named(const std::string& name) { return detail::IrFunction("portcall.ir.FindPass")(name); }
  // Makes a pass's function the global function of its name, and remembers what else there is to know of it.
  static void Register(const Pass& pass, bool can_override = false) {
    detail::IrFunction("portcall.ir.RegisterPass")(pass, can_override);
  }

  RetValue operator()(const Any& obj) const { return detail::IrFunction("portcall.ir.RunPass")(*this, obj); }
};

class Sequential : public Pass {
  PORTCALL_OBJECT_REF(Sequential, SequentialObj)

  // Each a pass, a function, or the name of either.
  Sequential(const std::vector<Any>& passes, const std::string& name) {
    auto* node = NewNode<SequentialObj>();
    ptr_ = node;
    node->name = name;
    node->passes = Array<Any>(passes);
  }
};

// Makes a context this thread's current one while it lives.
class WithContext {
 public:
  explicit WithContext(PassContext context) : context_(std::move(context)) {
    detail::IrFunction("portcall.ir.EnterPassContext")(context_);
  }
  ~WithContext() {
    try {
      detail::IrFunction("portcall.ir.ExitPassContext")(context_);
    } catch (const Error&) {  // somebody else left it already: nothing to undo
    }
  }
  WithContext(const WithContext&) = delete;
  WithContext& operator=(const WithContext&) = delete;

 private:
  PassContext context_;
};

}  // namespace portcall::ir
#endif  // PORTCALL_PASS_H_
