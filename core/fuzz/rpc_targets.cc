// SPDX-License-Identifier: Apache-2.0
// The promises of core/rpc: any bytes give messages or RemoteProtocolError; what was read is written and read again as
// the same; a split changes nothing; an endpoint answers in whole frames; a session fails with an error of its own.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/promises.h"
#include "fuzz/targets.h"
#include "rpc/callbacks.h"
#include "rpc/endpoint.h"
#include "rpc/local_session.h"
#include "rpc/remote_session.h"

using namespace portcall;
using namespace portcall::rpc;

namespace {

constexpr uint64_t kSmallFrame = 1 << 20;

// Decodes a body, writes it, reads that and writes it again: the same bytes.
void ReadAgain(Code code, std::string_view body) {
  Reader reader(body);
  std::string once, twice;
  Form form = code == Code::kInitServer ? Form::kInitServer : code == Code::kReturn ? Form::kReply : Form::kRequest;
  if (code == Code::kInitServer) reader.Text();
  if (code == Code::kCallFunc) reader.Take<uint64_t>();
  if (code == Code::kCopyFromRemote || code == Code::kCopyToRemote) {
    WireTensor tensor = reader.Tensor();
    Writer(&once).Tensor(tensor);
    Writer(&twice).Tensor(Reader(once).Tensor());
    return Promise(once == twice);
  }
  Sequence values = reader.Values();
  reader.ExpectEnd();
  Writer(&once).Values(values, form);
  Reader again(once);
  Sequence same = again.Values();
  again.ExpectEnd();
  Promise(same.size() == values.size());
  Writer(&twice).Values(same, form);
  Promise(once == twice);
}

// The body of a message, with the bytes that did not come into it; a reader of it finds these, and the same values.
std::string WholeBody(FrameReader* frames) {
  std::string body(frames->body());
  const Content& content = frames->content();
  if (content.object == nullptr) return body;
  body.insert(content.at, *TryBytes(content.object.cell()));
  Reader apart = frames->reader(), whole(body);
  if (frames->code() == Code::kCallFunc) Promise(apart.Take<uint64_t>() == whole.Take<uint64_t>());
  std::string heard[2];
  for (Reader* reader : {&apart, &whole}) {
    std::string& text = heard[reader == &whole];
    try {
      Writer(&text).Values(reader->Values(), Form::kReply);
      reader->ExpectEnd();
    } catch (const Error&) {
      text = "an error";
    }
  }
  Promise(heard[0] == heard[1]);
  return body;
}

// What a reader makes of bytes that come in pieces of up to `most`. Messages of `large` bytes are large ones.
std::string Heard(std::string_view bytes, size_t most, uint64_t large) {
  FrameReader frames(kSmallFrame, true, FrameReader::Nested::kInline);
  frames.set_large(large);
  std::string heard, payload;
  try {
    while (!bytes.empty()) {
      auto [space, room] = frames.Space();
      Promise(room > 0);
      size_t n = std::min({bytes.size(), room, most});
      std::copy_n(bytes.data(), n, space);
      frames.Filled(n);
      bytes.remove_prefix(n);
      for (FrameReader::Event event; (event = frames.Next()) != FrameReader::kNeedBytes;) {
        heard += std::to_string(event) + ' ';
        if (event == FrameReader::kPayloadEnd) {
          heard += payload;
          continue;
        }
        std::string body = WholeBody(&frames);
        heard += std::to_string(static_cast<int32_t>(frames.code())).append(body);
        if (event == FrameReader::kPayload && frames.payload_size() <= kSmallFrame) {
          payload.assign(frames.payload_size(), '?');
          frames.Receive(payload.data());
        }
        try {
          ReadAgain(frames.code(), body);
        } catch (const Error& error) {
          Promise(error.kind() == "RemoteProtocolError");
        }
      }
    }
  } catch (const Error& error) {
    Promise(error.kind() == "RemoteProtocolError");
    heard += error.message();
  }
  return heard;
}

std::string Take(Endpoint* endpoint) {
  std::string sent;
  while (!endpoint->output().empty()) {
    Chunk chunk = endpoint->output().Chunks(1).at(0);
    sent.append(static_cast<const char*>(chunk.data), chunk.size);
    endpoint->output().Sent(chunk.size);
  }
  return sent;
}

std::string Open() {
  std::string bytes;
  Writer writer(&bytes);
  writer.Begin(Code::kInitServer);
  writer.Text(kProtocolVersion);
  writer.Values({}, Form::kInitServer);
  writer.End();
  return bytes;
}

constexpr size_t kFrameByFrame = 0;

// A peer that answers with given bytes, whatever it is asked, and then closes.
class Script : public Channel {
 public:
  // `most` bytes come at once; or kFrameByFrame.
  Script(std::string_view bytes, size_t most) : bytes_(bytes), most_(most) {}
  size_t Send(const std::vector<Chunk>& chunks, Deadline) override { return chunks.at(0).size; }
  size_t Receive(void* data, size_t size, Deadline) override {
    if (most_ == kFrameByFrame && frame_left_ == 0 && bytes_.size() >= sizeof(uint64_t)) {
      auto left = std::min<uint64_t>(NumberAt<uint64_t>(bytes_.data()), bytes_.size() - sizeof(uint64_t));
      frame_left_ = sizeof(uint64_t) + static_cast<size_t>(left);
    }
    size_t n = std::min(
        {size, most_ == kFrameByFrame && frame_left_ ? frame_left_ : std::max<size_t>(most_, 1), bytes_.size()});
    std::copy_n(bytes_.data(), n, static_cast<char*>(data));
    bytes_.remove_prefix(n);
    frame_left_ -= std::min(frame_left_, n);
    return n;
  }
  void Interrupt() override {}
  void Close() noexcept override {}

 private:
  std::string_view bytes_;
  size_t most_, frame_left_ = 0;
};

// Has the server do something in the callback, and answers with what it was given.
std::shared_ptr<void> AnswerCallback(const std::shared_ptr<Session>& session, const PackedFunc& func,
                                     std::vector<CallResult>* args,
                                     const std::function<void(const Sequence&)>& answer) {
  session->Free(session->GetFunction("f"));
  func();
  Sequence values;
  values.push_back(args->empty() ? WireValue::None() : std::move(args->front().value));
  answer(values);
  return nullptr;
}

}  // namespace

void FuzzRpcCodec(const uint8_t* data, size_t size) {
  if (size == 0) return;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Promise(Heard(bytes, SIZE_MAX, UINT64_MAX) == Heard(bytes, 1 + data[0] % 40, data[0] & 128 ? 64 : UINT64_MAX));
}

void FuzzRpcEndpoint(const uint8_t* data, size_t size) {
  if (size == 0) return;
  EndpointOptions options;
  options.max_frame = kSmallFrame;
  options.posts = (data[0] & 4) != 0;
  Endpoint endpoint(MakeLocalSession({"testing.*"}), options);
  std::string bytes = data[0] & 1 ? Open() : "", sent;
  bytes.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  size_t most = data[0] & 2 ? 1 + data[0] / 4 : SIZE_MAX;
  for (size_t at = 0; at < bytes.size() && !endpoint.closed();) {
    auto [space, room] = endpoint.Space();
    size_t n = std::min({bytes.size() - at, room, most});
    std::copy_n(bytes.data() + at, n, space);
    endpoint.Filled(n);
    at += n;
    for (bool more = true; more;) {
      more = endpoint.Serve();
      sent += Take(&endpoint);
    }
  }
  Reader reader(sent);
  while (reader.left()) reader.Bytes(reader.Take<uint64_t>());  // throws, uncaught, for half a frame
  endpoint.PeerClosed();
}

void FuzzRpcClient(const uint8_t* data, size_t size) {
  if (size == 0) return;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  RemoteOptions options;
  options.max_frame = kSmallFrame;
  const bool lends = (data[0] & 192) == 192;
  size_t most = data[0] & 1 ? 1 + data[0] / 2 : lends ? kFrameByFrame : SIZE_MAX;
  auto session = MakeRemoteSession(std::make_unique<Script>(bytes, most), options, AnswerCallback);
  session->set_pipelined((data[0] & 128) != 0);
  session->set_calls_back((data[0] & 128) != 0);
  WireTensor tensor;
  tensor.data = 1;
  tensor.shape = {24};
  std::string buffer(24, ' ');
  for (int step = 0; !session->closed(); step = (step + 1) % 5) {
    try {
      Any owner;
      CallResult result;
      if (step == 0) session->Free(session->GetFunction("f"));
      Sequence args;
      if (step == 1 && lends) {
        args.push_back(WireValue::Handle(kClientFunction, session->Lend(Registry::Get("testing.nop"))));
      }
      if (step == 1) session->Call(1, args, &result);
      if (step == 2) session->GetAttr({kDLCPU, 0}, 0, &owner);
      if (step == 3) session->CopyFrom(tensor, buffer.data(), buffer.size());
      if (step == 4) session->CopyTo(tensor, buffer.data(), buffer.size());
    } catch (const Error& error) {
      std::string_view kind = error.kind();
      Promise(kind == "RemoteProtocolError" || kind == "RemoteError" || kind == "SessionBrokenError" ||
              kind == "SessionTimeoutError" || (lends && kind == "SessionClosedError"));
    }
  }
}

void FuzzRpcCallbacks(const uint8_t* data, size_t size) {
  if (size == 0) return;
  std::string bytes = Open();
  bytes.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  Script channel(bytes, data[0] & 2 ? 1 + data[0] / 4 : SIZE_MAX);
  Progress progress;
  auto callbacks = std::make_shared<Callbacks>();
  EndpointOptions options;
  options.max_frame = kSmallFrame;
  options.posts = (data[0] & 1) != 0;
  options.client = callbacks;
  Endpoint endpoint(MakeLocalSession({"testing.*"}), options);
  Outlet outlet(&channel, &progress, {});
  callbacks->Begin(&endpoint, &channel, &outlet, &progress);
  while (!endpoint.closed()) {
    auto [space, room] = endpoint.Space();
    size_t n = channel.Receive(space, room, kNoDeadline);
    if (n == 0) break;
    endpoint.Filled(n);
    for (bool more = true; more;) {
      more = endpoint.Serve();
      outlet.Flush(&endpoint.output());
    }
  }
  endpoint.PeerClosed();
  Promise(callbacks->End());
}
