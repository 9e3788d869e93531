// SPDX-License-Identifier: Apache-2.0
// Bytes in any split to frames.
#include <random>

#include "rpc/frames.h"
#include "tests/check.h"
#include "tests/rpc/captures.h"
#include "tests/rpc/peer.h"

using namespace rpc_test;

namespace {

// Everything that a reader reports of a stream, as one text. Payloads are received, or skipped when `skip`.
class Listener {
 public:
  explicit Listener(uint64_t max_frame = 1 << 20, bool skip = false) : frames_(max_frame), skip_(skip) {}

  void Give(std::string_view bytes, size_t most = SIZE_MAX) {
    while (!bytes.empty()) {
      auto [space, room] = frames_.Space();
      CHECK(room > 0);
      size_t n = std::min({bytes.size(), room, most});
      std::memcpy(space, bytes.data(), n);
      frames_.Filled(n);
      bytes.remove_prefix(n);
      Listen();
    }
  }
  const std::string& heard() const { return heard_; }
  FrameReader& frames() { return frames_; }

 private:
  void Listen() {
    for (;;) {
      FrameReader::Event event = frames_.Next();
      if (event == FrameReader::kNeedBytes) return;
      heard_ += '[' + std::to_string(event) + ' ';
      if (event != FrameReader::kPayloadEnd) {
        heard_ += std::to_string(static_cast<int>(frames_.code())) + ' ' + std::string(frames_.body());
      }
      if (event == FrameReader::kPayload && !skip_ && frames_.payload_size() <= 1 << 20) {
        payload_.assign(frames_.payload_size(), '?');
        frames_.Receive(payload_.data());
      }
      if (event == FrameReader::kPayloadEnd) heard_ += payload_;
      heard_ += ']';
    }
  }

  FrameReader frames_;
  bool skip_;
  std::string payload_, heard_;
};

std::string Heard(std::string_view bytes, size_t most = SIZE_MAX) {
  Listener listener;
  listener.Give(bytes, most);
  return listener.heard();
}

std::string Stream() {
  std::string bytes = Init() + Message(Code::kGetGlobalFunc, Values(WireValue::Text("testing.echo")));
  bytes += CopyToOf(Describe(0x1000, {4, 25}), 100, std::string(100, 'a'));
  bytes += CopyToOf(Describe(0x1000, {}), 0, "");
  bytes += std::string(8, '\0');  // a frame of no content
  bytes += AckOf("12345") + AckOf("");
  bytes += CopyToOf(Describe(0x1000, {50000}), 50000, std::string(50000, 'b'));
  return bytes + Message(Code::kReturn, Values(WireValue::Text(std::string(30000, 'c')))) + Frame(Code::kShutdown);
}

std::string KindOfFrames(std::string_view bytes, uint64_t max_frame = 1 << 20) {
  std::string error = Thrown([&] { Listener(max_frame).Give(bytes); });
  return error.substr(0, error.find(':'));
}

}  // namespace

TEST("any split of a stream gives the same messages") {
  std::string stream = Stream(), whole = Heard(stream);
  CHECK(whole.size() > 80000);
  for (size_t most : {1, 2, 3, 7, 8, 11, 12, 13, 64, 100, 4096, 60000}) CHECK(Heard(stream, most) == whole);
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    Listener listener;
    for (size_t at = 0; at < stream.size();) {
      size_t n = std::min<size_t>(stream.size() - at, 1 + random() % (random() % 3 ? 40 : 20000));
      listener.Give(std::string_view(stream).substr(at, n));
      at += n;
    }
    CHECK(listener.heard() == whole);
  }
}

TEST("what TVM said is the same in whichever pieces it arrives") {
  std::string stream;
  for (const Capture& capture : ReadCaptures()) {
    if (capture.is_frame()) stream += capture.bytes;
  }
  CHECK(Heard(stream, 1) == Heard(stream));
  CHECK(Heard(stream, 5) == Heard(stream));
}

TEST("a payload is received where it belongs, without a stop in between") {
  std::string data(100000, 'x'), stream = CopyToOf(Describe(1, {100000}), data.size(), data);
  FrameReader frames(1 << 20);
  auto [space, room] = frames.Space();
  std::memcpy(space, stream.data(), 60);
  frames.Filled(60);
  CHECK_EQ(frames.Next(), FrameReader::kPayload);
  CHECK_EQ(frames.payload_size(), data.size());
  std::string target(data.size(), '\0');
  frames.Receive(target.data());
  CHECK_EQ(frames.Next(), FrameReader::kNeedBytes);
  auto [direct, left] = frames.Space();
  CHECK(direct >= target.data() && direct + left == target.data() + target.size());
  std::memcpy(direct, data.data(), left);
  frames.Filled(left);
  CHECK_EQ(frames.Next(), FrameReader::kPayloadEnd);
  CHECK(target == data);
}

TEST("a payload that nobody wants is passed over") {
  Listener listener(1 << 20, true);
  listener.Give(CopyToOf(Describe(1, {1 << 22}), 1 << 22, std::string(1 << 22, 'x')) + Frame(Code::kShutdown), 5000);
  CHECK(Contains(listener.heard(), "[1 1 ]"));
  CHECK(listener.frames().Space().second < 200000);  // it was kept nowhere
}

TEST("the peer may close between two frames only") {
  std::string frame = Init();
  for (size_t size = 0; size <= frame.size(); ++size) {
    Listener listener;
    listener.Give(std::string_view(frame).substr(0, size));
    CHECK_EQ(listener.frames().AtBoundary(), size == 0 || size == frame.size());
  }
}

TEST("a frame that has no code, or is too long, is refused as soon as its length is known") {
  for (uint64_t n : {1, 2, 3}) CHECK_EQ(KindOfFrames(Length(n)), "RemoteProtocolError");
  std::string code(4, '\3');
  for (uint64_t n : {uint64_t{(1 << 20) + 1}, uint64_t{1} << 62, UINT64_MAX}) {
    CHECK_EQ(KindOfFrames(Length(n) + code), "RemoteProtocolError");
  }
  CHECK_EQ(KindOfFrames(Length(1 << 20) + code), "");
}

TEST("nothing is allocated because of the length of a copy alone") {
  std::string head = CopyToOf(Describe(1, {1}), 1, "");
  head.replace(0, 8, Length(uint64_t{1} << 62));
  Listener listener(1 << 20, true);
  listener.Give(head);
  CHECK(listener.frames().payload_size() > uint64_t{1} << 61);
  CHECK(listener.frames().Space().second <= 1 << 17);
}

TEST("memory grows with what arrives of a frame, and is given back after it") {
  std::string large = Message(Code::kReturn, Values(WireValue::Text(std::string(10 << 20, 'c'))));
  FrameReader frames(1 << 30);
  size_t arrived = 0;
  for (; arrived < large.size();) {
    auto [space, room] = frames.Space();
    CHECK(room <= 8 * arrived + (64 << 10));
    size_t n = std::min(room, large.size() - arrived);
    std::memcpy(space, large.data() + arrived, n);
    frames.Filled(n);
    arrived += n;
    CHECK_EQ(frames.Next(), arrived == large.size() ? FrameReader::kMessage : FrameReader::kNeedBytes);
  }
  CHECK_EQ(frames.Next(), FrameReader::kNeedBytes);
  CHECK(frames.Space().second < 1 << 20);
}

TEST("memory grows with what arrives, in however small pieces that is") {
  std::string head = Length(uint64_t{1} << 29) + std::string("\4\0\0\0", 4);
  FrameReader frames(uint64_t{1} << 30);
  for (size_t arrived = 0; arrived < 3000; ++arrived) {
    auto [space, room] = frames.Space();
    CHECK(room <= size_t{64 << 10});
    *space = arrived < head.size() ? head[arrived] : 'c';
    frames.Filled(1);
    CHECK_EQ(frames.Next(), FrameReader::kNeedBytes);
  }
}

TEST("a large message is moved a few times only, and never when it is nearly whole") {
  for (auto [size, most] : {std::pair(1 << 20, SIZE_MAX), {8 << 20, SIZE_MAX}, {10 << 20, 5000}}) {
    std::string large = Message(Code::kReturn, Values(WireValue::Text(std::string(size, 'c'))));
    FrameReader frames(1 << 30);
    const char* expected = nullptr;
    size_t moves = 0, moved = 0;
    for (std::string_view rest = large; !rest.empty();) {
      auto [space, room] = frames.Space();
      moves += space != expected;
      moved += space != expected ? large.size() - rest.size() : 0;
      size_t n = std::min({rest.size(), room, most});
      std::memcpy(space, rest.data(), n);
      frames.Filled(n);
      rest.remove_prefix(n);
      expected = space + n;
      frames.Next();
    }
    CHECK(moves < 10);
    CHECK(moved < large.size() / 2);
  }
}

namespace {

// Bytes that come to a reader, up to the end of the first message.
struct Arriving {
  std::string stream;
  std::string_view rest;
  FrameReader frames{1 << 30};
  Sequence values;

  explicit Arriving(std::string bytes, size_t most = SIZE_MAX) : stream(std::move(bytes)), rest(stream) { Next(most); }
  void Next(size_t most = SIZE_MAX) {
    while (frames.Next() != FrameReader::kMessage) Give(most);
    Reader reader = frames.reader();
    if (frames.code() == Code::kCallFunc) reader.Take<uint64_t>();
    values = reader.Values();
    reader.ExpectEnd();
  }
  void Give(size_t most) {
    auto [space, room] = frames.Space();
    size_t n = std::min({rest.size(), room, most});
    std::memcpy(space, rest.data(), n);
    frames.Filled(n);
    rest.remove_prefix(n);
  }
};

// A message whose bytes are most of it.
const std::string kText(1000, 't');
std::string Mostly(std::string_view content, Code code = Code::kReturn) {
  return Frame(code, [&](Writer& out) {
    if (code == Code::kCallFunc) out.Put<uint64_t>(7);
    out.Values(Values(WireValue::Text(kText), WireValue::Bytes(content), WireValue::Text(kText),
                      WireValue::Bytes("small one")),
               code == Code::kReturn ? Form::kReply : Form::kRequest);
  });
}

constexpr size_t kLargeContent = 3 << 20, kWithTheNext = 1100000;

}  // namespace

TEST("bytes that are most of a large message come straight into an object") {
  std::string next = Message(Code::kReturn, Values(WireValue::Int(7)));
  for (Code code : {Code::kReturn, Code::kCallFunc}) {
    for (auto [size, most] : {std::pair(kLargeContent, SIZE_MAX), {kLargeContent, 70001}, {kWithTheNext, SIZE_MAX}}) {
      std::string content(size, 'b');
      content[size / 2] = '?';
      Arriving arriving(Mostly(content, code) + next, most);
      CHECK_EQ(arriving.values.size(), 4);
      WireValue& value = arriving.values.at(1);
      CHECK_EQ(value.object.type_index(), kTVMFFIBytes);
      CHECK(value.text == content && value.text.data() == TryBytes(value.object.cell())->data());
      CHECK_EQ(value.text.data()[size], '\0');  // as after all bytes objects
      CHECK(arriving.frames.body().size() < 4096);
      // The rest of the message is as it was, and so is what comes next.
      CHECK(arriving.values.at(0).text == kText && arriving.values.at(2).text == kText);
      CHECK_EQ(arriving.values.at(3).text, "small one");
      Any kept = std::move(value.object);
      arriving.Next();
      CHECK(arriving.values.size() == 1 && arriving.values.at(0).v_int64 == 7);
      CHECK(*TryBytes(kept.cell()) == content);
    }
  }
}

TEST("an object by value that is most of a large message comes straight into an object") {
  std::string content(kLargeContent, 'v');
  Sequence values;
  values.push_back(WireValue::Int(kTVMFFIArray));
  values.push_back(WireValue::ByValue(content));
  Arriving arriving(Message(Code::kReturn, values));
  CHECK_EQ(arriving.values.at(1).type, kByValue);
  CHECK(*TryBytes(arriving.values.at(1).object.cell()) == content);
}

TEST("several large messages that come at once are told apart") {
  std::string large(kWithTheNext, 'a'), medium(1 << 20, 'b'), text(300000, 'c');
  Arriving arriving(Mostly(large) + Mostly(medium) + Message(Code::kReturn, Values(WireValue::Text(text))));
  Any first = arriving.values.at(1).object;
  arriving.Next();
  CHECK(arriving.values.at(1).text == medium);
  arriving.Next();
  CHECK(arriving.values.at(0).text == text);
  CHECK(*TryBytes(first.cell()) == large);
}

TEST("bytes outlive the reader of their message") {
  std::string content(kLargeContent, 'b');
  Any kept;
  {
    Arriving arriving(Mostly(content));
    kept = arriving.values.at(1).object;
  }
  CHECK(*TryBytes(kept.cell()) == content);
}

TEST("bytes that are little of their message, or of a small one, come with it") {
  for (auto [size, others] : {std::pair(100, 10), {kLargeContent / 3, kLargeContent}, {900000, 0}}) {
    Arriving arriving(Message(
        Code::kReturn, Values(WireValue::Bytes(std::string(size, 'b')), WireValue::Bytes(std::string(others, 'c')))));
    CHECK(arriving.values.at(0).object == nullptr);
    CHECK_EQ(arriving.values.at(0).text.size(), size);
  }
}

TEST("bytes whose length is more than their message has are an error when it is read, and take no memory") {
  for (uint64_t promised : {uint64_t{kLargeContent} + 1, uint64_t{1} << 62, UINT64_MAX}) {
    std::string large = Mostly(std::string(kLargeContent, 'b'));
    large.replace(large.find("bbb") - sizeof(promised), sizeof(promised), Length(promised));
    CHECK_THROWS(Arriving(large), Error);
  }
}

TEST("a large message gets memory for 64 times what has arrived") {
  constexpr size_t kSize = 512 << 20;
  std::string large = Mostly("");
  size_t at = large.find("tt") + kText.size() + 4;  // the length of the bytes
  large.replace(0, 8, Length(large.size() - 8 + kSize));
  large.replace(at, 8, Length(kSize));
  FrameReader frames(1 << 30);
  for (size_t arrived = 0; arrived < kSize / 64 - 4096;) {
    auto [space, room] = frames.Space();
    CHECK(room <= 8 * arrived + (128 << 10));
    size_t n = std::min(room, size_t{4096});
    std::memset(space, 'b', n);
    if (arrived == 0) std::memcpy(space, large.data(), at + 8);
    frames.Filled(n);
    arrived += n;
    CHECK_EQ(frames.Next(), FrameReader::kNeedBytes);
  }
}

TEST("what is held in part is read as a whole") {
  std::string stream = Stream();
  for (size_t from = 0; from < stream.size(); from += 7) {
    Listener held;
    std::string_view first = std::string_view(stream).substr(0, from), rest = std::string_view(stream).substr(from);
    held.frames().Hold();
    held.Give(first, 5);
    CHECK_EQ(held.heard(), "");
    held.frames().Resume();
    held.Give(rest);
    CHECK(held.heard() == Heard(stream));
  }
}

TEST("a reader that nobody asks for messages takes bytes in pieces of a good size") {
  FrameReader frames(1 << 20);
  int pieces = 0;
  for (size_t total = 0; total < 4 << 20; ++pieces) {
    auto [space, room] = frames.Space();
    std::memset(space, 0, room);
    frames.Filled(room);
    total += room;
  }
  CHECK(pieces < 1000);
  CHECK_EQ(frames.Next(), FrameReader::kNeedBytes);  // nothing but frames without content
}

TEST("a copy whose head is wrong is a message, for its receiver to answer") {
  for (int32_t ndim : {-1, 3, 65, INT32_MAX}) {
    std::string copy = CopyToOf(Describe(1, {8}), 8, "12345678");
    std::memcpy(copy.data() + 12 + 16, &ndim, sizeof(ndim));
    CHECK_EQ(Heard(copy), "[1 7 " + copy.substr(12) + "]");
  }
  std::string tiny = Frame(Code::kCopyToRemote, [](Writer& out) { out.Put<uint64_t>(1); });
  CHECK_EQ(Heard(tiny), "[1 7 " + tiny.substr(12) + "]");
}

TEST("any bytes give messages or RemoteProtocolError, in any split") {
  std::mt19937 random(4);
  std::string stream = Stream().substr(0, 500);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = stream;
    for (size_t n = random() % 6; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    std::string kind = KindOfFrames(bytes);
    CHECK(kind.empty() || kind == "RemoteProtocolError");
    Listener whole, pieces;
    std::string one = Thrown([&] { whole.Give(bytes); }), other = Thrown([&] { pieces.Give(bytes, 1 + random() % 9); });
    CHECK_EQ(one, other);
    CHECK(whole.heard() == pieces.heard());
  }
}
