// SPDX-License-Identifier: Apache-2.0
// The other end of an endpoint, in memory: it writes requests by hand, and reads the answers with the codec.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bytes/byte_order.h"
#include "rpc/endpoint.h"
#include "rpc/local_session.h"
#include "tests/helpers.h"

namespace rpc_test {

using namespace portcall;
using namespace portcall::rpc;

template <typename... Items> Sequence Values(Items&&... items) {
  Sequence sequence;
  (sequence.push_back(std::forward<Items>(items)), ...);
  return sequence;
}

// A number as it is on the wire.
inline std::string Length(uint64_t n) {
  n = bytes::Ordered(n);
  return {reinterpret_cast<const char*>(&n), sizeof(n)};
}

// A frame whose body `write` writes.
template <typename Write> std::string Frame(Code code, Write&& write) {
  std::string bytes;
  Writer writer(&bytes);
  writer.Begin(code);
  write(writer);
  writer.End();
  return bytes;
}
inline std::string Frame(Code code) {
  return Frame(code, [](Writer&) {});
}
inline std::string Message(Code code, const Sequence& values, Form form = Form::kRequest) {
  return Frame(code, [&](Writer& out) { out.Values(values, form); });
}
inline std::string Init(const Sequence& args = {}, std::string_view version = kProtocolVersion) {
  return Frame(Code::kInitServer, [&](Writer& out) {
    out.Text(version);
    out.Values(args, Form::kInitServer);
  });
}
inline std::string CallOf(uint64_t function, const Sequence& args) {
  return Frame(Code::kCallFunc, [&](Writer& out) {
    out.Put<uint64_t>(function);
    out.Values(args, Form::kRequest);
  });
}
inline std::string CopyToOf(const WireTensor& tensor, uint64_t nbytes, std::string_view data) {
  return Frame(Code::kCopyToRemote, [&](Writer& out) {
    out.Tensor(tensor);
    out.Put<uint64_t>(nbytes);
    out.Content(data);
  });
}
inline std::string AckOf(std::string_view data) {
  return Frame(Code::kCopyAck, [&](Writer& out) { out.Content(data); });
}
inline std::string CopyFromOf(const WireTensor& tensor, uint64_t nbytes) {
  return Frame(Code::kCopyFromRemote, [&](Writer& out) {
    out.Tensor(tensor);
    out.Put<uint64_t>(nbytes);
  });
}

inline WireTensor Describe(uint64_t data, std::vector<int64_t> shape, DLDataType dtype = {kDLUInt, 8, 1},
                           uint64_t byte_offset = 0, DLDevice device = {kDLCPU, 0}) {
  WireTensor tensor;
  tensor.data = data;
  tensor.device = device;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.byte_offset = byte_offset;
  return tensor;
}

struct Answer {
  Code code = Code::kNone;
  std::string body;

  // The values of a Return; they live as long as this answer.
  Sequence values() const {
    Reader reader(body);
    Sequence all = reader.Values();
    reader.ExpectEnd();
    return all;
  }
  // The text of an Exception; "" for anything else.
  std::string error() const { return code == Code::kException ? std::string(values().at(0).text) : ""; }
  bool ok() const { return code == Code::kReturn; }
  uint64_t pointer() const { return code == Code::kReturn ? values().at(0).v_handle : 0; }
};

// All messages in some bytes, which end with the last.
inline std::vector<Answer> SplitAnswers(std::string_view bytes) {
  std::vector<Answer> answers;
  Reader reader(bytes);
  while (reader.left()) {
    auto length = reader.Take<uint64_t>();
    auto code = static_cast<Code>(reader.Take<int32_t>());
    answers.push_back({code, std::string(reader.Bytes(length - 4))});
  }
  return answers;
}

class Peer {
 public:
  explicit Peer(std::shared_ptr<Session> session, EndpointOptions options = {})
      : endpoint_(std::move(session), std::move(options)) {}
  explicit Peer(std::vector<std::string> patterns = {"testing.*", "test_rpc.*"})
      : Peer(MakeLocalSession(std::move(patterns))) {}

  // Gives bytes to the endpoint, at most `most` at once, and returns what it wants to send.
  std::string Give(std::string_view bytes, size_t most = SIZE_MAX) {
    std::string sent;
    while (!bytes.empty() && !endpoint_.closed()) {
      auto [space, room] = endpoint_.Space();
      size_t n = std::min({bytes.size(), room, most});
      std::memcpy(space, bytes.data(), n);
      endpoint_.Filled(n);
      bytes.remove_prefix(n);
      bool more;
      do {
        more = endpoint_.Serve();
        sent += Take();
      } while (more);
    }
    return sent;
  }
  // The one answer to one request.
  Answer Ask(std::string_view request) {
    std::vector<Answer> answers = SplitAnswers(Give(request));
    return answers.size() == 1 ? answers[0] : Answer{};
  }
  Answer Ask(Code code, const Sequence& values) { return Ask(Message(code, values)); }

  Peer& Open() {
    opened_ = Ask(Init()).ok();
    return *this;
  }
  bool opened() const { return opened_; }
  uint64_t Function(std::string_view name) {
    return Ask(Code::kGetGlobalFunc, Values(WireValue::Text(name))).pointer();
  }
  Answer Call(std::string_view name, const Sequence& args) { return Ask(CallOf(Function(name), args)); }
  uint64_t Alloc(int64_t nbytes, DLDevice device = {kDLCPU, 0}) {
    return Ask(Code::kDevAllocDataWithScope,
               Values(WireValue::Tensor(Describe(0, {nbytes}, {kDLUInt, 8, 1}, 0, device)), WireValue::None()))
        .pointer();
  }
  Answer Free(uint64_t handle) { return Ask(Code::kFreeHandle, Values(WireValue::Pointer(handle))); }
  Endpoint& endpoint() { return endpoint_; }

 private:
  std::string Take() {
    std::string bytes;
    while (!endpoint_.output().empty()) {
      Chunk chunk = endpoint_.output().Chunks(1).at(0);
      bytes.append(static_cast<const char*>(chunk.data), chunk.size);
      endpoint_.output().Sent(chunk.size);
    }
    return bytes;
  }

  Endpoint endpoint_;
  bool opened_ = false;
};

}  // namespace rpc_test
