// SPDX-License-Identifier: Apache-2.0
#include "session/graph_json.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "bytes/byte_order.h"
#include "portcall/error.h"
#include "portcall/tensor.h"
#include "session/json.h"

namespace portcall::session {
namespace {

constexpr uint64_t kMostGraphBytes = uint64_t{1} << 56, kAlignment = 64;
constexpr uint32_t kPlaceholder = 0, kCall = 1, kNop = 2, kCopy = 3;

struct Node {
  uint32_t op = kPlaceholder, first = 0, outputs = 1;  // its entries
  bool flatten = false;
  std::string name, function;
  std::vector<uint32_t> inputs;  // entries
};

// What an entry holds, and when it is needed: from the node that writes it to the last one that reads it.
struct Entry {
  DLDataType dtype{};
  std::vector<int64_t> shape;
  uint64_t nbytes = 0;
  std::optional<int64_t> storage;
  int32_t device = -1;  // the first
  uint32_t root = 0;    // the entry whose memory it is a view of
  int64_t born = -1, last = 0;
};

struct Slot {
  uint32_t device = 0;
  bool own = false;
  int64_t storage = -1;
  uint64_t offset = 0, nbytes = 0;
  int64_t until = -1;  // when the last entry in it is not needed any more
};

uint64_t Aligned(uint64_t nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

class GraphPlanner {
 public:
  explicit GraphPlanner(const Json& graph) : graph_(graph) {}

  std::string Plan() {
    ReadNodes();
    ReadEntries();
    FindLifetimes();
    for (const Entry& entry : entries_) {
      if (std::find(devices_.begin(), devices_.end(), entry.device) == devices_.end()) devices_.push_back(entry.device);
    }
    if (!UseStorageIds()) ShareSlots();
    return Encode();
  }

 private:
  [[noreturn]] static void Fail(const std::string& what) { PORTCALL_THROW(GraphError) << what; }
  static std::string At(const char* list, size_t i) { return std::string(list) + "[" + std::to_string(i) + "]: "; }

  // ---- Reading ----

  void ReadNodes() {
    const auto& nodes = graph_.At("nodes", "the graph").List("nodes");
    for (size_t i = 0; i < nodes.size(); ++i) {
      Node node;
      const std::string& op = nodes[i].At("op", "a node").Text("op");
      node.name = nodes[i].At("name", "a node").Text("name");
      node.first = static_cast<uint32_t>(count_);
      for (const Json& input : nodes[i].At("inputs", "a node").List("inputs")) node.inputs.push_back(EntryOf(input));
      if (op == "tvm_op") ReadCall(nodes[i], &node);
      else if (op != "null")
        Fail(At("nodes", i) + "'" + op + "' is neither 'null' nor 'tvm_op'; was the model compiled?");
      count_ += node.outputs;
      nodes_.push_back(std::move(node));
    }
    for (const Json& number : graph_.At("arg_nodes", "the graph").List("arg_nodes")) {
      const int64_t node = number.Integer("arg_nodes");
      if (node < 0 || static_cast<size_t>(node) >= nodes_.size()) Fail("arg_nodes: there is no such node");
      inputs_.push_back(static_cast<uint32_t>(node));
    }
    for (const Json& head : graph_.At("heads", "the graph").List("heads")) heads_.push_back(EntryOf(head));
  }

  // [node, output] or [node, output, version], of the nodes that have been read.
  uint32_t EntryOf(const Json& item) const {
    const auto& numbers = item.List("an entry");
    if (numbers.size() < 2 || numbers.size() > 3) Fail("an entry: [node, output] is expected");
    const int64_t node = numbers[0].Integer("a node"), output = numbers[1].Integer("an output");
    if (node < 0 || static_cast<size_t>(node) >= nodes_.size()) Fail("an entry: there is no such node before it");
    if (output < 0 || output >= nodes_[static_cast<size_t>(node)].outputs) Fail("an entry: there is no such output");
    return nodes_[static_cast<size_t>(node)].first + static_cast<uint32_t>(output);
  }

  void ReadCall(const Json& from, Node* node) {
    const Json* attrs = from.Find("attrs", "a node");
    const Json& of = attrs ? *attrs : from.At("attr", "a node");
    const std::string& function = of.At("func_name", "attrs").Text("func_name");
    const std::string &inputs = of.At("num_inputs", "attrs").Text("num_inputs"),
                      &outputs = of.At("num_outputs", "attrs").Text("num_outputs");
    node->flatten = of.At("flatten_data", "attrs").Text("flatten_data") == "1";
    if (function.empty()) Fail("func_name: it is empty");
    if (inputs != std::to_string(node->inputs.size())) Fail("num_inputs: the node '" + node->name + "' has others");
    const bool digits = !outputs.empty() && outputs.size() < 6;
    if (!digits || outputs.find_first_not_of("0123456789") != std::string::npos) Fail("num_outputs: not a number");
    node->outputs = static_cast<uint32_t>(std::strtoul(outputs.c_str(), nullptr, 10));
    node->op = function == "__nop" ? kNop : function == "__copy" ? kCopy : kCall;
    if (node->op == kCall) node->function = function;
    const bool one = node->inputs.size() == 1 && node->outputs == 1;
    if (node->op != kCall && !one) Fail("the node '" + node->name + "' has not one input and one output");
  }

  // A list with an item for each entry; null where the graph has none of that name.
  const std::vector<Json>* Column(const char* name, const char* tag) const {
    const Json* pair = graph_.At("attrs", "the graph").Find(name, "attrs");
    if (!pair) return nullptr;
    const auto& parts = pair->List(name);
    if (parts.size() != 2 || parts[0].Text(name) != tag)
      Fail(std::string(name) + ": a pair with " + tag + " is expected");
    const auto& items = parts[1].List(name);
    if (items.size() != count_) Fail(std::string(name) + ": not one for each output of a node");
    return &items;
  }

  void ReadEntries() {
    const auto *shapes = Column("shape", "list_shape"), *types = Column("dltype", "list_str");
    const auto *ids = Column("storage_id", "list_int"), *devices = Column("device_index", "list_int");
    if (!shapes || !types) Fail("attrs: it has no shape or no dltype");
    entries_.resize(count_);
    for (size_t i = 0; i < count_; ++i) {
      Entry& entry = entries_[i];
      entry.dtype = DataTypeFromString((*types)[i].Text("dltype"));
      const auto& shape = (*shapes)[i].List("shape");
      uint64_t room = kMostGraphBytes / std::max<size_t>(NumBytes(entry.dtype, 1), 1), elements = 1;
      if (shape.size() > 64) Fail(At("shape", i) + "more than 64 dimensions");
      for (const Json& extent : shape) {
        const int64_t value = extent.Integer("an extent, known before the graph runs");
        if (value < 0) Fail(At("shape", i) + "an extent that is known at run time only; compile it with static shapes");
        if (static_cast<uint64_t>(value) > room) Fail(At("shape", i) + "more than 2**56 bytes");
        room /= static_cast<uint64_t>(std::max<int64_t>(value, 1));
        elements *= static_cast<uint64_t>(value);
        entry.shape.push_back(value);
      }
      entry.nbytes = NumBytes(entry.dtype, 1) * elements;  // an element narrower than a byte takes one
      if (ids) entry.storage = (*ids)[i].Integer("storage_id");
      if (ids && *entry.storage < 0) Fail(At("storage_id", i) + "a number from 0 is expected");
      const int64_t device = devices ? (*devices)[i].Integer("device_index") : -1;
      if (devices && (device < 1 || device > INT32_MAX)) Fail(At("device_index", i) + "a device type is expected");
      entry.device = static_cast<int32_t>(device);
    }
  }

  // ---- Memory ----

  void FindLifetimes() {
    const auto end = static_cast<int64_t>(nodes_.size());
    for (size_t i = 0; i < count_; ++i) entries_[i].root = static_cast<uint32_t>(i);
    for (int64_t here = 0; here < end; ++here) {
      const Node& node = nodes_[static_cast<size_t>(here)];
      for (uint32_t input : node.inputs) Root(input).last = std::max(Root(input).last, here);
      if (node.op == kNop) entries_[node.first].root = entries_[node.inputs[0]].root;
      else if (node.op == kPlaceholder) entries_[node.first].last = end;
      else
        for (uint32_t k = 0; k < node.outputs; ++k)
          entries_[node.first + k].born = entries_[node.first + k].last = here;
    }
    for (uint32_t head : heads_) Root(head).last = end;
  }

  Entry& Root(uint32_t entry) { return entries_[entries_[entry].root]; }
  bool IsRoot(size_t entry) const { return entries_[entry].root == entry; }
  uint32_t DeviceOf(const Entry& entry) const {
    return static_cast<uint32_t>(std::find(devices_.begin(), devices_.end(), entry.device) - devices_.begin());
  }

  // Returns false where the graph has no ids, or some that would overwrite a value which is needed.
  bool UseStorageIds() {
    std::map<int64_t, uint32_t> numbers;
    std::vector<uint32_t> holders;  // the last entry with each number
    slot_of_.resize(count_);
    std::vector<uint32_t> order(count_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_partition(order.begin(), order.end(), [&](uint32_t i) { return entries_[i].born < 0; });
    for (uint32_t i : order) {  // placeholders come first, since they always hold their value
      const Entry& entry = entries_[i];
      if (!entry.storage || entry.storage != Root(i).storage) return false;
      const auto [found, added] = numbers.emplace(*entry.storage, static_cast<uint32_t>(slots_.size()));
      if (added) {
        holders.push_back(entry.root);
        slots_.push_back({DeviceOf(Root(i)), Root(i).born < 0, *entry.storage});
      }
      slot_of_[i] = found->second;
      Slot& slot = slots_[found->second];
      slot.nbytes = std::max(slot.nbytes, entry.nbytes);
      uint32_t& holder = holders[found->second];
      if (!IsRoot(i) || holder == i) continue;
      const bool free = entries_[holder].device == entry.device && entries_[holder].last < entry.born;
      if (!free) return false;
      holder = i;
    }
    return true;
  }

  // Each entry takes the smallest free slot that holds it, or else enlarges the largest free one.
  void ShareSlots() {
    slots_.clear();
    for (size_t i = 0; i < count_; ++i) {
      Entry& entry = entries_[i];
      if (!IsRoot(i)) {
        slot_of_[i] = slot_of_[entry.root];
        Slot& slot = slots_[slot_of_[i]];
        slot.nbytes = std::max(slot.nbytes, entry.nbytes);
        continue;
      }
      const bool own = entry.born < 0;
      Slot* best = nullptr;
      for (Slot& slot : slots_) {
        if (own || slot.own || slot.until >= entry.born || slot.device != DeviceOf(entry)) continue;
        const bool fits = slot.nbytes >= entry.nbytes, best_fits = best && best->nbytes >= entry.nbytes;
        if (!best || (fits && (!best_fits || slot.nbytes < best->nbytes)) ||
            (!best_fits && slot.nbytes > best->nbytes)) {
          best = &slot;
        }
      }
      if (!best) {
        slots_.push_back({DeviceOf(entry), own, own ? entry.storage.value_or(-1) : -1});
        best = &slots_.back();
      }
      best->nbytes = std::max(best->nbytes, entry.nbytes);
      best->until = entry.last;
      slot_of_[i] = static_cast<uint32_t>(best - slots_.data());
    }
  }

  // ---- Bytes ----

  template <typename T> void Put(T value) { body_ += bytes::BytesOf(value); }
  void PutList(const std::vector<uint32_t>& numbers) {
    Put(static_cast<uint32_t>(numbers.size()));
    for (uint32_t number : numbers) Put(number);
  }
  void PutText(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    body_ += text;
  }

  std::string Encode() {
    std::vector<uint64_t> ends(devices_.size());
    for (Slot& slot : slots_) {
      if (slot.own) continue;
      slot.offset = ends[slot.device];
      ends[slot.device] += Aligned(slot.nbytes);
      if (ends[slot.device] > kMostGraphBytes) Fail("the values of the graph take more than 2**56 bytes");
    }
    Put(static_cast<uint32_t>(devices_.size()));
    for (size_t i = 0; i < devices_.size(); ++i) Put(devices_[i]), Put(ends[i]);
    Put(static_cast<uint32_t>(slots_.size()));
    for (const Slot& slot : slots_) {
      Put(slot.device), Put(static_cast<uint32_t>(slot.own)), Put(slot.storage), Put(slot.offset), Put(slot.nbytes);
    }
    Put(static_cast<uint32_t>(count_));
    for (size_t i = 0; i < count_; ++i) {
      const Entry& entry = entries_[i];
      Put(slot_of_[i]), Put(entry.dtype.code), Put(entry.dtype.bits), Put(entry.dtype.lanes);
      Put(static_cast<uint32_t>(entry.shape.size()));
      for (int64_t extent : entry.shape) Put(extent);
    }
    Put(static_cast<uint32_t>(nodes_.size()));
    for (const Node& node : nodes_) {
      Put(node.op), Put(static_cast<uint32_t>(node.flatten)), PutText(node.name), Put(node.outputs);
      PutList(node.inputs), PutText(node.function);
    }
    PutList(inputs_), PutList(heads_);
    const std::string body = std::exchange(body_, "PCGPLAN");
    Put(uint8_t{0}), Put(uint32_t{1}), Put(Crc32(body)), Put(static_cast<uint64_t>(body.size()));
    return body_ + body;
  }

  static uint32_t Crc32(const std::string& bytes) {  // zlib's
    uint32_t crc = ~0U;
    for (char byte : bytes) {
      crc ^= static_cast<uint8_t>(byte);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    }
    return ~crc;
  }

  const Json& graph_;
  std::vector<Node> nodes_;
  std::vector<Entry> entries_;
  size_t count_ = 0;  // of entries
  std::vector<uint32_t> inputs_, heads_;
  std::vector<int32_t> devices_ = {-1};
  std::vector<Slot> slots_;
  std::vector<uint32_t> slot_of_;
  std::string body_;
};

}  // namespace

std::string PlanOfGraph(std::string_view json) {
  try {
    return GraphPlanner(Json::Parse(json)).Plan();
  } catch (const Error& error) {
    if (error.kind() == "GraphError") throw;
    throw Error("GraphError", "not a graph: " + std::string(error.message()));
  }
}

}  // namespace portcall::session
