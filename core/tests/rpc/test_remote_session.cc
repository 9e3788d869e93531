// SPDX-License-Identifier: Apache-2.0
// The calling end: against an endpoint in memory, and against peers that answer what they should not.
#include <deque>
#include <future>
#include <random>
#include <thread>

#include "rpc/remote_session.h"
#include "tests/check.h"
#include "tests/helpers.h"
#include "tests/rpc/captures.h"
#include "tests/rpc/peer.h"

using namespace rpc_test;

namespace {

// What a test sees of a channel that a session owns.
struct Wire {
  std::string sent;                                     // by the session
  std::string coming;                                   // to the session; the connection is closed after it
  std::function<std::string(std::string_view)> answer;  // to what was sent since the last time
  size_t most = SIZE_MAX;                               // bytes at once, either way
  size_t send_limit = SIZE_MAX;                         // the connection is lost after so many
  bool silent = false;                                  // the peer neither answers nor closes
  bool closed = false, interrupted = false;
  std::function<void()> receiving;  // before each wait
};

class WireChannel : public Channel {
 public:
  explicit WireChannel(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  size_t Send(const std::vector<Chunk>& chunks, Deadline) override {
    PORTCALL_CHECK(!wire_->closed, SessionClosedError) << "closed";
    PORTCALL_CHECK(wire_->sent.size() < wire_->send_limit, SessionBrokenError) << "lost";
    CHECK(!chunks.empty() && chunks[0].size > 0);
    size_t n = std::min({chunks[0].size, wire_->most, wire_->send_limit - wire_->sent.size()});
    wire_->sent.append(static_cast<const char*>(chunks[0].data), n);
    return n;
  }
  size_t Receive(void* data, size_t size, Deadline deadline) override {
    PORTCALL_CHECK(!wire_->closed && !wire_->interrupted, SessionClosedError) << "closed";
    CHECK(size > 0);
    if (wire_->receiving) wire_->receiving();
    if (wire_->answer) {
      wire_->coming += wire_->answer(std::string_view(wire_->sent).substr(answered_));
      answered_ = wire_->sent.size();
    }
    PORTCALL_CHECK(!wire_->coming.empty() || !wire_->silent, SessionTimeoutError)
        << (deadline == kNoDeadline ? "a wait without end" : "the peer did not answer in time");
    size_t n = std::min({size, wire_->most, wire_->coming.size()});
    std::memcpy(data, wire_->coming.data(), n);
    wire_->coming.erase(0, n);
    return n;
  }
  void Interrupt() override { wire_->interrupted = true; }
  void Close() noexcept override { wire_->closed = true; }

 private:
  std::shared_ptr<Wire> wire_;
  size_t answered_ = 0;
};

struct Client {
  std::shared_ptr<Wire> wire = std::make_shared<Wire>();
  std::shared_ptr<RemoteSession> session;

  explicit Client(std::string coming = "", double timeout = 0) {
    wire->coming = std::move(coming);
    RemoteOptions options;
    options.name = "the board";
    options.call_timeout = timeout;
    session = MakeRemoteSession(std::make_unique<WireChannel>(wire), options);
  }
  // What the session sent, and forgets.
  std::string Sent() { return std::exchange(wire->sent, ""); }
};

// A session with an endpoint on the other end, which serves as soon as the session waits.
struct Pair {
  Peer peer;
  Client client;

  explicit Pair(std::vector<std::string> patterns = {"testing.*", "test_rpc.*"}) : peer(std::move(patterns)) {
    client.wire->answer = [this](std::string_view bytes) { return peer.Give(bytes, client.wire->most); };
    client.session->InitServer({});
  }
  Session* operator->() { return client.session.get(); }
};

std::string ReturnOf(const Sequence& values) { return Message(Code::kReturn, values, Form::kReply); }
std::string ReturnNone() { return ReturnOf(Values(WireValue::None())); }
std::string ExceptionOf(std::string_view text) {
  return Message(Code::kException, Values(WireValue::Text(text)), Form::kReply);
}

// The capture's messages of one direction, by the section's name.
std::vector<std::string> Said(const char* section, bool by_client) {
  std::vector<std::string> said;
  for (const Capture& capture : ReadCaptures()) {
    if (capture.name.rfind(section, 0) == 0 && capture.is_frame() && capture.from_client == by_client) {
      said.push_back(capture.bytes);
    }
  }
  CHECK(!said.empty());
  return said;
}

WireTensor Floats(uint64_t data) { return Describe(data, {6, 5}, {kDLFloat, 32, 1}); }

}  // namespace

// ---- With an endpoint ---------------------------------------------------------------------------------------------

TEST("a session and an endpoint understand each other, in whichever pieces their bytes arrive") {
  for (size_t most : {SIZE_MAX, size_t{1}, size_t{7}}) {
    Pair pair;
    pair.client.wire->most = most;
    uint64_t echo = pair->GetFunction("testing.echo");
    CHECK(echo != 0);
    CHECK_EQ(pair->GetFunction("no.such.function"), 0);
    CallResult result;
    pair->Call(echo, Values(WireValue::Text("a text that is longer than a buffer's small string")), &result);
    CHECK_EQ(result.type, kTVMFFIStr);
    CHECK_EQ(result.value.text, "a text that is longer than a buffer's small string");
    pair->GetFunction("testing.nop");  // another answer in the buffer leaves the result alone
    CHECK_EQ(result.value.text, "a text that is longer than a buffer's small string");

    uint64_t memory = pair->Alloc(Floats(0), std::nullopt);
    std::string data(120, 'x'), back(120, ' ');
    pair->CopyTo(Floats(memory), data.data(), data.size());
    uint64_t other = pair->AllocData({kDLCPU, 0}, 120, 64, {kDLFloat, 32, 1});
    pair->CopyAmong(Floats(memory), Floats(other), 0);
    pair->CopyFrom(Floats(other), back.data(), back.size());
    CHECK_EQ(back, data);
    pair->FreeData({kDLCPU, 0}, memory);
    Any owner;
    CHECK_EQ(pair->GetAttr({kDLCPU, 0}, 0, &owner).v_int64, 1);
    CHECK_EQ(pair->CreateStream({kDLCPU, 0}), 0);
    pair->SetStream({kDLCPU, 0}, 0);
    CHECK_EQ(pair->GetStream({kDLCPU, 0}), 0);
    pair->SyncStream({kDLCPU, 0}, 0);
    pair->SetDevice({kDLCPU, 0});
    pair->Close();
    CHECK(!pair.peer.endpoint().closed());  // nobody waited for it
    pair.peer.Give(pair.client.Sent());
  }
}

TEST("bytes of any size go to a function and come back") {
  for (size_t most : {SIZE_MAX, size_t{1} << 20}) {
    Pair pair;
    pair.client.wire->most = most;
    uint64_t echo = pair->GetFunction("testing.echo");
    for (size_t size : {3u, 8u, 40000u, 2u << 20, 9u << 20}) {
      std::string content(size, static_cast<char>(size));
      CallResult result, other;
      pair->Call(echo, Values(WireValue::Bytes(content)), &result);
      CHECK(result.value.text == content);
      pair->Call(echo, Values(WireValue::Bytes(std::string(size, 'o'))), &other);
      CHECK(result.value.text == content);
      CHECK(result.owner.cast<Bytes>().view() == content);
    }
  }
}

TEST("large arguments are sent as they would be in one piece") {
  std::string bytes(70000, 'b'), text(300000, 't');
  auto args = [&] {
    return Values(WireValue::Bytes(bytes), WireValue::Int(1), WireValue::Text(text), WireValue::Bytes("few"),
                  WireValue::Bytes(bytes));
  };
  Client client(ReturnOf(Values(WireValue::Int(kTVMFFINone), WireValue::None())));
  client.wire->most = 33333;
  CallResult result;
  client.session->Call(0x1000, args(), &result);
  CHECK(client.Sent() == CallOf(0x1000, args()));
}

TEST("a text attribute outlives the request that fetched it") {
  Client client(ReturnOf(Values(WireValue::Text("H100"))) + ReturnOf(Values(WireValue::Text("XXXX"))));
  Any owner, other;
  WireValue name = client.session->GetAttr({kDLCUDA, 0}, 5, &owner);
  client.session->GetAttr({kDLCUDA, 0}, 5, &other);
  CHECK_EQ(name.text, "H100");
}

TEST("sessions chain: an endpoint serves another session") {
  Pair far;
  Peer near(far.client.session);
  near.Open();
  CHECK_EQ(near.Call("testing.echo", Values(WireValue::Text("abc"))).values().at(1).v_handle, 0);
  uint64_t memory = near.Alloc(100000);
  std::string data(100000, 'z');
  CHECK(near.Ask(CopyToOf(Describe(memory, {100000}), data.size(), data)).ok());
  CHECK(near.Ask(CopyFromOf(Describe(memory, {100000}), data.size())).body == data);
  CHECK(Contains(
      near.Call("testing.test_raise_error", Values(WireValue::Text("ValueError"), WireValue::Text("far"))).error(),
      "RemoteError: ValueError: far"));
  CHECK(near.Ask(CopyFromOf(Describe(memory, {1}), 200000)).error() != "");
  near.Give(Frame(Code::kShutdown));
  CHECK(far.client.session->closed());
}

// ---- Frees --------------------------------------------------------------------------------------------------------

TEST("a free waits for nothing: it goes out in front of the next request") {
  Client client;
  client.session->Free(0x10);
  client.session->FreeData({kDLCPU, 0}, 0x20);
  client.session->Free(0);
  CHECK_EQ(client.Sent(), "");
  client.wire->coming =
      ReturnNone() + ExceptionOf("ValueError: freed already") + ReturnOf(Values(WireValue::Pointer(5)));
  CHECK_EQ(client.session->GetFunction("f"), 5);
  CHECK(client.Sent() ==
        Message(Code::kFreeHandle, Values(WireValue::Pointer(0x10))) +
            Message(Code::kDevFreeData, Values(WireValue::OfDevice({kDLCPU, 0}), WireValue::Pointer(0x20))) +
            Message(Code::kGetGlobalFunc, Values(WireValue::Text("f"))));
}

TEST("frees of a closed session go nowhere") {
  Client client;
  client.session->Close();
  CHECK(client.Sent() == Frame(Code::kShutdown));
  client.session->Free(0x10);
  CHECK_EQ(client.Sent(), "");
}

TEST("many frees go out with several requests") {
  Pair pair;
  uint64_t echo = 0;
  for (int i = 0; i < 1000; ++i) echo = pair->GetFunction("testing.echo");
  for (int i = 0; i < 999; ++i) pair->Free(echo);
  for (int i = 0; i < 4; ++i) {
    size_t before = pair.client.wire->sent.size();
    pair->GetFunction("no.such.function");
    CHECK(pair.client.wire->sent.size() - before < 256 * 40);
  }
  CallResult result;
  pair->Call(echo, Values(WireValue::Int(1)), &result);
  pair->Free(echo);
  pair->GetFunction("no.such.function");
  CHECK(Contains(Thrown([&] { pair->Call(echo, {}, &result); }), "names nothing in this session"));
}

// ---- Invalid answers -----------------------------------------------------------------------------------------------

TEST("an exception in place of an answer leaves the session usable") {
  Client client;
  std::string buffer(8, ' ');
  std::vector<std::function<void(Session*)>> requests = {
      [](Session* s) { s->GetFunction("f"); },
      [](Session* s) {
        CallResult result;
        s->Call(1, {}, &result);
      },
      [](Session* s) { s->Alloc(Describe(0, {2}), "scope"); },
      [](Session* s) { s->SyncStream({1, 0}, 0); },
      [](Session* s) { static_cast<RemoteSession*>(s)->InitServer({Any("rpc.Connect")}); },
      [](Session* s) { s->CopyAmong(Describe(1, {2}), Describe(2, {2}), 0); },
      [](Session* s) {
        Any owner;
        s->GetAttr({1, 0}, 0, &owner);
      },
  };
  for (auto& request : requests) {
    client.wire->coming = ExceptionOf("KeyError: 'x'");
    CHECK_EQ(Thrown([&] { request(client.session.get()); }), "RemoteError: KeyError: 'x'");
  }
  client.wire->coming = ReturnOf(Values(WireValue::Pointer(0))) + ExceptionOf("a");
  CHECK_EQ(Thrown([&] { client.session->CopyTo(Describe(1, {8}), buffer.data(), 8); }), "RemoteError: a");
  client.wire->coming = ExceptionOf("b");
  CHECK_EQ(Thrown([&] { client.session->CopyFrom(Describe(1, {8}), buffer.data(), 8); }), "RemoteError: b");
  client.wire->coming = ReturnOf(Values(WireValue::Pointer(5)));
  CHECK_EQ(client.session->GetFunction("f"), 5);
}

TEST("an answer that the protocol does not allow closes the session, and is taken for no other") {
  std::vector<std::string> bad = {
      ReturnOf({}),                                            // C2: no values at all
      ReturnOf(Values(WireValue::Int(7))),                     // a type without its value
      ReturnOf(Values(WireValue::None(), WireValue::None())),  // an invalid type
      ReturnOf(Values(WireValue::Int(70), WireValue::Tensor(Describe(1, {-4})), WireValue::Pointer(1))),
      ReturnOf(Values(WireValue::Int(70), WireValue::Tensor(Describe(1, {4})), WireValue::Text("1"))),
      AckOf(""),
      AckOf("abcd"),
      Frame(Code::kNone),
      Frame(Code::kCallFunc),
      CopyToOf(Describe(1, {1}), 1, "x"),
      Frame(static_cast<Code>(40)),
      Frame(Code::kReturn),
      ReturnOf(Values(WireValue::Int(0), WireValue::None())).substr(0, 8) + std::string("\4\0\0\0\1", 5) +
          std::string(100, '\0'),
      Frame(Code::kException),
      Message(Code::kException, Values(WireValue::Int(1)), Form::kReply),
      std::string("\1\0\0\0\0\0\0\0x", 9),
      std::string(8, '\xff') + std::string("\4\0\0\0", 4),
  };
  for (const std::string& answer : bad) {
    Client client(answer);
    CallResult result;
    CHECK_EQ(KindOf(Thrown([&] { client.session->Call(1, {}, &result); })), "RemoteProtocolError");
    CHECK(client.session->closed());
    CHECK(client.wire->closed);
    CHECK(Contains(Thrown([&] { client.session->GetFunction("f"); }), "the session with the board is over"));
  }
}

TEST("the tensor that a function was given and gives back is a result like others") {
  // C1: two values, and the announced type of a borrowed tensor
  Client client(Said("CallFunc echo(DLTensor): reply of type 7", false).at(1) +
                ReturnOf(Values(WireValue::Pointer(5))));
  CallResult result;
  client.session->Call(1, {}, &result);
  CHECK_EQ(result.type, kTVMFFIDLTensorPtr);
  CHECK_EQ(result.value.tensor->shape.size(), 1);
  CHECK_EQ(result.handle, 0);
  CHECK_EQ(client.session->GetFunction("f"), 5);
}

TEST("a system call wants one value, of the right kind") {
  for (const std::string& answer : {ReturnOf({}), ReturnOf(Values(WireValue::None(), WireValue::None())),
                                    ReturnOf(Values(WireValue::Text("5"))), AckOf("")}) {
    Client client(answer);
    CHECK_EQ(KindOf(Thrown([&] { client.session->GetFunction("f"); })), "RemoteProtocolError");
    CHECK(client.session->closed());
  }
}

TEST("a copy wants exactly the bytes that it asked for") {
  std::string limit = ReturnOf(Values(WireValue::Pointer(0)));
  for (const std::string& answer : {AckOf("1234567"), AckOf("123456789"), AckOf(""), ReturnNone()}) {
    Client client(limit + answer);
    std::string buffer(8, ' ');
    std::string error = Thrown([&] { client.session->CopyFrom(Describe(1, {8}), buffer.data(), 8); });
    CHECK_EQ(KindOf(error), "RemoteProtocolError");
    CHECK_EQ(buffer, "        ");
    CHECK(client.session->closed());
  }
  for (const std::string& answer : {AckOf("12345678"), AckOf("")}) {
    Client client(limit + answer);
    CHECK_EQ(KindOf(Thrown([&] { client.session->CopyTo(Describe(1, {8}), "12345678", 8); })), "RemoteProtocolError");
  }
}

TEST("a connection that ends within an answer breaks the session, wherever it ends") {
  std::string data(20, 'x'), buffer(20, ' ');
  std::string limit = ReturnOf(Values(WireValue::Pointer(0))), ack = AckOf(data);
  for (size_t size = 0; size < ack.size(); ++size) {
    Client client(limit + ack.substr(0, size));
    std::string error = Thrown([&] { client.session->CopyFrom(Describe(1, {20}), buffer.data(), 20); });
    CHECK_EQ(KindOf(error), "SessionBrokenError");
    CHECK(Contains(error, "the board closed the connection"));
    CHECK_EQ(Contains(error, "in the middle of an answer"), size != 0);
    CHECK(client.session->closed());
  }
  std::string answer = ReturnOf(Values(WireValue::Int(11), WireValue::Text("abc")));
  for (size_t size = 0; size < answer.size(); ++size) {
    Client client(answer.substr(0, size));
    CallResult result;
    CHECK_EQ(KindOf(Thrown([&] { client.session->Call(1, {}, &result); })), "SessionBrokenError");
  }
}

TEST("Shutdown in place of an answer is the failure of the server") {
  Client client(Frame(Code::kShutdown));
  std::string error = Thrown([&] { client.session->GetFunction("f"); });
  CHECK(Contains(error, "SessionBrokenError: the board ended the session"));
  CHECK(client.session->closed());
}

TEST("any bytes in place of an answer give an error of the session") {
  std::mt19937 random(6);
  std::string stream;
  for (const Capture& capture : ReadCaptures()) {
    if (capture.is_frame() && !capture.from_client) stream += capture.bytes;
  }
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = stream.substr(random() % (stream.size() - 200), 200);
    if (i % 2) bytes = stream.substr(0, 400);
    for (size_t n = random() % 6; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    Client client(bytes);
    std::string buffer(24, ' '), kind;
    while (!client.session->closed()) {
      kind = KindOf(Thrown([&] {
        CallResult result;
        client.session->Call(1, {}, &result);
        client.session->GetFunction("f");
        client.session->CopyFrom(Describe(1, {24}), buffer.data(), 24);
      }));
    }
    CHECK(kind == "RemoteProtocolError" || kind == "SessionBrokenError" || kind == "SessionTimeoutError");
  }
}

// ---- Time and ends ------------------------------------------------------------------------------------------------

TEST("a call that the peer does not answer in time closes the session") {
  Client client("", 5);
  client.wire->silent = true;
  std::string error = Thrown([&] { client.session->GetFunction("f"); });
  CHECK(Contains(error, "SessionTimeoutError: the board did not answer in time"));
  CHECK(Contains(error, "sent 29 of 29 bytes, received 0"));
  CHECK(client.session->closed());
  CHECK(client.wire->closed);
}

TEST("without a limit a call waits without a deadline, and the limit can be changed") {
  Client client;
  client.wire->silent = true;
  client.session->set_call_timeout(0);
  CHECK(Contains(Thrown([&] { client.session->GetFunction("f"); }), "a wait without end"));
  Client other;
  other.wire->silent = true;
  other.session->set_call_timeout(9);
  CHECK(Contains(Thrown([&] { other.session->GetFunction("f"); }), "in time"));
}

TEST("the server's word that the time of a session is over ends it, asked for or not") {
  std::string word = Said("session timeout", false).at(0);
  for (bool frees : {false, true}) {
    Client client(word);
    if (frees) client.session->Free(0x10);
    std::string error = Thrown([&] { client.session->GetFunction("f"); });
    CHECK(Contains(error, "SessionTimeoutError: Your 1.0s session has expired"));
    CHECK(client.session->closed());
  }
}

TEST("what a server says before it hangs up on a request is heard") {
  for (size_t limit : {size_t{1}, size_t{100}}) {
    Client client(ExceptionOf("RemoteProtocolError: a message of 2000 bytes is over the limit of 1000") +
                  Frame(Code::kShutdown));
    client.wire->send_limit = limit;
    CallResult result;
    std::string text(2000, 'x');
    std::string error = Thrown([&] { client.session->Call(1, Values(WireValue::Text(text)), &result); });
    CHECK_EQ(error, "RemoteError: RemoteProtocolError: a message of 2000 bytes is over the limit of 1000");
    CHECK(client.session->closed());
  }
  Client mute;
  mute.wire->send_limit = 1;
  CHECK_EQ(KindOf(Thrown([&] { mute.session->GetFunction("f"); })), "SessionBrokenError");
}

TEST("closing sends shutdown once, and later requests fail because we closed") {
  Client client;
  client.session->Close();
  client.session->Close();
  CHECK(client.Sent() == Frame(Code::kShutdown));
  CHECK(client.wire->closed);
  CHECK_EQ(Thrown([&] { client.session->GetFunction("f"); }),
           "SessionClosedError: the session with the board is closed");
  auto wire = std::make_shared<Wire>();
  MakeRemoteSession(std::make_unique<WireChannel>(wire), {});
  CHECK(wire->sent == Frame(Code::kShutdown));
}

TEST("closing from another thread cuts off the request that is under way") {
  Client client;
  client.wire->receiving = [&] {
    std::thread([&] { client.session->Close(); }).join();
    PORTCALL_CHECK(!client.wire->interrupted, SessionClosedError) << "closed";
  };
  CHECK_EQ(KindOf(Thrown([&] { client.session->GetFunction("f"); })), "SessionClosedError");
  CHECK(client.wire->interrupted);
  CHECK(client.wire->closed);
}

TEST("a request that is answered although somebody closed the session lets the connection go") {
  Client client(ReturnOf(Values(WireValue::Pointer(5))));
  client.wire->receiving = [&] { std::thread([&] { client.session->Close(); }).join(); };
  CHECK_EQ(client.session->GetFunction("f"), 5);
  CHECK(client.wire->closed);
}

TEST("a session goes while a thread of its own waits for the thread that lets go of it") {
  for (bool attends : {false, true}) {
    Client client;
    std::promise<void> asked, gone;
    std::shared_future<void> asking = asked.get_future().share(), leave = gone.get_future().share();
    client.session->set_explain(PackedFunc([&asked, leave](Args, RetValue*) {
      asked.set_value();
      leave.wait();
    }));
    client.session->set_pipelined(true);
    if (attends) {  // a thread that waits for callbacks finds that the peer is gone, and asks why
      client.session->set_calls_back(true);
      client.session->Lend(PackedFunc([](Args, RetValue*) {}));
    } else {  // the one that sends what was posted does
      client.session->CallLater(1, {}, kNoDeadline);
      client.wire->send_limit = client.wire->sent.size();
      client.session->CallLater(1, {}, kNoDeadline);
    }
    asking.wait();
    auto letting_go = std::async(std::launch::async, [&] { client.session.reset(); });
    bool went = letting_go.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    gone.set_value();
    CHECK(went);
  }
}

TEST("the counts of a session can be read while a request waits") {
  Client client(ReturnOf(Values(WireValue::Pointer(5))));
  uint64_t seen = 0;
  client.wire->receiving = [&] { std::thread([&] { seen = client.session->stats().bytes_sent; }).join(); };
  client.session->GetFunction("f");
  CHECK_EQ(seen, Message(Code::kGetGlobalFunc, Values(WireValue::Text("f"))).size());
  CHECK_EQ(client.session->stats().requests, 1);
  CHECK_EQ(client.session->stats().bytes_received, 28);
}

TEST("many threads use one session, and each gets its own answers") {
  Pair pair;
  uint64_t echo = pair->GetFunction("testing.echo");
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 200; ++i) {
        CallResult result;
        pair->Call(echo, Values(WireValue::Int(1000 * t + i)), &result);
        CHECK_EQ(result.value.v_int64, 1000 * t + i);
        uint64_t memory = pair->Alloc(Floats(0), std::nullopt);
        std::string data(120, static_cast<char>('a' + t)), back(120, ' ');
        pair->CopyTo(Floats(memory), data.data(), data.size());
        pair->CopyFrom(Floats(memory), back.data(), back.size());
        CHECK(back == data);
        pair->FreeData({kDLCPU, 0}, memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Blocks -------------------------------------------------------------------------------------------------------

TEST("copies to a server whose packets are limited are byte for byte those of TVM") {
  std::string data(120, '\0');
  for (int i = 0; i < 30; ++i) {
    auto value = static_cast<float>(i);
    std::memcpy(data.data() + 4 * i, &value, sizeof(value));
  }
  std::vector<std::string> to = Said("chunked host -> remote", true), from = Said("chunked remote -> host", true);
  std::vector<std::string> answers = Said("chunked host -> remote", false);
  to.pop_back();  // TVM's client synchronizes the device, which has nothing to wait for
  from.pop_back();
  answers.pop_back();
  Client client;
  // The limit is asked for; the handle of its function is freed in front of the first block.
  answers.insert(answers.begin() + 2, ReturnNone());
  to.insert(to.begin() + 2, Message(Code::kFreeHandle, Values(WireValue::Pointer(0x77))));
  for (const std::string& answer : answers) client.wire->coming += answer;
  client.session->CopyTo(Floats(0x5000), data.data(), data.size());
  std::string expected;
  for (const std::string& request : to) expected += request;
  CHECK(client.Sent() == expected);

  // Then it is known.
  answers = Said("chunked remote -> host", false);
  answers.pop_back();
  for (const std::string& answer : answers) client.wire->coming += answer;
  std::string back(120, ' ');
  client.session->CopyFrom(Floats(0x5000), back.data(), back.size());
  expected = "";
  for (const std::string& request : from) expected += request;
  CHECK(client.Sent() == expected);
  bytes::OrderElements(back.data(), back.size(), {kDLFloat, 32, 1});
  CHECK_EQ(static_cast<int>(back[41]), 1);
}

TEST("a server without a limit is asked once") {
  Client client(ReturnOf(Values(WireValue::Pointer(0))) + ReturnNone() + ReturnNone());
  client.session->CopyTo(Describe(1, {2}), "ab", 2);
  client.session->CopyTo(Describe(1, {2}), "ab", 2);
  std::string copy = CopyToOf(Describe(1, {2}), 2, "ab");
  CHECK(client.Sent() ==
        Message(Code::kGetGlobalFunc, Values(WireValue::Text("tvm.rpc.server.GetCRTMaxPacketSize"))) + copy + copy);
}

TEST("an invalid limit is refused, and one below the head of a copy sends byte by byte") {
  for (int64_t limit : {int64_t{0}, int64_t{-5}, INT64_MIN}) {
    Client client(ReturnOf(Values(WireValue::Pointer(7))) + ReturnOf(Values(WireValue::Int(1), WireValue::Int(limit))));
    CHECK_EQ(KindOf(Thrown([&] { client.session->CopyTo(Describe(1, {2}), "ab", 2); })), "RemoteProtocolError");
  }
  Client client(ReturnOf(Values(WireValue::Pointer(7))) + ReturnOf(Values(WireValue::Int(1), WireValue::Int(10))) +
                ReturnNone() + ReturnNone() + ReturnNone());
  client.session->CopyTo(Describe(1, {2}), "ab", 2);
  CHECK(Contains(client.Sent(), CopyToOf(Describe(1, {2}, {kDLUInt, 8, 1}, 1), 1, "b")));
}

TEST("blocks are of whole elements, so that each can be swapped for itself by its type") {
  for (DLDataType type : {DLDataType{kDLInt, 16, 1}, DLDataType{kDLFloat, 32, 3}, DLDataType{kDLComplex, 128, 1}}) {
    uint64_t size = type.bits / 8 * type.lanes;
    for (int64_t limit : {52 + 17, 52 + 40, 52 + 45}) {
      std::string answers =
          ReturnOf(Values(WireValue::Pointer(7))) + ReturnOf(Values(WireValue::Int(1), WireValue::Int(limit)));
      for (int i = 0; i < 100; ++i) answers += ReturnNone();
      Client client(answers);
      std::string data(10 * size, '\0');
      client.session->CopyTo(Describe(1, {10}, type), data.data(), data.size());
      std::string sent = client.Sent();
      uint64_t copied = 0;
      for (const Answer& message : SplitAnswers(sent)) {
        if (message.code != Code::kCopyToRemote) continue;
        Reader reader(message.body);
        WireTensor block = reader.Tensor();
        auto nbytes = reader.Take<uint64_t>();
        CHECK_EQ(block.byte_offset, copied);
        CHECK_EQ(nbytes % size, uint64_t{0});
        CHECK(message.body.size() + sizeof(int32_t) <= static_cast<size_t>(limit));
        copied += nbytes;
      }
      CHECK_EQ(copied, data.size());
    }
  }
}

TEST("a copy of no bytes asks nothing") {
  Client client;
  client.session->CopyTo(Describe(1, {0}), "", 0);
  CHECK_EQ(client.Sent(), "");
}

TEST("constructor arguments travel in the form that InitServer asks for") {
  std::vector<std::string> inits;
  for (const std::string& frame : Said("InitServer with constructor arguments", true)) inits.push_back(frame);
  Client client(ReturnNone());
  client.session->InitServer({Any("rpc.Connect"), Any("127.0.0.1"), Any(9701), Any("inner"), Any(false)});
  std::string sent = client.Sent();
  Reader ours(sent), theirs(inits.at(0));
  ours.Bytes(12);
  theirs.Bytes(12);
  CHECK_EQ(ours.Text(), theirs.Text());
  Sequence a = ours.Values(), b = theirs.Values();
  CHECK_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK_EQ(a[i].type, b[i].type);
  Client other;
  CHECK(Contains(Thrown([&] { other.session->InitServer({Any(Shape({1}))}); }), "TypeError"));
}
