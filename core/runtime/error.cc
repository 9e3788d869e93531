// SPDX-License-Identifier: Apache-2.0
// The error of a thread: one slot. A function that fails fills it, and the handler empties it. See foreign.h for the
// other runtime's slot.
#include "portcall/error.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "runtime/foreign.h"
#include "runtime/node.h"

namespace portcall {
namespace {

struct ErrorImpl final : Object {
  static constexpr int32_t kTypeIndex = kTVMFFIError;
  static constexpr bool kHoldsObjects = true;

  TVMFFIErrorCell cell{};  // what the ABI shows; the strings below are what it points to
  std::string kind;
  std::string message;
  std::string backtrace;

  ErrorImpl(std::string_view k, std::string_view m, std::string_view b, TVMFFIObjectHandle cause,
            TVMFFIObjectHandle extra)
      : kind(k), message(m), backtrace(b) {
    cell.kind = ToByteArray(kind);
    cell.message = ToByteArray(message);
    cell.backtrace = ToByteArray(backtrace);
    cell.update_backtrace = UpdateBacktrace;
    TVMFFIObjectIncRef(cause);
    TVMFFIObjectIncRef(extra);
    cell.cause_chain = cause;
    cell.extra_context = extra;
  }
  ~ErrorImpl() {
    TVMFFIObjectDecRef(cell.cause_chain);
    TVMFFIObjectDecRef(cell.extra_context);
  }

  static void UpdateBacktrace(TVMFFIObjectHandle self, const TVMFFIByteArray* text, int32_t mode) {
    auto* error = static_cast<ErrorImpl*>(static_cast<TVMFFIObject*>(self));
    std::string frames = mode == 0 ? std::string() : error->backtrace;
    error->backtrace = frames.append(ToView(*text));  // `text` may be our own
    error->cell.backtrace = ToByteArray(error->backtrace);
  }
};

ObjectRef& Slot() {
  thread_local ObjectRef raised;
  return raised;
}

void Raise(ObjectRef error) noexcept {
  if (!error) ObjectRef::Steal(TakeForeignError());
  Slot() = error && GiveForeignError(error.get()) ? nullptr : std::move(error);
}

// Compiled code reports a failure. Failing to build the error must not hide that there was one: callers read a nonzero
// return without an error as a RuntimeError.
void RaiseFromCode(const char* kind, std::string_view message) noexcept {
  try {
    Raise(ObjectRef::Steal(NewCountedNode<ErrorImpl>(0, kind, message, "", nullptr, nullptr)));
  } catch (...) {
    Raise(nullptr);
  }
}

}  // namespace
}  // namespace portcall

using namespace portcall;

void TVMFFIErrorSetRaised(TVMFFIObjectHandle error) {
  ObjectRef given = ObjectRef::Borrow(error);
  // What code on tvm-ffi's headers throws when TVMFFIEnvCheckSignals says that the error is raised already.
  if (given && ToView(static_cast<ErrorObj*>(given.get())->cell.kind) == "EnvErrorAlreadySet") {
    TVMFFIObjectHandle raised = nullptr;
    TVMFFIErrorMoveFromRaised(&raised);
    if (raised) given = ObjectRef::Steal(raised);
  }
  Raise(std::move(given));
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  RaiseFromCode(kind ? kind : "RuntimeError", message ? message : "");
}

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t num_parts) {
  std::string message;
  for (int32_t i = 0; i < num_parts; ++i) {
    if (parts[i]) message += parts[i];
  }
  RaiseFromCode(kind ? kind : "RuntimeError", message);
}

void TVMFFIErrorMoveFromRaised(TVMFFIObjectHandle* out) {
  *out = TakeForeignError();
  if (!*out) *out = Slot().release();
}

int TVMFFIErrorCreate(const TVMFFIByteArray* kind, const TVMFFIByteArray* message, const TVMFFIByteArray* backtrace,
                      TVMFFIObjectHandle* out) {
  return TVMFFIErrorCreateWithCauseAndExtraContext(kind, message, backtrace, nullptr, nullptr, out);
}

int TVMFFIErrorCreateWithCauseAndExtraContext(const TVMFFIByteArray* kind, const TVMFFIByteArray* message,
                                              const TVMFFIByteArray* backtrace, TVMFFIObjectHandle cause_chain,
                                              TVMFFIObjectHandle extra_context, TVMFFIObjectHandle* out) {
  try {  // not Guard: this function never touches the slot
    *out = NewCountedNode<ErrorImpl>(0, ToView(*kind), ToView(*message), backtrace ? ToView(*backtrace) : "",
                                     cause_chain, extra_context);
    return 0;
  } catch (...) {
    return -1;
  }
}

const TVMFFIByteArray* TVMFFIBacktrace(const char* file, int line, const char* function, int) {
  thread_local std::string kept;  // on the heap: what a library may keep for each thread is short
  thread_local TVMFFIByteArray bytes;
  char text[1024];
  int n = std::snprintf(text, sizeof(text), "  File \"%s\", line %d, in %s\n", file ? file : "<unknown>", line,
                        function ? function : "<unknown>");
  const size_t size = n < 0 ? 0 : std::min(static_cast<size_t>(n), sizeof(text) - 1);
  if (size == sizeof(text) - 1) text[size - 1] = '\n';  // cut short, but a line all the same
  kept.assign(text, size);
  bytes = {kept.data(), kept.size()};
  return &bytes;
}
