// SPDX-License-Identifier: Apache-2.0
#include "rpc/frames.h"

#include <algorithm>

namespace portcall::rpc {
namespace {

constexpr size_t kFirstBuffer = 16 << 10;
constexpr size_t kSkipChunk = 64 << 10;
constexpr size_t kGrowth = 8;         // times
constexpr uint64_t kPromised = 64;    // times what has arrived: the content that gets its memory then
constexpr uint64_t kTensorHead = 32;  // of a DLTENSOR without its shape
constexpr uint64_t kNdimEnd = 20;     // where its ndim ends

}  // namespace

std::pair<char*, size_t> FrameReader::Space() {
  if (IsDirect()) return {target_, payload_left_};
  if (begin_ == end_) begin_ = end_ = 0;
  size_t needed = std::max(wanted_, size_t{1});
  if (capacity_ - end_ < needed) {
    // Grows with what has arrived, not with what a length promises; and by more than a few bytes at a time. What is added
    // to the product lets a message of a round size, with its head, fit into the step before it.
    size_t arrived = Available();
    if (capacity_ - arrived < needed && arrived >= capacity_ / 2) {
      Move(std::min(arrived + std::max(needed, kFirstBuffer), kGrowth * arrived + kSkipChunk));
    } else if (begin_ > 0) {
      std::memmove(buffer_, buffer_ + begin_, arrived);
      end_ = arrived;
      begin_ = 0;
    }
  }
  return {buffer_ + end_, capacity_ - end_};
}

// The system hands out memory as it is filled, and large pages of it. One byte more is for the zero after bytes.
void FrameReader::Move(size_t capacity) {
  Tensor memory = Tensor::Empty({static_cast<int64_t>(capacity + 1)}, {kDLUInt, 8, 1});
  auto* buffer = static_cast<char*>(memory.raw_data());
  if (Available()) std::memcpy(buffer, buffer_ + begin_, Available());
  memory_ = std::move(memory);
  buffer_ = buffer;
  capacity_ = capacity;
  end_ -= begin_;
  begin_ = 0;
}

// Whether the next bytes go past the buffer.
bool FrameReader::IsDirect() const {
  return payload_left_ > 0 && (state_ == kBody || (state_ == kInPayload && begin_ == end_ && target_));
}

void FrameReader::Filled(size_t n) {
  if (IsDirect()) {
    target_ += n;
    payload_left_ -= n;
  } else {
    end_ += n;
  }
}

bool FrameReader::Gather(uint64_t n) {
  if (Available() >= n) return true;
  wanted_ = static_cast<size_t>(n - Available());
  return false;
}

FrameReader::Event FrameReader::Next() {
  wanted_ = 0;
  for (;;) {
    if (state_ == kHeader && !ReadLength()) return kNeedBytes;
    if (state_ == kInPayload) return FillPayload();
    if (state_ == kBody) {
      Event event = ReadBody();
      if (state_ != kHeld) return event;
    }
    if (!KeepHeld()) return kNeedBytes;
  }
}

bool FrameReader::ReadLength() {
  content_ = {};
  sought_ = false;
  if (capacity_ > kKeptBuffer && begin_ == end_) {
    memory_ = Tensor();
    begin_ = end_ = capacity_ = 0;
  }
  do {
    if (!Gather(sizeof(length_))) return false;
    length_ = NumberAt<uint64_t>(buffer_ + begin_);
    Consume(sizeof(length_));
  } while (length_ == 0);  // a frame without content is legal and means nothing
  if (length_ < sizeof(int32_t)) ThrowProtocolError("a frame of " + std::to_string(length_) + " bytes has no code");
  state_ = kBody;
  posted_ = false;
  callback_ = 0;
  return true;
}

// Takes the number that a flag of the code announces: from here on the frame is as any other, the code moves to in front
// of the body. Returns whether the number is there.
bool FrameReader::TakeNumber(int32_t flag, uint64_t* number) {
  int32_t code;
  if (!Gather(sizeof(code) + sizeof(*number))) return false;
  *number = NumberAt<uint64_t>(buffer_ + begin_ + sizeof(code));
  code = Ordered(NumberAt<int32_t>(buffer_ + begin_) & ~flag);
  Consume(sizeof(*number));
  length_ -= sizeof(*number);
  std::memcpy(buffer_ + begin_, &code, sizeof(code));
  return true;
}

// A frame of a callback, without the number.
FrameReader::Event FrameReader::GiveWhole() {
  if (!Gather(length_)) return kNeedBytes;
  size_t size = static_cast<size_t>(length_);
  int32_t code = Ordered(NumberAt<int32_t>(buffer_ + begin_) & ~kNested);
  callback_ = NumberAt<uint64_t>(buffer_ + begin_ + sizeof(code));
  uint64_t length = Ordered(length_ - sizeof(callback_));
  std::memcpy(buffer_ + begin_, &length, sizeof(length));
  std::memcpy(buffer_ + begin_ + sizeof(length), &code, sizeof(code));
  body_ = {buffer_ + begin_, size};
  Consume(size);
  state_ = kHeader;
  return kForCallback;
}

// Returns whether the frame is over.
bool FrameReader::KeepHeld() {
  auto n = static_cast<size_t>(std::min<uint64_t>(Available(), payload_left_));
  held_.append(buffer_ + begin_, n);
  Consume(n);
  payload_left_ -= n;
  wanted_ = static_cast<size_t>(std::min<uint64_t>(payload_left_, kSkipChunk));
  if (payload_left_ == 0) state_ = kHeader;
  return payload_left_ == 0;
}

Tensor FrameReader::Detach() {
  Tensor kept = memory_;
  Move(std::max(Available(), kFirstBuffer));
  return kept;
}

void FrameReader::Resume() {
  holding_ = false;
  if (state_ == kBody) {  // its length was read
    uint64_t length = Ordered(length_);
    held_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  }
  if (state_ == kHeld) payload_left_ = 0;  // it begins again, as a frame
  if (state_ == kBody || state_ == kHeld) state_ = kHeader;
  if (held_.empty()) return;
  held_.append(buffer_ + begin_, Available());
  begin_ = end_ = 0;
  if (held_.size() > capacity_) Move(held_.size());
  std::memcpy(buffer_, held_.data(), held_.size());
  end_ = held_.size();
  held_ = std::string();
}

FrameReader::Event FrameReader::ReadBody() {
  if (!Gather(sizeof(int32_t))) return kNeedBytes;
  auto code = NumberAt<int32_t>(buffer_ + begin_);
  bool nested = (code & kNested) && code > 0 && code < 2 * kNested && length_ >= sizeof(code) + sizeof(callback_);
  if (nested_ == Nested::kSorted && nested && length_ <= max_frame_) return GiveWhole();
  if (holding_) {
    uint64_t length = Ordered(length_);
    held_.append(reinterpret_cast<const char*>(&length), sizeof(length));
    payload_left_ = length_;
    state_ = kHeld;
    return kNeedBytes;
  }
  if (nested_ == Nested::kInline && !callback_ && nested) {
    if (!TakeNumber(kNested, &callback_)) return kNeedBytes;
    code = NumberAt<int32_t>(buffer_ + begin_);
  }
  if (takes_posted_ && !posted_ && (code & kPosted) && length_ >= sizeof(code) + sizeof(posted_target_)) {
    if (!TakeNumber(kPosted, &posted_target_)) return kNeedBytes;
    code = NumberAt<int32_t>(buffer_ + begin_);
    posted_ = true;
  }
  code_ = static_cast<Code>(code);
  uint64_t body = length_ - sizeof(code);
  if (code_ == Code::kCopyAck) return BeginPayload(0);
  if (code_ == Code::kCopyToRemote && body >= kTensorHead) {
    if (!Gather(sizeof(code) + kNdimEnd)) return kNeedBytes;
    auto ndim = NumberAt<int32_t>(buffer_ + begin_ + sizeof(code) + kNdimEnd - sizeof(int32_t));
    uint64_t head = kTensorHead + 8 * static_cast<uint64_t>(std::clamp(ndim, 0, kMaxDimensions)) + sizeof(uint64_t);
    if (ndim >= 0 && ndim <= kMaxDimensions && head <= body) {
      return Gather(sizeof(code) + head) ? BeginPayload(head) : kNeedBytes;
    }
  }  // a copy whose head is wrong is a message like others: its receiver says what is wrong with it
  if (length_ > max_frame_) {
    ThrowProtocolError("a message of " + std::to_string(length_) + " bytes is over the limit of " +
                       std::to_string(max_frame_));
  }
  if (length_ >= large_ && !sought_) {
    if (!Gather(length_ / kPromised)) return kNeedBytes;
    SeekContent();
  }
  if (payload_left_ > 0 || !Gather(length_)) return kNeedBytes;
  body_ = {buffer_ + begin_ + sizeof(code), static_cast<size_t>(length_) - sizeof(code)};
  Consume(static_cast<size_t>(length_));
  state_ = kHeader;
  return kMessage;
}

// Has bytes that are most of the message come into their own object. From here on the message is as if they were
// not in it.
void FrameReader::SeekContent() {
  sought_ = true;
  if (code_ != Code::kCallFunc && code_ != Code::kReturn) return;
  auto arrived = static_cast<size_t>(std::min<uint64_t>(Available(), length_));
  char* message = buffer_ + begin_;
  try {
    Reader reader({message + sizeof(code_), arrived - sizeof(code_)}, &content_);
    if (code_ == Code::kCallFunc) reader.Take<uint64_t>();
    reader.Values();
  } catch (const Error&) {  // it goes on after what has arrived
  }
  uint64_t size = content_.size;
  size_t head = sizeof(code_) + content_.at;
  if (size < length_ / 2 || size > length_ - head) return;
  char* data = nullptr;
  TVMFFIAny object;
  Check(PortcallBytesCreate(static_cast<size_t>(size), &data, &object));
  content_.object = Any::Steal(object);
  arrived = static_cast<size_t>(std::min<uint64_t>(Available() - head, size));
  std::memcpy(data, message + head, arrived);
  end_ -= arrived;
  std::memmove(message + head, message + head + arrived, Available() - head);
  length_ -= size;
  target_ = data + arrived;
  payload_left_ = size - arrived;
}

FrameReader::Event FrameReader::BeginPayload(uint64_t head) {
  body_ = {buffer_ + begin_ + sizeof(int32_t), static_cast<size_t>(head)};
  Consume(sizeof(int32_t) + static_cast<size_t>(head));
  payload_left_ = length_ - sizeof(int32_t) - head;
  target_ = nullptr;
  state_ = kInPayload;
  return kPayload;
}

FrameReader::Event FrameReader::FillPayload() {
  auto n = static_cast<size_t>(std::min<uint64_t>(Available(), payload_left_));
  if (target_ && n) {
    std::memcpy(target_, buffer_ + begin_, n);
    target_ += n;
  }
  Consume(n);
  payload_left_ -= n;
  if (payload_left_ == 0) {
    state_ = kHeader;
    return kPayloadEnd;
  }
  wanted_ = target_ ? 0 : static_cast<size_t>(std::min<uint64_t>(payload_left_, kSkipChunk));
  return kNeedBytes;
}

}  // namespace portcall::rpc
