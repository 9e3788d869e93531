// SPDX-License-Identifier: Apache-2.0
#include "portcall/pass.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

namespace portcall::ir {

void PassObj::Describe(Description<PassObj>* type) {
  type->doc("A function that turns one object into another, with a name.");
  type->field("name", &PassObj::name);
  type->field("run", &PassObj::run, "takes the object").set_default(nullptr).hide();
  type->field("level", &PassObj::level, "in a Sequential it runs in contexts of at least this level").set_default(0);
  type->field("required", &PassObj::required, "passes that must have run before").set_default_factory([] {
    return Array<String>(std::vector<String>());
  });
}

void SequentialObj::Describe(Description<SequentialObj>* type) {
  type->doc("Passes, one after the other.");
  type->field("passes", &SequentialObj::passes).set_default_factory([] { return Array<Any>(std::vector<Any>()); });
}

void PassTimingObj::Describe(Description<PassTimingObj>* type) {
  type->doc("One pass that ran.");
  type->field("name", &PassTimingObj::name);
  type->field("seconds", &PassTimingObj::seconds);
  type->field("depth", &PassTimingObj::depth, "0: called by the user; 1: by that one; and so on");
  type->field("failed", &PassTimingObj::failed, "whether it ended with an error").set_default(false);
}

void PassContextObj::Describe(Description<PassContextObj>* type) {
  auto no_names = [] { return Array<String>(std::vector<String>()); };
  type->doc("How passes run: which, with what settings, and what came of it.");
  type->compare_as(kTVMFFISEqHashKindUniqueInstance);
  type->field("level", &PassContextObj::level, "passes of a higher level are left out").set_default(2);
  type->field("required", &PassContextObj::required, "run whatever their level").set_default_factory(no_names);
  type->field("disabled", &PassContextObj::disabled, "left out").set_default_factory(no_names);
  type->field("config", &PassContextObj::config, "settings by name").set_default_factory([] {
    return Map<String, Any>(std::vector<std::pair<String, Any>>());
  });
  type->field("timings", &PassContextObj::timings, "of PassTiming, in the order of their ends")
      .set_default_factory([] { return List<Any>(); })
      .keyword_only();
  type->field("before", &PassContextObj::before, "called with pass and object").set_default(nullptr).hide();
  type->field("after", &PassContextObj::after, "called with pass and result").set_default(nullptr).hide();
}

namespace {

PORTCALL_REGISTER_OBJECT(PassObj);
PORTCALL_REGISTER_OBJECT(SequentialObj);
PORTCALL_REGISTER_OBJECT(PassTimingObj);
PORTCALL_REGISTER_OBJECT(PassContextObj);

// The contexts that this thread has entered, and how many passes run in it inside one another.
struct ThreadState {
  std::vector<PassContext> contexts;
  int64_t depth = 0;

  static ThreadState& Get() {
    thread_local ThreadState state;
    return state;
  }
};

// What is known of registered passes beside their functions, which are in the registry of functions. It holds none of
// them: a name that is registered anew means the new function alone.
class Passes {
 public:
  static Passes& Get() {
    static auto* passes = new Passes();
    return *passes;
  }

  void Register(const Pass& pass, bool can_override) {
    PORTCALL_CHECK(pass.defined() && pass->run.defined(), TypeError) << "the pass to register has no function";
    Registry::Set(pass->name.str(), pass->run, can_override);
    std::lock_guard<std::mutex> lock(mutex_);
    Known& known = known_[pass->name.str()] = {pass->run.get(), pass->level, {}};
    for (const String& name : pass->required) known.required.push_back(name.str());
  }

  Pass Find(const std::string& name) {
    PackedFunc func = Registry::Get(name);
    PORTCALL_CHECK(func.defined(), KeyError) << "no pass and no global function is called '" << name << "'";
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = known_.find(name);
    if (it == known_.end() || it->second.func != func.get()) return Pass(name, func);
    return Pass(name, func, it->second.level, {it->second.required.begin(), it->second.required.end()});
  }

 private:
  struct Known {
    const void* func;
    int64_t level;
    std::vector<std::string> required;
  };
  std::mutex mutex_;
  std::map<std::string, Known> known_;
};

Pass AsPass(const Any& item) {
  if (auto pass = item.try_cast<Pass>(); pass && pass->defined()) return *pass;
  if (auto name = item.try_cast<std::string>()) return Passes::Get().Find(*name);
  auto func = item.try_cast<PackedFunc>();
  PORTCALL_CHECK(func && func->defined(), TypeError)
      << "a pass is a Pass, a function, or the name of one; got " << DescribeType(item.type_index());
  return Pass("function", *func);
}

bool Has(const Array<String>& names, const String& name) {
  return std::any_of(names.begin(), names.end(), [&](const String& one) { return one.view() == name.view(); });
}

Any Run(const Pass& pass, const Any& obj, const PassContext& context);

// Runs the passes of one Sequential.
class Sequence {
 public:
  Sequence(const SequentialObj& sequential, const PassContext& context) : sequential_(sequential), context_(context) {}

  Any Run(Any obj) {
    for (place_ = 0; place_ < sequential_.passes.size(); ++place_) {
      Pass pass = AsPass(sequential_.passes[place_]);
      if (Has(context_->disabled, pass->name)) continue;
      if (pass->level > context_->level && !Has(context_->required, pass->name)) continue;
      obj = RunWithRequired(pass, std::move(obj));
    }
    return obj;
  }

 private:
  Any RunWithRequired(const Pass& pass, Any obj) {
    for (const String& name : pass->required) {
      if (Has(done_, name)) continue;
      PORTCALL_CHECK(!Has(context_->disabled, name), ValueError)
          << "pass '" << pass->name.view() << "' requires '" << name.view() << "', which is disabled";
      PORTCALL_CHECK(std::find(pending_.begin(), pending_.end(), name.view()) == pending_.end(), ValueError)
          << "pass '" << name.view() << "' requires itself, through '" << pass->name.view() << "'";
      pending_.push_back(name.view());
      obj = RunWithRequired(Passes::Get().Find(name.str()), std::move(obj));
      pending_.pop_back();
    }
    obj = RunOne(pass, obj);
    done_.push_back(pass->name);
    return obj;
  }

  Any RunOne(const Pass& pass, const Any& obj) {
    try {
      return ir::Run(pass, obj, context_);
    } catch (const Error& error) {
      std::ostringstream note;
      note << "in pass '" << pass->name.view() << "'";
      if (!pending_.empty()) note << ", which is required there";
      note << ", number " << place_ + 1 << " of " << sequential_.passes.size() << " in '" << sequential_.name.view()
           << "'";
      error.AddNote(note.str());
      throw;
    }
  }

  static bool Has(const std::vector<String>& names, const String& name) {
    return std::any_of(names.begin(), names.end(), [&](const String& one) { return one.view() == name.view(); });
  }
  static bool Has(const Array<String>& names, const String& name) { return ir::Has(names, name); }

  const SequentialObj& sequential_;
  const PassContext& context_;
  size_t place_ = 0;
  std::vector<String> done_;
  std::vector<std::string_view> pending_;
};

// Counts a pass as running as long as it lives.
class Running {
 public:
  Running() {
    constexpr int64_t kMostPasses = 100;  // inside one another: each takes a part of the stack
    PORTCALL_CHECK(state_.depth < kMostPasses, RecursionError) << "passes run one another " << kMostPasses << " deep";
    ++state_.depth;
  }
  ~Running() { --state_.depth; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  int64_t depth() const { return state_.depth - 1; }

 private:
  ThreadState& state_ = ThreadState::Get();
};

Any RunUntimed(const Pass& pass, const Any& obj, const PassContext& context) {
  if (auto* sequential = pass.as<SequentialObj>()) return Sequence(*sequential, context).Run(obj);
  PORTCALL_CHECK(pass->run.defined(), TypeError) << "pass '" << pass->name.view() << "' has no function";
  Any result = pass->run(obj);
  PORTCALL_CHECK(result != nullptr, TypeError)
      << "pass '" << pass->name.view() << "' returned None; a pass returns the object, changed or not";
  return result;
}

// Adds to the context how long a pass took, however it ends.
class Timing {
 public:
  Timing(const Pass& pass, const PassContext& context, int64_t depth) : pass_(pass), context_(context), depth_(depth) {}
  ~Timing() {
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
    Guard([&] {
      auto* timing = NewNode<PassTimingObj>();
      ObjectRef owner = ObjectRef::Steal(timing);
      timing->name = pass_->name;
      timing->seconds = took.count();
      timing->depth = depth_;
      timing->failed = !done_;
      context_->timings.push_back(owner);
    });
  }
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;
  void Done() { done_ = true; }

 private:
  const Pass& pass_;
  const PassContext& context_;
  int64_t depth_;
  bool done_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Any Run(const Pass& pass, const Any& obj, const PassContext& context) {
  Running running;
  if (context->before.defined()) context->before(pass, obj);
  Any result;
  {
    Timing timing(pass, context, running.depth());
    result = RunUntimed(pass, obj, context);
    timing.Done();
  }
  if (context->after.defined()) context->after(pass, result);
  return result;
}

void Enter(const PassContext& context) {
  PORTCALL_CHECK(context.defined(), TypeError) << "the context is None";
  ThreadState::Get().contexts.push_back(context);
}

void Exit(const PassContext& context) {
  std::vector<PassContext>& contexts = ThreadState::Get().contexts;
  PORTCALL_CHECK(!contexts.empty() && contexts.back().same_as(context), RuntimeError)
      << "the pass context to leave is not the one that this thread entered last";
  contexts.pop_back();
}

PassContext Current() {
  std::vector<PassContext>& contexts = ThreadState::Get().contexts;
  return contexts.empty() ? PassContext::New() : contexts.back();
}

// A pass that the user calls, or another pass.
Any RunCalled(const Pass& pass, const Any& obj) {
  PassContext context = Current();
  Enter(context);  // passes that this one calls share it
  struct Leave {
    const PassContext& context;
    ~Leave() {
      Guard([&] { Exit(context); });
    }
  } leave{context};
  try {
    return Run(pass, obj, context);
  } catch (const Error& error) {
    error.AddNote("in pass '" + pass->name.str() + "'");
    throw;
  }
}

PORTCALL_REGISTER_GLOBAL("portcall.ir.RunPass").set_body_typed([](Any pass, Any obj) {
  return RunCalled(AsPass(pass), obj);
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.FindPass").set_body_typed([](std::string name) {
  return Passes::Get().Find(name);
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.RegisterPass").set_body_typed([](Pass pass, bool can_override) {
  Passes::Get().Register(pass, can_override);
});
PORTCALL_REGISTER_GLOBAL("portcall.ir.CurrentPassContext").set_body_typed(Current);
PORTCALL_REGISTER_GLOBAL("portcall.ir.EnterPassContext").set_body_typed(Enter);
PORTCALL_REGISTER_GLOBAL("portcall.ir.ExitPassContext").set_body_typed(Exit);

}  // namespace
}  // namespace portcall::ir

int PortcallIrFunction(const char* name, TVMFFIObjectHandle* func) {
  return portcall::Guard([&] { *func = portcall::Registry::GetRequired(name).release(); });
}
