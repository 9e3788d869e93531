// SPDX-License-Identifier: Apache-2.0
// An NVRTC for machines without a GPU: compiles CUDA source for the host, with the host's compiler, for fake_cuda.cc.
//
// It knows the architectures 70 to 90 and 90a. An image is an x86-64 library, as "cubin" and as "PTX".
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int kArchitectures[] = {70, 75, 80, 86, 89, 90};
enum Status { kSuccess = 0, kInvalidInput = 3, kInvalidOption = 5, kCompilation = 6 };

struct Program {
  std::string source, log, image;
  bool is_virtual = false;
};

// The language of kernels, in C++. Blocks run one after the other, the threads of one at the same time if they wait for
// each other.
constexpr const char* kPrelude = R"(
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>
struct FakeIndex { unsigned x, y, z; };
static thread_local FakeIndex threadIdx, blockIdx, blockDim, gridDim;
namespace fake {
static char* dynamic_shared;
static std::mutex running;  // shared memory is static
class Barrier {
 public:
  explicit Barrier(unsigned n) : n_(n) {}
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const unsigned round = round_;
    if (++waiting_ < n_) return changed_.wait(lock, [&] { return round_ != round; });
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
  }
 private:
  unsigned n_, waiting_ = 0, round_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};
static Barrier* barrier;
using Translate = void* (*)(unsigned long long);
template <class T> T Argument(void* at, Translate translate) {
  if constexpr (std::is_pointer_v<T>) return static_cast<T>(translate(*static_cast<unsigned long long*>(at)));
  else return *static_cast<T*>(at);
}
template <class Work> void RunBlocks(const unsigned* g, const unsigned* b, bool together, Work work) {
  const unsigned threads = b[0] * b[1] * b[2];
  for (unsigned i = 0; i < g[0] * g[1] * g[2]; ++i) {
    Barrier all(threads);
    barrier = &all;
    auto one = [&](unsigned t) {
      gridDim = {g[0], g[1], g[2]};
      blockDim = {b[0], b[1], b[2]};
      blockIdx = {i % g[0], i / g[0] % g[1], i / g[0] / g[1]};
      threadIdx = {t % b[0], t / b[0] % b[1], t / b[0] / b[1]};
      work();
    };
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < threads; ++t) {
      if (together) workers.emplace_back(one, t);
      else one(t);
    }
    for (std::thread& worker : workers) worker.join();
  }
}
template <auto kernel, bool together, class Type = decltype(kernel)> struct Made;
template <auto kernel, bool together, class... A> struct Made<kernel, together, void (*)(A...)> {
  static constexpr unsigned sizes[] = {sizeof(A)..., 0};
  static void Run(void** at, const unsigned* g, const unsigned* b, char* shared, Translate translate) {
    std::lock_guard<std::mutex> lock(running);
    dynamic_shared = shared + (64 - reinterpret_cast<std::uintptr_t>(shared) % 64) % 64;
    int i = 0;
    std::tuple<A...> arguments{Argument<A>(at[i++], translate)...};
    RunBlocks(g, b, together, [&] { std::apply(kernel, arguments); });
  }
  static constexpr FakeKernel value{sizeof...(A), sizes, Run};
};
}
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((aligned(64)))
#define alignas(n)
static inline void __syncthreads() { fake::barrier->Wait(); }
)";

std::string Replace(const std::string& text, const char* pattern, const char* with) {
  return std::regex_replace(text, std::regex(pattern), with);
}

// The source with an object for each kernel.
std::string HostSource(const std::string& source) {
  std::ifstream header(std::string(__FILE__).substr(0, std::string(__FILE__).rfind('/')) + "/fake_kernel.h");
  std::string text(std::istreambuf_iterator<char>(header), {});
  text += kPrelude + Replace(source, "#include <cuda.h>", "");
  text = Replace(text, "extern __shared__ (?:__align__\\(\\d+\\) )?([\\w ]+) (\\w+)\\[\\];",
                 "$1* $2 = reinterpret_cast<$1*>(fake::dynamic_shared);");
  const std::string together = source.find("__syncthreads") == std::string::npos ? "false" : "true";
  std::regex kernel("extern \"C\" __global__ void (?:__launch_bounds__\\([^)]*\\) )?(\\w+)\\(");
  std::set<std::string> names;
  for (std::sregex_iterator it(source.begin(), source.end(), kernel), end; it != end; ++it) names.insert((*it)[1]);
  for (const std::string& name : names) {
    text += "extern \"C\" const FakeKernel fake_kernel_" + name + ";\nconst FakeKernel fake_kernel_" + name +
            " = fake::Made<&" + name + ", " + together + ">::value;\n";
  }
  return text;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Whether there is such an architecture: sm_90, sm_90a, compute_90.
bool Knows(const std::string& architecture) {
  const std::string number = architecture.substr(architecture.find('_') + 1);
  return number == "90a" || std::any_of(std::begin(kArchitectures), std::end(kArchitectures),
                                        [&](int one) { return std::to_string(one) == number; });
}

int Copy(const std::string& text, char* out) {
  std::memcpy(out, text.data(), text.size());
  return kSuccess;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

API nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program{source, "", "", false};
  return kSuccess;
}
API nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}
API nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  constexpr char kArchitecture[] = "--gpu-architecture=";
  for (int i = 0; i < count; ++i) {
    if (std::strncmp(options[i], kArchitecture, sizeof(kArchitecture) - 1) != 0) continue;
    const std::string architecture = options[i] + sizeof(kArchitecture) - 1;
    if (!Knows(architecture)) return kInvalidOption;
    program->is_virtual = architecture[0] == 'c';
  }
  char folder[] = "/tmp/fake-nvrtc-XXXXXX";
  if (!mkdtemp(folder)) return kInvalidInput;
  const std::string base = folder;
  std::ofstream(base + "/kernel.cc") << HostSource(program->source);
  const std::string command = "c++ -std=c++17 -O1 -w -fPIC -fno-gnu-unique -shared -pthread " + base +
                              "/kernel.cc -o " + base + "/kernel.so 2> " + base + "/log";
  const bool compiled = std::system(command.c_str()) == 0;
  program->log = ReadFile(base + "/log");
  program->image = ReadFile(base + "/kernel.so");
  if (std::system(("rm -r " + base).c_str()) != 0) return kInvalidInput;
  return compiled ? kSuccess : kCompilation;
}
API nvrtcGetProgramLogSize(Program* program, size_t* n) {
  *n = program->log.size() + 1;
  return kSuccess;
}
API nvrtcGetProgramLog(Program* program, char* out) {
  out[program->log.size()] = '\0';
  return Copy(program->log, out);
}
API nvrtcGetCUBINSize(Program* program, size_t* n) {
  *n = program->is_virtual ? 0 : program->image.size();
  return kSuccess;
}
API nvrtcGetCUBIN(Program* program, char* out) { return Copy(program->image, out); }
API nvrtcGetPTXSize(Program* program, size_t* n) {
  *n = program->is_virtual ? program->image.size() : 0;
  return kSuccess;
}
API nvrtcGetPTX(Program* program, char* out) { return Copy(program->image, out); }
API nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 9;
  return kSuccess;
}
API nvrtcGetNumSupportedArchs(int* n) {
  *n = static_cast<int>(std::size(kArchitectures));
  return kSuccess;
}
API nvrtcGetSupportedArchs(int* out) {
  std::copy(std::begin(kArchitectures), std::end(kArchitectures), out);
  return kSuccess;
}
