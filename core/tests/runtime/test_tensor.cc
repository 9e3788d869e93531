// SPDX-License-Identifier: Apache-2.0
// Tensors: memory, views, DLPack in both protocols and both directions, copies between hosts, strides and devices.
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/fake_device.h"
#include "tests/helpers.h"

using namespace portcall;

namespace {

constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt32{kDLInt, 32, 1};

// A description over memory of the test's own.
struct Strided {
  std::vector<int64_t> shape, strides;
  DLTensor dl{};

  Strided(void* data, std::vector<int64_t> extents, std::vector<int64_t> steps, DLDataType dtype = kInt32,
          uint64_t byte_offset = 0)
      : shape(std::move(extents)), strides(std::move(steps)) {
    dl.data = data;
    dl.device = Cpu();
    dl.ndim = static_cast<int32_t>(shape.size());
    dl.dtype = dtype;
    dl.shape = shape.data();
    dl.strides = strides.empty() ? nullptr : strides.data();
    dl.byte_offset = byte_offset;
  }
  Strided(const Strided&) = delete;
  Strided& operator=(const Strided&) = delete;
};

std::string AllocError(const std::vector<int64_t>& shape, DLDataType dtype = kFloat32) {
  return Thrown([&] { Tensor::Empty(shape, dtype); });
}

Tensor Numbers(std::vector<int64_t> shape, Device device = Cpu()) {
  Tensor host = Tensor::Empty(shape, kInt32);
  auto* data = host.data<int32_t>();
  std::iota(data, data + host.numel(), 0);
  if (device == Cpu()) return host;
  Tensor there = Tensor::Empty(shape, kInt32, device);
  there.CopyFrom(host);
  return there;
}

std::vector<int32_t> Read(const Tensor& tensor) {
  std::vector<int64_t> shape(tensor.dl_tensor()->shape, tensor.dl_tensor()->shape + tensor.ndim());
  Tensor host = Tensor::Empty(shape, kInt32);
  host.CopyFrom(tensor);
  return {host.data<int32_t>(), host.data<int32_t>() + host.numel()};
}

}  // namespace

// ---- Memory -------------------------------------------------------------------------------------------------------

TEST("new memory is aligned, compact and on the host") {
  for (size_t n : {1, 3, 1000, 100000}) {
    Tensor tensor = Tensor::Empty({static_cast<int64_t>(n)}, kFloat32);
    CHECK_EQ(reinterpret_cast<uintptr_t>(tensor.raw_data()) % 64, 0);
    CHECK(tensor.is_contiguous() && tensor.device() == Cpu() && tensor.dtype() == kFloat32);
    std::memset(tensor.data<float>(), 1, n * 4);
  }
}

TEST("the strides of new memory are those of a compact tensor") {
  Tensor tensor = Tensor::Empty({2, 3, 4}, kFloat32);
  CHECK_EQ(tensor.ndim(), 3);
  CHECK_EQ(tensor.numel(), 24);
  CHECK(std::vector<int64_t>(tensor.dl_tensor()->strides, tensor.dl_tensor()->strides + 3) ==
        (std::vector<int64_t>{12, 4, 1}));
  CHECK_EQ(tensor.shape(1), 3);
  CHECK_EQ(Thrown([&] { tensor.shape(3); }), "IndexError: axis 3 of a tensor with 3 dimensions");
  CHECK_EQ(Thrown([&] { tensor.shape(-1); }), "IndexError: axis -1 of a tensor with 3 dimensions");
}

TEST("a tensor without dimensions has one element, and one without elements has memory all the same") {
  Tensor scalar = Tensor::Empty({}, kInt32);
  CHECK_EQ(scalar.numel(), 1);
  *scalar.data<int32_t>() = 5;
  CHECK(Read(scalar) == std::vector<int32_t>{5});
  Tensor empty = Tensor::Empty({3, 0, 2}, kInt32);
  CHECK_EQ(empty.numel(), 0);
  CHECK(empty.raw_data() != nullptr);
  CHECK(Read(empty).empty());
}

TEST("elements below a byte are packed") {
  CHECK_EQ(NumBytes(DLDataType{kDLInt, 4, 1}, 3), 2);
  CHECK_EQ(NumBytes(DLDataType{kDLUInt, 1, 1}, 9), 2);
  CHECK_EQ(NumBytes(DLDataType{kDLFloat4_e2m1fn, 4, 2}, 3), 3);
  CHECK_EQ(NumBytes(DLDataType{kDLFloat6_e2m3fn, 6, 1}, 4), 3);
  CHECK_EQ(NumBytes(kFloat32, 0), 0);
}

// As many elements as half of the address bits count, and more than there is memory for.
constexpr int64_t kHalf = int64_t{1} << (4 * sizeof(size_t));
constexpr int64_t kHuge = int64_t{1} << (sizeof(size_t) == 8 ? 55 : 28);

TEST("impossible shapes and data types are refused, not computed with") {
  CHECK_EQ(AllocError({2, -1}), "ValueError: extent -1 of axis 1 is negative");
  CHECK(Contains(AllocError({int64_t{1} << 62}), "ValueError: the tensor is too large (axis 0"));
  CHECK(Contains(AllocError({kHalf, kHalf}), "too large (axis 1"));
  CHECK(Contains(AllocError({INT64_MAX, INT64_MAX, INT64_MAX}), "too large"));
  CHECK(Contains(AllocError({int64_t{1} << 50}, {kDLFloat, 64, 32767}), "too large"));
  CHECK(Contains(AllocError({2}, {kDLInt, 32, static_cast<uint16_t>(-4)}), "int32xvscalex4"));
  CHECK(Contains(AllocError({1}, {kDLFloat, 0, 1}), "ValueError: a tensor of data type"));
  CHECK(Contains(AllocError({1}, {kDLFloat, 32, 0}), "ValueError: a tensor of data type"));
  CHECK(Contains(AllocError(std::vector<int64_t>(1025, 1)), "1025 dimensions"));
  DLTensor prototype{};
  prototype.device = Cpu();
  prototype.dtype = kFloat32;
  TVMFFIObjectHandle handle = nullptr;
  prototype.ndim = 2;  // and no shape
  CHECK_EQ(PortcallTensorAlloc(&prototype, &handle), -1);
  CHECK(Contains(Raised(), "2 dimensions without a shape"));
  prototype.ndim = -1;
  CHECK_EQ(PortcallTensorAlloc(&prototype, &handle), -1);
  CHECK(Contains(Raised(), "-1 dimensions"));
}

TEST("memory that is not there is an error") {
  std::vector<Tensor> kept;  // with 32 bits there is room for the first ones
  std::string error;
  while (error.empty()) error = Thrown([&] { kept.push_back(Tensor::Empty({kHuge}, kFloat32)); });
  CHECK(Contains(error, "MemoryError: out of memory"));
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  fake.set_capacity(1000);
  size_t before = fake.blocks();
  CHECK_EQ(Thrown([&] { Tensor::Empty({1000}, kFloat32, fake.device()); }), "MemoryError: the fake device is full");
  CHECK_EQ(fake.blocks(), before);
  fake.set_capacity(SIZE_MAX);
  CHECK_EQ(Thrown([] { Tensor::Empty({1}, kFloat32, Cpu(1)); }), "DeviceError: there is one host, cpu:0; got cpu:1");
}

TEST("an empty tensor may have other extents as long as they could be those of a tensor") {
  int64_t big = kHuge;
  for (const auto& shape : {std::vector<int64_t>{0, big}, {big, 0}, {3, 0, 5}}) {
    Tensor tensor = Tensor::Empty(shape, kFloat32);
    CHECK_EQ(tensor.numel(), 0);
    CHECK(tensor.is_contiguous());
    tensor.CopyFrom(tensor);
  }
  CHECK(Contains(AllocError({0, big, big}), "too large"));
}

TEST("a tensor and a view tell shape, strides in elements, and bytes") {
  std::vector<int32_t> data(12);
  Strided compact(data.data(), {2, 3}, {}), columns(data.data(), {3, 2}, {1, 3}), scalar(data.data(), {}, {});
  auto is = [](const Strided& of, std::vector<int64_t> shape, std::vector<int64_t> strides, size_t nbytes) {
    TensorView view(const_cast<DLTensor*>(&of.dl));
    return view.shape() == shape && view.strides() == strides && view.nbytes() == nbytes;
  };
  CHECK(is(compact, {2, 3}, {3, 1}, 24));
  CHECK(is(columns, {3, 2}, {1, 3}, 24));
  CHECK(is(scalar, {}, {}, 4));
  Tensor tensor = Tensor::Empty({4, 5}, kFloat32);
  CHECK(tensor.shape() == (std::vector<int64_t>{4, 5}) && tensor.strides() == (std::vector<int64_t>{5, 1}));
  CHECK(Tensor::Empty(tensor.shape(), tensor.dtype()).nbytes() == 80);
  CHECK_EQ(Thrown([] { Tensor().strides(); }), "ValueError: the tensor is None");
}

TEST("memory goes back to its device with the last reference") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  size_t before = fake.blocks();
  {
    Tensor tensor = Tensor::Empty({10}, kFloat32, fake.device(1));
    Any copy = tensor;
    CHECK_EQ(fake.blocks(), before + 1);
    CHECK(tensor.device() == fake.device(1));
  }
  CHECK_EQ(fake.blocks(), before);
}

TEST("a null tensor is an error wherever it is used") {
  Tensor none;
  CHECK_EQ(Thrown([&] { none.numel(); }), "ValueError: the tensor is None");
  CHECK_EQ(Thrown([&] { none.CopyFrom(none); }), "ValueError: the tensor is None");
  DLManagedTensor* managed = nullptr;
  DLManagedTensorVersioned* versioned = nullptr;
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(TVMFFITensorToDLPack(nullptr, &managed), -1);
  CHECK_EQ(Raised(), "ValueError: the tensor is None");
  CHECK_EQ(TVMFFITensorToDLPackVersioned(nullptr, &versioned), -1);
  CHECK_EQ(Raised(), "ValueError: the tensor is None");
  CHECK_EQ(TVMFFITensorFromDLPack(nullptr, 0, 0, &handle), -1);
  CHECK(Contains(Raised(), "ValueError"));
  CHECK_EQ(TVMFFITensorFromDLPackVersioned(nullptr, 0, 0, &handle), -1);
  CHECK(Contains(Raised(), "ValueError"));
  CHECK_EQ(PortcallTensorGetFlags(nullptr), 0);
}

TEST("elements are reached only by their own type, on the host, without strides") {
  Tensor tensor = Tensor::Empty({4}, kFloat32);
  CHECK_EQ(Thrown([&] { tensor.data<int32_t>(); }), "TypeError: expected a tensor of int32, got float32");
  CHECK_EQ(Thrown([&] { tensor.data<double>(); }), "TypeError: expected a tensor of float64, got float32");
  Tensor there = Tensor::Empty({4}, kFloat32, FakeDevice::Of(kDLExtDev).device());
  CHECK_EQ(Thrown([&] { there.data<float>(); }),
           "ValueError: expected a tensor in the host's memory, got one on ext_dev:0");
  Strided columns(tensor.raw_data(), {2}, {2}, kFloat32);
  CHECK_EQ(Thrown([&] { TensorView(&columns.dl).data<float>(); }),
           "ValueError: expected a compact tensor, got strides");
  CHECK(DataTypeOf<bool>() == (DLDataType{kDLBool, 8, 1}) && DataTypeOf<uint16_t>() == (DLDataType{kDLUInt, 16, 1}));
}

TEST("a view reads a tensor object and a borrowed description alike") {
  PackedFunc sum = PackedFunc(detail::Unpack([](TensorView t) {
    int64_t total = 0;
    for (size_t i = 0; i < t.numel(); ++i) total += t.data<int32_t>()[i];
    return total;
  }));
  Tensor tensor = Numbers({2, 3});
  CHECK_EQ(sum(tensor).cast<int>(), 15);
  DLTensor borrowed = *tensor.dl_tensor();
  CHECK_EQ(sum(&borrowed).cast<int>(), 15);
  borrowed.byte_offset = 4;
  borrowed.shape = tensor.dl_tensor()->shape + 1;
  borrowed.strides = nullptr;
  borrowed.ndim = 1;
  CHECK_EQ(sum(&borrowed).cast<int>(), 6);
  CHECK_EQ(Thrown([&] { sum(nullptr); }), "TypeError: argument #0: expected Tensor, got None");
  PackedFunc keeps = PackedFunc(detail::Unpack([](Tensor) {}));
  CHECK(Contains(Thrown([&] { keeps(&borrowed); }), "expected Tensor, got DLTensor*"));
}

TEST("compactness is a matter of the extents that count") {
  int32_t data[24] = {};
  CHECK(IsContiguous(Strided(data, {2, 3}, {}).dl));
  CHECK(IsContiguous(Strided(data, {2, 3}, {3, 1}).dl));
  CHECK(IsContiguous(Strided(data, {1, 3}, {99, 1}).dl));
  CHECK(IsContiguous(Strided(data, {3, 1}, {1, 99}).dl));
  CHECK(IsContiguous(Strided(data, {0, 3}, {7, 7}).dl));
  CHECK(IsContiguous(Strided(data, {}, {}).dl));
  CHECK(!IsContiguous(Strided(data, {2, 3}, {1, 2}).dl));
  CHECK(!IsContiguous(Strided(data, {2, 3}, {6, 2}).dl));
  CHECK(!IsContiguous(Strided(data, {3}, {0}).dl));
  CHECK(!IsContiguous(Strided(data, {3}, {-1}).dl));
}

// ---- Memory of others ---------------------------------------------------------------------------------------------

TEST("a tensor over somebody's memory releases its owner once") {
  static int released;
  released = 0;
  int32_t data[6] = {0, 1, 2, 3, 4, 5};
  Strided description(data, {2, 3}, {});
  TVMFFIObjectHandle handle = nullptr;
  auto release = [](void* owner) { ++*static_cast<int*>(owner); };
  CHECK_EQ(PortcallTensorFromMemory(&description.dl, DLPACK_FLAG_BITMASK_READ_ONLY, &released, release, &handle), 0);
  description.shape[0] = 77;  // copied
  {
    Tensor tensor = ObjectRef::Steal<Tensor>(handle);
    CHECK_EQ(PortcallTensorGetFlags(tensor.get()), DLPACK_FLAG_BITMASK_READ_ONLY);
    CHECK(tensor.raw_data() == data && tensor.shape(0) == 2);
    CHECK_EQ(tensor.dl_tensor()->strides[0], 3);
    Tensor copy = tensor;
    CHECK_EQ(released, 0);
  }
  CHECK_EQ(released, 1);
  description.shape[0] = -1;
  CHECK_EQ(PortcallTensorFromMemory(&description.dl, 0, &released, release, &handle), -1);
  CHECK(Contains(Raised(), "negative"));
  CHECK_EQ(released, 1);  // a failed call takes nothing over
}

TEST("a tensor takes over the memory of a vector, without a copy") {
  std::vector<int32_t> numbers{0, 1, 2, 3, 4, 5};
  const int32_t* address = numbers.data();
  int released = 0;
  auto shared = std::make_shared<std::vector<int32_t>>(std::move(numbers));
  {
    Tensor tensor = Tensor::FromMemory(shared->data(), {2, 3}, kInt32, [shared, &released] { ++released; });
    CHECK(tensor.raw_data() == address && shared.use_count() == 2);
    Tensor copy = tensor;
    CHECK(Read(copy) == *shared);
    CHECK_EQ(released, 0);
  }
  CHECK(released == 1 && shared.use_count() == 1);
  // One that is refused runs nothing, and keeps nothing.
  CHECK(Contains(Thrown([&] { Tensor::FromMemory(nullptr, {-1}, kInt32, [shared, &released] { ++released; }); }),
                 "ValueError"));
  CHECK(released == 1 && shared.use_count() == 1);
}

TEST("read-only memory is read and not written") {
  int32_t data[2] = {1, 2};
  Strided description(data, {2}, {});
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(PortcallTensorFromMemory(&description.dl, DLPACK_FLAG_BITMASK_READ_ONLY, nullptr, nullptr, &handle), 0);
  Tensor tensor = ObjectRef::Steal<Tensor>(handle);
  CHECK(Read(tensor) == (std::vector<int32_t>{1, 2}));
  CHECK_EQ(Thrown([&] { tensor.CopyFrom(Numbers({2})); }), "ValueError: the tensor is read-only");
  CHECK_EQ(data[0], 1);
}

TEST("a view keeps its source alive and inherits that it is read-only") {
  int64_t before = LiveNodes("ffi.Tensor");
  Tensor view;
  {
    Tensor tensor = Numbers({6});
    Strided part(static_cast<int32_t*>(tensor.raw_data()) + 1, {2}, {2});
    TVMFFIObjectHandle handle = nullptr;
    CHECK_EQ(TVMFFITensorCreateUnsafeView(tensor.get(), &part.dl, &handle), 0);
    view = ObjectRef::Steal<Tensor>(handle);
    CHECK_EQ(tensor.use_count(), 2);
  }
  CHECK(Read(view) == (std::vector<int32_t>{1, 3}));
  CHECK_EQ(PortcallTensorGetFlags(view.get()), 0);
  view = Tensor();
  CHECK_EQ(LiveNodes("ffi.Tensor"), before);
}

// ---- DLPack -------------------------------------------------------------------------------------------------------

namespace {

int deleted = 0;  // calls of the deleter below

template <typename Managed> struct Export {
  std::vector<int64_t> shape{2, 3}, strides;
  std::array<int32_t, 16> data{};
  Managed managed{};

  Export() {
    deleted = 0;
    std::iota(data.begin(), data.end(), 0);
    managed.dl_tensor.data = data.data();
    managed.dl_tensor.device = Cpu();
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = kInt32;
    managed.dl_tensor.shape = shape.data();
    managed.deleter = [](Managed*) { ++deleted; };
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) managed.version = {1, 0};
  }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
};

int FromManaged(DLManagedTensor* from, int alignment, int contiguous, TVMFFIObjectHandle* out) {
  return TVMFFITensorFromDLPack(from, alignment, contiguous, out);
}
int FromManaged(DLManagedTensorVersioned* from, int alignment, int contiguous, TVMFFIObjectHandle* out) {
  return TVMFFITensorFromDLPackVersioned(from, alignment, contiguous, out);
}

template <typename Managed> void ImportAndRelease() {
  Export<Managed> source;
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(FromManaged(&source.managed, 0, 1, &handle), 0);
  {
    Tensor tensor = ObjectRef::Steal<Tensor>(handle);
    CHECK(tensor.raw_data() == source.data.data());
    CHECK_EQ(tensor.dl_tensor()->strides[0], 3);  // filled in
    CHECK(Read(tensor) == (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
    Any copy = tensor;
    CHECK_EQ(deleted, 0);
  }
  CHECK_EQ(deleted, 1);

  // Without a deleter nothing has to be told.
  source.managed.deleter = nullptr;
  CHECK_EQ(FromManaged(&source.managed, 0, 0, &handle), 0);
  ObjectRef::Steal(handle);
}

template <typename Managed> void RefuseImport() {
  Export<Managed> source;
  TVMFFIObjectHandle handle = nullptr;
  source.managed.dl_tensor.byte_offset = 4;
  CHECK_EQ(FromManaged(&source.managed, 64, 0, &handle), -1);
  CHECK_EQ(Raised(), "ValueError: the tensor's data is not aligned to 64 bytes");
  source.strides = {1, 2};
  source.managed.dl_tensor.strides = source.strides.data();
  CHECK_EQ(FromManaged(&source.managed, 0, 1, &handle), -1);
  CHECK_EQ(Raised(), "ValueError: the tensor is not contiguous");
  source.shape = {int64_t{1} << 60, int64_t{1} << 60};
  source.managed.dl_tensor.shape = source.shape.data();
  CHECK_EQ(FromManaged(&source.managed, 0, 1, &handle), -1);
  CHECK(Contains(Raised(), "too large"));
  source.managed.dl_tensor.shape = nullptr;
  CHECK_EQ(FromManaged(&source.managed, 0, 1, &handle), -1);
  CHECK(Contains(Raised(), "without a shape"));
  source.managed.dl_tensor.ndim = -2;
  CHECK_EQ(FromManaged(&source.managed, 0, 0, &handle), -1);
  CHECK(Contains(Raised(), "-2 dimensions"));
  CHECK_EQ(deleted, 0);  // ownership passes on success only
  CHECK(handle == nullptr);
}

template <typename Managed> void ExportAndRelease(int (*to_dlpack)(TVMFFIObjectHandle, Managed**)) {
  int64_t before = LiveNodes("ffi.Tensor");
  Managed* managed = nullptr;
  {
    Tensor tensor = Numbers({2, 3});
    CHECK_EQ(to_dlpack(tensor.get(), &managed), 0);
    CHECK(managed->dl_tensor.data == tensor.dl_tensor()->data);
  }
  CHECK_EQ(LiveNodes("ffi.Tensor"), before + 1);
  CHECK(managed->dl_tensor.shape[1] == 3 && managed->dl_tensor.strides[0] == 3);
  CHECK_EQ(static_cast<int32_t*>(managed->dl_tensor.data)[5], 5);
  // There and back: our own export is imported like anybody's.
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(FromManaged(managed, 64, 1, &handle), 0);
  CHECK(Read(ObjectRef::Borrow<Tensor>(handle)) == (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  CHECK_EQ(LiveNodes("ffi.Tensor"), before + 2);
  ObjectRef::Steal(handle);
  CHECK_EQ(LiveNodes("ffi.Tensor"), before);
}

}  // namespace

TEST("an unversioned DLPack tensor is imported and released once") { ImportAndRelease<DLManagedTensor>(); }
TEST("a versioned DLPack tensor is imported and released once") { ImportAndRelease<DLManagedTensorVersioned>(); }
TEST("an unversioned DLPack tensor that is refused stays with its owner") { RefuseImport<DLManagedTensor>(); }
TEST("a versioned DLPack tensor that is refused stays with its owner") { RefuseImport<DLManagedTensorVersioned>(); }
TEST("an unversioned export lives until it is deleted") { ExportAndRelease(TVMFFITensorToDLPack); }
TEST("a versioned export lives until it is deleted") { ExportAndRelease(TVMFFITensorToDLPackVersioned); }

TEST("DLPack tensors come and go through the class") {
  int64_t before = LiveNodes("ffi.Tensor");
  {
    Export<DLManagedTensorVersioned> source;
    CHECK(Tensor::FromDLPack(&source.managed).raw_data() == source.data.data());
    CHECK_EQ(deleted, 1);
    Export<DLManagedTensor> old;
    CHECK(Tensor::FromDLPack(&old.managed).raw_data() == old.data.data());
    CHECK_EQ(deleted, 1);
    old.managed.dl_tensor.ndim = -2;
    CHECK(Contains(Thrown([&] { Tensor::FromDLPack(&old.managed); }), "-2 dimensions"));
    CHECK_EQ(deleted, 1);  // it stays with its owner
  }
  Tensor tensor = Numbers({2, 3});
  CHECK(Read(Tensor::FromDLPack(tensor.ToDLPack())) == Read(tensor));
  CHECK(Read(Tensor::FromDLPack(tensor.ToDLPackVersioned())) == Read(tensor));
  CHECK_EQ(tensor.use_count(), 1);
  tensor = Tensor();
  CHECK_EQ(LiveNodes("ffi.Tensor"), before);
  CHECK_EQ(Thrown([] { Tensor().ToDLPack(); }), "ValueError: the tensor is None");
}

TEST("a tensor of a DLPack version that we do not speak is refused") {
  Export<DLManagedTensorVersioned> source;
  source.managed.version = {2, 0};
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(TVMFFITensorFromDLPackVersioned(&source.managed, 0, 0, &handle), -1);
  CHECK_EQ(Raised(), "BufferError: the tensor uses DLPack2.0, this runtime 1.1");
  source.managed.version = {1, 9};  // a later minor version is compatible
  CHECK_EQ(TVMFFITensorFromDLPackVersioned(&source.managed, 0, 0, &handle), 0);
  ObjectRef::Steal(handle);
  CHECK_EQ(deleted, 1);
}

TEST("read-only goes through the versioned protocol and is refused by the other") {
  Export<DLManagedTensorVersioned> source;
  source.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED;
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(TVMFFITensorFromDLPackVersioned(&source.managed, 0, 0, &handle), 0);
  ObjectRef tensor = ObjectRef::Steal(handle);
  DLManagedTensorVersioned* versioned = nullptr;
  CHECK_EQ(TVMFFITensorToDLPackVersioned(tensor.get(), &versioned), 0);
  CHECK_EQ(versioned->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
  CHECK(versioned->version.major == 1);
  versioned->deleter(versioned);
  DLManagedTensor* plain = nullptr;
  CHECK_EQ(TVMFFITensorToDLPack(tensor.get(), &plain), -1);
  CHECK(Contains(Raised(), "BufferError: a read-only tensor"));
  CHECK(plain == nullptr);
  CHECK_EQ(tensor.use_count(), 1);
}

// ---- Copies -------------------------------------------------------------------------------------------------------

TEST("a copy on the host follows any strides on either side") {
  int32_t from[12], to[12] = {};
  std::iota(from, from + 12, 0);
  Strided transposed(from, {4, 3}, {1, 4});
  Strided compact(to, {4, 3}, {});
  CHECK_EQ(PortcallTensorCopy(&transposed.dl, &compact.dl), 0);
  CHECK((std::vector<int32_t>(to, to + 12) == std::vector<int32_t>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  int32_t back[12] = {};
  Strided target(back, {4, 3}, {1, 4});
  CHECK_EQ(PortcallTensorCopy(&compact.dl, &target.dl), 0);
  CHECK(std::vector<int32_t>(back, back + 12) == std::vector<int32_t>(from, from + 12));
  Strided reversed(from + 11, {12}, {-1}), line(to, {12}, {});
  CHECK_EQ(PortcallTensorCopy(&reversed.dl, &line.dl), 0);
  CHECK(to[0] == 11 && to[11] == 0);
  Strided repeated(from + 5, {12}, {0});
  CHECK_EQ(PortcallTensorCopy(&repeated.dl, &line.dl), 0);
  CHECK(to[0] == 5 && to[11] == 5);
  Strided offset(from, {2}, {}, kInt32, 8), two(to, {2}, {}, kInt32, 4);
  CHECK_EQ(PortcallTensorCopy(&offset.dl, &two.dl), 0);
  CHECK(to[0] == 5 && to[1] == 2 && to[2] == 3);
}

TEST("a copy of rows moves whole rows and leaves the gaps alone") {
  int32_t from[12], to[12];
  std::iota(from, from + 12, 0);
  std::fill(to, to + 12, -1);
  Strided rows(from, {3, 2}, {4, 1}), wide(to, {3, 2}, {3, 1});
  CHECK_EQ(PortcallTensorCopy(&rows.dl, &wide.dl), 0);
  CHECK((std::vector<int32_t>(to, to + 9) == std::vector<int32_t>{0, 1, -1, 4, 5, -1, 8, 9, -1}));
}

TEST("overlapping compact memory is copied as if through a buffer") {
  int32_t data[6] = {0, 1, 2, 3, 4, 5};
  Strided low(data, {4}, {}), high(data + 2, {4}, {});
  CHECK_EQ(PortcallTensorCopy(&low.dl, &high.dl), 0);
  CHECK((std::vector<int32_t>(data, data + 6) == std::vector<int32_t>{0, 1, 0, 1, 2, 3}));
  CHECK_EQ(PortcallTensorCopy(&low.dl, &low.dl), 0);
}

TEST("a copy needs equal shapes and data types, and sane descriptions") {
  int32_t data[6] = {};
  Strided two(data, {2}, {}), three(data, {3}, {}), flat(data, {2, 1}, {}), floats(data, {2}, {}, kFloat32);
  CHECK_EQ(PortcallTensorCopy(&two.dl, &three.dl), -1);
  CHECK_EQ(Raised(), "ValueError: a copy needs equal shapes: (2,) to (3,)");
  CHECK_EQ(PortcallTensorCopy(&two.dl, &flat.dl), -1);
  CHECK_EQ(Raised(), "ValueError: a copy needs equal shapes: (2,) to (2, 1)");
  CHECK_EQ(PortcallTensorCopy(&two.dl, &floats.dl), -1);
  CHECK_EQ(Raised(), "TypeError: a copy needs equal data types: int32 to float32");
  Strided negative(data, {-2}, {});
  CHECK_EQ(PortcallTensorCopy(&negative.dl, &negative.dl), -1);
  CHECK(Contains(Raised(), "ValueError: extent -2"));
  Strided shapeless(data, {2}, {});
  shapeless.dl.shape = nullptr;
  CHECK_EQ(PortcallTensorCopy(&shapeless.dl, &two.dl), -1);
  CHECK(Contains(Raised(), "without a shape"));
  Strided nowhere(nullptr, {2}, {});
  CHECK_EQ(PortcallTensorCopy(&nowhere.dl, &two.dl), -1);
  CHECK(Contains(Raised(), "ValueError: a tensor without memory"));
  CHECK_EQ(PortcallTensorCopy(nullptr, &two.dl), -1);
  CHECK(Contains(Raised(), "ValueError"));
}

TEST("elements that share bytes are copied when they are compact only") {
  uint8_t from[2] = {0x21, 0x03}, to[2] = {};
  DLDataType int4{kDLInt, 4, 1};
  Strided a(from, {3}, {}, int4), b(to, {3}, {}, int4);
  CHECK_EQ(PortcallTensorCopy(&a.dl, &b.dl), 0);
  CHECK(to[0] == 0x21 && to[1] == 0x03);
  Strided every_second(from, {2}, {2}, int4), two(to, {2}, {}, int4);
  CHECK_EQ(PortcallTensorCopy(&every_second.dl, &two.dl), -1);
  CHECK_EQ(Raised(), "ValueError: a strided copy of int4 is not possible: elements share bytes");
  DLDataType int4x2{kDLInt, 4, 2};  // a byte after all
  Strided pairs(from, {1, 2}, {2, 1}, int4x2), column(to, {1, 2}, {1, 1}, int4x2);
  CHECK_EQ(PortcallTensorCopy(&pairs.dl, &column.dl), 0);
}

TEST("data goes to an accelerator and back, finished when the call returns") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  size_t before = fake.blocks();
  {
    Tensor there = Numbers({3, 4}, fake.device());
    CHECK_EQ(fake.pending(), 0);
    std::vector<int32_t> expected(12);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(Read(there) == expected);
    CHECK_EQ(fake.pending(), 0);
    // Within the device: queued, and done by the time the host reads.
    Tensor copy = Tensor::Empty({3, 4}, kInt32, fake.device(1));
    copy.CopyFrom(there);
    CHECK_EQ(fake.pending(), 1);
    CHECK(Read(copy) == expected);
  }
  CHECK_EQ(fake.blocks(), before);
}

TEST("a tensor is copied to another device, and to and from bytes") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  size_t before = fake.blocks();
  {
    Tensor here = Numbers({2, 3}), there = here.CopyTo(fake.device());
    CHECK(there.device() == fake.device() && there.shape() == here.shape() && Read(there) == Read(here));
    std::vector<int32_t> numbers{5, 4, 3, 2, 1, 0}, back(6);
    there.CopyFromBytes(numbers.data(), 24);
    there.CopyToBytes(back.data(), 24);
    CHECK(back == numbers);
    there.CopyTo(here);
    CHECK(Read(here) == numbers);
    CHECK_EQ(Thrown([&] { there.CopyToBytes(back.data(), 20); }),
             "ValueError: the elements of this tensor are 24 bytes, the memory given is 20");
    CHECK(Contains(Thrown([&] { there.CopyFromBytes(back.data(), 28); }), "ValueError"));
    CHECK(Contains(Thrown([&] { here.CopyTo(Numbers({6})); }), "ValueError"));
    Strided columns(here.raw_data(), {3, 2}, {1, 3});
    TVMFFIObjectHandle handle = nullptr;
    Check(TVMFFITensorCreateUnsafeView(here.get(), &columns.dl, &handle));
    ObjectRef::Steal<Tensor>(handle).CopyToBytes(back.data(), 24);
    CHECK(back == (std::vector<int32_t>{5, 2, 4, 1, 3, 0}));
  }
  CHECK_EQ(fake.blocks(), before);
}

TEST("data goes from one kind of accelerator to another by way of the host") {
  FakeDevice& one = FakeDevice::Of(kDLExtDev);
  FakeDevice& other = FakeDevice::Of(kDLHexagon);
  Tensor from = Numbers({5}, one.device());
  Tensor to = Tensor::Empty({5}, kInt32, other.device());
  int64_t before = LiveNodes("ffi.Tensor");
  to.CopyFrom(from);
  CHECK_EQ(LiveNodes("ffi.Tensor"), before);
  CHECK(Read(to) == (std::vector<int32_t>{0, 1, 2, 3, 4}));
  CHECK_EQ(one.pending() + other.pending(), 0);
}

TEST("strided host memory goes to an accelerator and comes back from one") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  int32_t data[12];
  std::iota(data, data + 12, 0);
  Strided transposed(data, {4, 3}, {1, 4});
  Tensor there = Tensor::Empty({4, 3}, kInt32, fake.device());
  there.CopyFrom(transposed.dl);
  CHECK((Read(there) == std::vector<int32_t>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  int32_t back[12] = {};
  Strided target(back, {4, 3}, {1, 4});
  CHECK_EQ(PortcallTensorCopy(there.dl_tensor(), &target.dl), 0);
  CHECK(std::vector<int32_t>(back, back + 12) == std::vector<int32_t>(data, data + 12));
}

TEST("a part of an accelerator's memory is copied by its offset") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  Tensor there = Numbers({6}, fake.device());
  int32_t two[2] = {};
  Strided part(there.dl_tensor()->data, {2}, {}, kInt32, 12), target(two, {2}, {});
  part.dl.device = fake.device();
  CHECK_EQ(PortcallTensorCopy(&part.dl, &target.dl), 0);
  CHECK(two[0] == 3 && two[1] == 4);
}

TEST("strides on an accelerator are refused: the host cannot walk them") {
  FakeDevice& fake = FakeDevice::Of(kDLExtDev);
  Tensor there = Numbers({4}, fake.device());
  int32_t two[2] = {};
  Strided every_second(there.dl_tensor()->data, {2}, {2}), target(two, {2}, {});
  every_second.dl.device = fake.device();
  CHECK_EQ(PortcallTensorCopy(&every_second.dl, &target.dl), -1);
  CHECK_EQ(Raised(), "ValueError: a copy from a strided tensor on ext_dev:0 is not possible");
  CHECK_EQ(PortcallTensorCopy(&target.dl, &every_second.dl), -1);
  CHECK_EQ(Raised(), "ValueError: a copy into a strided tensor on ext_dev:0 is not possible");
}

TEST("copies to a device that nobody supports are refused") {
  int32_t two[2] = {};
  Strided here(two, {2}, {}), nowhere(two, {2}, {});
  nowhere.dl.device = {kDLMetal, 0};
  CHECK_EQ(PortcallTensorCopy(&here.dl, &nowhere.dl), -1);
  CHECK(Contains(Raised(), "DeviceError"));
  CHECK_EQ(PortcallTensorCopy(&nowhere.dl, &here.dl), -1);
  CHECK(Contains(Raised(), "DeviceError"));
}
