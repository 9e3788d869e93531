// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <string>

#include "graph/bundle.h"
#include "tests/check.h"
#include "tests/fake_device.h"
#include "tests/helpers.h"

using namespace portcall;
using namespace portcall::graph;

namespace {

Tensor Counting(const std::vector<int64_t>& shape, DLDataType dtype) {
  Tensor tensor = Tensor::Empty(shape, dtype);
  size_t nbytes = NumBytes(*tensor.dl_tensor());
  for (size_t i = 0; i < nbytes; ++i) static_cast<uint8_t*>(tensor.raw_data())[i] = static_cast<uint8_t>(i + 1);
  return tensor;
}

std::string Write(const std::vector<std::pair<const char*, Tensor>>& tensors) {
  std::vector<Any> cells;
  for (const auto& [name, tensor] : tensors) {
    cells.emplace_back(name);
    cells.emplace_back(tensor);
  }
  return WriteParams(MakeTensors(cells));
}

// One tensor "ab" of int16[2, 3].
std::string Blob() { return Write({{"ab", Counting({2, 3}, {kDLInt, 16, 1})}}); }

// Where things are in that blob.
constexpr size_t kNames = 16, kLength = 24, kCount = 34, kMark = 42, kDevice = 58, kAxes = 66, kCode = 70, kBits = 71,
                 kLanes = 72, kExtent = 74, kSize = 90, kData = 98;

template <typename T> std::string With(size_t at, T value) {
  std::string blob = Blob();
  std::memcpy(blob.data() + at, &value, sizeof(T));
  return blob;
}

std::string ErrorOf(const std::string& blob) {
  return Thrown([&] { ReadParams(blob); });
}

}  // namespace

TEST("parameters that were written are read") {
  std::string blob = Write({{"w", Counting({2, 3}, {kDLFloat, 32, 1})},
                            {"", Counting({}, {kDLInt, 64, 1})},
                            {"empty", Counting({0, 4}, {kDLBfloat, 16, 1})},
                            {"packed", Counting({3}, {kDLInt, 4, 1})}});
  std::vector<Param> params = ReadParams(blob);
  CHECK_EQ(params.size(), 4);
  CHECK_EQ(params[0].name, "w");
  CHECK(params[0].shape == std::vector<int64_t>({2, 3}));
  CHECK(params[0].dtype == DLDataType({kDLFloat, 32, 1}));
  CHECK_EQ(params[0].data.size(), 24);
  CHECK(params[0].data.data() > blob.data() && params[0].data.data() < blob.data() + blob.size());
  CHECK_EQ(params[1].name, "");
  CHECK_EQ(params[1].data.size(), 8);
  CHECK_EQ(params[2].data.size(), 0);
  CHECK_EQ(params[3].data, std::string_view("\1\2"));
  Tensor copy = params[0].Copy();
  CHECK_EQ(reinterpret_cast<uintptr_t>(copy.raw_data()) % kTensorAlignment, 0);
  CHECK(std::memcmp(copy.raw_data(), params[0].data.data(), 24) == 0);
  CHECK_EQ(params[2].Copy().numel(), 0);
  CHECK(ReadParams(Write({})).empty());
}

TEST("parameters on a device are written from there") {
  Tensor host = Counting({4}, {kDLInt, 32, 1});
  Tensor there = Tensor::Empty({4}, {kDLInt, 32, 1}, FakeDevice::Of(kDLExtDev).device());
  there.CopyFrom(host);
  CHECK(Write({{"w", there}}) == Write({{"w", host}}));
}

TEST("elements are written from where they are, and in their order") {
  Tensor base = Counting({8}, {kDLUInt, 8, 1});
  DLTensor every_second = *base.dl_tensor();
  int64_t extent = 3, stride = 2;
  every_second.byte_offset += 1;
  every_second.shape = &extent;
  TVMFFIObjectHandle handle = nullptr;
  for (int64_t* strides : {static_cast<int64_t*>(nullptr), &stride}) {
    every_second.strides = strides;
    Check(TVMFFITensorCreateUnsafeView(base.get(), &every_second, &handle));
    std::string blob = Write({{"w", ObjectRef::Steal<Tensor>(handle)}});
    CHECK_EQ(blob.substr(blob.size() - 3), strides ? "\2\4\6" : "\2\3\4");
  }
}

TEST("the one-bit integers of old blobs are read as bool") {
  std::string blob = Write({{"mask", Counting({3}, {kDLBool, 8, 1})}});
  size_t code = blob.size() - 3 - 8 - 8 - 4;
  blob[code] = kDLUInt;
  blob[code + 1] = 1;
  std::vector<Param> params = ReadParams(blob);
  CHECK(params[0].dtype == DLDataType({kDLBool, 8, 1}));
  CHECK_EQ(params[0].data, std::string_view("\1\2\3"));
}

TEST("a damaged blob is an error that says where") {
  CHECK_EQ(Blob().size(), kData + 12);
  CHECK(Contains(ErrorOf(With<uint64_t>(0, 1)), "GraphError: these bytes are not parameters"));
  CHECK(Contains(ErrorOf(""), "at byte 0: the mark of a blob takes 8 bytes, and 0 are left"));
  CHECK(Contains(ErrorOf(With<uint64_t>(kNames, uint64_t{1} << 61)), "at byte 16: the number of names is 23058430"));
  CHECK(Contains(ErrorOf(With<uint64_t>(kLength, ~uint64_t{0})), "at byte 32: a name takes 18446744073709551615"));
  CHECK(Contains(ErrorOf(With<uint64_t>(kCount, 0)), "1 names and 0 tensors"));
  CHECK(Contains(ErrorOf(With<uint64_t>(kCount, 99)), "the number of tensors is 99"));
  CHECK(Contains(ErrorOf(With<uint64_t>(kMark, 7)), "no tensor begins"));
  CHECK(Contains(ErrorOf(With<int32_t>(kDevice, 2)), "a device of type 2"));
  CHECK(Contains(ErrorOf(With<int32_t>(kAxes, -1)), "-1 axes"));
  CHECK(Contains(ErrorOf(With<int32_t>(kAxes, 65)), "65 axes"));
  CHECK(Contains(ErrorOf(With<uint8_t>(kCode, kDLOpaqueHandle)), "code 3"));
  CHECK(Contains(ErrorOf(With<uint8_t>(kCode, 99)), "code 99"));
  CHECK(Contains(ErrorOf(With<uint8_t>(kBits, 0)), "0 bits"));
  CHECK(Contains(ErrorOf(With<uint16_t>(kLanes, 4)), "vectors of 4"));
  CHECK(Contains(ErrorOf(With<uint16_t>(kLanes, 0)), "vectors of 0"));
  CHECK(Contains(ErrorOf(With<int64_t>(kExtent, -2)), "extent -2 of axis 0"));
  CHECK(Contains(ErrorOf(With<int64_t>(kExtent, INT64_MAX)), "of axis 0"));
  int64_t overflowing[] = {int64_t{1} << 32, int64_t{1} << 32, 0};  // 2 to the 64 elements overflow to none
  std::string endless = Blob();
  std::memcpy(endless.data() + kExtent, overflowing, sizeof overflowing);
  CHECK(Contains(ErrorOf(endless), "extent 4294967296 of axis 1"));
  CHECK(Contains(ErrorOf(With<int64_t>(kExtent, 3)), "'ab' is said to have 12 bytes; its shape and type have 18"));
  CHECK(Contains(ErrorOf(With<int64_t>(kSize, -1)), "is said to have 18446744073709551615 bytes"));
  CHECK(Contains(ErrorOf(Blob() + "x"), "1 bytes follow the end"));
  for (size_t size = 0; size < Blob().size(); ++size) CHECK(Contains(ErrorOf(Blob().substr(0, size)), "GraphError"));
  std::string twice = Write({{"v", Counting({}, {kDLInt, 8, 1})}, {"w", Counting({}, {kDLInt, 8, 1})}});
  twice[32] = 'w';
  CHECK(Contains(ErrorOf(twice), "two tensors have the name 'w'"));
}

TEST("vectors cannot be written as parameters") {
  Tensor tensor = Tensor::Empty({2}, {kDLFloat, 32, 4});
  CHECK(Contains(Thrown([&] { Write({{"w", tensor}}); }), "GraphError: 'w' has elements of type float32x4"));
}

// ---- Bundles --------------------------------------------------------------------------------------------------------

namespace {

template <typename T> std::string Raw(T value) { return {reinterpret_cast<const char*>(&value), sizeof(T)}; }
std::string Text(std::string_view text) { return Raw<uint64_t>(text.size()).append(text); }

constexpr size_t kDataBytes = 128;  // of the file, before its index

// A bundle up to its footer: one parameter "w" of float32[2, 3] at `offset`.
struct Bundle {
  uint32_t version = 1;
  uint64_t params = 1;
  uint64_t offset = 64;
  std::string behind;

  std::string Index() const {
    std::string description = Raw<int32_t>(2) + Raw(DLDataType{kDLFloat, 32, 1}) + Raw<int64_t>(2) + Raw<int64_t>(3);
    return Raw(version) + Text("default") + Text("{}") + Text("plan") + Raw(params) + Text("w") + description +
           Raw(offset) + behind;
  }
};

template <typename Change> std::string ErrorAfter(Change&& change) {
  Bundle bundle;
  change(&bundle);
  std::string index = bundle.Index(), file = std::string(kDataBytes, 'd') + index;
  return Thrown([&] { ReadBundleIndex(file, index.size()); });
}

}  // namespace

TEST("the index of a bundle is read, and its parameters are where it says") {
  std::string index = Bundle().Index(), file = std::string(kDataBytes, 'd') + index;
  BundleIndex read = ReadBundleIndex(file, index.size());
  CHECK_EQ(read.name, "default");
  CHECK_EQ(read.json, "{}");
  CHECK_EQ(read.plan, "plan");
  CHECK_EQ(read.params.size(), 1);
  CHECK_EQ(read.params[0].name, "w");
  CHECK(read.params[0].shape == std::vector<int64_t>({2, 3}));
  CHECK_EQ(read.params[0].data.data() - file.data(), 64);
  CHECK_EQ(read.params[0].data.size(), 24);
}

TEST("a damaged index of a bundle is an error that says where") {
  CHECK_EQ(ErrorAfter([](Bundle*) {}), "");
  CHECK(Contains(ErrorAfter([](Bundle* b) { b->version = 2; }),
                 "GraphError: the bundle has version 2, this runtime kno"));
  CHECK(
      Contains(ErrorAfter([](Bundle* b) { b->params = uint64_t{1} << 60; }), "number of parameters is 1152921504606"));
  CHECK(Contains(ErrorAfter([](Bundle* b) { b->params = 2; }), "the number of parameters is 2"));
  CHECK(Contains(ErrorAfter([](Bundle* b) { b->offset = 128; }), "a parameter lies outside of the file"));
  CHECK(Contains(ErrorAfter([](Bundle* b) { b->offset = ~uint64_t{0}; }), "a parameter lies outside of the file"));
  for (uint64_t off : {8, 32}) {
    CHECK(Contains(ErrorAfter([off](Bundle* b) { b->offset = off; }), "a parameter is not aligned"));
  }
  CHECK(Contains(ErrorAfter([](Bundle* b) { b->behind = "x"; }), "1 bytes follow the end"));
  std::string index = Bundle().Index();
  for (size_t size = 0; size < index.size(); ++size) {
    std::string part = index.substr(0, size);
    CHECK(Contains(Thrown([&] { ReadBundleIndex(part, size); }), "GraphError"));
  }
}
