// SPDX-License-Identifier: Apache-2.0
// Bytes to messages and back: the TVM RPC protocol, version 0.8.0, as docs/wire.md describes it. No I/O here.
//
// Rule: any bytes give a message or ProtocolError, never another error, and nothing is allocated on a length's word alone.
#ifndef PORTCALL_RPC_CODEC_H_
#define PORTCALL_RPC_CODEC_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bytes/cursor.h"
#include "facts/wire.h"
#include "portcall/error.h"
#include "portcall/value.h"

namespace portcall::rpc {

using bytes::kBigEndian;
using bytes::NumberAt;
using bytes::Ordered;
using bytes::OrderElements;

using namespace facts;  // codes, type indices, limits

constexpr size_t kMaxTraceback = 16 << 10;  // bytes
constexpr size_t kKeptBuffer = 1 << 20;     // a larger one is given back after the frame that needed it

// The peer broke the protocol.
[[noreturn]] void ThrowProtocolError(const std::string& what);

// "ValueError: boom", for the other end to raise the same. A TypeError about an argument has its own class there.
std::string TextOf(const Error& error);

// A tensor of the server: `data` is its handle of the memory.
struct WireTensor {
  uint64_t data = 0;
  DLDevice device{};
  DLDataType dtype{};
  std::vector<int64_t> shape;
  uint64_t byte_offset = 0;

  uint64_t NumBytes() const;  // ProtocolError for extents that are negative or overflow
};

// One value of a packed sequence. Text and bytes of every wire form are read as kTVMFFIRawStr and kTVMFFIByteArrayPtr;
// references to objects as kRemoteObject, objects themselves as kByValue, functions of the client as kClientFunction.
// `text` points into the message.
struct WireValue {
  int32_t type = kTVMFFINone;
  union {
    int64_t v_int64 = 0;
    double v_float64;
    uint64_t v_handle;
    DLDataType v_dtype;
    DLDevice v_device;
  };
  std::string_view text;
  Any object;  // a bytes object that has the text, where there is one; a function of the client
  std::unique_ptr<WireTensor> tensor;

  static WireValue None() { return {}; }
  static WireValue Int(int64_t value);
  static WireValue Bool(bool value);
  static WireValue Float(double value);
  static WireValue Pointer(uint64_t value);
  static WireValue Handle(int32_t type, uint64_t value);  // of a function, a module or an object
  static WireValue Dtype(DLDataType value);
  static WireValue OfDevice(DLDevice value);
  static WireValue Text(std::string_view value);
  static WireValue Bytes(std::string_view value);
  static WireValue Tensor(WireTensor value);
  static WireValue ByValue(std::string_view bytes);
};

// The value by itself: None, numbers, data types, devices, and copies of text and bytes. False for what names something of
// a session, which only the session can tell.
bool TakePlain(const WireValue& value, Any* out);
// The other way; also for pointers. Text and bytes stay where `value` has them.
bool GivePlain(const TVMFFIAny& value, WireValue* out);

using Sequence = std::vector<WireValue>;

// The error that the body of an Exception stands for, with the peer as a fact.
Error RemoteErrorOf(std::string_view body, std::string_view peer);

// Text and bytes have several forms on the wire; which one is written depends on where.
enum class Form { kRequest, kInitServer, kReply };

// Bytes of a message that are not copied into its text: they come after the first `at` bytes of that.
struct Inset {
  size_t at;
  std::string_view bytes;
};
constexpr size_t kInsetBytes = 32 << 10;  // fewer are cheaper copied than sent on their own

class Writer {
 public:
  // Appends to `out`; where there are `insets`, large text and bytes are noted there instead.
  explicit Writer(std::string* out, std::vector<Inset>* insets = nullptr) : out_(out), insets_(insets) {}

  template <typename T> void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    value = Ordered(value);
    out_->append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void Text(std::string_view text) {
    Put<uint64_t>(text.size());
    Content(text);
  }
  void Content(std::string_view bytes);
  void Tensor(const WireTensor& tensor);
  void Value(const WireValue& value, Form form);
  void Values(const Sequence& values, Form form);

  // A frame: Begin, the body, End.
  void Begin(Code code, uint64_t callback = 0);  // to which it belongs; 0: none
  void BeginPosted(Code code, uint64_t target, uint64_t callback = 0);
  void End();

 private:
  std::string* out_;
  std::vector<Inset>* insets_;
  size_t start_ = 0;
  size_t inset_bytes_ = 0;  // of the frame
};

// Bytes of a message that are not in its text: the content of one of its values, which lies in an object, belongs after
// the first `at` bytes of that.
struct Content {
  size_t at = 0;
  uint64_t size = 0;
  Any object;
};

class Reader : public bytes::Cursor<Reader> {
 public:
  // Takes the object of `content` for its value. Where there is no object yet, and the message ends before the bytes of a
  // value do, writes there which value that is.
  explicit Reader(std::string_view bytes, Content* content = nullptr) : Cursor(bytes), content_(content) {}

  [[noreturn]] void FailShort(const char*, uint64_t) const {
    ThrowProtocolError("a message ends in the middle of a value");
  }
  std::string_view Text() { return Bytes(Take<uint64_t>()); }
  WireTensor Tensor();
  WireValue Value();
  Sequence Values();
  void ExpectEnd() const {
    if (left()) ThrowProtocolError("a message has " + std::to_string(left()) + " bytes too many");
  }

 private:
  WireValue Blob();
  WireValue AnyValue();

  Content* content_;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_CODEC_H_
