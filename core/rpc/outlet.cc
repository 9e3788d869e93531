// SPDX-License-Identifier: Apache-2.0
#include "rpc/outlet.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "portcall/tensor.h"

namespace portcall::rpc {
namespace {

constexpr size_t kChunk = 16 << 10;         // bytes read at once, and the longest line
constexpr size_t kMostAtOnce = 1 << 20;     // before an answer goes out
constexpr size_t kMostWaiting = 256 << 10;  // bytes for a client that does not read
constexpr int kAgain = 50;                  // milliseconds until it is tried again
constexpr auto kSignInterval = std::chrono::milliseconds(1000);

void WriteWhole(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EAGAIN) {  // somebody has set it so
      pollfd entry{fd, POLLOUT, 0};
      poll(&entry, 1, kAgain);
    } else if (n < 0 && errno != EINTR) {
      return;
    }
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
}

}  // namespace

void BeginCall(facts::Call* call, std::string_view name, const TVMFFIAny* args, size_t num_args) {
  if (__atomic_fetch_add(&call->depth, 1, __ATOMIC_RELAXED) > 0) return;
  size_t size = std::min(name.size(), sizeof(call->name) - 1);
  std::memcpy(call->name, name.data(), size);
  call->name[size] = '\0';
  call->num_args = static_cast<uint32_t>(num_args);
  for (size_t i = 0; i < std::min(num_args, std::size(call->args)); ++i) {
    facts::Argument& arg = call->args[i];
    arg = {};  // what an earlier call had there
    arg.type = args[i].type_index;
    const DLTensor* tensor = TryDLTensor(args[i]);
    if (!tensor) continue;
    arg.code = tensor->dtype.code;
    arg.bits = tensor->dtype.bits;
    arg.lanes = tensor->dtype.lanes;
    arg.ndim = tensor->ndim;
    std::copy_n(tensor->shape, std::min<int32_t>(tensor->ndim, static_cast<int32_t>(std::size(arg.shape))), arg.shape);
  }
  if (call->timed != 1) return;
  call->begin = Nanoseconds();
  call->timed = 2;
}

ssize_t ReadLastWords(facts::LastWords* words, int fd, size_t most) {
  char* text = words->text;
  constexpr size_t kRoom = sizeof(words->text);
  const auto kept = static_cast<uint32_t>(std::min<size_t>(words->size, kRoom / 2));
  std::memmove(text, text + words->size - kept, kept);
  words->size = kept;
  std::memset(text + kept, 0, kRoom - kept);
  ssize_t n = read(fd, text + kept, std::min(kRoom - kept, most));
  if (n > 0) words->size += static_cast<uint32_t>(n);
  return n;
}

Outlet::Outlet(Channel* channel, Progress* progress, PrintPipes pipes)
    : channel_(channel), progress_(progress), pipes_(pipes) {
  if (pipes_.log < 0) return;
  printing_ = epoll_create1(EPOLL_CLOEXEC);
  for (int fd : pipes_.streams) {
    fcntl(fd, F_SETFL, O_NONBLOCK);
    epoll_event event{EPOLLIN, {}};
    epoll_ctl(printing_, EPOLL_CTL_ADD, fd, &event);
  }
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { Run(); });
}

Outlet::~Outlet() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_, 1);
  thread_.join();
  close(wake_);
  close(printing_);
  Read();
  for (int i : {0, 1}) TakeLines(i, rest_[i]);
}

void Outlet::Flush(SendQueue* answers) {
  if (answers->empty()) return;
  std::lock_guard<std::mutex> lock(sending_);
  Enter(progress_, facts::kBusy);
  if (thread_.joinable()) {
    epoll_event event;
    if (epoll_wait(printing_, &event, 1, 0) > 0) {
      std::lock_guard<std::mutex> reading(reading_);
      Read();
    }
    SendPrinted(kNoDeadline);
  }
  while (!answers->empty()) {
    size_t n = channel_->Send(answers->Chunks(), kNoDeadline);
    answers->Sent(n);
    Count(&progress_->sent, n);
  }
  Enter(progress_, facts::kBetween);
}

void Outlet::Run() {
  bool waiting = false;
  for (;;) {
    pollfd entries[3] = {{pipes_.streams[0], POLLIN, 0}, {pipes_.streams[1], POLLIN, 0}, {wake_, POLLIN, 0}};
    poll(entries, 3, waiting ? kAgain : pipes_.signs ? static_cast<int>(kSignInterval.count()) : -1);
    if (entries[2].revents) return;
    {
      std::lock_guard<std::mutex> lock(reading_);
      Read();
      if (pipes_.signs && working_) GiveSign();
    }
    waiting = !TrySend();
  }
}

// All that is in the pipes now.
void Outlet::Read() {
  pollfd entries[2] = {{pipes_.streams[0], POLLIN, 0}, {pipes_.streams[1], POLLIN, 0}};
  char buffer[kChunk];
  size_t most = kMostAtOnce;
  while (most > 0 && poll(entries, 2, 0) > 0) {
    for (int i : {0, 1}) {
      if (!entries[i].revents) continue;
      const bool errors = i == 1;
      ssize_t n = errors ? ReadLastWords(&progress_->last_words, entries[i].fd, most)
                         : read(entries[i].fd, buffer, std::min(sizeof(buffer), most));
      if (n > 0) {
        const char* text = errors ? progress_->last_words.text + progress_->last_words.size - n : buffer;
        Take(i, {text, static_cast<size_t>(n)});
        most -= static_cast<size_t>(n);
      } else if (n == 0 || errno != EAGAIN) {
        epoll_ctl(printing_, EPOLL_CTL_DEL, pipes_.streams[i], nullptr);
        entries[i].fd = pipes_.streams[i] = -1;  // the session has closed it
      }
    }
  }
}

void Outlet::Take(int stream, std::string_view text) {
  std::string& rest = rest_[stream];
  rest.append(text);
  size_t end = rest.rfind('\n') + 1;  // 0 where there is none
  if (end == 0 && rest.size() >= kChunk) end = rest.size();
  TakeLines(stream, std::string_view(rest).substr(0, end));
  rest.erase(0, end);
  while (!text.empty()) {  // one at a time: short writes to a pipe are not torn apart by those of other processes
    size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    WriteWhole(pipes_.log, text.substr(0, end));
    text.remove_prefix(end);
  }
}

void Outlet::TakeLines(int stream, std::string_view lines) {
  if (lines.empty()) return;
  if (pipes_.to_client && printed_.size() < kMostWaiting) {
    WriteOutput(stream, lines);
  } else {
    dropped_[stream] += static_cast<uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
  }
}

void Outlet::WriteOutput(int stream, std::string_view text) {
  Writer writer(&printed_);
  writer.Begin(Code::kOutput);
  writer.Put<int32_t>(stream + 1);
  writer.Put<uint64_t>(dropped_[stream]);
  writer.Text(text);
  writer.End();
  dropped_[stream] = 0;
}

// What waits to be sent is a sign, too.
void Outlet::GiveSign() {
  Clock::time_point now = Clock::now();
  if (!printed_.empty() || now - last_sign_ < kSignInterval / 2) return;
  last_sign_ = now;
  WriteOutput(0, {});
}

// Sends what was printed; returns whether all is gone.
bool Outlet::SendPrinted(Deadline deadline) {
  for (;;) {
    if (out_.empty()) {
      std::lock_guard<std::mutex> lock(reading_);
      out_.swap(printed_);
    }
    if (out_.empty()) return true;
    Enter(progress_, facts::kBusy);
    try {
      size_t n = channel_->Send({{out_.data(), out_.size()}}, deadline);
      out_.erase(0, n);
      Count(&progress_->sent, n);
    } catch (const Error& error) {
      if (error.kind() != "SessionTimeoutError") throw;
      return false;
    }
  }
}

bool Outlet::TrySend() {
  std::unique_lock<std::mutex> lock(sending_, std::try_to_lock);
  if (!lock) return false;
  try {
    if (!SendPrinted(std::chrono::steady_clock::now())) return false;
    Enter(progress_, facts::kBetween);
  } catch (const Error&) {  // the client is gone, which the other thread will see
    pipes_.to_client = false;
  }
  return true;
}

}  // namespace portcall::rpc
