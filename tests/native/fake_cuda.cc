// SPDX-License-Identifier: Apache-2.0
// A CUDA driver for machines without a GPU: two devices, whose kernels are code of the host (fake_nvrtc.cc makes it).
//
//  * Addresses of device memory are readable by nobody: code that takes one for the host's crashes.
//  * Each stream is a thread, so work is asynchronous: what forgets to wait sees old data.
//  * Arguments are copied at the launch, and an address that is not the device's is an illegal access: a final error, which
//    a later call reports, as all calls after it.
//  * Any call may be made to fail, by its number (fake_cuda_fail). What frees, or waits
//    for everything, does so even then.
//  * PTX and real cubins are accepted up to the launch, which fails: no binary for this GPU.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fake_kernel.h"

namespace {

using Address = unsigned long long;
enum Status {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700
};  // clang-format off

constexpr Address kFirstAddress = Address{1} << 46;
constexpr size_t kMemory = size_t{1} << 30;
constexpr unsigned kMaxThreads = 1024, kStaticShared = 48 << 10;
constexpr int kDevices = 2;

// ---- Streams: a thread each -----------------------------------------------------------------------------------------

class Stream {
 public:
  ~Stream() {
    if (!thread_.joinable()) return;
    Push(nullptr);
    thread_.join();
  }
  void Push(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty(); });
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !queue_.empty(); });
      std::function<void()> work = queue_.front();
      if (!work) return;
      lock.unlock();
      work();
      lock.lock();
      queue_.pop_front();  // only now: who waits for an empty queue waits for the work
      changed_.notify_all();
    }
  }

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
};

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;  // records that are not done
  std::chrono::steady_clock::time_point when;

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return waiting == 0; });
  }
};

// ---- What there is --------------------------------------------------------------------------------------------------

struct Context {
  int device;
} contexts[kDevices] = {{0}, {1}};
thread_local Context* current = nullptr;

struct Block {
  int device;
  std::shared_ptr<std::vector<char>> bytes;
};
struct Module {
  void* library = nullptr;
  int fd = -1;  // open as long as the library is: two libraries of one name would be one
  std::string image;
  std::map<std::string, struct Function*> functions;
  std::atomic<int> queued{0};
};
struct Function {
  Module* module;
  const FakeKernel* kernel;
  unsigned dynamic_shared = kStaticShared;
};

std::mutex mutex;  // of all below
std::map<Address, Block> blocks;
Address next_address = kFirstAddress;
std::set<void*> pinned, modules;
std::set<Stream*> streams;
std::set<std::shared_ptr<Event>> events;
Stream* DefaultStream(int device) {
  static auto* all = new Stream[kDevices];
  return &all[device];
}

// ---- Errors ---------------------------------------------------------------------------------------------------------

std::atomic<long> calls{0}, failing_call{-1}, mistakes{0};
std::atomic<int> failing_status{0}, final_status{0};
std::atomic<bool> initialized{false};
std::string failed_function, last_attributes;

bool IsFinal(int status) { return status >= kIllegalAddress && status < 720; }

// The status that the call should fail with.
int Injected(const char* function) {
  if (final_status) return final_status;
  if (++calls != failing_call) return kSuccess;
  std::lock_guard<std::mutex> lock(mutex);
  failed_function = function;
  if (IsFinal(failing_status)) final_status = failing_status.load();
  return failing_status;
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

// The host's copy of device memory; null where it is not `device`'s. The caller holds the mutex.
char* HostOf(Address address, size_t n, int device = -1) {
  auto it = blocks.upper_bound(address);
  if (it == blocks.begin()) return nullptr;
  --it;
  const bool fits = address + n <= it->first + it->second.bytes->size();
  return fits && (device < 0 || it->second.device == device) ? it->second.bytes->data() + (address - it->first)
                                                             : nullptr;
}

struct IllegalAddress {};
thread_local int running_device = 0;

void* Translate(Address address) {
  if (!address) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  char* host = HostOf(address, 1, running_device);
  if (!host) throw IllegalAddress();
  return host;
}

Stream* StreamOf(void* stream) { return stream ? static_cast<Stream*>(stream) : DefaultStream(current->device); }

void WaitForAll() {
  std::set<Stream*> all;
  {
    std::lock_guard<std::mutex> lock(mutex);
    all = streams;
  }
  for (int i = 0; i < kDevices; ++i) all.insert(DefaultStream(i));
  for (Stream* stream : all) stream->Wait();
}

// Copies on a stream: both addresses are looked up at the call, as a driver checks them, and used later.
int Enqueue(void* stream, char* to, const char* from, size_t n) {
  if (!to || !from) return kInvalidValue;
  StreamOf(stream)->Push([=] {
    if (!final_status) std::memmove(to, from, n);
  });
  return kSuccess;
}

char* Locked(Address address, size_t n) {
  std::lock_guard<std::mutex> lock(mutex);
  return HostOf(address, n);
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int
#define CALL                                                  \
  if (int status = Injected(__func__); status) return status; \
  if (!initialized) return kNotInitialized
#define CALL_IN_CONTEXT \
  CALL;                 \
  if (!current) return kInvalidContext
// What frees does so even when it fails.
#define FREE                                \
  const int injected = Injected(__func__); \
  if (!initialized) return kNotInitialized

// ---- Devices --------------------------------------------------------------------------------------------------------

API cuInit(unsigned) {
  if (int status = Injected(__func__)) return status;
  if (std::getenv("FAKE_CUDA_NO_DEVICE")) return kNoDevice;
  initialized = true;
  return kSuccess;
}
API cuDriverGetVersion(int* version) {
  CALL;
  *version = 12090;
  return kSuccess;
}
API cuDeviceGetCount(int* count) {
  CALL;
  *count = kDevices;
  return kSuccess;
}
API cuDeviceGet(int* device, int index) {
  CALL;
  *device = index;
  return index >= 0 && index < kDevices ? kSuccess : kInvalidDevice;
}
API cuDeviceGetName(char* name, int size, int device) {
  CALL;
  std::snprintf(name, static_cast<size_t>(size), "fake GPU %d", device);
  return kSuccess;
}
API cuDeviceGetAttribute(int* value, int attribute, int device) {
  CALL;
  static const std::map<int, int> values = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {8, kStaticShared}, {10, 32},
                                            {12, 65536}, {13, 1500000}, {16, 4}, {38, 4 << 20}, {76, 0}};
  auto found = values.find(attribute);
  if (attribute == 75) *value = device == 0 ? 9 : 12;  // major: the second is newer than our NVRTC
  else if (found != values.end()) *value = found->second;
  else return kInvalidValue;
  return kSuccess;
}
API cuDeviceTotalMem_v2(size_t* bytes, int) {
  CALL;
  *bytes = kMemory;
  return kSuccess;
}
API cuDevicePrimaryCtxRetain(Context** context, int device) {
  CALL;
  *context = &contexts[device];
  return kSuccess;
}
API cuCtxGetCurrent(Context** context) {
  CALL;
  *context = current;
  return kSuccess;
}
API cuCtxSetCurrent(Context* context) {
  CALL;
  current = context;
  return kSuccess;
}
API cuCtxSynchronize() {
  const int injected = Injected(__func__);
  WaitForAll();
  return injected ? injected : final_status.load();
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

API cuMemGetInfo_v2(size_t* free, size_t* total) {
  CALL_IN_CONTEXT;
  std::lock_guard<std::mutex> lock(mutex);
  *free = *total = kMemory;
  for (const auto& [address, block] : blocks) *free -= block.device == current->device ? block.bytes->size() : 0;
  return kSuccess;
}
API cuMemAlloc_v2(Address* address, size_t n) {
  CALL_IN_CONTEXT;
  if (n > kMemory) return kOutOfMemory;
  std::lock_guard<std::mutex> lock(mutex);
  *address = next_address;
  blocks[next_address] = {current->device, std::make_shared<std::vector<char>>(n, '\xEE')};
  next_address += (n / 256 + 2) * 256;  // never given out again: what was freed stays illegal
  return kSuccess;
}
API cuMemFree_v2(Address address) {
  FREE;
  WaitForAll();
  std::lock_guard<std::mutex> lock(mutex);
  if (!blocks.erase(address)) return kInvalidValue;
  return injected;
}
API cuMemAllocHost_v2(void** data, size_t n) {
  CALL_IN_CONTEXT;
  *data = std::aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  std::lock_guard<std::mutex> lock(mutex);
  pinned.insert(*data);
  return kSuccess;
}
API cuMemFreeHost(void* data) {
  FREE;
  std::lock_guard<std::mutex> lock(mutex);
  if (!pinned.erase(data)) return kInvalidValue;
  std::free(data);
  return injected;
}
API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t n, void* stream) {
  CALL_IN_CONTEXT;
  return Enqueue(stream, Locked(to, n), static_cast<const char*>(from), n);
}
API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t n, void* stream) {
  CALL_IN_CONTEXT;
  return Enqueue(stream, static_cast<char*>(to), Locked(from, n), n);
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, void* stream) {
  CALL_IN_CONTEXT;
  return Enqueue(stream, Locked(to, n), Locked(from, n), n);
}
API cuMemcpyPeerAsync(Address to, Context*, Address from, Context*, size_t n, void* stream) {
  CALL_IN_CONTEXT;
  return Enqueue(stream, Locked(to, n), Locked(from, n), n);
}

// ---- Streams and events ---------------------------------------------------------------------------------------------

API cuStreamCreate(Stream** stream, unsigned) {
  CALL_IN_CONTEXT;
  *stream = new Stream();
  std::lock_guard<std::mutex> lock(mutex);
  streams.insert(*stream);
  return kSuccess;
}
API cuStreamDestroy_v2(Stream* stream) {
  FREE;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!streams.erase(stream)) return kInvalidHandle;
  }
  delete stream;
  return injected;
}
API cuStreamSynchronize(void* stream) {
  CALL_IN_CONTEXT;
  StreamOf(stream)->Wait();
  return final_status;
}
API cuEventCreate(Event** event, unsigned) {
  CALL_IN_CONTEXT;
  auto made = std::make_shared<Event>();
  *event = made.get();
  std::lock_guard<std::mutex> lock(mutex);
  events.insert(std::move(made));
  return kSuccess;
}
static std::shared_ptr<Event> Find(Event* event) {
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& one : events) {
    if (one.get() == event) return one;
  }
  return nullptr;
}
API cuEventDestroy_v2(Event* event) {
  FREE;
  auto found = Find(event);
  std::lock_guard<std::mutex> lock(mutex);
  return events.erase(found) ? injected : kInvalidHandle;
}
API cuEventRecord(Event* event, void* stream) {
  CALL_IN_CONTEXT;
  auto found = Find(event);
  if (!found) return kInvalidHandle;
  {
    std::lock_guard<std::mutex> lock(found->mutex);
    ++found->waiting;
  }
  StreamOf(stream)->Push([found] {
    std::lock_guard<std::mutex> lock(found->mutex);
    found->when = std::chrono::steady_clock::now();
    --found->waiting;
    found->changed.notify_all();
  });
  return kSuccess;
}
API cuStreamWaitEvent(void* stream, Event* event, unsigned) {
  CALL_IN_CONTEXT;
  auto found = Find(event);
  if (!found) return kInvalidHandle;
  StreamOf(stream)->Push([found] { found->Wait(); });
  return kSuccess;
}
API cuEventSynchronize(Event* event) {
  CALL_IN_CONTEXT;
  auto found = Find(event);
  if (!found) return kInvalidHandle;
  found->Wait();
  return final_status;
}
API cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
  CALL_IN_CONTEXT;
  auto first = Find(start), last = Find(end);
  if (!first || !last) return kInvalidHandle;
  if (first->waiting || last->waiting) return kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(last->when - first->when).count();
  return kSuccess;
}

// ---- Modules --------------------------------------------------------------------------------------------------------

namespace {

constexpr unsigned char kX86 = 62;  // e_machine; a cubin has 190

size_t ElfSize(const char* image) {
  uint64_t sections;
  uint16_t size, count;
  std::memcpy(&sections, image + 40, 8);
  std::memcpy(&size, image + 58, 2);
  std::memcpy(&count, image + 60, 2);
  return sections + size_t{size} * count;
}

void OpenImage(Module* module) {
  module->fd = memfd_create("fake-cuda-image", 0);
  const std::string path = "/proc/self/fd/" + std::to_string(module->fd), &image = module->image;
  const bool written = write(module->fd, image.data(), image.size()) == static_cast<ssize_t>(image.size());
  if (written) module->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

int Reject(void** values, const char* why) {
  std::snprintf(static_cast<char*>(values[0]), reinterpret_cast<size_t>(values[1]), "%s", why);
  return kInvalidPtx;
}

}  // namespace

API cuModuleLoadDataEx(Module** out, const char* image, unsigned, int*, void** values) {
  CALL_IN_CONTEXT;
  auto module = std::make_unique<Module>();
  if (std::memcmp(image, "\x7f" "ELF", 4) == 0) {
    module->image.assign(image, ElfSize(image));
    if (image[18] == kX86) OpenImage(module.get());
    if (image[18] == kX86 && !module->library) return Reject(values, dlerror());
  } else {
    module->image = image;
    if (!std::strstr(image, ".version")) return Reject(values, "ptxas fatal: no .version directive");
  }
  *out = module.get();
  std::lock_guard<std::mutex> lock(mutex);
  modules.insert(module.release());
  return kSuccess;
}
API cuModuleUnload(Module* module) {
  FREE;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!modules.erase(module)) return kInvalidHandle;
  }
  if (module->queued) ++mistakes;  // its kernels run
  WaitForAll();
  if (module->library) dlclose(module->library);
  if (module->fd >= 0) close(module->fd);
  for (auto& [name, function] : module->functions) delete function;
  delete module;
  return injected;
}
API cuModuleGetFunction(Function** out, Module* module, const char* name) {
  CALL_IN_CONTEXT;
  const void* kernel = module->library ? dlsym(module->library, (std::string("fake_kernel_") + name).c_str()) : nullptr;
  if (!kernel && (module->library || module->image.find(name) == std::string::npos)) return kNotFound;
  Function*& slot = module->functions[name];
  if (!slot) slot = new Function{module, static_cast<const FakeKernel*>(kernel)};
  *out = slot;
  return kSuccess;
}
API cuFuncSetAttribute(Function* function, int attribute, int value) {
  CALL_IN_CONTEXT;
  if (attribute == 8) function->dynamic_shared = static_cast<unsigned>(value);
  return kSuccess;
}

// ---- Launches -------------------------------------------------------------------------------------------------------

namespace {

struct Extents {
  unsigned of[3];
  unsigned volume() const { return of[0] * of[1] * of[2]; }
};

int Launch(Function* function, Extents grid, Extents block, unsigned shared, void* stream, void** parameters) {
  if (!grid.volume() || !block.volume() || block.volume() > kMaxThreads) return kInvalidValue;
  if (shared > function->dynamic_shared) return kInvalidValue;
  const FakeKernel* kernel = function->kernel;
  if (!kernel) return kNoBinaryForGpu;
  std::vector<std::string> copies;
  for (int i = 0; i < kernel->arguments; ++i) {
    copies.emplace_back(static_cast<const char*>(parameters[i]), kernel->sizes[i]);
  }
  const int device = current->device;
  Module* module = function->module;
  ++module->queued;
  StreamOf(stream)->Push([=]() mutable {
    std::vector<void*> arguments;
    for (std::string& copy : copies) arguments.push_back(copy.data());
    std::vector<char> memory(shared + 64);
    running_device = device;
    try {
      if (!final_status) kernel->run(arguments.data(), grid.of, block.of, memory.data(), Translate);
    } catch (const IllegalAddress&) {
      final_status = kIllegalAddress;
    }
    --module->queued;
  });
  return kSuccess;
}

}  // namespace

API cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** parameters, void**) {
  CALL_IN_CONTEXT;
  return Launch(function, {{grid_x, grid_y, grid_z}}, {{block_x, block_y, block_z}}, shared, stream, parameters);
}

struct LaunchAttribute {
  int id;
  int padding;
  unsigned value[16];
};
struct LaunchConfig {
  Extents grid, block;
  unsigned shared;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned count;
};
API cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** parameters, void**) {
  CALL_IN_CONTEXT;
  {
    std::lock_guard<std::mutex> lock(mutex);
    last_attributes.clear();
    for (unsigned i = 0; i < config->count; ++i) {
      const LaunchAttribute& one = config->attributes[i];
      const bool extents = one.id == 4 || one.id == 11;
      last_attributes += std::to_string(one.id) + "=" + std::to_string(one.value[0]);
      if (extents) last_attributes += "x" + std::to_string(one.value[1]) + "x" + std::to_string(one.value[2]);
      last_attributes += " ";
    }
  }
  return Launch(function, config->grid, config->block, config->shared, config->stream, parameters);
}

// The map is its arguments, in order, for a kernel to look at.
API cuTensorMapEncodeTiled(uint64_t* map, int type, unsigned rank, void* data, const uint64_t* extents,
                           const uint64_t* strides, const unsigned* box, const unsigned* steps, int interleave,
                           int swizzle, int promotion, int fill) {
  CALL_IN_CONTEXT;
  if (rank > 2 || reinterpret_cast<uintptr_t>(map) % 64) return kInvalidValue;
  std::memset(map, 0, 128);
  map[0] = reinterpret_cast<uint64_t>(data);
  map[1] = static_cast<uint64_t>(type);
  for (unsigned i = 0; i < rank; ++i) {
    map[2 + i] = extents[i];
    map[6 + i] = box[i];
    map[8 + i] = steps[i];
  }
  if (rank > 1) map[4] = strides[0];
  const int modes[] = {interleave, swizzle, promotion, fill};
  std::copy_n(modes, 4, map + 10);
  return kSuccess;
}

API cuGetErrorName(int status, const char** name) {
  static const std::map<int, const char*> names = {
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},        {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},    {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
      {kNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},  {kInvalidPtx, "CUDA_ERROR_INVALID_PTX"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},    {kNotFound, "CUDA_ERROR_NOT_FOUND"}};
  auto found = names.find(status);
  if (found == names.end()) return kInvalidValue;
  *name = found->second;
  return kSuccess;
}
API cuGetErrorString(int, const char** text) {
  *text = "as the fake driver says";
  return kSuccess;
}

// ---- For tests ------------------------------------------------------------------------------------------------------

// Makes the n-th call from now on fail; 0: none. Final errors are forgotten.
API fake_cuda_fail(long n, int status) {
  WaitForAll();
  calls = 0;
  failing_call = n;
  failing_status = status;
  final_status = 0;
  failed_function.clear();
  return 0;
}
extern "C" __attribute__((visibility("default"))) long fake_cuda_calls() { return calls; }
extern "C" __attribute__((visibility("default"))) const char* fake_cuda_failed() { return failed_function.c_str(); }
extern "C" __attribute__((visibility("default"))) const char* fake_cuda_attributes() { return last_attributes.c_str(); }
extern "C" __attribute__((visibility("default"))) long fake_cuda_mistakes() { return mistakes; }
// What was made and not freed.
extern "C" __attribute__((visibility("default"))) long fake_cuda_live() {
  std::lock_guard<std::mutex> lock(mutex);
  return static_cast<long>(blocks.size() + pinned.size() + modules.size() + streams.size() + events.size());
}
