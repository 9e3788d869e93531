// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "portcall/pass.h"
#include "tests/ir/nodes.h"

using namespace nodes;

namespace {

Any Append(const Any& list, const char* item) {
  auto items = list.cast<Array<Any>>();
  items.push_back(item);
  return items;
}

// A pass that adds its name to an Array.
ir::Pass Says(const char* name, int64_t level = 0, const std::vector<String>& required = {}) {
  return ir::Pass(name, [name = std::string(name)](Any list) { return Append(list, name.c_str()); }, level, required);
}

std::string Text(const Any& list) {
  std::string text;
  for (const Any& item : list.cast<Array<Any>>()) text += (text.empty() ? "" : " ") + item.cast<std::string>();
  return text;
}

const Any kNothing = Array<Any>(std::vector<Any>());

std::string NotesOf(const ir::Pass& pass) {
  try {
    pass(kNothing);
    return "";
  } catch (const Error& error) {
    std::string notes;
    std::istringstream lines{std::string(error.backtrace())};
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(Error::kNotePrefix, 0) == 0) notes += line.substr(std::string(Error::kNotePrefix).size()) + "\n";
    }
    return std::string(error.what()) + "\n" + notes;
  }
}

// A global function for the time of one test.
struct Registered {
  explicit Registered(const ir::Pass& pass) : name(pass->name.str()) { ir::Pass::Register(pass); }
  ~Registered() { Registry::Remove(name); }
  std::string name;
};

}  // namespace

TEST("a pass is a function with a name, and passes in a Sequential run in order") {
  CHECK_EQ(Text(Says("a")(kNothing)), "a");
  PackedFunc func([](Args args, RetValue* rv) { *rv = Append(args[0].cast<Any>(), "func"); });
  Registered named(Says("test.pass.named"));
  ir::Sequential inner({Says("b"), Says("c")}, "inner");
  ir::Sequential all({Says("a"), inner, func, "test.pass.named"}, "all");
  CHECK_EQ(Text(all(kNothing)), "a b c func test.pass.named");
  CHECK_EQ(Text(ir::Sequential({}, "empty")(Array<Any>{"x"})), "x");
}

TEST("a context says which passes of a Sequential run") {
  ir::Sequential all({Says("always"), Says("two", 2), Says("three", 3)}, "all");
  CHECK_EQ(Text(all(kNothing)), "always two");
  ir::PassContext context = ir::PassContext::New();
  context->level = 3;
  context->disabled = {"always"};
  {
    ir::WithContext with(context);
    CHECK(ir::PassContext::Current().same_as(context));
    CHECK_EQ(Text(all(kNothing)), "two three");
    ir::PassContext low = ir::PassContext::New();
    low->level = 0;
    low->required = {"three"};
    ir::WithContext inner(low);
    CHECK_EQ(Text(all(kNothing)), "always three");
  }
  CHECK(!ir::PassContext::Current().same_as(context));
  CHECK_EQ(context->timings.size(), 3);
}

TEST("what a pass requires runs before it, once") {
  Registered base(Says("test.pass.base", 5)), middle(Says("test.pass.middle", 0, {"test.pass.base"}));
  ir::Sequential all({Says("x", 0, {"test.pass.middle"}), Says("y", 0, {"test.pass.base"})}, "all");
  CHECK_EQ(Text(all(kNothing)), "test.pass.base test.pass.middle x y");
  ir::PassContext context = ir::PassContext::New();
  context->disabled = {"test.pass.base"};
  ir::WithContext with(context);
  CHECK_EQ(NotesOf(all),
           "ValueError: pass 'test.pass.middle' requires 'test.pass.base', which is disabled\nin pass 'all'\n");
}

TEST("a pass that requires itself is refused") {
  Registered a(Says("test.pass.a", 0, {"test.pass.b"})), b(Says("test.pass.b", 0, {"test.pass.a"}));
  CHECK_EQ(NotesOf(ir::Sequential({"test.pass.a"}, "all")),
           "ValueError: pass 'test.pass.b' requires itself, through 'test.pass.a'\nin pass 'all'\n");
}

TEST("a registered pass is the global function of its name, and only as long") {
  {
    Registered pass(Says("test.pass.level", 4, {"test.pass.other"}));
    CHECK_EQ(ir::Pass::Named("test.pass.level")->level, 4);
    CHECK_EQ(ir::Pass::Named("test.pass.level")->required[0].view(), "test.pass.other");
    CHECK_EQ(Text(Registry::Get("test.pass.level")(kNothing)), "test.pass.level");
    CHECK(Contains(Thrown([] { ir::Pass::Register(Says("test.pass.level")); }), "test.pass.level"));
    Registry::Set("test.pass.level", PackedFunc([](Args, RetValue*) {}), true);
    CHECK_EQ(ir::Pass::Named("test.pass.level")->level, 0);
  }
  CHECK_EQ(Thrown([] { ir::Pass::Named("test.pass.level"); }),
           "KeyError: no pass and no global function is called 'test.pass.level'");
}

TEST("an error says in notes which pass it came from") {
  ir::Pass bad("bad", [](Any) -> Any { PORTCALL_THROW(KeyError) << "no such node"; });
  ir::Sequential inner({Says("a"), bad}, "inner");
  CHECK_EQ(NotesOf(ir::Sequential({Says("x"), Says("y"), inner}, "all")),
           "KeyError: no such node\nin pass 'bad', number 2 of 2 in 'inner'\nin pass 'inner', number 3 of 3 in 'all'\n"
           "in pass 'all'\n");
  ir::Pass outer("outer", [&](Any list) -> Any { return inner(list); });
  CHECK_EQ(NotesOf(outer),
           "KeyError: no such node\nin pass 'bad', number 2 of 2 in 'inner'\nin pass 'inner'\n"
           "in pass 'outer'\n");
  CHECK_EQ(NotesOf(ir::Pass("none", [](Any) -> Any { return nullptr; })),
           "TypeError: pass 'none' returned None; a pass returns the object, changed or not\nin pass 'none'\n");
  CHECK_EQ(NotesOf(ir::Sequential({5}, "wrong")),
           "TypeError: a pass is a Pass, a function, or the name of one; got int\nin pass 'wrong'\n");
}

TEST("passes that run one another without end are an error") {
  ir::Pass endless("endless", PackedFunc());
  ir::Pass* self = &endless;
  endless->run = PackedFunc([self](Args args, RetValue* rv) { *rv = (*self)(args[0].cast<Any>()); });
  CHECK_EQ(Thrown([&] { endless(kNothing); }), "RecursionError: passes run one another 100 deep");
  CHECK_EQ(Text(Says("again")(kNothing)), "again");
  endless->run = nullptr;
}

TEST("a context has a timing for each pass that ended, and calls hooks around them") {
  std::string seen;
  auto hook = [&seen](const char* sign) {
    return PackedFunc(
        [&seen, sign](Args args, RetValue*) { seen += sign + args[0].cast<ir::Pass>()->name.str() + " "; });
  };
  ir::PassContext context = ir::PassContext::New();
  context->before = hook("<");
  context->after = hook(">");
  ir::WithContext with(context);
  ir::Sequential({Says("a"), ir::Sequential({Says("b")}, "inner")}, "all")(kNothing);
  CHECK_EQ(seen, "<all <a >a <inner <b >b >inner >all ");
  std::string timings;
  for (const Any& item : context->timings) {
    auto one = item.cast<ObjectRef>();
    auto* timing = one.as<ir::PassTimingObj>();
    timings += timing->name.str() + std::to_string(timing->depth) + " ";
    CHECK(timing->seconds >= 0);
  }
  CHECK_EQ(timings, "a1 b2 inner1 all0 ");
  Thrown([] { ir::Pass("bad", [](Any) -> Any { return nullptr; })(kNothing); });
  CHECK(context->timings[4].cast<ObjectRef>().as<ir::PassTimingObj>()->failed);
}

TEST("passes read settings, and passes that they call share their context") {
  ir::Pass reads("reads", [](Any) { return ir::PassContext::Current().Setting("size", "none"); });
  ir::Pass calls("calls", [&](Any obj) -> Any {
    auto before = ir::PassContext::Current();
    Any result = reads(obj);
    CHECK_EQ(before->timings.size(), 1);
    return result;
  });
  CHECK_EQ(calls(kNothing).cast<std::string>(), "none");
  ir::PassContext context = ir::PassContext::New();
  context->config = Map<String, Any>({{"size", "big"}});
  ir::WithContext with(context);
  CHECK_EQ(calls(kNothing).cast<std::string>(), "big");
}

TEST("a context is left by whom entered it last") {
  ir::PassContext one = ir::PassContext::New(), two = ir::PassContext::New();
  ir::WithContext with(one);
  CHECK_EQ(Thrown([&] { Registry::Get("portcall.ir.ExitPassContext")(two); }),
           "RuntimeError: the pass context to leave is not the one that this thread entered last");
  CHECK(ir::PassContext::Current().same_as(one));
}

TEST("threads have contexts of their own") {
  ir::PassContext mine = ir::PassContext::New();
  mine->level = 9;
  ir::WithContext with(mine);
  std::vector<std::thread> threads;
  for (int64_t level = 0; level < 4; ++level) {
    threads.emplace_back([level] {
      CHECK_EQ(ir::PassContext::Current()->level, 2);
      ir::PassContext own = ir::PassContext::New();
      own->level = level;
      ir::WithContext inside(own);
      ir::Sequential all({Says("one", 1), Says("two", 2), Says("three", 3)}, "all");
      for (int i = 0; i < 100; ++i) CHECK_EQ(all(kNothing).cast<Array<Any>>().size(), level);
      CHECK_EQ(own->timings.size(), 100 * (level + 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(ir::PassContext::Current()->level, 9);
  CHECK_EQ(mine->timings.size(), 0);
}
