// SPDX-License-Identifier: Apache-2.0
#include "graph/plan.h"

#include <functional>

#include "tests/check.h"
#include "tests/graph/plan_writer.h"
#include "tests/helpers.h"

using namespace portcall;
using namespace portcall::graph;

namespace {

// x -> f -> nop -> g(nop, w), with two heads.
PlanWriter Small() {
  PlanWriter plan;
  plan.devices = {{-1, 0}, {kDLExtDev, 0}};
  uint32_t x = plan.Input("x", {2, 3}), w = plan.Input("w", {6}, kFloat32, 0, 7);
  uint32_t f = plan.Call("f", {x}, {2, 3});
  uint32_t flat = plan.Nop(f, {6});
  uint32_t g = plan.Call("g", {flat, w}, {6}, kFloat32, 0, 1);
  plan.heads = {g, plan.Copy(g, 1)};
  return plan;
}

std::string Refused(const std::function<void(PlanWriter*)>& change) {
  PlanWriter plan = Small();
  change(&plan);
  return Thrown([&] { DecodePlan(plan.Encode()); });
}

#define REFUSED(change, why) \
  CHECK_EQ(Refused([]([[maybe_unused]] PlanWriter* p) { change; }), std::string("GraphError: plan: ") + (why))

}  // namespace

TEST("a plan is decoded as it was written") {
  Plan plan = DecodePlan(Small().Encode());
  CHECK_EQ(plan.devices.size(), 2);
  CHECK_EQ(plan.devices[0].type, -1);
  CHECK_EQ(plan.devices[0].arena_bytes, 128);
  CHECK_EQ(plan.slots.size(), 5);
  CHECK(plan.slots[1].own_memory);
  CHECK_EQ(plan.slots[1].storage_id, 7);
  CHECK_EQ(plan.slots[3].offset, 64);
  CHECK_EQ(plan.slots[4].device, 1);
  CHECK_EQ(plan.entries.size(), 6);
  CHECK_EQ(plan.entries[3].shape, std::vector<int64_t>{6});
  CHECK_EQ(plan.entries[3].slot, plan.entries[2].slot);
  CHECK_EQ(plan.entries[3].bytes, 24);
  CHECK_EQ(plan.nodes.size(), 6);
  CHECK(plan.nodes[4].op == Op::kCall);
  CHECK(plan.nodes[4].flatten);
  CHECK_EQ(plan.nodes[4].function, "g");
  CHECK_EQ(plan.nodes[4].inputs, (std::vector<uint32_t>{3, 1}));
  CHECK_EQ(plan.nodes[4].first_output, 4);
  CHECK_EQ(plan.inputs, (std::vector<uint32_t>{0, 1}));
  CHECK_EQ(plan.heads, (std::vector<uint32_t>{4, 5}));
}

TEST("a plan of nothing but a device is one") {
  PlanWriter empty;
  CHECK_EQ(DecodePlan(empty.Encode()).nodes.size(), 0);
}

TEST("the header of a plan is checked") {
  REFUSED(p->magic = 1, "header: these bytes are not a plan: they do not begin with PCGPLAN");
  REFUSED(p->version = 9, "header: it has version 9, this runtime reads version 1; plan the graph again");
  CHECK_EQ(Thrown([] { DecodePlan("short"); }), "GraphError: plan: header: a plan has at least 24 bytes, got 5");
  std::string bytes = Small().Encode();
  for (size_t i = 24; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= 0x10;
    CHECK(Contains(Thrown([&] { DecodePlan(damaged); }), "the checksum is wrong"));
  }
  std::string more = bytes + "x";
  size_t n = bytes.size() - 24;
  CHECK_EQ(Thrown([&] { DecodePlan(more); }), "GraphError: plan: header: it says that " + std::to_string(n) +
                                                  " bytes follow, and " + std::to_string(n + 1) + " do");
}

TEST("a plan that ends anywhere is refused, whatever its header says") {
  std::string body = Small().Body();
  for (size_t n = 0; n < body.size(); ++n) {
    std::string bytes = PlanWriter::Wrap(body.substr(0, n));
    CHECK(Contains(Thrown([&] { DecodePlan(bytes); }), "GraphError: plan: "));
  }
}

TEST("what follows the heads of a plan is refused") { REFUSED(p->tail = "abc", "end: 3 bytes follow the heads"); }

TEST("devices of a plan are checked") {
  REFUSED(p->devices.clear(), "devices: there must be at least one");
  REFUSED(p->devices[0].type = 1, "device 0: type 1; the first has type -1");
  REFUSED(p->devices[1].type = -1, "device 1: type -1 is not a device type");
  REFUSED(p->devices[1].type = 0, "device 1: type 0 is not a device type");
  REFUSED(p->devices[1].arena = UINT64_MAX, "device 1: an arena of 18446744073709551615 bytes");
}

TEST("slots of a plan are checked") {
  REFUSED(p->slots[2].device = 2, "slot 2: device 2, but there are 2");
  REFUSED(p->slots[2].kind = 2, "slot 2: kind 2 is neither 0 nor 1");
  REFUSED(p->slots[2].storage_id = -2, "slot 2: storage id -2");
  REFUSED(p->slots[3].offset = 63, "slot 3: offset 63 is not a multiple of 64");
  REFUSED(p->slots[3].offset = 96, "slot 3: offset 96 is not a multiple of 64");
  REFUSED(p->slots[3].offset = 128, "slot 3: 24 bytes at 128 go past the end of the arena of 128");
  REFUSED(p->slots[3].offset = UINT64_MAX - 63,
          "slot 3: 24 bytes at 18446744073709551552 go past the end of the arena of 128");
  REFUSED(p->slots[3].bytes = UINT64_MAX,
          "slot 3: 18446744073709551615 bytes at 64 go past the end of the arena of 128");
  REFUSED(p->slots[0].offset = 64, "slot 0: memory of its own has no offset");
  REFUSED(p->slots[0].bytes = UINT64_MAX, "slot 0: 18446744073709551615 bytes");
}

TEST("entries of a plan are checked") {
  REFUSED(p->entries[0].slot = 5, "entry 0: slot 5, but there are 5");
  REFUSED(p->entries[0].dtype.bits = 0, "entry 0: a data type of 0 bits and 1 lanes");
  REFUSED(p->entries[0].dtype.lanes = 0, "entry 0: a data type of 32 bits and 0 lanes");
  REFUSED(p->entries[0].shape = {-1}, "entry 0: extent -1 is negative");
  REFUSED(p->entries[0].shape = {7}, "entry 0: its 28 bytes do not fit slot 0 of 24");
  REFUSED(p->entries[0].shape.assign(65, 1), "entry 0: 65 dimensions; at most 64 are possible");
  REFUSED((p->entries[0].shape = {int64_t{1} << 40, int64_t{1} << 40}),
          "entry 0: it is too large: an extent is 1099511627776");
  REFUSED((p->entries[0].shape = {0, INT64_MAX, INT64_MAX}),
          "entry 0: it is too large: an extent is 9223372036854775807");
}

TEST("elements that are vectors take all their lanes") {
  PlanWriter plan;
  plan.Input("x", {2}, {kDLFloat, 32, 4});
  CHECK_EQ(DecodePlan(plan.Encode()).entries[0].bytes, 32);
  plan.slots[0].bytes = 31;
  CHECK(Contains(Thrown([&] { DecodePlan(plan.Encode()); }), "its 32 bytes do not fit slot 0 of 31"));
}

TEST("elements that are narrower than a byte take a byte each") {
  PlanWriter plan;
  plan.Input("x", {9}, {kDLUInt, 1, 1});
  CHECK_EQ(DecodePlan(plan.Encode()).entries[0].bytes, 9);
  plan.slots[0].bytes = 8;
  CHECK(Contains(Thrown([&] { DecodePlan(plan.Encode()); }), "its 9 bytes do not fit slot 0 of 8"));
}

TEST("nodes of a plan are checked") {
  REFUSED(p->nodes[2].op = 4, "node 2: op 4 is unknown");
  REFUSED(p->nodes[2].flags = 2, "node 2: flags 2 are unknown");
  REFUSED(p->nodes[2].name = "\xff", "node 2: its name is not UTF-8");
  REFUSED(p->nodes[2].function = "\xc0\x80", "node 2: its function is not UTF-8");
  REFUSED(p->nodes[2].outputs = 5, "node 2: 5 outputs from entry 2 on, but there are 6 entries");
  REFUSED(p->nodes[2].outputs = UINT32_MAX, "node 2: 4294967295 outputs from entry 2 on, but there are 6 entries");
  REFUSED(p->nodes[5].outputs = 0, "node 5 ('copy5'): it has 1 inputs and 0 outputs, it must have one of each");
  REFUSED(p->nodes.pop_back(), "nodes: they have 5 outputs, but there are 6 entries");
  REFUSED(p->nodes[2].inputs = {2}, "node 2: input 2 is not an entry of an earlier node");
  REFUSED(p->nodes[2].function = "", "node 2 ('n2'): a call needs the name of a function");
  REFUSED(p->nodes[3].function = "f", "node 3 ('nop3'): only calls name a function");
}

TEST("placeholders have memory that nobody else writes") {
  REFUSED(p->nodes[1].inputs = {0}, "node 1 ('w'): a placeholder has one output and no inputs");
  REFUSED(p->entries[1].slot = 2, "node 1 ('w'): a placeholder needs a slot of kind 1, memory of its own");
  REFUSED(p->entries[1].slot = 0, "node 1 ('w'): slot 0 belongs to another placeholder");
  REFUSED(p->entries[2].slot = 0, "node 2 ('n2'): it writes into slot 0, which is of kind 1: for a placeholder alone");
  REFUSED(p->entries[5].slot = 1,
          "node 5 ('copy5'): it writes into slot 1, which is of kind 1: for a placeholder alone");
}

TEST("__nop and __copy have one input and one output of its size") {
  REFUSED(p->entries[3].slot = 3, "node 3 ('nop3'): the output of __nop must lie in the slot of its input");
  REFUSED(p->entries[3].shape = {5}, "node 3 ('nop3'): its input has 24 bytes and its output 20");
  REFUSED((p->nodes[3].inputs = {2, 2}), "node 3 ('nop3'): it has 2 inputs and 1 outputs, it must have one of each");
  REFUSED(p->entries[5].shape = {5}, "node 5 ('copy5'): its input has 24 bytes and its output 20");
  PlanWriter plan;  // a byte each, but packed they differ
  uint32_t x = plan.Input("x", {8}, {kDLUInt, 1, 1});
  plan.Nop(x, {8});
  plan.entries[1].dtype = {kDLUInt, 8, 1};
  CHECK(Contains(Thrown([&] { DecodePlan(plan.Encode()); }), "its input has 8 bytes and its output 8"));
}

TEST("the lists of inputs and outputs of a plan are checked") {
  REFUSED(p->inputs[0] = 6, "input 0: node 6, but there are 6");
  REFUSED(p->inputs[0] = 2, "input 0: node 2 ('n2') is not a placeholder");
  REFUSED(p->inputs[1] = 0, "input 1: node 0 ('x') is listed twice");
  REFUSED(p->inputs.pop_back(), "inputs: the placeholder node 1 ('w') is not listed");
  REFUSED(p->nodes[1].name = "x", "input 1: another input is called 'x' too");
  REFUSED(p->heads[1] = 6, "head 1: entry 6, but there are 6");
}

TEST("counts that the bytes cannot hold allocate nothing") {
  std::string body = Small().Body();
  for (size_t at : {0, 28}) {  // devices, slots
    std::string damaged = body;
    damaged.replace(at, 4, "\xff\xff\xff\x7f");
    CHECK(Contains(Thrown([&] { DecodePlan(PlanWriter::Wrap(damaged)); }), "it counts 2147483647, more than the "));
  }
}

TEST("names of a plan are UTF-8") {
  auto name = [](const std::string& text) {
    PlanWriter plan;
    plan.Input(text, {1});
    return Thrown([&] { DecodePlan(plan.Encode()); });
  };
  for (const char* good : {"", "a", "é", "€", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xef\xbf\xbf"})
    CHECK_EQ(name(good), "");
  for (const char* bad : {"\x80", "\xc3", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xe2\x82x"}) {
    CHECK(Contains(name(bad), "its name is not UTF-8"));
  }
}
