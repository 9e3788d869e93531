// SPDX-License-Identifier: Apache-2.0
// The state of the machine and of the thread that asks: who had the core, and how fast its clock is. Two readings tell what
// happened between them, since what is counted only grows. Fields that cannot be read are left out.
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "portcall/function.h"
#include "session/descriptor.h"

namespace portcall::session {
namespace {

constexpr int kLinks = 62'500, kTries = 3;  // of the chain of multiplications; the best of so many is told
constexpr int kClockReadings = 1000;
constexpr int64_t kNotThere = -1;

int64_t TimeOf(clockid_t clock) {
  timespec now;
  return clock_gettime(clock, &now) == 0 ? int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec : kNotThere;
}

int64_t Now() { return TimeOf(CLOCK_MONOTONIC); }

// The smallest step of the clock that is seen.
int64_t ClockStep() {
  int64_t least = INT64_MAX;
  for (int i = 0; i < kClockReadings; ++i) {
    const int64_t before = Now(), step = Now() - before;
    if (step > 0) least = std::min(least, step);
  }
  return least == INT64_MAX ? kNotThere : least;
}

// Multiplications that wait for each other: a fixed number of cycles, in any state of caches and memory.
int64_t Probe() {
  static volatile uint64_t sink = 1;
  int64_t best = INT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    uint64_t value = sink;
    const int64_t before = Now();
    for (int link = 0; link < kLinks; ++link) value = value * 6364136223846793005u + 1442695040888963407u;
    sink = value;
    best = std::min(best, Now() - before);
  }
  return best;
}

// The begin of a file; nothing where it cannot be read. Files of proc and sys are short, but for /proc/stat and
// /proc/vmstat on machines with many processors, whose first lines are enough.
std::string Begin(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(1 << 14, '\0');
  const ssize_t size = file.get() < 0 ? 0 : read(file.get(), text.data(), text.size());
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

std::string FirstLine(const std::string& path) {
  std::string text = Begin(path);
  return text.erase(std::min(text.find('\n'), text.size()));
}

// The number at a place in a text, after blanks; `at` is then behind it.
int64_t NumberAt(const char*& at) {
  char* end;
  const int64_t number = std::strtoll(at, &end, 10);
  if (end == at) return kNotThere;
  at = end;
  return number;
}

int64_t NumberIn(const std::string& path) {
  const std::string text = Begin(path);
  const char* at = text.c_str();
  return NumberAt(at);
}

// The number after a word at the begin of a line.
int64_t NumberAfter(const std::string& text, const char* word) {
  const size_t size = std::strlen(word);
  for (const char* line = text.c_str(); line; line = std::strchr(line, '\n')) {
    line += *line == '\n';
    if (std::strncmp(line, word, size) == 0) return NumberAt(line += size);
  }
  return kNotThere;
}

// JSON of one object, whose names are ours.
class Writer {
 public:
  // A number that is not there is left out.
  void Add(const char* name, int64_t value, int64_t unit = 1) {
    if (value == kNotThere) return;
    AddRaw(name, std::to_string(value * unit));
  }
  // In thousandths.
  void AddThousandths(const char* name, int64_t value) {
    Add(name, value / 1000);
    text_ += '.';
    text_ += std::to_string(1000 + std::abs(value) % 1000).substr(1);
  }
  // What JSON has as a list, without its brackets.
  void AddList(const char* name, const std::string& items) {
    if (!items.empty()) AddRaw(name, '[' + items + ']');
  }
  void AddRaw(const char* name, const std::string& value) {
    text_ += text_.empty() ? "{\"" : ",\"";
    text_ += name;
    text_ += "\":" + value;
  }
  std::string Done() { return text_ + '}'; }

 private:
  std::string text_;
};

// Calls `body` with the path of each thing in a folder whose name begins so.
template <typename Body> void ForEach(const std::string& folder, const char* begin, Body body) {
  DIR* open = opendir(folder.c_str());
  if (!open) return;
  while (const dirent* each = readdir(open)) {
    if (std::strncmp(each->d_name, begin, std::strlen(begin)) == 0) body(folder + '/' + each->d_name);
  }
  closedir(open);
}

// The sum of counters of which some may not be there.
void Count(int64_t& sum, int64_t counter) {
  if (counter >= 0) sum = std::max<int64_t>(sum, 0) + counter;
}

// ---- This thread ----------------------------------------------------------------------------------------------------

void AddThread(Writer& to, const std::string& root) {
  to.Add("on_cpu_ns", TimeOf(CLOCK_THREAD_CPUTIME_ID));  // that of schedstat is as old as the last tick
  const std::string account = Begin(root + "/proc/thread-self/schedstat");
  const char* at = account.c_str();
  if (NumberAt(at) != kNotThere) to.Add("waited_ns", NumberAt(at));
  rusage use;
  if (getrusage(RUSAGE_THREAD, &use) == 0) {
    to.Add("involuntary", use.ru_nivcsw);
    to.Add("major_faults", use.ru_majflt);
  }
  to.Add("process_ns", TimeOf(CLOCK_PROCESS_CPUTIME_ID));
  const std::string status = Begin(root + "/proc/self/status");
  to.Add("rss_bytes", NumberAfter(status, "VmRSS:"), 1024);
  to.Add("peak_bytes", NumberAfter(status, "VmHWM:"), 1024);
}

// ---- This machine ---------------------------------------------------------------------------------------------------

// How long the group of processes to which this one belongs was stopped by its quota; version 2 or 1.
int64_t QuotaTime(const std::string& root) {
  const std::string groups = Begin(root + "/proc/self/cgroup"), base = root + "/sys/fs/cgroup";
  for (size_t line = 0, end = 0; line < groups.size(); line = end + 1) {  // NUMBER:KINDS:GROUP
    end = std::min(groups.find('\n', line), groups.size());
    const size_t first = groups.find(':', line), second = groups.find(':', first + 1);
    if (second >= end) continue;
    const std::string kinds = groups.substr(first + 1, second - first - 1);
    const std::string file = groups.substr(second + 1, end - second - 1).append("/cpu.stat");
    if (kinds.empty()) {
      const int64_t stopped = NumberAfter(Begin(base + file), "throttled_usec");
      if (stopped >= 0) return stopped * 1000;
    } else if ((',' + kinds + ',').find(",cpu,") != std::string::npos) {
      const int64_t stopped = NumberAfter(Begin(std::string(base).append("/cpu").append(file)), "throttled_time");
      if (stopped >= 0) return stopped;
    }
  }
  return kNotThere;
}

void AddLoad(Writer& to, const std::string& root) {
  const std::string times = Begin(root + "/proc/stat");
  if (times.compare(0, 4, "cpu ") == 0) {
    const char* at = times.c_str() + 4;
    for (int i = 0; i < 7; ++i) NumberAt(at);
    to.Add("stolen_ns", NumberAt(at), 1'000'000'000 / sysconf(_SC_CLK_TCK));
  }
  const std::string load = Begin(root + "/proc/loadavg");  // three averages, then running/all
  size_t at = load.find(' ');
  if (at != std::string::npos) to.AddRaw("load1", load.substr(0, at));
  at = load.find(' ', load.find(' ', at + 1) + 1);
  if (at != std::string::npos) {
    const char* running = load.c_str() + at;
    to.Add("running", NumberAt(running));
  }
  to.Add("quota_ns", QuotaTime(root));
  to.Add("swap_in", NumberAfter(Begin(root + "/proc/vmstat"), "pswpin"));
}

void AddClocks(Writer& to, const std::string& root, const cpu_set_t& allowed) {
  std::string governors, clocks;
  int64_t fastest = kNotThere, throttles = kNotThere;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    const std::string governor = '"' + FirstLine(folder + "/cpufreq/scaling_governor") + '"';
    if (governor.size() > 2 && governors.find(governor) == std::string::npos) {
      governors += (governors.empty() ? "" : ",") + governor;
    }
    const int64_t now = NumberIn(folder + "/cpufreq/scaling_cur_freq");
    if (now >= 0) clocks += (clocks.empty() ? "" : ",") + std::to_string(now * 1000);
    fastest = std::max(fastest, NumberIn(folder + "/cpufreq/cpuinfo_max_freq"));
    Count(throttles, NumberIn(folder + "/thermal_throttle/core_throttle_count"));
    Count(throttles, NumberIn(folder + "/thermal_throttle/package_throttle_count"));
  }
  to.AddList("governor", governors);
  to.AddList("clock_hz", clocks);
  to.Add("clock_max_hz", fastest, 1000);
  to.Add("throttles", throttles);
}

void AddHeat(Writer& to, const std::string& root) {
  int64_t hottest = kNotThere, critical = INT64_MAX, cooling = kNotThere, low = kNotThere;
  const std::string folder = root + "/sys/class/thermal";
  ForEach(folder, "thermal_zone", [&](const std::string& zone) {
    hottest = std::max(hottest, NumberIn(zone + "/temp"));
    ForEach(zone, "trip_point_", [&](const std::string& point) {
      const size_t end = point.rfind("_type");
      if (end == std::string::npos || FirstLine(point) != "critical") return;
      const int64_t at = NumberIn(point.substr(0, end) + "_temp");
      if (at > 0) critical = std::min(critical, at);
    });
  });
  ForEach(folder, "cooling_device",
          [&](const std::string& device) { Count(cooling, NumberIn(device + "/cur_state")); });
  ForEach(root + "/sys/class/hwmon", "hwmon",
          [&](const std::string& sensor) { Count(low, NumberIn(sensor + "/in0_lcrit_alarm")); });
  if (hottest > 0) to.AddThousandths("temperature_c", hottest);
  if (critical != INT64_MAX) to.AddThousandths("critical_c", critical);
  to.Add("cooling", cooling);
  to.Add("undervoltage", low);
}

// Sensors of energy or power, as the items of lists of JSON.
struct Sensors {
  std::string names, numbers, ranges;

  void Add(const std::string& name, int64_t number, int64_t range = 0) {
    if (number < 0) return;
    const char* comma = names.empty() ? "\"" : ",\"";
    names.append(comma).append(name, 0, name.find_first_of("\"\\")) += '"';
    numbers.append(comma, std::strlen(comma) - 1) += std::to_string(number);
    ranges.append(comma, std::strlen(comma) - 1) += std::to_string(range > 0 ? range : 0);
  }
};

// Those of the board, by hwmon: `kind` is energy, or power. A core's energy is in that of its socket.
Sensors OfBoard(const std::string& root, const char* kind) {
  Sensors found;
  ForEach(root + "/sys/class/hwmon", "hwmon", [&](const std::string& chip) {
    const std::string name = FirstLine(chip + "/name");
    for (int i = 1;; ++i) {
      const std::string sensor = chip + '/' + kind + std::to_string(i);
      const int64_t number = NumberIn(sensor + "_input");
      if (number < 0) return;
      const std::string label = FirstLine(sensor + "_label");
      if (label.compare(0, 5, "Ecore") == 0) continue;
      std::string words = name;
      if (!label.empty()) (words += ' ') += label;
      found.Add(words, number);
    }
  });
  return found;
}

// The first kind of sensors that can be read, since the kinds tell the same energy: the processors' packages by RAPL, which
// since Linux 5.10 only root may read, then those of the board.
void AddEnergy(Writer& to, const std::string& root) {
  Sensors found;
  for (int i = 0;; ++i) {
    const std::string zone = root + "/sys/class/powercap/intel-rapl:" + std::to_string(i),
                      name = FirstLine(zone + "/name");
    if (name.empty()) break;
    if (name.compare(0, 7, "package") == 0) {
      found.Add(name, NumberIn(zone + "/energy_uj"), NumberIn(zone + "/max_energy_range_uj"));
    }
  }
  if (found.names.empty()) found = OfBoard(root, "energy");
  const bool counted = !found.names.empty();
  if (!counted) found = OfBoard(root, "power");
  to.AddList("energy_from", found.names);
  to.AddList(counted ? "energy_uj" : "power_uw", found.numbers);
  if (counted) to.AddList("energy_range_uj", found.ranges);
}

// `probe`: whether the chain is timed as well.
std::string Conditions(bool probe) {
  const char* given = std::getenv("PORTCALL_MACHINE_ROOT");  // for tests: where proc and sys lie
  const std::string root = given ? given : "";
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  Writer to;
  to.Add("cpus", sysconf(_SC_NPROCESSORS_ONLN));
  to.Add("cpus_allowed", CPU_COUNT(&allowed));
  to.Add("memory_bytes", int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  to.Add("clock_step_ns", ClockStep());
  if (probe) to.Add("probe_ns", Probe());
  AddLoad(to, root);
  AddClocks(to, root, allowed);
  AddHeat(to, root);
  AddEnergy(to, root);
  AddThread(to, root);
  to.Add("time_ns", Now());  // last, beside the account of the thread
  return to.Done();
}

// In the place of the function that opens this library.
[[maybe_unused]] const bool conditions_registered = [] {
  Registry::Register("portcall.rpc.conditions", true).set_body_typed(Conditions);
  return true;
}();

}  // namespace
}  // namespace portcall::session
