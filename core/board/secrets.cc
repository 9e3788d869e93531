// SPDX-License-Identifier: Apache-2.0
#include "board/secrets.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "portcall/sha256.h"
#include "session/descriptor.h"

namespace portcall::board {

using namespace session;

using namespace sha256;
namespace {

constexpr int kWipeOnFork = 18;  // MADV_WIPEONFORK, of Linux 4.14

std::string Random(size_t bytes) {
  std::string data(bytes, '\0');
  if (syscall(SYS_getrandom, data.data(), bytes, 0) == static_cast<long>(bytes)) return data;
  Descriptor file(open("/dev/urandom", O_RDONLY | O_CLOEXEC));  // before Linux 3.17
  if (!file || read(file.get(), data.data(), bytes) != static_cast<ssize_t>(bytes)) {
    throw SystemError("cannot read random bytes");
  }
  return data;
}

std::string NumberedHex(const HmacKey& key, std::string_view what, uint64_t number) {
  return Hex(key.Sign(std::string(what) + std::to_string(number)), 16);
}

}  // namespace

struct Secrets::Page {
  HmacKey token, own;
  uint64_t nonces = 0;
  size_t farm_token_size = 0;
  char farm_token[kLongestToken] = "";
};

Secrets::Secrets(std::string_view token, std::string_view farm_token, bool place) : has_token_(!token.empty()) {
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, sizeof(Page), kWipeOnFork);
  std::string random = Random(32);
  page_ = new (memory) Page{HmacKey(token), HmacKey(random)};
  Wipe(random.data(), random.size());
  page_->farm_token_size = farm_token.copy(page_->farm_token, kLongestToken - 1);
  if (has_token_ || place) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

Secrets::~Secrets() {
  page_->~Page();
  munmap(page_, sizeof(Page));
}

std::string Secrets::Nonce() const { return NumberedHex(page_->own, "nonce ", ++page_->nonces); }

std::string Secrets::Proof(std::string_view role, std::string_view transcript) const {
  std::string text(role);
  text.push_back('\0');
  Digest proof = page_->token.Sign(text.append(transcript));
  return std::string(AsText(proof));
}

std::string Secrets::OfSession(int number) const {
  return NumberedHex(page_->own, "session ", static_cast<uint64_t>(number));
}

void Secrets::SendToAgent(int link) const {
  std::string instance = NumberedHex(page_->own, "instance ", 0);
  static_assert(kInstance == 32, "as NumberedHex makes it");
  iovec parts[] = {{page_->farm_token, page_->farm_token_size}, {instance.data(), kInstance}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const bool sent = sendmsg(link, &message, MSG_NOSIGNAL) > 0;
  Wipe(instance.data(), instance.size());  // sessions have a copy of this memory
  if (!sent) throw SystemError("cannot start");
}

pid_t Secrets::Fork(bool to_know) {
  pid_t pid = fork();
  if (pid == 0) {
    Wipe(page_->farm_token, page_->farm_token_size);
    Wipe(page_, offsetof(Page, farm_token));
    if (!to_know) prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  }
  return pid;
}

}  // namespace portcall::board
