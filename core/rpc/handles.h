// SPDX-License-Identifier: Apache-2.0
// A session's own numbers for what it lends to the other side. Numbers are never given twice, so one that was freed is
// recognised; each carries its kind, so none is taken for something else.
#ifndef PORTCALL_RPC_HANDLES_H_
#define PORTCALL_RPC_HANDLES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "portcall/value.h"

namespace portcall::rpc {

class HandleTable {
 public:
  enum Kind { kFunction, kModule, kObject, kTensor, kMemory, kStream };

  uint64_t Add(Kind kind, Any value);
  // One more reference to the function of that name if it is in the table already, else 0.
  uint64_t AddNamed(const std::string& name);
  uint64_t AddNamed(const std::string& name, Any function);

  // What the handle names; throws for one that is unknown, was freed, or is of another kind.
  Any Get(uint64_t handle, Kind kind) const;
  Any GetObject(uint64_t handle) const;  // any kind but memory and streams
  Any GetMemory(uint64_t handle) const;  // memory, or a tensor
  bool Has(uint64_t handle) const;
  // Drops one reference. Throws as Get does; kObject stands for a function, module, object or tensor.
  void Free(uint64_t handle, Kind kind);
  void Clear();
  size_t size() const;

 private:
  struct Entry {
    Kind kind;
    Any value;
    uint64_t references;
    std::string name;  // under which it was looked up, if it was
  };

  const Entry& Find(uint64_t handle) const;

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::unordered_map<std::string, uint64_t> by_name_;
  uint64_t next_ = 0x1000;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_HANDLES_H_
