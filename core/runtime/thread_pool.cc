// SPDX-License-Identifier: Apache-2.0
// Parallel loops of compiled code: TVMBackendParallelLaunch and TVMBackendParallelBarrier.
//
// One pool of workers serves all threads of the process. A launch takes idle workers out of it, hands each one task,
// runs task 0 itself and puts the workers back. Hence:
//  * Every task of a launch has its own thread, and all of them run at the same time: barriers cannot deadlock.
//  * A launch with num_task = 0 takes what is idle; env.num_task says how many tasks that made, and any number is right.
//    When several threads launch at once they share the pool: callers + size - 1 threads compute, where a pool per
//    calling thread would start callers x size of them. A late caller starts at once on fewer threads and never queues.
//  * A launch with num_task = N gets exactly N tasks, since code that asks for a number may depend on it. Threads that
//    the pool lacks are started for this launch and joined after it.
//  * A worker belongs to one launch at a time, so both sides wait for one word, and no lock is contended.
//  * After fork() the child has no workers but an empty pool that fills again; the parent's pool is untouched.
//  * The pool is never destroyed: it is closed at exit, which joins the idle workers and cannot hang on a busy one.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "portcall/function.h"

namespace portcall {
namespace {

constexpr int kMaxThreads = 1024;
// A program that runs one kernel after the other has them closer together than this, and a launch then takes 1 to 3 us
// where waking the workers costs 30 to 50 (measured). Spinning threads yield, and they stop when a program goes idle.
constexpr int kSpinMicroseconds = 1000;

// ---- Settings -----------------------------------------------------------------------------------------------------

int UsableCpus() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::clamp(CPU_COUNT(&set), 1, kMaxThreads);
#endif
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

int ParseThreads(const char* variable, std::string_view text) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  PORTCALL_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= kMaxThreads,
                 ValueError)
      << "the environment variable " << variable << " is '" << text << "'; it must be a whole number from 1 to "
      << kMaxThreads;
  return value;
}

int ThreadsFromEnvironment() {
  for (const char* variable : {"PORTCALL_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(variable);
    if (!text || !*text) continue;
    // OpenMP allows a list, one number for each level of nesting.
    const bool list = std::strcmp(variable, "OMP_NUM_THREADS") == 0;
    return ParseThreads(variable, list ? std::string_view(text, std::strcspn(text, ",")) : std::string_view(text));
  }
  return UsableCpus();
}

// ---- Waiting ------------------------------------------------------------------------------------------------------

// Spinning for a thread that has no core to run on would only keep it from running: then this is 0.
std::atomic<int> spin_microseconds{kSpinMicroseconds};

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether `done` became true within the time that is worth spinning. It yields, because a thread that is woken often
// lands on the waker's core and would wait there for the end of the spinning (seen: 150 us a launch instead of 3).
template <typename Done> bool SpinUntil(Done done) {
  if (done()) return true;
  const auto limit = std::chrono::microseconds(spin_microseconds.load(std::memory_order_relaxed));
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      Pause();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() - start < limit);
  return done();
}

// ---- One launch ---------------------------------------------------------------------------------------------------

class Group;

struct CurrentTask {
  const Group* group = nullptr;  // null outside of tasks
  int id = 0;
  bool met_broken_barrier = false;
};
thread_local CurrentTask current_task;

// A launch, on its caller's stack. env.sync_handle points to it.
class Group {
 public:
  Group(FTVMParallelLambda lambda, void* cdata, int num_task) : lambda_(lambda), cdata_(cdata), env_{this, num_task} {}

  int num_task() const { return env_.num_task; }
  void RunTask(int id) noexcept;
  void Barrier();
  void ThrowIfFailed();

 private:
  struct Failure {
    int task;
    bool by_barrier;  // failed only because another one did
    Error error;
  };

  void Record(int id, int status) noexcept;

  alignas(64) std::atomic<int> arrived_{0};  // written by all at a barrier, so not beside what they watch
  FTVMParallelLambda lambda_;
  void* cdata_;
  TVMParallelGroupEnv env_;
  std::vector<Failure> failures_;
  alignas(64) std::atomic<unsigned> generation_{0};
  std::atomic<int> ended_{0};
  bool failure_was_lost_ = false;
  std::mutex mutex_;  // guards failures_ and failure_was_lost_
};

void Group::RunTask(int id) noexcept {
  // A worker's slot may hold what an earlier task left there though it succeeded.
  if (id != 0) TVMFFIErrorSetRaised(nullptr);
  current_task = {this, id, false};
  int status = 0;
  const int thrown = Guard([&] { status = lambda_(id, &env_, cdata_); });
  if (status != 0 || thrown != 0) Record(id, status);
  current_task = {};
  ended_.fetch_add(1, std::memory_order_acq_rel);
}

// Moves the error out of this thread's slot.
void Group::Record(int id, int status) noexcept {
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  ObjectRef error = ObjectRef::Steal(raised);
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    if (!error) {
      error = Error("RuntimeError", "the task returned " + std::to_string(status) + " without setting an error").ref();
    }
    failures_.push_back({id, current_task.met_broken_barrier, Error(std::move(error))});
  } catch (...) {
    failure_was_lost_ = true;
  }
}

// A task that has ended never arrives, so those that wait for it must not wait forever. It may though have ended after
// passing this very barrier: its generation then has changed before it ended, which the second look sees.
void Group::Barrier() {
  const unsigned generation = generation_.load(std::memory_order_acquire);
  auto passed = [&] { return generation_.load(std::memory_order_acquire) != generation; };
  auto someone_ended = [&] { return ended_.load(std::memory_order_acquire) != 0; };
  if (!someone_ended()) {
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == env_.num_task) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    while (!SpinUntil([&] { return passed() || someone_ended(); })) {
    }
    if (passed()) return;
  }
  current_task.met_broken_barrier = true;
  PORTCALL_THROW(RuntimeError) << "waited at a barrier that another task of this parallel loop ended without reaching";
}

void Group::ThrowIfFailed() {
  PORTCALL_CHECK(!failure_was_lost_, MemoryError) << "a parallel task failed, and there was no memory to say why";
  if (failures_.empty()) return;
  auto consequences = std::remove_if(failures_.begin(), failures_.end(), [](auto& f) { return f.by_barrier; });
  if (consequences != failures_.begin()) failures_.erase(consequences, failures_.end());
  for (size_t i = 1; i < failures_.size(); ++i) {  // in order of tasks; std::sort is five times the code
    for (size_t j = i; j > 0 && failures_[j].task < failures_[j - 1].task; --j)
      std::swap(failures_[j], failures_[j - 1]);
  }
  const Error& first = failures_.front().error;
  if (num_task() == 1) throw Error(first.ref());
  std::string message;
  for (const Failure& failure : failures_) {
    if (!message.empty()) message += '\n';
    message.append("Task ").append(std::to_string(failure.task)).append(" error: ").append(failure.error.message());
  }
  const TVMFFIErrorCell& cell = static_cast<ErrorObj*>(first.ref().get())->cell;
  throw Error(first.kind(), message, first.backtrace(), ObjectRef::Borrow(cell.cause_chain),
              ObjectRef::Borrow(cell.extra_context));
}

// ---- Workers ------------------------------------------------------------------------------------------------------

// A thread that runs one task at a time for its owner.
class Worker {
 public:
  Worker() : thread_([this] { Run(); }) {}
  ~Worker() {
    stop_ = true;
    SetGroup(reinterpret_cast<Group*>(this));  // anything but null
    thread_.join();
  }

  void Post(Group* group, int task) noexcept {
    task_ = task;
    SetGroup(group);
  }
  void WaitUntilDone() noexcept {
    Await([this] { return group_.load() == nullptr; });
  }

 private:
  void Run() noexcept {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "portcall");
#endif
    for (;;) {
      Await([this] { return group_.load() != nullptr; });
      if (stop_) return;
      group_.load()->RunTask(task_);
      SetGroup(nullptr);
    }
  }

  // The owner waits for null, the thread for anything else. A thread that goes to sleep says so before looking for the last
  // time, a thread that changes the word looks for sleepers afterwards: in one total order one of them sees the other.
  void SetGroup(Group* group) noexcept {
    group_.store(group);
    if (sleepers_.load() == 0) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
    }
    changed_.notify_all();
  }
  template <typename Done> void Await(Done done) noexcept {
    if (SpinUntil(done)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;
    changed_.wait(lock, done);
    --sleepers_;
  }

  alignas(64) std::atomic<Group*> group_{nullptr};
  std::atomic<int> sleepers_{0};
  int task_ = 0;  // these two are published by group_
  bool stop_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;  // last: it uses the others
};

using Team = std::vector<std::unique_ptr<Worker>>;

class Pool {
 public:
  static Pool& Get() {
    static auto* pool = new Pool();
    static struct AtExit {
      ~AtExit() { pool->Close(); }
    } at_exit;
    return *pool;
  }

  Team Claim(int num_task);
  void PutBack(Team team);
  void Resize(int threads);  // 0: as the environment says
  // In the child of a fork. The threads do not exist here, so they can be neither joined nor destroyed.
  static void Forget(Team team) {
    static auto& forgotten = *new std::vector<Team>();
    forgotten.push_back(std::move(team));
  }
  int size() {
    std::lock_guard<std::mutex> lock(mutex_);
    return SizeLocked();
  }
  // Of this process and its ancestors. A launch that sees it change has lost its workers.
  int forks() const { return forks_; }

 private:
  Pool() {
    pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); }, [] { Get().StartOverAfterFork(); });
  }

  int SizeLocked();
  Team PutBackLocked(Team team) noexcept;
  void StartOverAfterFork();
  void Close();

  std::mutex mutex_;
  Team idle_;     // at most size_ - 1
  int size_ = 0;  // threads of a launch that has the pool to itself, its caller included; 0: not known yet
  int out_ = 0;   // workers in launches
  bool closed_ = false;
  std::atomic<int> forks_{0};
};

int Pool::SizeLocked() {
  if (size_ == 0) {
    size_ = ThreadsFromEnvironment();
    spin_microseconds = size_ > UsableCpus() ? 0 : kSpinMicroseconds;
  }
  return size_;
}

Team Pool::Claim(int num_task) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int size = SizeLocked();
  const size_t wanted = static_cast<size_t>((num_task > 0 ? num_task : size) - 1);
  Team team;
  team.reserve(wanted);
  idle_.reserve(static_cast<size_t>(size - 1));
  for (; team.size() < wanted && !idle_.empty(); idle_.pop_back()) team.push_back(std::move(idle_.back()));
  out_ += static_cast<int>(team.size());
  // Any size is right when the caller left it to us; a thread that cannot be started only then is not an error.
  while (team.size() < wanted && (num_task > 0 || (out_ < size - 1 && !closed_))) {
    try {
      team.push_back(std::make_unique<Worker>());
      ++out_;
    } catch (const std::exception& error) {
      if (num_task == 0) break;
      PutBackLocked(std::move(team));
      PORTCALL_THROW(RuntimeError) << "cannot start the " << num_task
                                   << " threads of a parallel loop: " << error.what();
    }
  }
  return team;
}

void Pool::PutBack(Team team) {
  Team surplus;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    surplus = PutBackLocked(std::move(team));
  }  // and only then is joined
}

// In reverse, so that the next launch gives a worker the task of the same number: its data is in that core's cache.
Team Pool::PutBackLocked(Team team) noexcept {
  out_ -= static_cast<int>(team.size());
  const size_t room = closed_ || size_ == 0 ? 0 : std::min(idle_.capacity(), static_cast<size_t>(size_ - 1));
  while (!team.empty() && idle_.size() < room) {
    idle_.push_back(std::move(team.back()));
    team.pop_back();
  }
  return team;
}

void Pool::Resize(int threads) {
  PORTCALL_CHECK(threads >= 0 && threads <= kMaxThreads, ValueError)
      << "nthreads must be from 0 (the default) to " << kMaxThreads << ", got " << threads;
  Team surplus;
  std::lock_guard<std::mutex> lock(mutex_);
  size_ = threads;
  if (threads > 0) spin_microseconds = threads > UsableCpus() ? 0 : kSpinMicroseconds;
  for (; static_cast<int>(idle_.size()) > std::max(threads - 1, 0); idle_.pop_back()) {
    surplus.push_back(std::move(idle_.back()));
  }
}

void Pool::StartOverAfterFork() {
  Forget(std::move(idle_));
  idle_.clear();
  out_ = 0;
  ++forks_;
  mutex_.unlock();
}

void Pool::Close() {
  Team last;
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  last.swap(idle_);
}

void Launch(FTVMParallelLambda lambda, void* cdata, int num_task) {
  PORTCALL_CHECK(lambda != nullptr, ValueError) << "a parallel loop needs a function to run";
  PORTCALL_CHECK(num_task >= 0 && num_task <= kMaxThreads, ValueError)
      << "the number of parallel tasks must be from 0 (the runtime chooses) to " << kMaxThreads << ", got " << num_task;
  PORTCALL_CHECK(!current_task.group, RuntimeError)
      << "a parallel loop was launched inside task " << current_task.id << " of " << current_task.group->num_task()
      << " of another one; only the outermost loop may be parallel";
  Pool& pool = Pool::Get();
  const int forks = pool.forks();
  Team team = pool.Claim(num_task);
  Group group(lambda, cdata, static_cast<int>(team.size()) + 1);
  // From here to the last WaitUntilDone nothing may throw: the workers use this frame.
  for (size_t i = 0; i < team.size(); ++i) team[i]->Post(&group, static_cast<int>(i) + 1);
  group.RunTask(0);
  if (pool.forks() != forks && !team.empty()) {
    Pool::Forget(std::move(team));
    PORTCALL_THROW(RuntimeError)
        << "the process forked inside a parallel loop; its other tasks exist in the parent only";
  }
  for (auto& worker : team) worker->WaitUntilDone();
  pool.PutBack(std::move(team));
  group.ThrowIfFailed();
}

// ---- Functions ----------------------------------------------------------------------------------------------------

// (mode, nthreads, …). Mode 1 and -1 ask for big and little cores: a hint, which we leave to the scheduler.
void ConfigThreadPool(Args args, RetValue*) {
  const int mode = args[0], threads = args[1];
  PORTCALL_CHECK(mode == 1 || mode == -1, ValueError)
      << "mode must be 1 or -1, got " << mode << ": threads are not bound to cores (use taskset)";
  Pool::Get().Resize(threads);
}

PORTCALL_REGISTER_GLOBAL("runtime.config_threadpool").set_body(ConfigThreadPool);
PORTCALL_REGISTER_GLOBAL("runtime.NumThreads").set_body_typed([] { return Pool::Get().size(); });

}  // namespace
}  // namespace portcall

using namespace portcall;

int TVMBackendParallelLaunch(FTVMParallelLambda lambda, void* cdata, int num_task) {
  return Guard([&] { Launch(lambda, cdata, num_task); });
}

int TVMBackendParallelBarrier(int, TVMParallelGroupEnv* env) {
  return Guard([&] {
    PORTCALL_CHECK(env && env->sync_handle, ValueError) << "a barrier outside of a parallel loop";
    static_cast<Group*>(env->sync_handle)->Barrier();
  });
}
