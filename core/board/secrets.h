// SPDX-License-Identifier: Apache-2.0
// What only the supervisor may know, in memory that no process which it starts inherits.
#ifndef PORTCALL_BOARD_SECRETS_H_
#define PORTCALL_BOARD_SECRETS_H_

#include <sys/types.h>

#include <string>
#include <string_view>

namespace portcall::board {

constexpr size_t kLongestToken = 4096;
constexpr size_t kInstance = 32;  // characters

// One page: the keys made of the token and of random bytes. Neither the token of clients nor a secret of a session is kept.
class Secrets {
 public:
  // The token of clients, and the one that the farm knows us by; each is empty for none. `place`: of a farm.
  Secrets(std::string_view token, std::string_view farm_token, bool place);
  Secrets(const Secrets&) = delete;
  Secrets& operator=(const Secrets&) = delete;
  ~Secrets();

  bool has_token() const { return has_token_; }
  std::string Nonce() const;
  // The proof that this side knows the token; `role` is "client" or "server".
  std::string Proof(std::string_view role, std::string_view transcript) const;
  // What the client of a session may ask with, later, why it ended.
  std::string OfSession(int number) const;
  // Sends the farm's token to its agent, and then, in the same message, what tells this server from others of its name.
  void SendToAgent(int link) const;
  // fork(), but the child knows none of this; no process can read the memory of one that is `to_know` something.
  pid_t Fork(bool to_know = false);

 private:
  struct Page;
  Page* page_;
  bool has_token_;
};

}  // namespace portcall::board
#endif  // PORTCALL_BOARD_SECRETS_H_
