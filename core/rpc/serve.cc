// SPDX-License-Identifier: Apache-2.0
// Serving a session over a channel, and as a function of bytes for hosts that have their own event loop.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

#include "portcall/module.h"
#include "rpc/callbacks.h"
#include "rpc/channel.h"
#include "rpc/endpoint.h"
#include "rpc/local_session.h"
#include "rpc/outlet.h"
#include "rpc/remote_objects.h"

namespace portcall::rpc {
namespace {

constexpr size_t kMaxWaiting = 64 << 20;  // bytes of a peer that sends requests and takes no answers

EndpointOptions OptionsWith(int64_t max_frame, PackedFunc constructor) {
  EndpointOptions options;
  if (max_frame > 0) options.max_frame = static_cast<uint64_t>(max_frame);
  if (constructor.defined()) {
    options.constructor = [constructor](const std::string& name, const std::vector<Any>& args) {
      std::vector<Any> all = args;
      all.insert(all.begin(), Any(name));
      Any module =
          constructor.CallPacked(reinterpret_cast<const TVMFFIAny*>(all.data()), static_cast<int32_t>(all.size()));
      return SessionOf(module.cast<Module>());
    };
  }
  return options;
}

// Progress in the shared file `fd`, which is closed; or in our memory where there is none.
class ProgressPage {
 public:
  explicit ProgressPage(int fd) {
    if (fd < 0) return;
    void* page = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    PORTCALL_CHECK(page != MAP_FAILED, OSError) << "cannot map the progress of the session: " << strerror(error);
    shared_ = new (page) Progress();
  }
  ~ProgressPage() {
    if (shared_) munmap(shared_, sizeof(Progress));
  }
  ProgressPage(const ProgressPage&) = delete;
  ProgressPage& operator=(const ProgressPage&) = delete;
  Progress* get() { return shared_ ? shared_ : &own_; }
  Progress* operator->() { return get(); }

 private:
  Progress own_;
  Progress* shared_ = nullptr;
};

// Serves until either side ends the session; returns whether that was between two messages.
bool Serve(Endpoint* endpoint, Channel* channel, Outlet* outlet, ProgressPage& progress) {
  Enter(progress.get(), facts::kBetween);
  while (!endpoint->closed()) {
    auto [space, room] = endpoint->Space();
    outlet->set_working(!endpoint->between());
    size_t n = channel->Receive(space, room, kNoDeadline);
    if (n == 0) return endpoint->PeerClosed();
    outlet->set_working(true);
    endpoint->Filled(n);
    Count(&progress->received, n);
    bool more;
    do {
      more = endpoint->Serve();
      outlet->Flush(&endpoint->output());
    } while (more);
  }
  return true;
}

std::string ServeOver(std::unique_ptr<Channel> channel, std::vector<std::string> patterns, int64_t max_frame,
                      PackedFunc constructor, int progress_fd, std::string_view features = {}, PrintPipes pipes = {}) {
  auto has = [&](std::string_view name) { return features.find(name) != features.npos; };
  auto page = std::make_unique<ProgressPage>(progress_fd);
  ProgressPage& progress = *page;
  EndpointOptions options = OptionsWith(max_frame, std::move(constructor));
  options.tracebacks = has("traceback");
  options.posts = has("post");
  options.cancels = has("cancel");
  auto callbacks = has("callback") || has("cancel") ? std::make_shared<Callbacks>() : nullptr;
  options.client = callbacks;
  auto endpoint = std::make_unique<Endpoint>(MakeLocalSession(std::move(patterns), has("values"), &progress->call),
                                             std::move(options));
  pipes.to_client = has("output");
  pipes.signs = has("alive");
  auto outlet = std::make_unique<Outlet>(channel.get(), progress.get(), pipes);
  if (callbacks) callbacks->Begin(endpoint.get(), channel.get(), outlet.get(), progress.get());
  bool whole = false;
  std::optional<Error> failure;
  try {
    whole = Serve(endpoint.get(), channel.get(), outlet.get(), progress);
  } catch (const Error& error) {
    if (error.kind() != "SessionBrokenError") failure = error;
  }
  if (callbacks && !callbacks->End()) {  // a thread of the user's runs for a client that has gone, and may come back
    (void)endpoint.release();
    (void)outlet.release();
    (void)channel.release();
    (void)page.release();
    throw Error("RuntimeError", "the session is over, and a thread of it runs on");
  }
  outlet = nullptr;
  if (failure) throw Error(*failure);
  channel->Close();
  Enter(progress.get(), whole ? facts::kClosed : facts::kLost);
  return whole ? "closed" : "lost";
}

std::string ServeSession(int read_fd, int write_fd, std::vector<std::string> patterns, int64_t max_frame,
                         PackedFunc constructor, int progress_fd, std::string features, int out_fd, int error_fd,
                         int log_fd) {
  return ServeOver(MakeFdChannel(read_fd, write_fd), std::move(patterns), max_frame, std::move(constructor),
                   progress_fd, features, {{out_fd, error_fd}, log_fd});
}

std::string ServeFds(int read_fd, int write_fd, std::vector<std::string> patterns, int64_t max_frame,
                     PackedFunc constructor) {
  return ServeSession(read_fd, write_fd, std::move(patterns), max_frame, std::move(constructor), -1, "", -1, -1, -1);
}

// Over a transport that somebody wrote in another language.
std::string ServeFunctions(PackedFunc send, PackedFunc receive, PackedFunc close, std::vector<std::string> patterns,
                           int64_t max_frame) {
  return ServeOver(MakeFunctionChannel(std::move(send), std::move(receive), std::move(close)), std::move(patterns),
                   max_frame, nullptr, -1);
}

// The endpoint as a function (bytes, flags) -> 0 closed, 1 go on, 2 call again to send more. flags: 1 bytes came,
// 2 there is room to send. `send(bytes)` returns how many it took.
class EventDrivenServer {
 public:
  EventDrivenServer(PackedFunc send, std::string remote_key, std::shared_ptr<Session> session, EndpointOptions options)
      : send_(std::move(send)),
        endpoint_(std::move(session), std::move(options)),
        wants_key_(remote_key == "%toinit") {}

  int64_t Handle(std::string_view bytes, int64_t flags) {
    PORTCALL_CHECK(!busy_.exchange(true), RuntimeError)
        << "the server is at work already: it takes bytes from one thread, and not from a function that it serves";
    struct Done {
      std::atomic<bool>* busy;
      ~Done() { *busy = false; }
    } done{&busy_};
    bool writable = (flags & 2) != 0;
    if (wants_key_ && !endpoint_.closed()) bytes = TakeKey(bytes);
    Pump(writable);
    while (!bytes.empty() && !endpoint_.closed()) {
      auto [space, room] = endpoint_.Space();
      size_t n = std::min(bytes.size(), room);
      std::memcpy(space, bytes.data(), n);
      bytes.remove_prefix(n);
      endpoint_.Filled(n);
      Pump(writable);
      if (endpoint_.output().full() && endpoint_.waiting() > kMaxWaiting) {
        Fail("the peer sends requests and takes no answers");
      }
    }
    if (!endpoint_.output().empty()) return 2;
    return endpoint_.closed() ? 0 : 1;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) {
    endpoint_.PeerClosed();
    key_ = std::string();
    ThrowProtocolError(what);
  }
  // The rest of the handshake that the host left to us: a length and a key.
  std::string_view TakeKey(std::string_view bytes) {
    key_.append(bytes);
    int32_t size = 0;
    if (key_.size() < sizeof(size)) return {};
    size = NumberAt<int32_t>(key_.data());
    if (size < 0 || static_cast<size_t>(size) > kMaxKeyBytes) Fail("a key of " + std::to_string(size) + " bytes");
    size_t head = sizeof(size) + static_cast<size_t>(size);
    if (key_.size() < head) return {};
    wants_key_ = false;
    return std::string_view(key_).substr(head);
  }
  // Serves what has arrived, and sends as often as the answers fill the output.
  void Pump(bool writable) {
    bool more;
    do more = endpoint_.Serve();
    while (writable && SendSome() && more);
  }
  bool SendSome() {
    while (!endpoint_.output().empty()) {
      Chunk chunk = endpoint_.output().Chunks(1)[0];
      chunk.size = std::min(chunk.size, kMaxFunctionChunk);  // what is not taken is copied again
      int64_t n = send_(Bytes({static_cast<const char*>(chunk.data), chunk.size}));
      PORTCALL_CHECK(n >= 0 && static_cast<size_t>(n) <= chunk.size, ValueError)
          << "send() took " << n << " of " << chunk.size << " bytes";
      if (n == 0) return false;
      endpoint_.output().Sent(static_cast<size_t>(n));
    }
    return true;
  }

  PackedFunc send_;
  Endpoint endpoint_;
  bool wants_key_;
  std::string key_;
  std::atomic<bool> busy_{false};
};

PackedFunc MakeEventDrivenServer(PackedFunc send, std::string remote_key, std::vector<std::string> patterns) {
  auto server = std::make_shared<EventDrivenServer>(std::move(send), remote_key, MakeLocalSession(std::move(patterns)),
                                                    EndpointOptions());
  return PackedFunc(
      detail::Unpack([server](Bytes bytes, int64_t flags) { return server->Handle(bytes.view(), flags); }),
      "EventDrivenServer");
}

PORTCALL_REGISTER_GLOBAL("portcall.rpc.ServeFds").set_body_typed(ServeFds);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.ServeFunctions").set_body_typed(ServeFunctions);
// The same with a file of shared memory (a Progress) through which another process sees the progress; the extensions
// that the peers have agreed upon; the ends to read of the pipes that stdout and stderr are, and where their text goes
// beside the client; -1 for none of these.
PORTCALL_REGISTER_GLOBAL("portcall.rpc.ServeSession").set_body_typed(ServeSession);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.InterruptCallsBy").set_body_typed(InterruptCallsBy);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.CallIsInterrupted").set_body_typed(TakeInterruption);
PORTCALL_REGISTER_GLOBAL("portcall.rpc.EventDrivenServer").set_body_typed(MakeEventDrivenServer);
PORTCALL_REGISTER_GLOBAL("rpc.CreateEventDrivenServer")
    .set_body_typed([](PackedFunc send, std::string, std::string remote_key) {
      return MakeEventDrivenServer(std::move(send), std::move(remote_key), {"*"});
    });

}  // namespace
}  // namespace portcall::rpc
