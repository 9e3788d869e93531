// SPDX-License-Identifier: Apache-2.0
#include "graph/plan.h"

#include <algorithm>
#include <unordered_map>

#include "bytes/cursor.h"
#include "bytes/utf8.h"

namespace portcall::graph {
namespace {

constexpr uint64_t kMagic = 0x004E414C50474350;  // "PCGPLAN\0"
constexpr size_t kHeaderBytes = 24;
constexpr uint64_t kMaxBytes = uint64_t{1} << 56;  // sums and products of sizes stay in range
constexpr uint32_t kMaxDimensions = 64;

[[noreturn]] void Fail(std::string_view place, std::initializer_list<Piece> why) {
  ThrowGraphError({"plan: ", place, ": ", Join(why)});
}

std::string Of(uint64_t index, size_t count) { return Join({index, ", but there are ", count}); }

uint32_t Crc32(std::string_view bytes) {  // zlib's, four bits at a time
  static constexpr uint32_t kTable[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
                                          0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                          0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
  uint32_t crc = ~0U;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    crc = kTable[crc & 15] ^ (crc >> 4);
    crc = kTable[crc & 15] ^ (crc >> 4);
  }
  return ~crc;
}

// Takes values from the front, and knows what it is reading for messages.
class Reader : public bytes::Cursor<Reader> {
 public:
  explicit Reader(std::string_view bytes) : Cursor(bytes) {}

  void At(const char* what, uint32_t index) {
    what_ = what;
    index_ = index;
  }
  [[noreturn]] void Refuse(std::initializer_list<Piece> why) const { Fail(Join({what_, " ", index_}), why); }
  [[noreturn]] void FailShort(const char*, uint64_t) const { Refuse({"the plan ends in the middle of it"}); }

  std::string Text(const char* role) {
    std::string_view text = Bytes(Take<uint32_t>());
    if (!bytes::IsUtf8(text)) Refuse({"its ", role, " is not UTF-8"});
    return std::string(text);
  }
  // The number of things that follow; each takes at least `least` bytes.
  uint32_t Count(const char* things, size_t least) {
    if (left() < 4) Fail(things, {"the plan ends before their count"});
    auto count = Take<uint32_t>();
    if (!CanHold(count, least)) {
      Fail(things, {"it counts ", count, ", more than the ", left(), " bytes that are left can hold"});
    }
    return count;
  }

 private:
  const char* what_ = "";
  uint32_t index_ = 0;
};

std::string_view BodyOf(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) Fail("header", {"a plan has at least 24 bytes, got ", bytes.size()});
  Reader reader(bytes);
  auto magic = reader.Take<uint64_t>();
  auto version = reader.Take<uint32_t>(), crc = reader.Take<uint32_t>();
  auto size = reader.Take<uint64_t>();
  if (magic != kMagic) Fail("header", {"these bytes are not a plan: they do not begin with PCGPLAN"});
  if (version != kPlanVersion) {
    Fail("header",
         {"it has version ", version, ", this runtime reads version ", kPlanVersion, "; plan the graph again"});
  }
  std::string_view body = bytes.substr(kHeaderBytes);
  if (size != body.size()) {
    Fail("header", {"it says that ", size, " bytes follow, and ", body.size(), " do"});
  }
  if (crc != Crc32(body)) Fail("header", {"the checksum is wrong: the plan was damaged on its way"});
  return body;
}

// ---- The sections, each checked against those before it -----------------------------------------------------------

void ReadDevices(Reader* reader, Plan* plan) {
  uint32_t count = reader->Count("devices", 12);
  if (count == 0) Fail("devices", {"there must be at least one"});
  for (uint32_t i = 0; i < count; ++i) {
    reader->At("device", i);
    PlanDevice device;
    device.type = reader->Take<int32_t>();
    device.arena_bytes = reader->Take<uint64_t>();
    if (i == 0 ? device.type != -1 : device.type < 1) {
      reader->Refuse({"type ", device.type, (i == 0 ? "; the first has type -1" : " is not a device type")});
    }
    if (device.arena_bytes > kMaxBytes) reader->Refuse({"an arena of ", device.arena_bytes, " bytes"});
    plan->devices.push_back(device);
  }
}

void ReadSlots(Reader* reader, Plan* plan) {
  uint32_t count = reader->Count("slots", 32);
  for (uint32_t i = 0; i < count; ++i) {
    reader->At("slot", i);
    Slot slot;
    slot.device = reader->Take<uint32_t>();
    auto kind = reader->Take<uint32_t>();
    slot.storage_id = reader->Take<int64_t>();
    slot.offset = reader->Take<uint64_t>();
    slot.bytes = reader->Take<uint64_t>();
    slot.own_memory = kind == 1;
    if (slot.device >= plan->devices.size()) reader->Refuse({"device ", Of(slot.device, plan->devices.size())});
    if (kind > 1) reader->Refuse({"kind ", kind, " is neither 0 nor 1"});
    if (slot.storage_id < -1) reader->Refuse({"storage id ", slot.storage_id});
    if (slot.offset % kTensorAlignment != 0) {
      reader->Refuse({"offset ", slot.offset, " is not a multiple of 64"});
    }
    if (slot.own_memory) {
      if (slot.offset != 0) reader->Refuse({"memory of its own has no offset"});
      if (slot.bytes > kMaxBytes) reader->Refuse({slot.bytes, " bytes"});
    } else {
      uint64_t arena = plan->devices[slot.device].arena_bytes;
      if (slot.offset > arena || slot.bytes > arena - slot.offset) {
        reader->Refuse({slot.bytes, " bytes at ", slot.offset, " go past the end of the arena of ", arena});
      }
    }
    plan->slots.push_back(slot);
  }
}

// Products of the extents that are not 0 stay in range too: they are the strides of an empty tensor.
uint64_t BytesOf(const Reader& reader, const Entry& entry) {
  uint64_t bytes = (uint64_t{entry.dtype.bits} * entry.dtype.lanes + 7) / 8;
  bool empty = false;
  for (int64_t extent : entry.shape) {
    if (extent < 0) reader.Refuse({"extent ", extent, " is negative"});
    if (extent == 0) empty = true;
    uint64_t factor = std::max<int64_t>(extent, 1);
    if (factor > kMaxBytes / bytes) reader.Refuse({"it is too large: an extent is ", extent});
    bytes *= factor;
  }
  return empty ? 0 : bytes;
}

void ReadEntries(Reader* reader, Plan* plan) {
  uint32_t count = reader->Count("entries", 12);
  for (uint32_t i = 0; i < count; ++i) {
    reader->At("entry", i);
    Entry entry;
    entry.slot = reader->Take<uint32_t>();
    entry.dtype.code = reader->Take<uint8_t>();
    entry.dtype.bits = reader->Take<uint8_t>();
    entry.dtype.lanes = reader->Take<uint16_t>();
    auto ndim = reader->Take<uint32_t>();
    if (entry.slot >= plan->slots.size()) reader->Refuse({"slot ", Of(entry.slot, plan->slots.size())});
    const uint8_t bits = entry.dtype.bits;
    const bool fits = bits == 1 || bits == 4 || (bits != 0 && bits % 8 == 0);  // the others have no layout in memory
    if (!fits || static_cast<int16_t>(entry.dtype.lanes) <= 0) {
      reader->Refuse({"a data type of ", entry.dtype.bits, " bits and ", entry.dtype.lanes, " lanes"});
    }
    if (ndim > kMaxDimensions) reader->Refuse({ndim, " dimensions; at most 64 are possible"});
    for (uint32_t k = 0; k < ndim; ++k) entry.shape.push_back(reader->Take<int64_t>());
    entry.bytes = BytesOf(*reader, entry);
    uint64_t room = plan->slots[entry.slot].bytes;
    if (entry.bytes > room) {
      reader->Refuse({"its ", entry.bytes, " bytes do not fit slot ", entry.slot, " of ", room});
    }
    plan->entries.push_back(std::move(entry));
  }
}

// A view of one value, or a copy of it: both sides have one size, also where elements share bytes.
void CheckOneToOne(const Plan& plan, const Node& node, const std::string& place) {
  if (node.inputs.size() != 1 || node.num_outputs != 1) {
    Fail(place,
         {"it has ", node.inputs.size(), " inputs and ", node.num_outputs, " outputs, it must have one of each"});
  }
  const Entry& from = plan.entries[node.inputs[0]];
  const Entry& to = plan.entries[node.first_output];
  auto packed = [](const Entry& entry) {
    uint64_t element = (uint64_t{entry.dtype.bits} * entry.dtype.lanes + 7) / 8;
    return NumBytes(entry.dtype, entry.bytes / element);
  };
  if (from.bytes != to.bytes || packed(from) != packed(to)) {
    Fail(place, {"its input has ", from.bytes, " bytes and its output ", to.bytes});
  }
}

void CheckNode(const Plan& plan, const Node& node, std::vector<uint32_t>* placed, const std::string& place) {
  if (node.op == Op::kCall ? node.function.empty() : !node.function.empty()) {
    Fail(place, {node.op == Op::kCall ? "a call needs the name of a function" : "only calls name a function"});
  }
  if (node.op == Op::kPlaceholder) {
    if (!node.inputs.empty() || node.num_outputs != 1) Fail(place, {"a placeholder has one output and no inputs"});
    uint32_t slot = plan.entries[node.first_output].slot;
    if (!plan.slots[slot].own_memory) Fail(place, {"a placeholder needs a slot of kind 1, memory of its own"});
    if ((*placed)[slot]) Fail(place, {"slot ", slot, " belongs to another placeholder"});
    (*placed)[slot] = 1;
    return;
  }
  if (node.op != Op::kCall) CheckOneToOne(plan, node, place);
  if (node.op == Op::kNop) {
    if (plan.entries[node.inputs[0]].slot != plan.entries[node.first_output].slot) {
      Fail(place, {"the output of __nop must lie in the slot of its input"});
    }
    return;
  }
  for (uint32_t k = 0; k < node.num_outputs; ++k) {
    uint32_t slot = plan.entries[node.first_output + k].slot;
    if (plan.slots[slot].own_memory) {
      Fail(place, {"it writes into slot ", slot, ", which is of kind 1: for a placeholder alone"});
    }
  }
}

void ReadNodes(Reader* reader, Plan* plan) {
  uint32_t count = reader->Count("nodes", 24);
  std::vector<uint32_t> placed(plan->slots.size());
  uint32_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    reader->At("node", i);
    Node node;
    auto op = reader->Take<uint32_t>();
    auto flags = reader->Take<uint32_t>();
    node.name = reader->Text("name");
    node.op = static_cast<Op>(op);
    node.flatten = flags & 1;
    node.first_output = next;
    node.num_outputs = reader->Take<uint32_t>();
    if (op > 3) reader->Refuse({"op ", op, " is unknown"});
    if (flags > 1) reader->Refuse({"flags ", flags, " are unknown"});
    if (node.num_outputs > plan->entries.size() - next) {
      reader->Refuse(
          {node.num_outputs, " outputs from entry ", next, " on, but there are ", plan->entries.size(), " entries"});
    }
    for (uint32_t inputs = reader->Count("inputs of a node", 4); inputs > 0; --inputs) {
      auto entry = reader->Take<uint32_t>();
      if (entry >= next) reader->Refuse({"input ", entry, " is not an entry of an earlier node"});
      node.inputs.push_back(entry);
    }
    next += node.num_outputs;
    node.function = reader->Text("function");
    plan->nodes.push_back(std::move(node));
    CheckNode(*plan, plan->nodes.back(), &placed, DescribeNode(*plan, i));
  }
  if (next != plan->entries.size()) {
    Fail("nodes", {"they have ", next, " outputs, but there are ", plan->entries.size(), " entries"});
  }
}

void ReadInputs(Reader* reader, Plan* plan) {
  uint32_t count = reader->Count("inputs", 4);
  std::vector<uint32_t> seen(plan->nodes.size());
  std::unordered_map<std::string, uint32_t> names;
  for (uint32_t i = 0; i < count; ++i) {
    reader->At("input", i);
    auto node = reader->Take<uint32_t>();
    if (node >= plan->nodes.size()) reader->Refuse({"node ", Of(node, plan->nodes.size())});
    if (plan->nodes[node].op != Op::kPlaceholder) reader->Refuse({DescribeNode(*plan, node), " is not a placeholder"});
    if (seen[node]++) reader->Refuse({DescribeNode(*plan, node), " is listed twice"});
    if (!names.emplace(plan->nodes[node].name, i).second) {
      reader->Refuse({"another input is called '", plan->nodes[node].name, "' too"});
    }
    plan->inputs.push_back(node);
  }
  for (size_t i = 0; i < plan->nodes.size(); ++i) {
    if (plan->nodes[i].op == Op::kPlaceholder && !seen[i]) {
      Fail("inputs", {"the placeholder ", DescribeNode(*plan, i), " is not listed"});
    }
  }
}

void ReadHeads(Reader* reader, Plan* plan) {
  uint32_t count = reader->Count("heads", 4);
  for (uint32_t i = 0; i < count; ++i) {
    reader->At("head", i);
    auto entry = reader->Take<uint32_t>();
    if (entry >= plan->entries.size()) reader->Refuse({"entry ", Of(entry, plan->entries.size())});
    plan->heads.push_back(entry);
  }
}

}  // namespace

Plan DecodePlan(std::string_view bytes) {
  Reader reader(BodyOf(bytes));
  Plan plan;
  ReadDevices(&reader, &plan);
  ReadSlots(&reader, &plan);
  ReadEntries(&reader, &plan);
  ReadNodes(&reader, &plan);
  ReadInputs(&reader, &plan);
  ReadHeads(&reader, &plan);
  if (reader.left()) Fail("end", {reader.left(), " bytes follow the heads"});
  return plan;
}

void ThrowGraphError(std::initializer_list<Piece> pieces) { Throw("GraphError", pieces); }

std::string DescribeNode(const Plan& plan, size_t node) {
  return Join({"node ", node, " ('", plan.nodes[node].name, "')"});
}

std::string DescribeTensor(DLDataType dtype, const int64_t* shape, size_t ndim) {
  return Join({ToString(dtype), " ", ToString(Shape(shape, ndim))});
}

}  // namespace portcall::graph
