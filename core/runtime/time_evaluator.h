// SPDX-License-Identifier: Apache-2.0
// Timing of a function where it runs, so that neither Python nor a wire is in the numbers. How it measures is fixed, so
// that numbers from any server and any front end compare:
//
//   one untimed call; then for each repeat: preproc; then loops of [cache flush, sync, clock, `number` calls, sync, clock]
//   until one takes min_repeat_ms; the last loop counts. What `number` grew to is kept for all later loops.
//
// All of it is in this header, on the public API alone: the library exports no C++ names, and tests pass time in.
#ifndef PORTCALL_RUNTIME_TIME_EVALUATOR_H_
#define PORTCALL_RUNTIME_TIME_EVALUATOR_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "portcall/device.h"
#include "portcall/function.h"
#include "portcall/tensor.h"

namespace portcall {

struct TimingOptions {
  int number = 10;  // calls in a measuring loop; grows until a loop takes min_repeat_ms
  int repeat = 1;   // results
  int min_repeat_ms = 0;
  int limit_zero_time_iterations = 100;  // loops that the clock may see as no time at all before we give up growing
  int cooldown_interval_ms = 0;          // pause after each repeat whose index is a multiple of repeats_to_cooldown
  int repeats_to_cooldown = 1;
  int cache_flush_bytes = 0;  // copied on the device before each loop
  PackedFunc preproc;         // called with all arguments before each repeat, untimed; may be null

  // Reads the integers above, in this order, from arguments `first` to `end` of a call. The others keep their defaults.
  static TimingOptions FromArgs(Args args, int first, int end) {
    TimingOptions options;
    int* const fields[] = {&options.number,
                           &options.repeat,
                           &options.min_repeat_ms,
                           &options.limit_zero_time_iterations,
                           &options.cooldown_interval_ms,
                           &options.repeats_to_cooldown,
                           &options.cache_flush_bytes};
    for (int i = first; i < end; ++i) *fields[i - first] = args[i];
    return options;
  }

  int64_t (*now_ns)() = nullptr;       // null: the steady clock
  void (*sleep_ms)(int ms) = nullptr;  // null: the thread sleeps
};

namespace timing {

inline constexpr int64_t kMaxNumber = int64_t{1} << 52;  // exact as a double

inline int64_t SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void SleepMilliseconds(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

inline void CheckAtLeast(const char* name, int value, int least) {
  PORTCALL_CHECK(value >= least, ValueError) << name << " must be at least " << least << ", got " << value;
}

inline void CheckOptions(const TimingOptions& options) {
  CheckAtLeast("number", options.number, 1);
  CheckAtLeast("repeat", options.repeat, 1);
  CheckAtLeast("min_repeat_ms", options.min_repeat_ms, 0);
  CheckAtLeast("limit_zero_time_iterations", options.limit_zero_time_iterations, 0);
  CheckAtLeast("cooldown_interval_ms", options.cooldown_interval_ms, 0);
  CheckAtLeast("repeats_to_cooldown", options.repeats_to_cooldown, 1);
  CheckAtLeast("cache_flush_bytes", options.cache_flush_bytes, 0);
}

// Throws when nothing registered this kind, too.
inline void CheckExists(Device device) {
  const PortcallDeviceAPI& api = DeviceApiOf(device);
  Any exists;
  Check(api.get_attr(api.ctx, device, kPortcallAttrExist, exists.out()));
  PORTCALL_CHECK(exists.cast<bool>(), DeviceError) << "there is no device " << ToString(device);
}

// Measures from its construction to Stop: by the device's own clock where it has one, otherwise by ours around a wait for
// the device's work. A clock that is passed in goes before both.
class Stopwatch {
 public:
  Stopwatch(Device device, int64_t (*now_ns)())
      : device_(device), now_ns_(now_ns ? now_ns : SteadyNow), api_(DeviceApiOf(device)) {
    stream_ = TVMFFIEnvGetStream(device.device_type, device.device_id);
    if (!now_ns && api_.start_timer && api_.stop_timer) {
      Check(api_.start_timer(api_.ctx, device_, stream_, &timer_));
    } else {
      Check(PortcallDeviceSync(device_, stream_));
      start_ = now_ns_();
    }
  }
  ~Stopwatch() {
    if (timer_) api_.stop_timer(api_.ctx, device_, stream_, timer_, nullptr);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  int64_t Stop() {
    int64_t nanoseconds = 0;
    if (timer_) {
      Check(api_.stop_timer(api_.ctx, device_, stream_, std::exchange(timer_, nullptr), &nanoseconds));
      return nanoseconds;
    }
    Check(PortcallDeviceSync(device_, stream_));
    return now_ns_() - start_;
  }

 private:
  Device device_;
  int64_t (*now_ns_)();
  const PortcallDeviceAPI& api_;
  void* stream_ = nullptr;
  void* timer_ = nullptr;
  int64_t start_ = 0;
};

// Pushes everything else out of the device's cache by copying one large array onto another.
class CacheFlusher {
 public:
  CacheFlusher(int nbytes, Device device) {
    if (nbytes == 0) return;
    const std::vector<int64_t> shape{(int64_t{nbytes} + 3) / 4};
    from_ = Tensor::Empty(shape, DataTypeOf<int32_t>(), device);
    to_ = Tensor::Empty(shape, DataTypeOf<int32_t>(), device);
    Flush();
    from_.CopyFrom(to_);  // memory that was never written may all be one physical page
  }
  void Flush() const {
    if (from_.defined()) to_.CopyFrom(from_);
  }

 private:
  Tensor from_, to_;
};

class Evaluator {
 public:
  Evaluator(PackedFunc func, Device device, const TimingOptions& options)
      : func_(std::move(func)), device_(device), options_(options), number_(options.number) {
    if (!options_.sleep_ms) options_.sleep_ms = SleepMilliseconds;
    PortcallFunctionGetInfo(func_.get(), &info_);
  }

  Bytes Run(Args args);

 private:
  void Call(const std::vector<TVMFFIAny>& args) const {
    TVMFFIAny result;
    detail::SetCell(&result, kTVMFFINone);
    if (info_.call(info_.self, args.data(), static_cast<int32_t>(args.size()), &result) != 0) ThrowRaised();
    if (IsObject(result)) Release(result.v_obj);
  }
  void Sync() const { Check(PortcallDeviceSync(device_, TVMFFIEnvGetStream(device_.device_type, device_.device_id))); }
  double SecondsPerCall(const std::vector<TVMFFIAny>& args, const CacheFlusher& flusher);
  void Grow(int64_t number, double elapsed_ms);

  PackedFunc func_;
  PortcallFunctionInfo info_;
  Device device_;
  TimingOptions options_;
  std::atomic<int64_t> number_;
};

// The function is called often, so it gets views even of what the caller would let it take.
inline std::vector<TVMFFIAny> ViewsOf(Args args) {
  std::vector<TVMFFIAny> views(args.cells(), args.cells() + args.size());
  for (TVMFFIAny& view : views) {
    if (view.type_index != kTVMFFIObjectRValueRef) continue;
    TVMFFIObject* object = *static_cast<TVMFFIObject**>(view.v_ptr);
    detail::SetCell(&view, object ? object->type_index : static_cast<int32_t>(kTVMFFINone));
    view.v_obj = object;
  }
  return views;
}

inline Bytes Evaluator::Run(Args args) {
  const std::vector<TVMFFIAny> views = ViewsOf(args);
  Call(views);  // what is done lazily is done now
  const CacheFlusher flusher(options_.cache_flush_bytes, device_);
  Sync();
  std::vector<double> seconds;
  for (int i = 0; i < options_.repeat; ++i) {
    if (options_.preproc.defined()) {
      options_.preproc.CallPacked(views.data(), static_cast<int32_t>(views.size()));
    }
    seconds.push_back(SecondsPerCall(views, flusher));
    if (options_.cooldown_interval_ms > 0 && i % options_.repeats_to_cooldown == 0) {
      options_.sleep_ms(options_.cooldown_interval_ms);
    }
  }
  return Bytes({reinterpret_cast<const char*>(seconds.data()), seconds.size() * sizeof(double)});
}

inline double Evaluator::SecondsPerCall(const std::vector<TVMFFIAny>& args, const CacheFlusher& flusher) {
  for (int zeros = 0;;) {
    Check(TVMFFIEnvCheckSignals());  // a user may interrupt a long measurement between two loops
    const int64_t number = number_.load(std::memory_order_relaxed);
    flusher.Flush();
    Stopwatch stopwatch(device_, options_.now_ns);
    for (int64_t i = 0; i < number; ++i) Call(args);
    const int64_t elapsed = stopwatch.Stop();
    const double elapsed_ms = static_cast<double>(elapsed) / 1e6;
    if (elapsed == 0) ++zeros;
    if (elapsed_ms >= options_.min_repeat_ms || zeros >= options_.limit_zero_time_iterations) {
      return static_cast<double>(elapsed) / 1e9 / static_cast<double>(number);
    }
    if (elapsed > 0) Grow(number, elapsed_ms);
  }
}

// Another thread that measures at the same time may have grown it further already.
inline void Evaluator::Grow(int64_t number, double elapsed_ms) {
  const double n = static_cast<double>(number);
  const double wanted = std::max(options_.min_repeat_ms / (elapsed_ms / n) + 1, n * 1.618);
  const int64_t grown = static_cast<int64_t>(std::min(wanted, static_cast<double>(kMaxNumber)));
  int64_t current = number_.load(std::memory_order_relaxed);
  while (current < grown && !number_.compare_exchange_weak(current, grown, std::memory_order_relaxed)) {
  }
}

}  // namespace timing

// A function of the arguments of `func` that times it and returns Bytes: `repeat` doubles in native order, seconds for a
// call. It can be called often and from several threads. Throws ValueError that names the option which is out of range.
inline PackedFunc TimeEvaluator(PackedFunc func, Device device, const TimingOptions& options) {
  PORTCALL_CHECK(func.defined(), ValueError) << "the function to time is None";
  timing::CheckOptions(options);
  timing::CheckExists(device);
  auto evaluator = std::make_shared<timing::Evaluator>(func, device, options);
  PortcallFunctionInfo info;
  PortcallFunctionGetInfo(func.get(), &info);
  // Its arguments are those of `func`, so bindings must treat them in the same way; only it takes its time.
  return PackedFunc([evaluator](Args args, RetValue* rv) { *rv = evaluator->Run(args); }, info.name,
                    info.flags & ~kPortcallFunctionShort);
}

}  // namespace portcall
#endif  // PORTCALL_RUNTIME_TIME_EVALUATOR_H_
