// SPDX-License-Identifier: Apache-2.0
// Bytes in any split to frames. Small frames are gathered in a buffer; the payload of a copy goes straight to where the
// receiver wants it, so a transport reads from its socket into the tensor; large bytes among the values of a call or an
// answer go straight into their object.
//
//   while (…) { auto [data, size] = frames.Space(); n = receive(data, size); frames.Filled(n);
//               while ((event = frames.Next()) != FrameReader::kNeedBytes) … }
#ifndef PORTCALL_RPC_FRAMES_H_
#define PORTCALL_RPC_FRAMES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "portcall/tensor.h"
#include "rpc/codec.h"

namespace portcall::rpc {

class FrameReader {
 public:
  enum Event {
    kNeedBytes,
    kMessage,      // code() and the whole body()
    kPayload,      // a copy begins: code() and its head in body(); call Receive() with a place for payload_size() bytes
    kPayloadEnd,   // and now they are there; body() is gone
    kForCallback,  // body() is a whole frame, for the callback of the number callback()
  };

  // What is done with frames that belong to a callback: they are refused; they are as others, and callback() tells
  // whose they are; or they come whole, to be given to another reader.
  enum class Nested { kRefused, kInline, kSorted };

  // Frames longer than `max_frame` bytes are refused (payloads of copies are not counted).
  explicit FrameReader(uint64_t max_frame, bool takes_posted = false, Nested nested = Nested::kRefused)
      : max_frame_(max_frame), takes_posted_(takes_posted), nested_(nested) {}

  std::pair<char*, size_t> Space();
  void Filled(size_t n);
  Event Next();

  Code code() const { return code_; }  // of a posted request: that of the request
  bool posted() const { return posted_; }
  uint64_t posted_target() const { return posted_target_; }
  uint64_t callback() const { return callback_; }  // 0: of none
  // Keeps body() while other messages are read.
  Tensor Detach();
  // Between two messages: keep what comes, but for frames of callbacks; and give it again after all.
  void Hold() { holding_ = true; }
  void Resume();
  std::string_view body() const { return body_; }
  // Reads body(). Bytes that are most of a large message are not in it: they came straight into an object, which the
  // first value that has them takes along.
  Reader reader() { return Reader(body_, &content_); }
  const Content& content() const { return content_; }
  // How large such a message is at least.
  void set_large(uint64_t size) { large_ = size; }
  uint64_t payload_size() const { return payload_left_; }
  void Receive(void* target) { target_ = static_cast<char*>(target); }  // null: skip the bytes
  size_t buffered() const { return Available(); }                       // bytes that arrived and wait
  // Whether the peer may close here without breaking a message.
  bool AtBoundary() const { return state_ == kHeader && begin_ == end_; }

 private:
  enum State { kHeader, kBody, kInPayload, kHeld };

  size_t Available() const { return end_ - begin_; }
  bool Gather(uint64_t n);  // whether n bytes are there, contiguous from begin_; makes room for them otherwise
  Event ReadBody();
  void SeekContent();
  bool IsDirect() const;
  bool TakeNumber(int32_t flag, uint64_t* number);
  Event GiveWhole();
  bool KeepHeld();
  bool ReadLength();
  Event BeginPayload(uint64_t head);
  Event FillPayload();
  void Consume(size_t n) { begin_ += n; }
  void Move(size_t capacity);  // to a buffer of that many bytes

  uint64_t max_frame_;
  bool takes_posted_, posted_ = false, holding_ = false;
  Nested nested_;
  uint64_t posted_target_ = 0, callback_ = 0;
  std::string held_;
  Tensor memory_;  // of the buffer
  char* buffer_ = nullptr;
  size_t capacity_ = 0;
  size_t begin_ = 0, end_ = 0;  // what has arrived and was not consumed
  size_t wanted_ = 0;           // how much more is needed at least
  State state_ = kHeader;
  uint64_t length_ = 0;  // of the frame, code included
  Code code_ = Code::kNone;
  std::string_view body_;
  uint64_t large_ = 1 << 20;
  bool sought_ = false;  // whether it is known if the message has a content
  Content content_;
  uint64_t payload_left_ = 0;  // or of the content
  char* target_ = nullptr;
};

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_FRAMES_H_
