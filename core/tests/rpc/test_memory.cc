// SPDX-License-Identifier: Apache-2.0
// Memory of a session: allocation, copies and their bounds, devices with memory of their own, streams, attributes.
#include "tests/check.h"
#include "tests/fake_device.h"
#include "tests/rpc/peer.h"

using namespace rpc_test;

namespace {

constexpr int32_t kFake = 120;  // kinds of device that no other test uses
constexpr int32_t kNamed = 121;

FakeDevice& Fake() { return FakeDevice::Of(kFake); }

WireValue Dev(DLDevice device) { return WireValue::OfDevice(device); }
WireValue Ptr(uint64_t value) { return WireValue::Pointer(value); }
WireValue Of(WireTensor tensor) { return WireValue::Tensor(std::move(tensor)); }

rpc_test::Answer FreeData(Peer* peer, uint64_t data, DLDevice device = {kDLCPU, 0}) {
  return peer->Ask(Code::kDevFreeData, Values(Dev(device), Ptr(data)));
}
rpc_test::Answer AllocData(Peer* peer, int64_t nbytes, int64_t alignment, DLDevice device = {kDLCPU, 0}) {
  return peer->Ask(Code::kDevAllocData, Values(Dev(device), WireValue::Int(nbytes), WireValue::Int(alignment),
                                               WireValue::Dtype({kDLFloat, 32, 1})));
}

WireTensor At(uint64_t data, int64_t nbytes, uint64_t offset = 0, DLDevice device = {kDLCPU, 0}) {
  return Describe(data, {nbytes}, {kDLUInt, 8, 1}, offset, device);
}

const char kConstant[] = "constant";
PORTCALL_REGISTER_GLOBAL("test_rpc.constant").set_body_typed([] {
  int64_t extent = 8;
  DLTensor tensor{};
  tensor.data = const_cast<char*>(kConstant);
  tensor.device = Cpu();
  tensor.ndim = 1;
  tensor.dtype = {kDLUInt, 8, 1};
  tensor.shape = &extent;
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallTensorFromMemory(&tensor, DLPACK_FLAG_BITMASK_READ_ONLY, nullptr, nullptr, &handle));
  return ObjectRef::Steal<Tensor>(handle);
});
PORTCALL_REGISTER_GLOBAL("test_rpc.columns").set_body_typed([] {  // the second column of 3 rows by 2
  Tensor whole = Tensor::Empty({3, 2}, {kDLUInt, 8, 1});
  std::memcpy(whole.raw_data(), "aAbBcC", 6);
  int64_t shape = 3, stride = 2;
  DLTensor view = *whole.dl_tensor();
  view.ndim = 1;
  view.shape = &shape;
  view.strides = &stride;
  view.byte_offset = 1;
  TVMFFIObjectHandle handle = nullptr;
  Check(TVMFFITensorCreateUnsafeView(whole.get(), &view, &handle));
  return ObjectRef::Steal<Tensor>(handle);
});
PORTCALL_REGISTER_GLOBAL("test_rpc.address_of").set_body_typed([](void* data) {
  return reinterpret_cast<int64_t>(data);
});

}  // namespace

TEST("what is copied to a tensor is what is copied from it") {
  for (size_t size : {size_t{1}, size_t{24}, size_t{32} << 10, (size_t{1} << 20) + 3}) {
    Peer peer;
    peer.Open();
    uint64_t memory = peer.Alloc(static_cast<int64_t>(size));
    std::string data(size, '\0');
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<char>(i * 7 + (i >> 8));
    WireTensor tensor = At(memory, static_cast<int64_t>(size));
    for (size_t most : {size, size_t{1000}}) {
      std::string answer = peer.Give(CopyToOf(tensor, size, data), most);
      CHECK(SplitAnswers(answer).at(0).ok());
      rpc_test::Answer back = peer.Ask(CopyFromOf(tensor, size));
      CHECK_EQ(back.code, Code::kCopyAck);
      CHECK(back.body == data);
    }
  }
}

TEST("a copy reaches the bytes at its offset and no others") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(8);
  CHECK(peer.Ask(CopyToOf(At(memory, 8), 8, "abcdefgh")).ok());
  CHECK(peer.Ask(CopyToOf(At(memory, 8, 2), 3, "123")).ok());  // the bytes are counted, not the shape
  CHECK_EQ(peer.Ask(CopyFromOf(At(memory, 8), 8)).body, "ab123fgh");
  CHECK_EQ(peer.Ask(CopyFromOf(At(memory, 1, 4), 4)).body, "3fgh");
  CHECK_EQ(peer.Ask(CopyFromOf(At(memory, 8, 8), 0)).body, "");
}

TEST("a copy past the end of its memory is refused, at any offset") {
  for (DLDevice device : {DLDevice{kDLCPU, 0}, Fake().device()}) {
    Peer peer;
    peer.Open();
    uint64_t memory = peer.Alloc(8, device);
    CHECK(peer.Ask(CopyToOf(At(memory, 8, 0, device), 8, "abcdefgh")).ok());
    struct Case {
      uint64_t offset, nbytes;
    };
    for (Case one : {Case{0, 9}, Case{1, 8}, Case{8, 1}, Case{9, 1}, Case{UINT64_MAX, 2}, Case{UINT64_MAX - 1, 1},
                     Case{uint64_t{1} << 63, uint64_t{1} << 63}, Case{4, UINT64_MAX - 3}, Case{0, uint64_t{1} << 40}}) {
      WireTensor tensor = At(memory, 8, one.offset, device);
      CHECK(peer.Ask(CopyFromOf(tensor, one.nbytes)).error() != "");
      if (one.nbytes > 100) continue;
      CHECK(peer.Ask(CopyToOf(tensor, one.nbytes, std::string(one.nbytes, 'x'))).error() != "");
    }
    CHECK_EQ(peer.Ask(CopyFromOf(At(memory, 8, 0, device), 8)).body, "abcdefgh");
  }
}

TEST("a copy to an invalid handle is refused, and its bytes are skipped") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(4), function = peer.Function("testing.echo");
  FreeData(&peer, memory);
  for (uint64_t handle : {uint64_t{0}, uint64_t{1}, memory, function, UINT64_MAX}) {
    CHECK(peer.Ask(CopyToOf(At(handle, 4), 4, "abcd")).error() != "");
    CHECK(peer.Ask(CopyFromOf(At(handle, 4), 4)).error() != "");
  }
  CHECK(peer.Ask(CopyToOf(At(memory, 0), 0, "")).error() != "");
  CHECK(peer.Alloc(4) != 0);
}

TEST("a copy that carries other than it says is refused") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(8);
  CHECK(Contains(peer.Ask(CopyToOf(At(memory, 8), 8, "abcd")).error(), "a copy of 8 bytes carries 4"));
  CHECK(Contains(peer.Ask(CopyToOf(At(memory, 8), 4, "abcdefgh")).error(), "a copy of 4 bytes carries 8"));
  CHECK(peer.Ask(CopyToOf(At(memory, 8), 8, "abcdefgh")).ok());
}

TEST("copies of no bytes are answered") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(0);
  CHECK(memory != 0);
  CHECK(peer.Ask(CopyToOf(At(memory, 0), 0, "")).ok());
  CHECK_EQ(peer.Ask(CopyFromOf(At(memory, 0), 0)).code, Code::kCopyAck);
  CHECK(peer.Ask(Code::kCopyAmongRemote, Values(Of(At(memory, 0)), Of(At(memory, 0)), Ptr(0))).ok());
}

TEST("a large answer is sent from where it lies, and the next request waits for it") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(100000);
  std::string old_data(100000, 'a'), new_data(100000, 'b');
  peer.Ask(CopyToOf(At(memory, 100000), 100000, old_data));
  std::string answers =
      peer.Give(CopyFromOf(At(memory, 100000), 100000) + CopyToOf(At(memory, 100000), 100000, new_data) +
                CopyFromOf(At(memory, 100000), 100000));
  std::vector<rpc_test::Answer> all = SplitAnswers(answers);
  CHECK_EQ(all.size(), 3);
  CHECK(all.at(0).body == old_data);
  CHECK(all.at(2).body == new_data);
}

TEST("memory that is freed while it is being sent stays until it is sent") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(100000);
  peer.Ask(CopyToOf(At(memory, 100000), 100000, std::string(100000, 'a')));
  Endpoint& endpoint = peer.endpoint();
  std::string requests = CopyFromOf(At(memory, 100000), 100000);
  std::memcpy(endpoint.Space().first, requests.data(), requests.size());
  endpoint.Filled(requests.size());
  CHECK(endpoint.Serve());
  endpoint.PeerClosed();  // frees all that the session has
  size_t total = 0;
  while (!endpoint.output().empty()) {
    Chunk chunk = endpoint.output().Chunks(1).at(0);
    const char* bytes = static_cast<const char*>(chunk.data);
    for (size_t i = 0; i < chunk.size; ++i) total += bytes[i] == 'a';
    endpoint.output().Sent(chunk.size);
  }
  CHECK_EQ(total, 100000);
}

TEST("a tensor of constants can be read and not written") {
  Peer peer;
  peer.Open();
  rpc_test::Answer answer = peer.Call("test_rpc.constant", {});
  WireTensor tensor = *answer.values().at(1).tensor;
  CHECK_EQ(peer.Ask(CopyFromOf(tensor, 8)).body, "constant");
  CHECK(Contains(peer.Ask(CopyToOf(tensor, 8, "variable")).error(), "read-only"));
  uint64_t memory = peer.Alloc(8);
  CHECK(Contains(peer.Ask(Code::kCopyAmongRemote, Values(Of(At(memory, 8)), Of(tensor), Ptr(0))).error(), "read-only"));
  CHECK(peer.Ask(Code::kCopyAmongRemote, Values(Of(tensor), Of(At(memory, 8)), Ptr(0))).ok());
  CHECK_EQ(peer.Ask(CopyFromOf(At(memory, 8), 8)).body, "constant");
}

TEST("a result with strides arrives compact") {
  Peer peer;
  peer.Open();
  rpc_test::Answer answer = peer.Call("test_rpc.columns", {});
  CHECK_EQ(peer.Ask(CopyFromOf(*answer.values().at(1).tensor, 3)).body, "ABC");
}

TEST("memory is freed once, as memory") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(4);
  CHECK(peer.Free(memory).error() != "");
  CHECK(FreeData(&peer, memory).ok());
  CHECK(FreeData(&peer, memory).error() != "");
  CHECK(FreeData(&peer, peer.Function("testing.echo")).error() != "");
  CHECK(FreeData(&peer, 0).ok());
}

TEST("memory is aligned as it was asked for") {
  Peer peer;
  peer.Open();
  for (int64_t alignment : {1, 64, 128, 1024, 4096}) {
    for (int i = 0; i < 8; ++i) {
      uint64_t memory = AllocData(&peer, 100, alignment).pointer();
      int64_t address = peer.Call("test_rpc.address_of", Values(Ptr(memory))).values().at(1).v_int64;
      CHECK_EQ(address % std::max<int64_t>(alignment, 64), 0);
    }
  }
  for (int64_t alignment : {-1, 3, 8192}) CHECK(AllocData(&peer, 100, alignment).error() != "");
}

TEST("memory of an absurd size is refused and the session goes on") {
  Peer peer;
  peer.Open();
  for (int64_t size : {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 61, int64_t{1} << 55}) {
    CHECK(AllocData(&peer, size, 64).error() != "");
    CHECK(peer.Ask(Code::kDevAllocDataWithScope, Values(Of(Describe(0, {size})), WireValue::None())).error() != "");
  }
  CHECK(peer.Ask(Code::kDevAllocDataWithScope, Values(Of(Describe(0, {1 << 30, 1 << 30, 1 << 30})), WireValue::None()))
            .error() != "");
  CHECK(peer.Alloc(8) != 0);
}

TEST("the scopes of host memory are none, empty and global") {
  Peer peer;
  peer.Open();
  for (const char* scope : {"", "global"}) {
    CHECK(peer.Ask(Code::kDevAllocDataWithScope, Values(Of(At(0, 4)), WireValue::Text(scope))).pointer() != 0);
  }
  std::string error = peer.Ask(Code::kDevAllocDataWithScope, Values(Of(At(0, 4)), WireValue::Text("texture"))).error();
  CHECK(Contains(error, "memory scope 'texture' does not exist on cpu:0"));
  CHECK(peer.Ask(Code::kDevAllocDataWithScope, Values(Of(At(0, 4)), WireValue::Int(1))).error() != "");
}

TEST("memory goes when the session ends") {
  size_t before = Fake().blocks();
  {
    Peer peer;
    peer.Open();
    for (int i = 0; i < 3; ++i) peer.Alloc(100, Fake().device());
    CHECK_EQ(Fake().blocks(), before + 3);
    peer.Give(Frame(Code::kShutdown));
    CHECK_EQ(Fake().blocks(), before);
  }
}

// ---- Devices with memory of their own -----------------------------------------------------------------------------

TEST("copies to and from an accelerator go through the host") {
  DLDevice device = Fake().device();
  for (size_t size : {size_t{8}, size_t{100000}}) {
    Peer peer;
    peer.Open();
    uint64_t memory = peer.Alloc(static_cast<int64_t>(size) + 4, device);
    std::string data(size, 'x');
    CHECK(peer.Ask(CopyToOf(At(memory, static_cast<int64_t>(size), 4, device), size, data)).ok());
    CHECK(peer.Ask(CopyToOf(At(memory, 4, 0, device), 4, "abcd")).ok());
    CHECK(peer.Ask(CopyFromOf(At(memory, 1, 0, device), size + 4)).body == "abcd" + data);
    CHECK_EQ(Fake().pending(), 0);
  }
}

TEST("copies through the host are never longer than a frame may be") {
  DLDevice device = Fake().device();
  EndpointOptions options;
  options.max_frame = 1000;
  Peer peer(MakeLocalSession({}), options);
  peer.Open();
  uint64_t memory = peer.Alloc(1001, device);
  CHECK(Contains(peer.Ask(CopyToOf(At(memory, 1001, 0, device), 1001, std::string(1001, 'x'))).error(), "--max-frame"));
  CHECK(Contains(peer.Ask(CopyFromOf(At(memory, 1001, 0, device), 1001)).error(), "--max-frame"));
  CHECK(peer.Ask(CopyToOf(At(memory, 1000, 0, device), 1000, std::string(1000, 'x'))).ok());
  CHECK_EQ(peer.Ask(CopyFromOf(At(memory, 1000, 0, device), 1000)).body, std::string(1000, 'x'));
}

TEST("a full accelerator is an exception and the session goes on") {
  Peer peer;
  peer.Open();
  Fake().set_capacity(1000);
  CHECK(Contains(AllocData(&peer, 5000, 64, Fake().device()).error(), "full"));
  Fake().set_capacity(SIZE_MAX);
  CHECK(peer.Alloc(5000, Fake().device()) != 0);
}

TEST("copies within a server go between its devices, and from and to any offset") {
  DLDevice accelerator = Fake().device();
  Peer peer;
  peer.Open();
  uint64_t host = peer.Alloc(8), there = peer.Alloc(8, accelerator), back = peer.Alloc(8);
  peer.Ask(CopyToOf(At(host, 8), 8, "abcdefgh"));
  auto among = [&](WireTensor from, WireTensor to) {
    return peer.Ask(Code::kCopyAmongRemote, Values(Of(std::move(from)), Of(std::move(to)), Ptr(0)));
  };
  CHECK(among(At(host, 8), At(there, 8, 0, accelerator)).ok());
  CHECK(among(At(there, 4, 4, accelerator), At(back, 4, 2)).ok());
  CHECK_EQ(peer.Ask(CopyFromOf(At(back, 4, 2), 4)).body, "efgh");
  CHECK(among(At(host, 4), At(host, 4, 2)).ok());  // onto itself
  CHECK_EQ(peer.Ask(CopyFromOf(At(host, 8), 8)).body, "ababcdgh");
  CHECK(Contains(among(At(host, 4), At(back, 5)).error(), "tensors of one size"));
  CHECK(among(At(host, 4, 5), At(back, 4)).error() != "");
  CHECK(among(At(host, 4), At(back, 4, 5)).error() != "");
  CHECK(among(At(host, -1), At(back, -1)).error() != "");
}

TEST("the session's memory is found by its handle, whatever device a request names") {
  Peer peer;
  peer.Open();
  uint64_t there = peer.Alloc(8, Fake().device());
  CHECK(peer.Ask(CopyToOf(At(there, 8, 0, {kDLCPU, 0}), 8, "abcdefgh")).ok());  // not taken for an address of the host
  CHECK_EQ(peer.Ask(CopyFromOf(At(there, 8, 0, {kDLCUDA, 3}), 8)).body, "abcdefgh");
}

// ---- Streams and attributes ---------------------------------------------------------------------------------------

TEST("streams are created, set, synchronized and freed") {
  DLDevice device = Fake().device();
  int before = Fake().streams();
  Peer peer;
  peer.Open();
  uint64_t stream = peer.Ask(Code::kDevCreateStream, Values(Dev(device))).pointer();
  CHECK(stream != 0);
  CHECK_EQ(Fake().streams(), before + 1);
  CHECK_EQ(peer.Ask(Code::kDevGetCurrentStream, Values(Dev(device))).pointer(), 0);
  CHECK(peer.Ask(Code::kDevSetStream, Values(Dev(device), Ptr(stream))).ok());
  CHECK_EQ(peer.Ask(Code::kDevGetCurrentStream, Values(Dev(device))).pointer(), stream);
  CHECK_EQ(peer.Ask(Code::kDevGetCurrentStream, Values(Dev(Fake().device(1)))).pointer(), 0);  // one a device
  CHECK(peer.Ask(Code::kDevStreamSync, Values(Dev(device), Ptr(stream))).ok());
  CHECK(peer.Ask(Code::kDevStreamSync, Values(Dev(device), Ptr(0))).ok());
  CHECK(peer.Ask(Code::kDevFreeStream, Values(Dev(device), Ptr(stream))).ok());
  CHECK_EQ(Fake().streams(), before);
  CHECK_EQ(peer.Ask(Code::kDevGetCurrentStream, Values(Dev(device))).pointer(), 0);
  CHECK(peer.Ask(Code::kDevFreeStream, Values(Dev(device), Ptr(stream))).error() != "");
  CHECK(peer.Ask(Code::kDevSetStream, Values(Dev(device), Ptr(stream))).error() != "");
}

TEST("the host has streams in name only") {
  Peer peer;
  peer.Open();
  DLDevice host{kDLCPU, 0};
  rpc_test::Answer created = peer.Ask(Code::kDevCreateStream, Values(Dev(host)));
  CHECK(created.ok() && created.pointer() == 0);
  for (Code code : {Code::kDevSetStream, Code::kDevStreamSync, Code::kDevFreeStream}) {
    CHECK(peer.Ask(code, Values(Dev(host), Ptr(0))).ok());
    CHECK(peer.Ask(code, Values(Dev(host), Ptr(77))).error() != "");
  }
  CHECK(peer.Ask(Code::kDevSetDevice, Values(Dev(host))).ok());
}

TEST("a stream is taken for nothing else, and nothing else for a stream") {
  DLDevice device = Fake().device();
  Peer peer;
  peer.Open();
  uint64_t stream = peer.Ask(Code::kDevCreateStream, Values(Dev(device))).pointer();
  CHECK(FreeData(&peer, stream, device).error() != "");
  CHECK(peer.Free(stream).error() != "");
  CHECK(peer.Ask(CopyFromOf(At(stream, 1), 1)).error() != "");
  uint64_t memory = peer.Alloc(8);
  for (Code code : {Code::kDevSetStream, Code::kDevStreamSync, Code::kDevFreeStream}) {
    CHECK(peer.Ask(code, Values(Dev(device), Ptr(memory))).error() != "");
    // To another device the stream would be an address of somebody else's.
    CHECK(peer.Ask(code, Values(Dev({kDLCPU, 0}), Ptr(stream))).error() != "");
    CHECK(peer.Ask(code, Values(Dev(Fake().device(1)), Ptr(stream))).error() != "");
  }
}

TEST("streams go when the session ends") {
  int before = Fake().streams();
  {
    Peer peer;
    peer.Open();
    for (int i = 0; i < 3; ++i) peer.Ask(Code::kDevCreateStream, Values(Dev(Fake().device())));
    CHECK_EQ(Fake().streams(), before + 3);
    peer.endpoint().PeerClosed();
    CHECK_EQ(Fake().streams(), before);
  }
  {
    Peer peer;
    peer.Open();
    peer.Ask(Code::kDevCreateStream, Values(Dev(Fake().device())));
  }
  CHECK_EQ(Fake().streams(), before);
}

TEST("whether a device exists is an int, and what is unknown of it is None") {
  Peer peer;
  peer.Open();
  auto attribute = [&](DLDevice device, int64_t kind) {
    return peer.Ask(Code::kDevGetAttr, Values(Dev(device), WireValue::Int(kind)));
  };
  for (DLDevice device : {DLDevice{kDLCPU, 0}, Fake().device()}) {
    Sequence values = attribute(device, 0).values();
    CHECK_EQ(values.at(0).type, kTVMFFIInt);
    CHECK_EQ(values.at(0).v_int64, 1);
  }
  CHECK_EQ(attribute({kDLVPI, 0}, 0).values().at(0).v_int64, 0);
  CHECK_EQ(attribute({kDLCPU, 0}, 2).values().at(0).type, kTVMFFINone);
  CHECK(attribute({kDLVPI, 0}, 2).error() != "");
  rpc_test::Answer name = attribute(Fake().device(), 5);
  CHECK_EQ(name.values().at(0).type, kTVMFFIRawStr);
  CHECK_EQ(name.values().at(0).text, "a fake accelerator");
}

TEST("a short text of a device is as good as a long one") {
  PortcallDeviceAPI api{};
  api.struct_size = sizeof(api);
  api.get_attr = [](void*, DLDevice, PortcallDeviceAttr attr, TVMFFIAny* out) {
    Any value = attr == kPortcallAttrDeviceName ? Any("H100") : Any(true);
    *out = value.release();
    return 0;
  };
  api.alloc = [](void*, DLDevice, size_t, size_t, DLDataType, void**) { return -1; };
  api.free = [](void*, DLDevice, void*) { return 0; };
  api.copy = [](void*, const void*, size_t, DLDevice, void*, size_t, DLDevice, size_t, void*) { return -1; };
  Check(PortcallDeviceRegister(kNamed, &api));
  Peer peer;
  peer.Open();
  rpc_test::Answer name = peer.Ask(Code::kDevGetAttr, Values(Dev({kNamed, 0}), WireValue::Int(5)));
  CHECK_EQ(name.values().at(0).text, "H100");
}

TEST("a device that the server does not have is an exception in every request") {
  DLDevice missing{kDLVPI, 0};
  Peer peer;
  peer.Open();
  for (Code code : {Code::kDevSetDevice, Code::kDevCreateStream})
    CHECK(peer.Ask(code, Values(Dev(missing))).error() != "");
  CHECK(AllocData(&peer, 8, 64, missing).error() != "");
  CHECK(peer.Ask(Code::kDevSetDevice, Values(Dev(Fake().device(7)))).error() != "");
  CHECK(peer.Ask(Code::kDevSetDevice, Values(Dev(Fake().device(1)))).ok());
  CHECK_EQ(Fake().chosen().back(), 1);
}
