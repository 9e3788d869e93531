// SPDX-License-Identifier: Apache-2.0
#ifndef PORTCALL_RPC_LOCAL_SESSION_H_
#define PORTCALL_RPC_LOCAL_SESSION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/handles.h"
#include "rpc/progress.h"
#include "rpc/session.h"

namespace portcall::rpc {

// This process as a session. `patterns` name the global functions that it offers ("testing.*"); asking for another one
// is an error that says how to offer it. `record` is told which call runs; `by_value`: results that can be
// saved are sent as they are. `see_result` sees the result of each call first: what it throws leaves the call.
using SeeResult = std::function<void(const Any&)>;
std::shared_ptr<Session> MakeLocalSession(std::vector<std::string> patterns, bool by_value = false,
                                          facts::Call* record = nullptr, SeeResult see_result = {});

// An object in its binary form, as Bytes; None where it has none. What Python registers makes it. `position`: of the
// argument that it is, for the error.
enum class Save { kWithoutTensors, kWherePossible, kAlways };  // kAlways: an error says why it cannot be
Any ToValueBytes(const TVMFFIAny& value, Save save, int position = -1);
Any FromValueBytes(const Any& bytes);

}  // namespace portcall::rpc
#endif  // PORTCALL_RPC_LOCAL_SESSION_H_
