// SPDX-License-Identifier: Apache-2.0
// Writes plans for tests: lists of what a plan has, each item with its usual form, and bytes of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "portcall/portcall.h"

inline constexpr DLDataType kFloat32{kDLFloat, 32, 1};

struct PlanWriter {
  struct Device {
    int32_t type;
    uint64_t arena;
  };
  struct Slot {
    uint32_t device, kind;
    uint64_t offset, bytes;
    int64_t storage_id = -1;
  };
  struct Entry {
    uint32_t slot;
    std::vector<int64_t> shape;
    DLDataType dtype = kFloat32;
  };
  struct Node {
    uint32_t op;
    std::string name;
    std::vector<uint32_t> inputs;
    std::string function;
    uint32_t outputs = 1;
    uint32_t flags = 0;
  };

  std::vector<Device> devices{{-1, 0}};
  std::vector<Slot> slots;
  std::vector<Entry> entries;
  std::vector<Node> nodes;
  std::vector<uint32_t> inputs, heads;
  uint64_t magic = 0x004E414C50474350;
  uint32_t version = 1;
  std::string tail;  // after the heads

  // A placeholder with memory of its own. Returns its entry.
  uint32_t Input(const std::string& name, std::vector<int64_t> shape, DLDataType dtype = kFloat32, uint32_t device = 0,
                 int64_t storage_id = -1) {
    inputs.push_back(static_cast<uint32_t>(nodes.size()));
    slots.push_back({device, 1, 0, Bytes(shape, dtype), storage_id});
    return Add({0, name, {}, ""}, std::move(shape), dtype);
  }
  // A call with one output in a slot of its own.
  uint32_t Call(const std::string& function, std::vector<uint32_t> of, std::vector<int64_t> shape,
                DLDataType dtype = kFloat32, uint32_t device = 0, uint32_t flags = 0) {
    NewSlot(shape, dtype, device);
    return Add({1, "n" + std::to_string(nodes.size()), std::move(of), function, 1, flags}, std::move(shape), dtype);
  }
  uint32_t Copy(uint32_t of, uint32_t device) {
    Entry from = entries[of];
    NewSlot(from.shape, from.dtype, device);
    return Add({3, "copy" + std::to_string(nodes.size()), {of}, ""}, from.shape, from.dtype);
  }
  uint32_t Nop(uint32_t of, std::vector<int64_t> shape) {
    nodes.push_back({2, "nop" + std::to_string(nodes.size()), {of}, ""});
    entries.push_back({entries[of].slot, std::move(shape), entries[of].dtype});
    return static_cast<uint32_t>(entries.size() - 1);
  }

  std::string Body() const {
    std::string out;
    Count(&out, devices.size());
    for (const Device& d : devices) Put(&out, d.type), Put(&out, d.arena);
    Count(&out, slots.size());
    for (const Slot& s : slots) {
      Put(&out, s.device), Put(&out, s.kind), Put(&out, s.storage_id), Put(&out, s.offset), Put(&out, s.bytes);
    }
    Count(&out, entries.size());
    for (const Entry& e : entries) {
      Put(&out, e.slot), Put(&out, e.dtype.code), Put(&out, e.dtype.bits), Put(&out, e.dtype.lanes);
      Count(&out, e.shape.size());
      for (int64_t extent : e.shape) Put(&out, extent);
    }
    Count(&out, nodes.size());
    for (const Node& n : nodes) {
      Put(&out, n.op), Put(&out, n.flags), Text(&out, n.name), Put(&out, n.outputs);
      Numbers(&out, n.inputs), Text(&out, n.function);
    }
    Numbers(&out, inputs), Numbers(&out, heads);
    return out + tail;
  }
  std::string Encode() const { return Wrap(Body(), magic, version); }

  static std::string Wrap(const std::string& body, uint64_t magic = 0x004E414C50474350, uint32_t version = 1) {
    std::string out;
    Put(&out, magic), Put(&out, version), Put(&out, Crc32(body));
    Put(&out, uint64_t{body.size()});
    return out + body;
  }

 private:
  static uint64_t Bytes(const std::vector<int64_t>& shape, DLDataType dtype) {
    uint64_t bytes = (uint64_t{dtype.bits} * dtype.lanes + 7) / 8;
    for (int64_t extent : shape) bytes *= static_cast<uint64_t>(extent);
    return bytes;
  }
  void NewSlot(const std::vector<int64_t>& shape, DLDataType dtype, uint32_t device) {
    uint64_t bytes = Bytes(shape, dtype), &arena = devices[device].arena;
    slots.push_back({device, 0, arena, bytes});
    arena += (bytes + 63) / 64 * 64;
  }
  uint32_t Add(Node node, std::vector<int64_t> shape, DLDataType dtype) {
    nodes.push_back(std::move(node));
    entries.push_back({static_cast<uint32_t>(slots.size() - 1), std::move(shape), dtype});
    return static_cast<uint32_t>(entries.size() - 1);
  }

  template <typename T> static void Put(std::string* out, T value) {
    out->append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void Count(std::string* out, size_t count) { Put(out, static_cast<uint32_t>(count)); }
  static void Text(std::string* out, const std::string& text) {
    Count(out, text.size());
    *out += text;
  }
  static void Numbers(std::string* out, const std::vector<uint32_t>& numbers) {
    Count(out, numbers.size());
    for (uint32_t n : numbers) Put(out, n);
  }
  static uint32_t Crc32(const std::string& bytes) {  // bit by bit: not the way in which the core does it
    uint32_t crc = ~0U;
    for (unsigned char byte : bytes) {
      crc ^= byte;
      for (int k = 0; k < 8; ++k) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320U : 0U);
    }
    return ~crc;
  }
};
