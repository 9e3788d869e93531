// SPDX-License-Identifier: Apache-2.0
#include "rpc/channel.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace portcall::rpc {
namespace {

class FunctionChannel : public Channel {
 public:
  FunctionChannel(PackedFunc send, PackedFunc receive, PackedFunc close)
      : send_(std::move(send)), receive_(std::move(receive)), close_(std::move(close)) {}

  size_t Send(const std::vector<Chunk>& chunks, Deadline deadline) override {
    PORTCALL_CHECK(std::chrono::steady_clock::now() < deadline, SessionTimeoutError) << kTimeIsUp;
    std::string bytes;
    for (const Chunk& chunk : chunks) {  // a part of much: what is not taken is copied again
      bytes.append(static_cast<const char*>(chunk.data), std::min(chunk.size, kMaxFunctionChunk - bytes.size()));
    }
    int64_t n = send_(Bytes(bytes));
    PORTCALL_CHECK(n > 0 && static_cast<size_t>(n) <= bytes.size(), SessionBrokenError)
        << "send() took " << n << " of " << bytes.size() << " bytes";
    return static_cast<size_t>(n);
  }
  size_t Receive(void* data, size_t size, Deadline deadline) override {
    PORTCALL_CHECK(std::chrono::steady_clock::now() < deadline, SessionTimeoutError) << kTimeIsUp;
    Any result = receive_(static_cast<int64_t>(std::min<size_t>(size, 1 << 30)));
    Bytes bytes = result.cast<Bytes>();
    PORTCALL_CHECK(bytes.size() <= size, SessionBrokenError)
        << "receive(" << size << ") gave " << bytes.size() << " bytes";
    std::memcpy(data, bytes.data(), bytes.size());
    return bytes.size();
  }
  bool KeepsDeadlines() const override { return false; }
  void Interrupt() override { Close(); }
  void Close() noexcept override {
    if (closed_.exchange(true) || !close_.defined()) return;
    Guard([&] { close_(); });
    TVMFFIObjectHandle dropped = nullptr;
    TVMFFIErrorMoveFromRaised(&dropped);
    if (dropped) TVMFFIObjectDecRef(dropped);
  }

 private:
  PackedFunc send_, receive_, close_;
  std::atomic<bool> closed_{false};
};

}  // namespace

Deadline DeadlineIn(double seconds) {
  if (!(seconds > 0) || seconds > 1e9) return kNoDeadline;
  return std::chrono::steady_clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
}

std::unique_ptr<Channel> MakeFunctionChannel(PackedFunc send, PackedFunc receive, PackedFunc close) {
  return std::make_unique<FunctionChannel>(std::move(send), std::move(receive), std::move(close));
}

}  // namespace portcall::rpc
