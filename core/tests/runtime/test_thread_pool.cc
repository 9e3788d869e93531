// SPDX-License-Identifier: Apache-2.0
// Parallel loops through the C ABI, as compiled code launches them. Nothing here waits for luck: where tasks must run at
// the same time they meet at a barrier, and a mistake shows as a hang that the test run's limit ends.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;

namespace {

using Body = std::function<int(int task, TVMParallelGroupEnv* env)>;

int LaunchRaw(const Body& body, int num_task) {
  return TVMBackendParallelLaunch(
      [](int task, TVMParallelGroupEnv* env, void* cdata) { return (*static_cast<const Body*>(cdata))(task, env); },
      const_cast<Body*>(&body), num_task);
}

void Launch(const Body& body, int num_task = 0) { Check(LaunchRaw(body, num_task)); }

Error LaunchError(const Body& body, int num_task = 0) {
  try {
    Launch(body, num_task);
  } catch (const Error& error) {
    return error;
  }
  return Error("none", "the launch did not fail");
}

int Fail(const char* kind, const std::string& message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message.c_str());
  return -1;
}

int NumThreads() { return Registry::Get("runtime.NumThreads")(); }
void SetThreads(int n) { Registry::Get("runtime.config_threadpool")(1, n); }

// A pool of n threads during a test.
struct WithThreads {
  explicit WithThreads(int n) { SetThreads(n); }
  ~WithThreads() { SetThreads(0); }
};

using Variables = std::vector<std::pair<const char*, const char*>>;

// Environment variables during a test. The pool reads them when it has to choose its size again.
class WithEnvironment {
 public:
  explicit WithEnvironment(const Variables& values) {
    for (const char* name : {"PORTCALL_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"}) {
      const char* old = std::getenv(name);
      if (old) saved_.emplace_back(name, old);
      unsetenv(name);
    }
    for (auto [name, value] : values) setenv(name, value, 1);
    SetThreads(0);
  }
  ~WithEnvironment() {
    for (const char* name : {"PORTCALL_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"}) unsetenv(name);
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
    SetThreads(0);
  }

 private:
  std::vector<std::pair<std::string, std::string>> saved_;
};

// The tasks that ran, each of which counted itself once; empty if any ran twice or saw another number of tasks.
int CountTasks(int num_task) {
  std::vector<std::atomic<int>> runs(2000);
  std::atomic<int> told{0};
  Launch(
      [&](int task, TVMParallelGroupEnv* env) {
        ++runs.at(static_cast<size_t>(task));
        told = env->num_task;
        return 0;
      },
      num_task);
  for (size_t i = 0; i < runs.size(); ++i) CHECK_EQ(runs[i].load(), static_cast<int>(i) < told ? 1 : 0);
  return told;
}

// Adds up over rounds: in each round every task reads what all tasks wrote in the round before.
void CheckBarriers(int num_task, int rounds) {
  std::vector<int> cells(2000, 0);  // plain memory: the barrier alone makes this right, or TSan says so
  std::atomic<int> wrong{0};
  Launch(
      [&](int task, TVMParallelGroupEnv* env) {
        for (int round = 1; round <= rounds; ++round) {
          cells[static_cast<size_t>(task)] = round;
          if (TVMBackendParallelBarrier(task, env) != 0) return -1;
          for (int i = 0; i < env->num_task; ++i) wrong += cells[static_cast<size_t>(i)] != round;
          if (TVMBackendParallelBarrier(task, env) != 0) return -1;
        }
        return 0;
      },
      num_task);
  CHECK_EQ(wrong.load(), 0);
}

#if !defined(__SANITIZE_THREAD__)
// Runs `body` in a forked child and gives its exit status. A hang there is ended by the alarm.
template <typename F> int StatusOfChild(F body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
#endif

}  // namespace

TEST("a launch that leaves the number of tasks open runs one for each thread") {
  for (int threads : {1, 2, 3, 8}) {
    WithThreads pool(threads);
    CHECK_EQ(NumThreads(), threads);
    CHECK_EQ(CountTasks(0), threads);
  }
}

TEST("a launch that asks for a number of tasks gets exactly that, more than the pool has too") {
  for (int threads : {1, 4}) {
    WithThreads pool(threads);
    for (int n : {1, 2, 3, 4, 5, 7, 16, 100}) CHECK_EQ(CountTasks(n), n);
    CHECK_EQ(CountTasks(0), threads);
  }
}

TEST("each task has a thread of its own and task 0 is the caller") {
  WithThreads pool(3);
  std::vector<std::thread::id> ids(7);
  Launch(
      [&](int task, TVMParallelGroupEnv* env) {
        ids[static_cast<size_t>(task)] = std::this_thread::get_id();
        return TVMBackendParallelBarrier(task, env);
      },
      7);
  CHECK(ids[0] == std::this_thread::get_id());
  CHECK_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 7);
}

TEST("workers outlive a launch and keep the number of their task") {
  WithThreads pool(4);
  std::vector<std::thread::id> first(4), second(4);
  for (auto* ids : {&first, &second}) {
    Launch([&](int task, TVMParallelGroupEnv*) {
      (*ids)[static_cast<size_t>(task)] = std::this_thread::get_id();
      return 0;
    });
  }
  CHECK(first == second);
}

TEST("a barrier makes what every task wrote visible to every task") {
  WithThreads pool(4);
  for (int n : {0, 1, 2, 5, 12}) CheckBarriers(n, 200);
}

TEST("threads that launch at the same time share the pool") {
  WithThreads pool(4);
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([i] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<int> ran{0}, told{0};
        Launch(
            [&](int task, TVMParallelGroupEnv* env) {
              ++ran;
              told = env->num_task;
              return TVMBackendParallelBarrier(task, env);
            },
            i < 6 ? 0 : i);
        CHECK_EQ(ran.load(), told.load());
        CHECK(i < 6 ? told >= 1 && told <= 4 : told == i);
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK_EQ(CountTasks(0), 4);
}

TEST("a launch that finds all workers busy runs on its caller alone") {
  WithThreads pool(3);
  std::atomic<int> others{0};
  Launch([&](int task, TVMParallelGroupEnv* env) {
    if (task == 1) {
      std::thread other([&] { others = CountTasks(0); });
      other.join();
    }
    return TVMBackendParallelBarrier(task, env);
  });
  CHECK_EQ(others.load(), 1);
}

TEST("the error of a task arrives with its kind and the number of the task, and the other tasks run") {
  WithThreads pool(4);
  std::atomic<int> ran{0};
  Error error = LaunchError([&](int task, TVMParallelGroupEnv*) {
    ++ran;
    return task == 2 ? Fail("IndexError", "row 7 of 4") : 0;
  });
  CHECK_EQ(error.kind(), "IndexError");
  CHECK_EQ(error.message(), "Task 2 error: row 7 of 4");
  CHECK_EQ(ran.load(), 4);
}

TEST("the errors of several tasks are joined in order of tasks under the kind of the first") {
  Error error = LaunchError(
      [](int task, TVMParallelGroupEnv*) {
        if (task == 0) return 0;
        return Fail(task == 1 ? "ValueError" : "TypeError", "bad " + std::to_string(task));
      },
      4);
  CHECK_EQ(error.kind(), "ValueError");
  CHECK_EQ(error.message(), "Task 1 error: bad 1\nTask 2 error: bad 2\nTask 3 error: bad 3");
}

TEST("an error keeps its backtrace, cause and context on its way out of a task") {
  ObjectRef cause = Error("OSError", "disk").ref();
  ObjectRef context = Array<Any>{Any(1)};
  Error error = LaunchError(
      [&](int task, TVMParallelGroupEnv*) {
        if (task != 1) return 0;
        return Guard([&] { throw Error("ValueError", "inner", "  File \"k.c\", line 3, in f\n", cause, context); });
      },
      2);
  CHECK(Contains(error.backtrace(), "k.c"));
  CHECK(static_cast<ErrorObj*>(error.ref().get())->cell.cause_chain == cause.get());
  CHECK(static_cast<ErrorObj*>(error.ref().get())->cell.extra_context == context.get());
}

TEST("the error of a task that was alone passes unchanged") {
  Error inner("KeyError", "it");
  Error error = LaunchError([&](int, TVMParallelGroupEnv*) { return Guard([&] { throw inner; }); }, 1);
  CHECK(error.ref().same_as(inner.ref()));
}

TEST("a task that fails without setting an error is an error all the same") {
  Error error = LaunchError([](int task, TVMParallelGroupEnv*) { return task == 1 ? 5 : 0; }, 3);
  CHECK_EQ(error.kind(), "RuntimeError");
  CHECK_EQ(error.message(), "Task 1 error: the task returned 5 without setting an error");
}

TEST("what a task that succeeded left in the error slot of its thread is not blamed on a later one") {
  WithThreads pool(2);
  Launch([](int task, TVMParallelGroupEnv*) {
    if (task == 1) Fail("ValueError", "handled and forgotten");
    return 0;
  });
  Error error = LaunchError([](int task, TVMParallelGroupEnv*) { return task; });
  CHECK(Contains(error.message(), "without setting an error"));
}

#ifndef PORTCALL_TEST_STATIC_CXX  // the pool cannot read exceptions of another C++ runtime
TEST("an exception does not leave its task") {
  Error error = LaunchError(
      [](int task, TVMParallelGroupEnv*) -> int {
        if (task == 1) throw std::invalid_argument("thrown");
        return 0;
      },
      3);
  CHECK_EQ(error.kind(), "ValueError");
  CHECK_EQ(error.message(), "Task 1 error: thrown");
}
#endif

TEST("a launch inside a task is refused, however many tasks there are, and the pool goes on") {
  for (int n : {1, 3}) {
    Error error = LaunchError([](int, TVMParallelGroupEnv*) { return LaunchRaw([](int, auto*) { return 0; }, 0); }, n);
    CHECK_EQ(error.kind(), "RuntimeError");
    CHECK(Contains(error.message(), "only the outermost loop may be parallel"));
  }
  CHECK_EQ(CountTasks(3), 3);
}

TEST("a task that fails before a barrier does not leave the others waiting, and its error is the one reported") {
  for (int round = 0; round < 50; ++round) {
    Error error = LaunchError(
        [](int task, TVMParallelGroupEnv* env) {
          if (TVMBackendParallelBarrier(task, env) != 0) return -1;
          if (task == 2) return Fail("ValueError", "root");
          return TVMBackendParallelBarrier(task, env);
        },
        4);
    CHECK_EQ(error.kind(), "ValueError");
    CHECK_EQ(error.message(), "Task 2 error: root");
  }
}

TEST("tasks that do not agree on the number of barriers get an error") {
  Error error = LaunchError(
      [](int task, TVMParallelGroupEnv* env) { return task == 0 ? 0 : TVMBackendParallelBarrier(task, env); }, 3);
  CHECK_EQ(error.kind(), "RuntimeError");
  CHECK(Contains(error.message(), "Task 1 error: waited at a barrier"));
  CHECK(Contains(error.message(), "Task 2 error: waited at a barrier"));
}

TEST("bad launches and barriers are refused") {
  CHECK_THROWS(Check(TVMBackendParallelLaunch(nullptr, nullptr, 2)), Error);
  for (int n : {-1, 1025, 1 << 30}) {
    Error error = LaunchError([](int, TVMParallelGroupEnv*) { return 0; }, n);
    CHECK_EQ(error.kind(), "ValueError");
    CHECK(Contains(error.message(), std::to_string(n)));
  }
  TVMParallelGroupEnv outside{nullptr, 2};
  CHECK_THROWS(Check(TVMBackendParallelBarrier(0, nullptr)), Error);
  CHECK_THROWS(Check(TVMBackendParallelBarrier(0, &outside)), Error);
}

TEST("the environment gives the number of threads, the most specific variable first") {
  {
    WithEnvironment env(Variables{{"PORTCALL_NUM_THREADS", "3"}, {"TVM_NUM_THREADS", "2"}, {"OMP_NUM_THREADS", "1"}});
    CHECK_EQ(NumThreads(), 3);
    CHECK_EQ(CountTasks(0), 3);
  }
  {
    WithEnvironment env(Variables{{"PORTCALL_NUM_THREADS", ""}, {"TVM_NUM_THREADS", "2"}, {"OMP_NUM_THREADS", "1"}});
    CHECK_EQ(NumThreads(), 2);
  }
  {
    WithEnvironment env(Variables{{"OMP_NUM_THREADS", "5,2"}});
    CHECK_EQ(NumThreads(), 5);
  }
  WithEnvironment none(Variables{});
  CHECK(NumThreads() >= 1);
}

TEST("an invalid number of threads in the environment is refused at each launch") {
  for (const char* variable : {"PORTCALL_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"}) {
    for (const char* value : {"0", "-1", "abc", "4x", " 4", "4.0", "1025", "99999999999999999999"}) {
      WithEnvironment env(Variables{{variable, value}});
      for (int i = 0; i < 2; ++i) {
        Error error = LaunchError([](int, TVMParallelGroupEnv*) { return 0; });
        CHECK_EQ(error.kind(), "ValueError");
        CHECK(Contains(error.message(), std::string(variable) + " is '" + value + "'"));
      }
    }
  }
}

TEST("runtime.config_threadpool refuses what it cannot do") {
  PackedFunc config = Registry::Get("runtime.config_threadpool");
  CHECK_THROWS(config(1, -1), Error);
  CHECK_THROWS(config(1, 1025), Error);
  CHECK_THROWS(config(-2, 2), Error);
  CHECK_THROWS(config(1), Error);
  CHECK_THROWS(config("big", 2), Error);
}

TEST("a pool can shrink and grow between and during launches") {
  WithThreads pool(6);
  CHECK_EQ(CountTasks(0), 6);
  SetThreads(2);
  CHECK_EQ(CountTasks(0), 2);
  Launch([](int task, TVMParallelGroupEnv*) {
    if (task == 0) SetThreads(5);
    return 0;
  });
  CHECK_EQ(CountTasks(0), 5);
  Launch([](int task, TVMParallelGroupEnv*) {
    if (task == 0) SetThreads(1);
    return 0;
  });
  CHECK_EQ(CountTasks(0), 1);
}

// TSan does not support threads that are started in the child of a threaded process.
#if !defined(__SANITIZE_THREAD__)

TEST("the child of a fork starts workers of its own") {
  WithThreads pool(4);
  CHECK_EQ(CountTasks(0), 4);
  CHECK_EQ(StatusOfChild([] {
             if (CountTasks(0) != 4) return 1;
             CheckBarriers(6, 10);
             return StatusOfChild([] { return CountTasks(0) == 4 ? 0 : 2; });
           }),
           0);
  CHECK_EQ(CountTasks(0), 4);
}

TEST("the child of a fork during another thread's launch starts workers of its own") {
  WithThreads pool(4);
  Launch([](int task, TVMParallelGroupEnv* env) {
    if (task == 1) {
      std::thread([] { CHECK_EQ(StatusOfChild([] { return CountTasks(0) == 4 ? 0 : 1; }), 0); }).join();
    }
    return TVMBackendParallelBarrier(task, env);
  });
}

TEST("a fork inside a task is an error in the child, not a hang") {
  WithThreads pool(3);
  std::atomic<pid_t> child{-1};
  const pid_t parent = getpid();
  int status = LaunchRaw(
      [&](int task, TVMParallelGroupEnv*) {
        if (task == 0) child = fork();
        return 0;
      },
      0);
  if (getpid() != parent) {
    TVMFFIObjectHandle raised = nullptr;
    TVMFFIErrorMoveFromRaised(&raised);
    _exit(status == -1 && raised && Contains(Error(ObjectRef::Steal(raised)).message(), "forked") ? 0 : 1);
  }
  CHECK_EQ(status, 0);
  CHECK_EQ(waitpid(child, &status, 0), child.load());
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST("a process that used the pool exits") {
  CHECK_EQ(StatusOfChild([]() -> int {
             CountTasks(5);
             CountTasks(0);
             std::exit(0);
           }),
           0);
}

#endif
