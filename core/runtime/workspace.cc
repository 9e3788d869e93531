// SPDX-License-Identifier: Apache-2.0
// Temporary buffers of compiled code: TVMBackendAllocWorkspace and TVMBackendFreeWorkspace.
//
// Each thread keeps a pool for each stream of a device that it used, so no lock is taken, and memory that is freed when its
// last kernel was launched is used again by kernels that run after that one only. Blocks are whole pages and are reused at
// once; kernels free in the reverse order of allocation, so the search starts at the newest. A pool that is asked for
// more than its largest free block has grows that block instead of adding one: it holds as many blocks as were in use at
// the same time. All memory of a thread goes when the thread ends.
#include <algorithm>
#include <deque>
#include <new>
#include <vector>

#include "portcall/device.h"

namespace portcall {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 128;  // the ABI promises 64
// Nothing real is larger; sizes beyond are negative numbers or products that overflowed.
constexpr uint64_t kMaxBytes = std::min<uint64_t>(uint64_t{1} << 40, SIZE_MAX / 2);

void* AllocateMemory(Device device, size_t nbytes, DLDataType hint) {
  void* data = nullptr;
  if (device.device_type == kDLCPU) {
    data = ::operator new(nbytes, std::align_val_t(kAlignment), std::nothrow);
  } else {
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    Check(api.alloc(api.ctx, device, nbytes, kAlignment, hint, &data));
  }
  PORTCALL_CHECK(data, MemoryError) << "no memory for a workspace of " << nbytes << " bytes on " << ToString(device);
  return data;
}

void FreeMemory(Device device, void* data) {
  if (device.device_type == kDLCPU) {
    ::operator delete(data, std::align_val_t(kAlignment));
  } else {
    const PortcallDeviceAPI& api = DeviceApiOf(device);
    Check(api.free(api.ctx, device, data));
  }
}

// The workspace of one stream of a device in one thread.
class Workspace {
 public:
  Workspace(Device device, void* stream) : device_(device), stream_(stream) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    for (const auto* blocks : {&free_, &used_}) {
      for (const Block& block : *blocks) (void)Guard([&] { FreeMemory(device_, block.data); });
    }
  }

  Device device() const { return device_; }
  void* stream() const { return stream_; }
  bool Has(void* data) const {
    return std::any_of(used_.begin(), used_.end(), [&](const Block& block) { return block.data == data; });
  }
  void* Allocate(uint64_t nbytes, DLDataType hint);
  void Free(void* data);

 private:
  struct Block {
    void* data;
    size_t size;
  };

  Device device_;
  void* stream_;
  std::vector<Block> free_;  // by size, the largest last
  std::vector<Block> used_;  // by age, the newest last
};

void* Workspace::Allocate(uint64_t nbytes, DLDataType hint) {
  PORTCALL_CHECK(nbytes <= kMaxBytes, MemoryError) << "a workspace of " << nbytes << " bytes on " << ToString(device_)
                                                   << " was asked for; the most is " << kMaxBytes;
  const size_t size = std::max(kPage, (static_cast<size_t>(nbytes) + kPage - 1) / kPage * kPage);
  used_.reserve(used_.size() + 1);  // so that nothing throws once a block is in our hands
  free_.reserve(free_.size() + used_.size() + 1);
  auto fit = std::find_if(free_.begin(), free_.end(), [&](const Block& block) { return block.size >= size; });
  if (fit != free_.end()) {
    used_.push_back(*fit);
    free_.erase(fit);
    return used_.back().data;
  }
  if (!free_.empty()) {
    void* too_small = free_.back().data;
    free_.pop_back();
    FreeMemory(device_, too_small);
  }
  used_.push_back({AllocateMemory(device_, size, hint), size});
  return used_.back().data;
}

void Workspace::Free(void* data) {
  auto found = std::find_if(used_.rbegin(), used_.rend(), [&](const Block& block) { return block.data == data; });
  PORTCALL_CHECK(found != used_.rend(), ValueError)
      << data << " is not a workspace on " << ToString(device_) << " that this thread has in use";
  const Block block = *found;
  used_.erase(std::next(found).base());
  auto place = std::find_if(free_.begin(), free_.end(), [&](const Block& other) { return other.size >= block.size; });
  free_.insert(place, block);
}

thread_local bool thread_is_ending = false;  // no destructor: may be read after all others have run

// A thread uses one or two devices: a list beats a map. A device may use another one's workspace while it allocates, so
// what is in the list never moves.
struct ThreadWorkspaces {
  std::deque<Workspace> of_streams;
  ~ThreadWorkspaces() { thread_is_ending = true; }
};

ThreadWorkspaces& Workspaces() {
  PORTCALL_CHECK(!thread_is_ending, RuntimeError) << "no workspace in a thread that is ending";
  thread_local ThreadWorkspaces workspaces;
  return workspaces;
}

Workspace& WorkspaceOf(Device device) {
  const bool host = device.device_type == kDLCPU;
  void* stream = host ? nullptr : TVMFFIEnvGetStream(device.device_type, device.device_id);
  for (Workspace& workspace : Workspaces().of_streams) {
    if (workspace.device() == device && workspace.stream() == stream) return workspace;
  }
  if (!host) DeviceApiOf(device);  // throws when nothing registered this kind
  return Workspaces().of_streams.emplace_back(device, stream);
}

// That of the present stream, unless the stream was changed since the memory was asked for.
Workspace& WorkspaceWith(Device device, void* data) {
  for (Workspace& workspace : Workspaces().of_streams) {
    if (workspace.device() == device && workspace.Has(data)) return workspace;
  }
  return WorkspaceOf(device);
}

}  // namespace
}  // namespace portcall

using namespace portcall;

void* TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t nbytes, int dtype_code_hint,
                               int dtype_bits_hint) {
  void* data = nullptr;
  const DLDataType hint{static_cast<uint8_t>(dtype_code_hint), static_cast<uint8_t>(dtype_bits_hint), 1};
  (void)Guard([&] { data = WorkspaceOf({device_type, device_id}).Allocate(nbytes, hint); });
  return data;
}

int TVMBackendFreeWorkspace(int device_type, int device_id, void* ptr) {
  return Guard([&] { WorkspaceWith({device_type, device_id}, ptr).Free(ptr); });
}
