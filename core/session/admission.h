// SPDX-License-Identifier: Apache-2.0
// What a server asks of its clients, and says to them (docs/wire.md, sections 1 and 8). No I/O here.
#ifndef PORTCALL_SESSION_ADMISSION_H_
#define PORTCALL_SESSION_ADMISSION_H_

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "session/hello.h"

namespace portcall::session {

// A client that is not let in: why, for the log, and the bytes that it is told, if any.
struct Refused : std::exception {
  Refused(std::string reason, std::string told) : why(std::move(reason)), answer(std::move(told)) {}

  std::string why, answer;
};

// They throw Refused.
void CheckVersion(const Hello& hello, const std::string& key);
// Whether a client asks for this key, and can prove that it knows the token, where there is one.
void CheckKey(const Hello& hello, const std::string& key, bool token);

// What asks a client to prove that it knows the token.
std::string Challenge(const std::string& key, const std::string& nonce);
// What opens a session with `features`; `more`: words that only portcall clients are told; `proof` may be empty.
std::string Welcome(const std::string& key, bool portcall, const std::vector<std::string>& features, const Words& more,
                    std::string_view proof);

}  // namespace portcall::session
#endif  // PORTCALL_SESSION_ADMISSION_H_
