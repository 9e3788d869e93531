// SPDX-License-Identifier: Apache-2.0
#include "board/farm/gate.h"

#include <sys/socket.h>

#include <algorithm>

namespace portcall::board {
namespace {

union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

bool GateMessage::SetText(std::string_view words) {
  const size_t size = std::min(words.size(), sizeof(text) - 1);
  words.copy(text, size);
  text[size] = '\0';
  return size == words.size();
}

bool SendOnLink(int link, const GateMessage& message, int descriptor, int flags) {
  iovec data{const_cast<GateMessage*>(&message), sizeof(message)};
  msghdr head{};
  head.msg_iov = &data;
  head.msg_iovlen = 1;
  Control control{};
  if (descriptor >= 0) {
    head.msg_control = control.bytes;
    head.msg_controllen = sizeof(control.bytes);
    cmsghdr* one = CMSG_FIRSTHDR(&head);
    one->cmsg_level = SOL_SOCKET;
    one->cmsg_type = SCM_RIGHTS;
    one->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(one), &descriptor, sizeof(int));
  }
  return sendmsg(link, &head, flags | MSG_NOSIGNAL) == sizeof(message);
}

ssize_t ReceiveFromLink(int link, GateMessage* message, Descriptor* descriptor, int flags) {
  iovec data{message, sizeof(*message)};
  msghdr head{};
  Control control{};
  head.msg_iov = &data;
  head.msg_iovlen = 1;
  head.msg_control = control.bytes;
  head.msg_controllen = sizeof(control.bytes);
  const ssize_t size = recvmsg(link, &head, flags | MSG_CMSG_CLOEXEC);
  message->text[sizeof(message->text) - 1] = '\0';
  for (cmsghdr* one = size > 0 ? CMSG_FIRSTHDR(&head) : nullptr; one; one = CMSG_NXTHDR(&head, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(one), sizeof(int));
    *descriptor = Descriptor(passed);
  }
  return size;
}

Descriptor Gate::Connect() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw SystemError("cannot make a socket");
  link_.Close();
  link_ = Descriptor(ends[0]);
  waiting_.clear();
  return Descriptor(ends[1]);
}

void Gate::Send(const GateMessage& message) {
  waiting_.push_back(message);
  SendWaiting();
}

void Gate::SendWaiting() {
  while (!waiting_.empty() && SendOnLink(link_.get(), waiting_.front(), -1, MSG_DONTWAIT)) waiting_.pop_front();
}

bool Gate::Receive(GateMessage* message, Descriptor* descriptor) {
  return link_ && ReceiveFromLink(link_.get(), message, descriptor, MSG_DONTWAIT) == sizeof(*message);
}

void Gate::Allow(const GateMessage& message) {
  keys_[message.text] = {message.fence, message.limit};
  last_fence_ = std::max(last_fence_, message.fence);
}

bool Gate::Admit(const std::string& key, Admission* admission) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return false;
  *admission = found->second;
  keys_.erase(found);
  return true;
}

void Gate::Forget(int64_t fence) {
  for (auto next = keys_.begin(); next != keys_.end();) {
    next = next->second.fence <= fence ? keys_.erase(next) : std::next(next);
  }
}

void Gate::ReportEnded(int64_t oldest) {
  while (!ending_.empty() && (!oldest || *ending_.begin() < oldest)) {
    Send({GateMessage::kLeaseEnded, 0, *ending_.begin()});
    ending_.erase(ending_.begin());
  }
}

}  // namespace portcall::board
