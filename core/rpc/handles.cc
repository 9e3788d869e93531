// SPDX-License-Identifier: Apache-2.0
#include "rpc/handles.h"

namespace portcall::rpc {
namespace {

const char* NameOf(HandleTable::Kind kind) {
  switch (kind) {
    case HandleTable::kFunction:
      return "a function";
    case HandleTable::kModule:
      return "a module";
    case HandleTable::kObject:
      return "an object";
    case HandleTable::kTensor:
      return "a tensor";
    case HandleTable::kMemory:
      return "memory";
    case HandleTable::kStream:
      return "a stream";
  }
  return "";
}

bool IsObjectLike(HandleTable::Kind kind) { return kind != HandleTable::kMemory && kind != HandleTable::kStream; }

}  // namespace

uint64_t HandleTable::Add(Kind kind, Any value) {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t handle = next_;
  next_ += 0x10;
  entries_.emplace(handle, Entry{kind, std::move(value), 1, {}});
  return handle;
}

uint64_t HandleTable::AddNamed(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = by_name_.find(name);
  if (it == by_name_.end()) return 0;
  ++entries_.at(it->second).references;
  return it->second;
}

uint64_t HandleTable::AddNamed(const std::string& name, Any function) {
  uint64_t handle = Add(kFunction, std::move(function));
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.at(handle).name = name;
  by_name_[name] = handle;
  return handle;
}

const HandleTable::Entry& HandleTable::Find(uint64_t handle) const {
  auto it = entries_.find(handle);
  PORTCALL_CHECK(it != entries_.end(), ValueError)
      << "the handle " << handle << " names nothing in this session: it was freed, or belongs to another session";
  return it->second;
}

Any HandleTable::Get(uint64_t handle, Kind kind) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Entry& entry = Find(handle);
  PORTCALL_CHECK(entry.kind == kind, TypeError)
      << "the handle " << handle << " names " << NameOf(entry.kind) << ", not " << NameOf(kind);
  return entry.value;
}

Any HandleTable::GetObject(uint64_t handle) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Entry& entry = Find(handle);
  PORTCALL_CHECK(IsObjectLike(entry.kind), TypeError)
      << "the handle " << handle << " names " << NameOf(entry.kind) << ", not an object";
  return entry.value;
}

Any HandleTable::GetMemory(uint64_t handle) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Entry& entry = Find(handle);
  PORTCALL_CHECK(entry.kind == kMemory || entry.kind == kTensor, TypeError)
      << "the handle " << handle << " names " << NameOf(entry.kind) << ", not memory";
  return entry.value;
}

bool HandleTable::Has(uint64_t handle) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_.count(handle) != 0;
}

void HandleTable::Free(uint64_t handle, Kind kind) {
  Any gone;  // released after the lock: what goes may run code of its owner
  std::lock_guard<std::mutex> lock(mutex_);
  const Entry& entry = Find(handle);
  PORTCALL_CHECK(entry.kind == kind || (kind == kObject && IsObjectLike(entry.kind)), TypeError)
      << "the handle " << handle << " names " << NameOf(entry.kind) << ", which is freed otherwise";
  auto it = entries_.find(handle);
  if (--it->second.references > 0) return;
  auto named = by_name_.find(it->second.name);
  if (named != by_name_.end() && named->second == handle) by_name_.erase(named);
  gone = std::move(it->second.value);
  entries_.erase(it);
}

void HandleTable::Clear() {
  std::unordered_map<uint64_t, Entry> gone;
  std::lock_guard<std::mutex> lock(mutex_);
  gone.swap(entries_);
  by_name_.clear();
}

size_t HandleTable::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

}  // namespace portcall::rpc
