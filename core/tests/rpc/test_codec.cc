// SPDX-License-Identifier: Apache-2.0
// Values and messages: bytes and back.
#include <cmath>
#include <deque>
#include <limits>
#include <random>

#include "tests/check.h"
#include "tests/rpc/captures.h"
#include "tests/rpc/peer.h"

using namespace rpc_test;

namespace {

std::string Hex(std::string_view bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (char c : bytes) {
    out.push_back(digits[static_cast<unsigned char>(c) >> 4]);
    out.push_back(digits[c & 15]);
  }
  return out;
}

std::string Encode(const Sequence& values, Form form) {
  std::string bytes;
  Writer(&bytes).Values(values, form);
  return bytes;
}
std::string EncodeOne(WireValue value, Form form) {
  return Hex(Encode(Values(std::move(value)), form)).substr(8);  // without the count
}

bool SameTensor(const WireTensor& a, const WireTensor& b) {
  return a.data == b.data && a.device == b.device && a.dtype == b.dtype && a.shape == b.shape &&
         a.byte_offset == b.byte_offset;
}
bool Same(const WireValue& a, const WireValue& b) {
  if (a.type != b.type || a.text != b.text || !a.tensor != !b.tensor) return false;
  if (a.tensor && !SameTensor(*a.tensor, *b.tensor)) return false;
  return a.type == kTVMFFIDataType ? a.v_dtype == b.v_dtype : a.v_handle == b.v_handle;
}

bool ReadsBack(const Sequence& values, Form form) {
  std::string bytes = Encode(values, form);
  Reader reader(bytes);
  Sequence read = reader.Values();
  reader.ExpectEnd();
  if (read.size() != values.size()) return false;
  for (size_t i = 0; i < read.size(); ++i) {
    if (!Same(read[i], values[i])) return false;
  }
  return Encode(read, form) == bytes;
}

// The kind of the error of reading a sequence; "" when there is none.
std::string KindOfValues(std::string_view bytes) {
  try {
    Reader reader(bytes);
    reader.Values();
    reader.ExpectEnd();
    return "";
  } catch (const Error& error) {
    return std::string(error.kind());
  }
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint64_t below(uint64_t n) { return engine_() % n; }
  uint64_t word() { return (uint64_t{engine_()} << 32) | engine_(); }
  std::string bytes(size_t most) {
    std::string out(below(most + 1), '\0');
    for (char& c : out) c = static_cast<char>(engine_());
    return out;
  }

 private:
  std::mt19937 engine_;
};

// Any value that the codec can write. `texts` keeps what its text points to.
WireValue AnyValue(Random* random, std::deque<std::string>* texts) {
  static const int32_t handles[] = {kTVMFFIFunction, kTVMFFIModule, kRemoteObject, kTVMFFIOpaquePtr};
  switch (random->below(11)) {
    case 0:
      return WireValue::None();
    case 1:
      return WireValue::Int(static_cast<int64_t>(random->word()));
    case 2:
      return WireValue::Bool(random->below(2) != 0);
    case 3:
      return WireValue::Float(static_cast<double>(random->word()) / 7);
    case 4:
      return WireValue::Dtype({static_cast<uint8_t>(random->below(256)), static_cast<uint8_t>(random->below(256)),
                               static_cast<uint16_t>(random->below(65536))});
    case 5:
      return WireValue::OfDevice({static_cast<int32_t>(random->word()), static_cast<int32_t>(random->word())});
    case 6:
      return WireValue::Text(texts->emplace_back(random->bytes(20)));
    case 7:
      return WireValue::Bytes(texts->emplace_back(random->bytes(20)));
    case 8: {
      WireTensor tensor = Describe(random->word(), {}, {2, 32, 1}, random->word(), {12, 1});
      for (uint64_t n = random->below(5); n > 0; --n) tensor.shape.push_back(static_cast<int64_t>(random->word()));
      return WireValue::Tensor(std::move(tensor));
    }
    default:
      return WireValue::Handle(handles[random->below(4)], random->word());
  }
}

Sequence OneOfEach() {
  return Values(WireValue::None(), WireValue::Int(INT64_MIN), WireValue::Int(INT64_MAX), WireValue::Bool(true),
                WireValue::Float(-0.0), WireValue::Pointer(0x1234), WireValue::Dtype({4, 16, 8}),
                WireValue::OfDevice({2, 1}), WireValue::Text("a text of some length"), WireValue::Text(""),
                WireValue::Bytes(std::string_view("\0\1", 2)), WireValue::Bytes("from eight bytes on"),
                WireValue::Handle(kTVMFFIFunction, 7), WireValue::Handle(kTVMFFIModule, 8),
                WireValue::Handle(kRemoteObject, 9), WireValue::Tensor(Describe(0x5000, {6, 5}, {2, 32, 1}, 40)),
                WireValue::Tensor(Describe(1, {})));
}

}  // namespace

TEST("every value is read as it was written, in every form") {
  for (Form form : {Form::kRequest, Form::kInitServer, Form::kReply}) CHECK(ReadsBack(OneOfEach(), form));
}

TEST("any sequence is read as it was written") {
  Random random(1);
  for (int i = 0; i < 3000; ++i) {
    std::deque<std::string> texts;
    Sequence values;
    for (uint64_t n = random.below(8); n > 0; --n) values.push_back(AnyValue(&random, &texts));
    CHECK(ReadsBack(values, static_cast<Form>(random.below(3))));
  }
}

TEST("a NaN keeps its bits") {
  WireValue nan = WireValue::Float(std::nan("0x123"));
  CHECK(ReadsBack(Values(std::move(nan)), Form::kRequest));
}

TEST("text and bytes take the form that their place asks for") {
  CHECK_EQ(EncodeOne(WireValue::Text("ab"), Form::kRequest), "0800000002000000000000006162");
  CHECK_EQ(EncodeOne(WireValue::Text("ab"), Form::kReply), "0800000002000000000000006162");
  CHECK_EQ(EncodeOne(WireValue::Text("ab"), Form::kInitServer), "0b0000004100000002000000000000006162");
  CHECK_EQ(EncodeOne(WireValue::Text("12345678"), Form::kInitServer),
           "410000004100000008000000000000003132333435363738");
  CHECK_EQ(EncodeOne(WireValue::Bytes("ab"), Form::kRequest), "0c0000004200000002000000000000006162");
  CHECK_EQ(EncodeOne(WireValue::Bytes("12345678"), Form::kRequest), "420000004200000008000000000000003132333435363738");
  CHECK_EQ(EncodeOne(WireValue::Bytes("ab"), Form::kReply), "0900000002000000000000006162");
  CHECK_EQ(EncodeOne(WireValue::Handle(kRemoteObject, 5), Form::kRequest), "73000000730000000500000000000000");
}

TEST("a value that is wrapped in another is read whatever the outer index says") {
  for (int32_t outer : {11, 12, 64, 65, 66, 67, 69, 70, 71, 74, 78, 115, 128, INT32_MAX}) {
    for (int32_t inner : {65, 66, 115}) {
      std::string bytes;
      Writer writer(&bytes);
      for (int32_t n : {1, outer, inner}) writer.Put<int32_t>(n);
      if (inner == 115) writer.Put<uint64_t>(77);
      else writer.Text("hello");
      Reader reader(bytes);
      Sequence values = reader.Values();
      CHECK_EQ(reader.left(), 0);
      CHECK_EQ(values[0].type, inner == 115 ? kRemoteObject : inner == 65 ? kTVMFFIRawStr : kTVMFFIByteArrayPtr);
      if (inner == 115) CHECK_EQ(values[0].v_handle, 77);
      else CHECK_EQ(values[0].text, "hello");
    }
  }
}

TEST("a type index that no value has is refused") {
  std::vector<int32_t> bad = {-1, INT32_MIN, 10, 13};
  for (int32_t n = 14; n < 64; ++n) bad.push_back(n);
  for (int32_t type : bad) {
    std::string bytes;
    Writer writer(&bytes);
    writer.Put<int32_t>(1);
    writer.Put<int32_t>(type);
    bytes.append(64, '\0');
    CHECK_EQ(KindOfValues(bytes), "RemoteProtocolError");
  }
  for (int32_t inner : {0, 1, 8, 9, 11, 64, 67, 68, 69, 70, 73, -1}) {
    std::string bytes;
    Writer writer(&bytes);
    for (int32_t n : {1, 64, inner}) writer.Put<int32_t>(n);
    bytes.append(64, '\0');
    CHECK_EQ(KindOfValues(bytes), "RemoteProtocolError");
  }
}

TEST("a message that ends too early is refused, wherever it ends") {
  for (Form form : {Form::kRequest, Form::kInitServer, Form::kReply}) {
    std::string whole = Encode(OneOfEach(), form);
    CHECK_EQ(KindOfValues(whole), "");
    for (size_t size = 0; size < whole.size(); ++size) {
      std::string part = whole.substr(0, size);  // on the heap, so that a sanitizer sees its end
      CHECK_EQ(KindOfValues(part), "RemoteProtocolError");
    }
    CHECK_EQ(KindOfValues(whole + '\0'), "RemoteProtocolError");
  }
}

TEST("a length or a count that the bytes do not hold is refused before anything is allocated") {
  for (int32_t count : {-1, INT32_MIN, INT32_MAX, 2}) {
    std::string bytes;
    Writer(&bytes).Put<int32_t>(count);
    CHECK_EQ(KindOfValues(bytes), "RemoteProtocolError");
  }
  for (uint64_t size : {uint64_t{1}, uint64_t{1} << 40, UINT64_MAX}) {
    std::string bytes;
    Writer writer(&bytes);
    for (int32_t n : {1, 8}) writer.Put<int32_t>(n);
    writer.Put<uint64_t>(size);
    CHECK_EQ(KindOfValues(bytes), "RemoteProtocolError");
  }
  for (int32_t ndim : {-1, 65, INT32_MAX}) {
    std::string bytes = Encode(Values(WireValue::Tensor(Describe(1, {}))), Form::kRequest);
    std::memcpy(bytes.data() + 4 + 4 + 16, &ndim, sizeof(ndim));
    CHECK_EQ(KindOfValues(bytes + std::string(1000, '\0')), "RemoteProtocolError");
  }
}

TEST("more values than a call can sensibly have are refused, though their bytes are all there") {
  constexpr int32_t kTooMany = (1 << 20) + 1;
  std::string bytes;
  Writer(&bytes).Put<int32_t>(kTooMany);
  bytes.append(size_t{4} * kTooMany, '\0');  // each is None
  CHECK_EQ(KindOfValues(bytes), "RemoteProtocolError");
}

TEST("any bytes give values or RemoteProtocolError") {
  Random random(2);
  std::string seed = Encode(OneOfEach(), Form::kRequest);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = random.below(4) ? seed.substr(0, random.below(seed.size() + 1)) : random.bytes(100);
    for (uint64_t n = random.below(4); n > 0 && !bytes.empty(); --n) {
      bytes[random.below(bytes.size())] = static_cast<char>(random.word());
    }
    std::string kind = KindOfValues(bytes);
    CHECK(kind.empty() || kind == "RemoteProtocolError");
  }
}

TEST("the bytes of a tensor are counted without overflow") {
  CHECK_EQ(Describe(0, {}).NumBytes(), 1);
  CHECK_EQ(Describe(0, {6, 5}, {kDLFloat, 32, 1}).NumBytes(), 120);
  CHECK_EQ(Describe(0, {3}, {kDLInt, 4, 1}).NumBytes(), 2);
  CHECK_EQ(Describe(0, {0, 5}).NumBytes(), 0);
  CHECK_EQ(Describe(0, {7}, {kDLInt, 0, 0}).NumBytes(), 0);
  std::vector<std::vector<int64_t>> bad = {
      {-1}, {INT64_MIN, 2}, {INT64_MAX}, {1 << 30, 1 << 30, 1 << 30}, {INT64_MAX, INT64_MAX}};
  for (const auto& shape : bad) {
    CHECK(Contains(Thrown([&] { Describe(0, shape, {kDLFloat, 64, 1}).NumBytes(); }), "RemoteProtocolError"));
  }
}

namespace {

// Decodes a frame and writes what it understood.
std::string Again(const Capture& capture) {
  Reader reader(std::string_view(capture.bytes).substr(8));
  auto code = static_cast<Code>(reader.Take<int32_t>());
  Form form = !capture.from_client ? Form::kReply : code == Code::kInitServer ? Form::kInitServer : Form::kRequest;
  std::string again;
  Writer out(&again);
  out.Begin(code);
  if (code == Code::kInitServer) out.Text(reader.Text());
  if (code == Code::kCallFunc) out.Put(reader.Take<uint64_t>());
  bool ack = code == Code::kCopyAck, copy = code == Code::kCopyFromRemote || code == Code::kCopyToRemote;
  if (copy) {
    out.Tensor(reader.Tensor());
    out.Put(reader.Take<uint64_t>());
  } else if (!ack && code != Code::kShutdown) {
    out.Values(reader.Values(), form);
  }
  if (ack || code == Code::kCopyToRemote) out.Content(reader.Bytes(reader.left()));
  out.End();
  reader.ExpectEnd();
  return again;
}

}  // namespace

TEST("what TVM said is decoded, and encoded to the same bytes") {
  int requests = 0, answers = 0;
  for (const Capture& capture : ReadCaptures()) {
    if (!capture.is_frame() || capture.is("unknown code 40")) continue;
    std::string again = Again(capture);
    if (capture.is("type 9") && capture.from_client) continue;  // a form that a client may use, and ours does not
    CHECK_EQ(capture.name + " " + Hex(again), capture.name + " " + Hex(capture.bytes));
    ++(capture.from_client ? requests : answers);
  }
  CHECK_EQ(requests, 109);
  CHECK_EQ(answers, 109);
}
