// SPDX-License-Identifier: Apache-2.0
// The serving end: set-up, calls, handles, and what it says to a peer that breaks the rules.
#include <random>

#include "tests/check.h"
#include "tests/fake_device.h"
#include "tests/rpc/captures.h"
#include "tests/rpc/peer.h"

using namespace rpc_test;

namespace {

Any& Kept() {
  static auto* kept = new Any();
  return *kept;
}

PORTCALL_REGISTER_GLOBAL("test_rpc.add").set_body_typed([](int64_t a, int64_t b) { return a + b; });
PORTCALL_REGISTER_GLOBAL("test_rpc.keep").set_body_typed([](Any value) { Kept() = std::move(value); });
PORTCALL_REGISTER_GLOBAL("test_rpc.adder").set_body_typed([](int64_t a) {
  return PackedFunc([a](Args args, RetValue* rv) { *rv = a + args[0].cast<int64_t>(); });
});
PORTCALL_REGISTER_GLOBAL("test_rpc.shape").set_body_typed([] { return Shape({2, 3}); });
PORTCALL_REGISTER_GLOBAL("test_rpc.shape_size").set_body_typed([](Shape shape) {
  return static_cast<int64_t>(shape.size());
});
PORTCALL_REGISTER_GLOBAL("test_rpc.text").set_body_typed([](int64_t n) {
  return std::string(static_cast<size_t>(n), 'x');
});
PORTCALL_REGISTER_GLOBAL("test_rpc.bytes").set_body_typed([](int64_t n) {
  return Bytes(std::string(static_cast<size_t>(n), '\0'));
});
PORTCALL_REGISTER_GLOBAL("test_rpc.type_of").set_body([](Args args, RetValue* rv) {
  *rv = static_cast<int64_t>(args[0].cell().type_index);
});
PORTCALL_REGISTER_GLOBAL("test_rpc.throw_int").set_body([](Args, RetValue*) { throw 7; });
PORTCALL_REGISTER_GLOBAL("test_rpc.throw_logic").set_body([](Args, RetValue*) { throw std::logic_error("no sense"); });
PORTCALL_REGISTER_GLOBAL("test_rpc.out_of_memory").set_body([](Args, RetValue*) { throw std::bad_alloc(); });
PORTCALL_REGISTER_GLOBAL("test_rpc.hidden_elsewhere").set_body([](Args, RetValue*) {});

class CalcModule : public ModuleNode {
 public:
  const char* kind() const override { return "calc"; }
  PackedFunc GetFunction(const std::string& name, const Module&) override {
    if (name != "twice") return {};
    return PackedFunc([](Args args, RetValue* rv) { *rv = 2 * args[0].cast<int64_t>(); });
  }
};
PORTCALL_REGISTER_GLOBAL("test_rpc.module").set_body_typed([] { return Module(std::make_unique<CalcModule>()); });
PORTCALL_REGISTER_GLOBAL("test_rpc.module_twice").set_body_typed([](Module module, int64_t n) {
  return module.GetFunction("twice")(n).cast<int64_t>();
});

std::vector<std::string> Everything() { return {"*"}; }

// The int that a call returns, -1 for anything else.
int64_t IntOf(const rpc_test::Answer& answer) {
  if (!answer.ok()) return -1;
  Sequence values = answer.values();
  return values.size() == 2 && values[0].v_int64 == kTVMFFIInt ? values[1].v_int64 : -1;
}
// Announced type and handle of a call's result.
std::pair<int64_t, uint64_t> HandleOf(const rpc_test::Answer& answer) {
  if (!answer.ok()) return {-1, 0};
  Sequence values = answer.values();
  return {values.at(0).v_int64, values.at(1).v_handle};
}

bool Alive(Peer* peer) {
  return !peer->endpoint().closed() && IntOf(peer->Call("testing.echo", Values(WireValue::Int(5)))) == 5;
}

}  // namespace

// ---- Set-up -------------------------------------------------------------------------------------------------------

TEST("an Exception has a traceback where the client knows of that, and one value elsewhere") {
  EndpointOptions options;
  options.tracebacks = true;
  Peer with(MakeLocalSession({"*"}), options), without;
  Answer long_one = with.Ask(Init({}, "0.7.0")), short_one = without.Ask(Init({}, "0.7.0"));
  CHECK_EQ(long_one.values().size(), 2u);
  CHECK(Contains(std::string(long_one.values().at(1).text), "endpoint.cc"));
  CHECK_EQ(short_one.values().size(), 1u);
  CHECK_EQ(long_one.error(), short_one.error());
}

TEST("a session begins with InitServer of this very version") {
  Peer peer;
  CHECK(
      Contains(peer.Ask(Init({}, "0.7.0")).error(), "VersionMismatchError: the server speaks protocol version 0.8.0"));
  CHECK(peer.Ask(Init({}, "0.8")).error() != "");
  CHECK(peer.Ask(Init()).ok());
  CHECK(Alive(&peer));
}

TEST("a second InitServer is refused and the session goes on") {
  Peer peer;
  peer.Open();
  CHECK(Contains(peer.Ask(Init()).error(), "already been initialized"));
  CHECK(Alive(&peer));
}

TEST("a request before InitServer is refused, whatever it is, and the session can still begin") {
  Peer peer;
  for (int32_t code = 3; code <= 21; ++code) {
    if (code == 7 || code == 8) continue;
    CHECK(Contains(peer.Ask(Message(static_cast<Code>(code), {})).error(), "before InitServer"));
  }
  CHECK(Contains(peer.Ask(CopyToOf(Describe(1, {4}), 4, "abcd")).error(), "before InitServer"));
  CHECK(peer.Open().opened());
  CHECK(Alive(&peer));
}

TEST("without a constructor no session is made by name") {
  Peer peer;
  std::string error = peer.Ask(Init(Values(WireValue::Text("rpc.Connect"), WireValue::Text("host")))).error();
  CHECK(Contains(error, "PermissionError"));
  CHECK(Contains(error, "rpc.Connect"));
  CHECK(peer.Ask(Init()).ok());
}

TEST("a constructor gets name and arguments and its session serves") {
  std::string seen;
  EndpointOptions options;
  options.constructor = [&](const std::string& name, const std::vector<Any>& args) {
    PORTCALL_CHECK(name == "make", ValueError) << "no constructor is called " << name;
    seen = std::to_string(args.size());
    for (const Any& arg : args) seen += ' ' + std::to_string(arg.type_index());
    return MakeLocalSession({"testing.*"});
  };
  Peer peer(MakeLocalSession({}), options);
  CHECK(Contains(peer.Ask(Init(Values(WireValue::Text("other")))).error(), "no constructor is called other"));
  CHECK(peer.Ask(Init(Values(WireValue::Int(1)))).error() != "");
  CHECK(peer.Ask(Init(Values(WireValue::Text("make"), WireValue::OfDevice({1, 0})))).error() != "");
  CHECK(peer.Ask(Init(Values(WireValue::Text("make"), WireValue::Text("a text that is long"), WireValue::Int(1),
                             WireValue::Bool(true), WireValue::Float(2), WireValue::None(), WireValue::Bytes("b"))))
            .ok());
  CHECK_EQ(seen, "6 65 1 2 3 0 12");
  CHECK(Alive(&peer));
}

TEST("Shutdown ends a session, and frees what it owned") {
  Kept() = nullptr;
  for (bool opened : {true, false}) {
    Peer peer;
    if (opened) peer.Open().Call("test_rpc.adder", Values(WireValue::Int(1)));
    int64_t functions = LiveNodes("ffi.Function");
    CHECK_EQ(peer.Give(Frame(Code::kShutdown)), "");
    CHECK(peer.endpoint().closed());
    CHECK(LiveNodes("ffi.Function") < functions || !opened);
    CHECK_EQ(peer.Give(Init()), "");
  }
}

TEST("closing between messages differs from closing within one, and both free the session") {
  for (bool within : {false, true}) {
    Peer peer;
    peer.Open();
    if (within) peer.Give(Init().substr(0, 10));
    CHECK_EQ(peer.endpoint().PeerClosed(), !within);
    CHECK(peer.endpoint().closed());
  }
}

// ---- What a peer must not say -------------------------------------------------------------------------------------

TEST("an unknown request code is refused and the session goes on") {
  Peer peer;
  peer.Open();
  for (int32_t code : {0, 4, 5, 22, 23, 40, 115, -1, INT32_MIN, INT32_MAX}) {
    std::string error = peer.Ask(Frame(static_cast<Code>(code))).error();
    CHECK(Contains(error, "RemoteProtocolError: no request has code " + std::to_string(code)));
  }
  CHECK(Contains(peer.Ask(AckOf("abc")).error(), "a CopyAck came"));
  CHECK(Alive(&peer));
}

TEST("a body that is too short or too long is refused and the session goes on") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(8), echo = peer.Function("testing.echo");
  WireTensor tensor = Describe(memory, {8});
  WireValue pointer = WireValue::Pointer(memory);
  std::vector<std::string> requests = {
      Init(),
      CallOf(echo, Values(WireValue::Int(1))),
      CopyFromOf(tensor, 8),
      Message(Code::kGetGlobalFunc, Values(WireValue::Text("testing.echo"))),
      Message(Code::kDevStreamSync, Values(WireValue::OfDevice({1, 0}), WireValue::Pointer(0))),
  };
  for (const std::string& request : requests) {
    std::string body = request.substr(12);
    auto code = static_cast<Code>(static_cast<unsigned char>(request[8]));
    for (size_t size = 0; size < body.size(); ++size) {
      std::string part = Frame(code, [&](Writer& out) {
        for (char c : body.substr(0, size)) out.Put(c);
      });
      CHECK(Contains(peer.Ask(part).error(), "RemoteProtocolError"));
    }
    std::string longer = Frame(code, [&](Writer& out) {
      for (char c : body) out.Put(c);
      out.Put('\0');
    });
    CHECK(Contains(peer.Ask(longer).error(), "bytes too many"));
  }
  CHECK(Alive(&peer));
}

TEST("every system call refuses too few arguments and those of another type") {
  Peer peer;
  peer.Open();
  for (int32_t code = 9; code <= 21; ++code) {
    CHECK(Contains(peer.Ask(static_cast<Code>(code), {}).error(), "RemoteProtocolError"));
    for (int kind = 0; kind < 4; ++kind) {
      Sequence args;
      for (int i = 0; i < 4; ++i) {
        args.push_back(kind == 0   ? WireValue::None()
                       : kind == 1 ? WireValue::Float(1)
                       : kind == 2 ? WireValue::Handle(kTVMFFIModule, 1)
                                   : WireValue::Bytes("b"));
      }
      CHECK(peer.Ask(static_cast<Code>(code), args).error() != "");
    }
  }
  CHECK(Alive(&peer));
}

TEST("a frame without a known end ends the session with a reason") {
  for (uint64_t length : {uint64_t{2}, uint64_t{1} << 62}) {
    Peer peer;
    peer.Open();
    std::vector<rpc_test::Answer> answers = SplitAnswers(peer.Give(Length(length) + std::string("\3\0\0\0", 4)));
    CHECK_EQ(answers.size(), 2);
    CHECK(Contains(answers.at(0).error(), "RemoteProtocolError"));
    CHECK_EQ(answers.at(1).code, Code::kShutdown);
    CHECK(peer.endpoint().closed());
  }
}

TEST("a copy whose head is wrong is refused and the session goes on") {
  Peer peer;
  peer.Open();
  for (int32_t ndim : {-1, 3, 65, INT32_MAX}) {
    std::string copy = CopyToOf(Describe(1, {8}), 8, "12345678");
    std::memcpy(copy.data() + 12 + 16, &ndim, sizeof(ndim));
    CHECK(Contains(peer.Ask(copy).error(), "RemoteProtocolError"));
  }
  CHECK(Contains(peer.Ask(Frame(Code::kCopyToRemote)).error(), "RemoteProtocolError"));
  CHECK(Alive(&peer));
}

TEST("requests that arrive together are answered in order, in whichever pieces they come") {
  std::string requests = Init(), expected;
  Peer first;
  expected = first.Give(Init());
  uint64_t echo = first.Function("testing.echo");
  for (int64_t i = 0; i < 50; ++i) {
    std::string call = CallOf(echo, Values(WireValue::Int(i))) + std::string(8, '\0');
    requests += i == 0 ? Message(Code::kGetGlobalFunc, Values(WireValue::Text("testing.echo"))) : "";
    if (i == 0) expected += Message(Code::kReturn, Values(WireValue::Pointer(echo)), Form::kReply);
    requests += call;
    expected += first.Give(call);
  }
  for (size_t most : {1, 5, 13, 1000, 100000}) {
    Peer peer;
    CHECK(peer.Give(requests, most) == expected);
  }
}

TEST("the answers to what has arrived are not piled up in memory") {
  Peer peer;
  peer.Open();
  std::string call = CallOf(peer.Function("test_rpc.text"), Values(WireValue::Int(100000))), requests;
  for (int i = 0; i < 100; ++i) requests += call;
  Endpoint& endpoint = peer.endpoint();
  auto [space, room] = endpoint.Space();
  CHECK(room >= requests.size());
  std::memcpy(space, requests.data(), requests.size());
  endpoint.Filled(requests.size());
  size_t answered = 0;
  for (bool more = true; more;) {
    more = endpoint.Serve();
    CHECK(endpoint.output().size() < 400000);
    while (!endpoint.output().empty()) {
      size_t n = endpoint.output().Chunks(1).at(0).size;
      endpoint.output().Sent(n);
      answered += n;
    }
  }
  CHECK(answered > 100 * 100000);
}

TEST("any bytes are answered, and end nothing but the session") {
  std::mt19937 random(5);
  std::string stream;
  for (const Capture& capture : ReadCaptures()) {
    if (capture.is_frame() && capture.from_client && !capture.is("Shutdown")) stream += capture.bytes;
  }
  for (int i = 0; i < 300; ++i) {
    Peer peer(MakeLocalSession({"testing.*"}));
    peer.Open();
    std::string bytes = stream.substr(random() % stream.size());
    if (i % 2) bytes = stream;  // from a boundary, too
    for (size_t n = random() % 30; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    std::string answers = peer.Give(bytes, 1 + random() % 5000);
    SplitAnswers(answers);  // which are whole
  }
}

// ---- Functions ----------------------------------------------------------------------------------------------------

TEST("a function is found by name, unless the server does not have it or does not offer it") {
  Peer peer(std::vector<std::string>{"testing.*", "test_rpc.ad?"});
  peer.Open();
  CHECK(peer.Function("testing.echo") != 0);
  CHECK(peer.Function("test_rpc.add") != 0);
  rpc_test::Answer missing = peer.Ask(Code::kGetGlobalFunc, Values(WireValue::Text("test_rpc.nowhere")));
  CHECK(missing.ok() && missing.pointer() == 0);
  for (const char* name : {"test_rpc.adder", "test_rpc.keep", "portcall.LiveNodes"}) {
    std::string error = peer.Ask(Code::kGetGlobalFunc, Values(WireValue::Text(name))).error();
    CHECK(Contains(error, std::string("PermissionError: the function '") + name));
    CHECK(Contains(error, "--expose"));
  }
  CHECK(Peer(Everything()).Open().Function("portcall.LiveNodes") != 0);
}

TEST("each look-up of a name gives the same number and takes a free of its own") {
  Peer peer;
  peer.Open();
  uint64_t echo = peer.Function("testing.echo");
  CHECK_EQ(peer.Function("testing.echo"), echo);
  CHECK(peer.Free(echo).ok());
  CHECK_EQ(IntOf(peer.Ask(CallOf(echo, Values(WireValue::Int(3))))), 3);
  CHECK(peer.Free(echo).ok());
  CHECK(Contains(peer.Ask(CallOf(echo, {})).error(), "names nothing in this session"));
  CHECK(peer.Free(echo).error() != "");
  CHECK(peer.Function("testing.echo") != echo);
}

TEST("null is freed silently, and a number that is not a pointer is refused") {
  Peer peer;
  peer.Open();
  CHECK(peer.Free(0).ok());
  CHECK(Contains(peer.Ask(Code::kFreeHandle, Values(WireValue::Int(16))).error(), "instead of a handle"));
  CHECK(peer.Ask(Code::kFreeHandle, Values(WireValue::Pointer(0), WireValue::Int(1))).ok());  // more is ignored
}

TEST("a call of an unknown function handle is refused") {
  Peer peer;
  peer.Open();
  for (uint64_t handle : {uint64_t{0}, uint64_t{8}, peer.Alloc(16), UINT64_MAX}) {
    CHECK(peer.Ask(CallOf(handle, {})).error() != "");
  }
  CHECK(Alive(&peer));
}

TEST("each value goes in and comes out as what it is") {
  Peer peer;
  peer.Open();
  uint64_t echo = peer.Function("testing.echo");
  struct Case {
    WireValue sent;
    int32_t announced;
  };
  std::vector<Case> cases;
  cases.push_back({WireValue::None(), kTVMFFINone});
  cases.push_back({WireValue::Int(INT64_MIN), kTVMFFIInt});
  cases.push_back({WireValue::Bool(true), kTVMFFIBool});
  cases.push_back({WireValue::Float(1.5), kTVMFFIFloat});
  cases.push_back({WireValue::Pointer(0x1234), kTVMFFIOpaquePtr});
  cases.push_back({WireValue::Dtype({4, 16, 1}), kTVMFFIDataType});
  cases.push_back({WireValue::OfDevice({2, 3}), kTVMFFIDevice});
  cases.push_back({WireValue::Text(""), kTVMFFISmallStr});
  cases.push_back({WireValue::Text("1234567"), kTVMFFISmallStr});
  cases.push_back({WireValue::Text("12345678"), kTVMFFIStr});
  cases.push_back({WireValue::Text(std::string_view("a\0b", 3)), kTVMFFISmallStr});
  cases.push_back({WireValue::Bytes("123"), kTVMFFISmallBytes});
  cases.push_back({WireValue::Bytes("12345678"), kTVMFFIBytes});
  for (Case& one : cases) {
    std::string call = Frame(Code::kCallFunc, [&](Writer& out) {
      out.Put<uint64_t>(echo);
      out.Put<int32_t>(1);
      out.Value(one.sent, Form::kRequest);
    });
    rpc_test::Answer answer = peer.Ask(call);
    Sequence values = answer.values();
    CHECK_EQ(values.size(), 2);
    CHECK_EQ(values[0].type, kTVMFFIInt);
    CHECK_EQ(values[0].v_int64, one.announced);
    CHECK_EQ(values[1].type, one.sent.type);
    CHECK_EQ(values[1].text, one.sent.text);
    if (one.sent.type != kTVMFFIDataType) CHECK_EQ(values[1].v_handle, one.sent.v_handle);
    else CHECK(values[1].v_dtype == one.sent.v_dtype);
  }
}

TEST("a function, a module and an object come back as handles that can be used and freed") {
  Peer peer;
  peer.Open();
  auto [type, adder] = HandleOf(peer.Call("test_rpc.adder", Values(WireValue::Int(10))));
  CHECK_EQ(type, kTVMFFIFunction);
  CHECK_EQ(IntOf(peer.Ask(CallOf(adder, Values(WireValue::Int(12))))), 22);
  CHECK_EQ(IntOf(peer.Call("testing.apply", Values(WireValue::Handle(kTVMFFIFunction, adder), WireValue::Int(1)))), 11);

  auto [module_type, module] = HandleOf(peer.Call("test_rpc.module", {}));
  CHECK_EQ(module_type, kTVMFFIModule);
  CHECK_EQ(
      IntOf(peer.Call("test_rpc.module_twice", Values(WireValue::Handle(kTVMFFIModule, module), WireValue::Int(21)))),
      42);

  auto [shape_type, shape] = HandleOf(peer.Call("test_rpc.shape", {}));
  CHECK_EQ(shape_type, kTVMFFIShape);
  CHECK_EQ(IntOf(peer.Call("test_rpc.shape_size", Values(WireValue::Handle(kRemoteObject, shape)))), 2);

  // None of them is taken for another.
  for (uint64_t handle : {module, shape}) {
    CHECK(peer.Ask(CallOf(handle, {})).error() != "");
    CHECK(peer.Call("testing.echo", Values(WireValue::Handle(kTVMFFIFunction, handle))).error() != "");
  }
  for (uint64_t handle : {adder, shape, uint64_t{0}}) {
    CHECK(peer.Call("testing.echo", Values(WireValue::Handle(kTVMFFIModule, handle))).error() != "");
  }
  for (uint64_t handle : {adder, module, shape}) {
    CHECK(peer.Free(handle).ok());
    CHECK(peer.Free(handle).error() != "");
  }
  CHECK(Alive(&peer));
}

TEST("handles of one session mean nothing in another") {
  Peer one, two;
  one.Open();
  two.Open();
  uint64_t handle = 0;
  for (int i = 0; i < 5; ++i) handle = HandleOf(one.Call("test_rpc.shape", {})).second;
  CHECK(two.Call("test_rpc.shape_size", Values(WireValue::Handle(kRemoteObject, handle))).error() != "");
}

TEST("an opaque pointer passes through code of the server and gives no access to its memory") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(16);
  CHECK_EQ(IntOf(peer.Call("test_rpc.type_of", Values(WireValue::Pointer(memory)))), kTVMFFIOpaquePtr);
  CHECK(peer.Call("testing.echo", Values(WireValue::Pointer(peer.Function("testing.echo")))).error() != "");
}

TEST("an exception is its kind and its text, and the session goes on") {
  Peer peer;
  peer.Open();
  Sequence args = Values(WireValue::Text("ValueError"), WireValue::Text("b\xc3\xb6se"));
  rpc_test::Answer answer = peer.Call("testing.test_raise_error", args);
  CHECK_EQ(answer.error(), "ValueError: b\xc3\xb6se");
  CHECK_EQ(answer.values().size(), 1);
  CHECK_EQ(answer.values()[0].type, kTVMFFIRawStr);
  CHECK(Contains(peer.Call("test_rpc.add", Values(WireValue::Text("one"), WireValue::Int(2))).error(), "TypeError"));
  CHECK(Contains(peer.Call("test_rpc.add", {}).error(), "expected 2 arguments"));
  CHECK(Contains(peer.Call("test_rpc.throw_logic", {}).error(), "no sense"));
  CHECK(Contains(peer.Call("test_rpc.throw_int", {}).error(), "RuntimeError"));
  CHECK(Contains(peer.Call("test_rpc.out_of_memory", {}).error(), "MemoryError"));
  CHECK(Alive(&peer));
}

TEST("bytes of any size go in and come out, and may be kept") {
  std::string large(5 << 20, 'x'), medium(100000, 'y');
  for (size_t most : {SIZE_MAX, size_t{1} << 20, size_t{99991}}) {
    Peer peer;
    peer.Open();
    uint64_t echo = peer.Function("testing.echo"), keep = peer.Function("test_rpc.keep");
    for (const std::string& content : {large, medium, std::string("12345678"), std::string("1"), large}) {
      std::string requests = CallOf(echo, Values(WireValue::Bytes(content)));
      requests += CallOf(keep, Values(WireValue::Bytes(content))) + CallOf(echo, Values(WireValue::Int(3)));
      std::vector<rpc_test::Answer> answers = SplitAnswers(peer.Give(requests, most));
      CHECK_EQ(answers.size(), 3);
      CHECK(answers.at(0).ok() && answers[0].values().at(1).text == content);
      CHECK(answers.at(1).ok());
      CHECK_EQ(IntOf(answers.at(2)), 3);
      peer.Call("testing.echo", Values(WireValue::Bytes(std::string(content.size(), 'z'))));
      CHECK(*TryBytes(Kept().cell()) == content);
    }
  }
  CHECK_EQ(Kept().cast<Bytes>().size(), large.size());  // the session has gone
  Kept() = nullptr;
}

TEST("a long exception is whole") {
  Peer peer;
  peer.Open();
  std::string text(100000, 'e');
  Sequence args = Values(WireValue::Text("ValueError"), WireValue::Text(text));
  CHECK(peer.Call("testing.test_raise_error", args).error() == "ValueError: " + text);
}

// ---- Tensors in calls ---------------------------------------------------------------------------------------------

TEST("a function may keep the tensor that it was given, beyond its free and the session") {
  {
    Peer peer;
    peer.Open();
    uint64_t memory = peer.Alloc(4);
    peer.Ask(CopyToOf(Describe(memory, {4}), 4, "abcd"));
    CHECK(peer.Call("test_rpc.keep", Values(WireValue::Tensor(Describe(memory, {2}, {kDLUInt, 8, 1}, 1)))).ok());
    CHECK(peer.Ask(Code::kDevFreeData, Values(WireValue::OfDevice({1, 0}), WireValue::Pointer(memory))).ok());
  }
  Tensor kept = Kept().cast<Tensor>();
  CHECK_EQ(std::string(static_cast<char*>(kept.raw_data()), 2), "bc");
  Kept() = nullptr;
}

TEST("a function may return the tensor that it was given") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(8);
  peer.Ask(CopyToOf(Describe(memory, {8}), 8, "abcdefgh"));
  rpc_test::Answer answer =
      peer.Call("testing.echo", Values(WireValue::Tensor(Describe(memory, {2, 2}, {kDLInt, 16, 1}, 0))));
  Sequence values = answer.values();
  CHECK_EQ(values.size(), 3);  // type, tensor, and the handle to free
  CHECK_EQ(values[0].v_int64, kTVMFFITensor);
  CHECK(values[1].tensor->shape == std::vector<int64_t>({2, 2}));
  CHECK(values[1].tensor->dtype == (DLDataType{kDLInt, 16, 1}));
  CHECK_EQ(values[1].tensor->data, values[2].v_handle);
  CHECK(peer.Ask(Code::kDevFreeData, Values(WireValue::OfDevice({1, 0}), WireValue::Pointer(memory))).ok());
  const char* numbers = bytes::kBigEndian ? "badcfehg" : "abcdefgh";   // they came as bytes
  CHECK_EQ(peer.Ask(CopyFromOf(*values[1].tensor, 8)).body, numbers);  // it is alive by its own handle
  CHECK(peer.Free(values[2].v_handle).ok());
  CHECK(peer.Ask(CopyFromOf(*values[1].tensor, 8)).error() != "");
}

TEST("a tensor argument that is not within its memory is refused") {
  Peer peer;
  peer.Open();
  uint64_t memory = peer.Alloc(16), echo = peer.Function("testing.echo");
  std::vector<WireTensor> bad;
  bad.push_back(Describe(memory, {17}));
  bad.push_back(Describe(memory, {16}, {kDLUInt, 8, 1}, 1));
  bad.push_back(Describe(memory, {5}, {kDLFloat, 32, 1}));
  bad.push_back(Describe(memory, {0}, {kDLUInt, 8, 1}, 17));
  bad.push_back(Describe(memory, {1}, {kDLUInt, 8, 1}, UINT64_MAX));
  bad.push_back(Describe(memory, {-1}));
  bad.push_back(Describe(memory, {INT64_MAX, INT64_MAX}));
  bad.push_back(Describe(memory, {1}, {kDLUInt, 0, 1}));
  bad.push_back(Describe(0, {1}));
  bad.push_back(Describe(memory + 1, {1}));
  bad.push_back(Describe(echo, {1}));
  for (WireTensor& tensor : bad) {
    CHECK(peer.Ask(CallOf(echo, Values(WireValue::Tensor(std::move(tensor))))).error() != "");
  }
  CHECK(peer.Ask(CallOf(echo, Values(WireValue::Tensor(Describe(memory, {4, 4}))))).ok());
  CHECK(peer.Ask(CallOf(echo, Values(WireValue::Tensor(Describe(0, {0, 4}))))).ok());  // nothing, nowhere
  CHECK(Alive(&peer));
}
