// SPDX-License-Identifier: Apache-2.0
// Errors: (kind, message, backtrace, cause, extra context). C++ code throws portcall::Error; no exception crosses the ABI.
//
//   PORTCALL_THROW(ValueError) << "negative size " << n;
//   PORTCALL_CHECK(n >= 0, ValueError) << "negative size " << n;
#ifndef PORTCALL_ERROR_H_
#define PORTCALL_ERROR_H_

#include <charconv>
#include <exception>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "object.h"

namespace portcall {

struct ErrorObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Error";
  static constexpr int32_t kTypeIndex = kTVMFFIError;
  TVMFFIErrorCell cell;
};

class Error : public std::exception {
 public:
  static constexpr const char* kNotePrefix = "  Note: ";  // of lines of a backtrace that are not frames

  Error(std::string_view kind, std::string_view message, std::string_view backtrace = {},
        const ObjectRef& cause = nullptr, const ObjectRef& extra_context = nullptr) {
    TVMFFIByteArray k = ToByteArray(kind), m = ToByteArray(message), b = ToByteArray(backtrace);
    TVMFFIObjectHandle handle = nullptr;
    if (TVMFFIErrorCreateWithCauseAndExtraContext(&k, &m, &b, cause.get(), extra_context.get(), &handle) != 0) {
      throw std::bad_alloc();
    }
    ref_ = ObjectRef::Steal(handle);
  }
  explicit Error(ObjectRef ref) : ref_(std::move(ref)) {}

  std::string_view kind() const noexcept { return ToView(node()->cell.kind); }
  std::string_view message() const noexcept { return ToView(node()->cell.message); }
  std::string_view backtrace() const noexcept { return ToView(node()->cell.backtrace); }
  const ObjectRef& ref() const noexcept { return ref_; }

  // Adds a line that says where it happened, after the frames; Python shows it as a note of the exception.
  void AddNote(std::string_view note) const {
    std::string line = kNotePrefix + std::string(note) + "\n";
    for (size_t i = 0; i + 1 < line.size(); ++i) line[i] = line[i] == '\n' ? ' ' : line[i];
    TVMFFIByteArray text = ToByteArray(line);
    node()->cell.update_backtrace(ref_.get(), &text, 1);
  }

  const char* what() const noexcept override {
    try {
      if (what_.empty()) what_ = std::string(kind()).append(": ").append(message());
      return what_.data();
    } catch (...) {
      return "portcall::Error";
    }
  }

 private:
  ErrorObj* node() const noexcept { return static_cast<ErrorObj*>(ref_.get()); }

  ObjectRef ref_;
  mutable std::string what_;
};

namespace detail {
// A tensor is not what was asked of it. Where it is an argument, the call says which one (see function.h).
class TensorError : public Error {
 public:
  TensorError(const char* kind, const void* tensor, std::string expected, std::string got)
      : Error(kind, "expected " + expected + ", got " + got),
        tensor_(tensor),
        expected_(std::move(expected)),
        got_(std::move(got)) {}

  const void* tensor() const noexcept { return tensor_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& got() const noexcept { return got_; }

 private:
  const void* tensor_;
  std::string expected_, got_;
};
}  // namespace detail

// Throws what the callee left in this thread's slot. A callee that failed without saying why is an error all the same.
[[noreturn]] inline void ThrowRaised() {
  TVMFFIObjectHandle handle = nullptr;
  TVMFFIErrorMoveFromRaised(&handle);
  if (!handle) throw Error("RuntimeError", "the function failed (nonzero return) without setting an error");
  throw Error(ObjectRef::Steal(handle));
}

inline void Check(int status) {
  if (status != 0) ThrowRaised();
}

// The same for what runs in constructors of libraries: there the loader throws.
inline void CheckAtLoad(int status) {
  if (status != 0 && runtime::FailLoad() != 0) ThrowRaised();
}

namespace detail {
// The exception that is being handled becomes this thread's last error. Out of line: it is the same for every Guard.
[[gnu::noinline, gnu::cold]] inline int RaiseCurrentException() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    TVMFFIErrorSetRaised(e.ref().get());
  } catch (const std::bad_alloc&) {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "out of memory");
  } catch (const std::out_of_range& e) {
    TVMFFIErrorSetRaisedFromCStr("IndexError", e.what());
  } catch (const std::invalid_argument& e) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", e.what());
  } catch (const std::exception& e) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", e.what());
  } catch (...) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "a C++ exception that is not a std::exception");
  }
  return -1;
}
}  // namespace detail

// Runs `body` at the C boundary. An exception becomes this thread's last error and the result -1, so none ever crosses
// the ABI.
template <typename Body> int Guard(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (...) {
    return detail::RaiseCurrentException();
  }
}

namespace detail {
// The text of an error, with the place that throws it. All is out of line and cold: there are hundreds of messages.
class ErrorText {
 public:
  [[gnu::noinline, gnu::cold]] ErrorText(const char* kind, const char* file, int line, const char* function)
      : kind_(kind), file_(file), function_(function), line_(line) {}
  ErrorText(const ErrorText&) = delete;
  ErrorText& operator=(const ErrorText&) = delete;
  [[gnu::noinline, gnu::cold]] ~ErrorText() = default;

  // What is convertible to text, numbers, addresses; all else as std::ostream writes it.
  template <typename T> ErrorText& operator<<(const T& value) {
    if constexpr (std::is_convertible_v<const T&, const char*>) {
      return Append(static_cast<const char*>(value));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      return Append(std::string_view(value));
    } else if constexpr (std::is_same_v<T, char>) {
      return Append(std::string_view(&value, 1));
    } else if constexpr (std::is_integral_v<T> || (std::is_enum_v<T> && std::is_convertible_v<T, int>)) {
      if constexpr (std::is_signed_v<T> || std::is_enum_v<T>) return Append(static_cast<int64_t>(value));
      else return Append(static_cast<uint64_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      char digits[64];
      return Append(std::string_view(digits, std::to_chars(digits, digits + sizeof digits, value).ptr - digits));
    } else if constexpr (std::is_pointer_v<T>) {
      return AppendAddress(reinterpret_cast<uintptr_t>(value));
    } else {
      // For any other type: include <sstream>, and write an operator<< of std::ostream if it has none.
      std::enable_if_t<!std::is_void_v<T>, std::ostringstream> out;
      out << value;
      return Append(std::string_view(out.str()));
    }
  }

  ErrorText& self() noexcept { return *this; }
  [[noreturn, gnu::noinline, gnu::cold]] void Throw() const {
    throw Error(kind_, text_, ToView(*TVMFFIBacktrace(file_, line_, function_, 0)));
  }

 private:
  [[gnu::noinline, gnu::cold]] ErrorText& Append(const char* text) {
    return Append(std::string_view(text ? text : "(null)"));
  }
  [[gnu::noinline, gnu::cold]] ErrorText& Append(std::string_view text) {
    text_.append(text);
    return *this;
  }
  [[gnu::noinline, gnu::cold]] ErrorText& Append(int64_t number) {
    return Append(std::string_view(std::to_string(number)));
  }
  [[gnu::noinline, gnu::cold]] ErrorText& Append(uint64_t number) {
    return Append(std::string_view(std::to_string(number)));
  }
  [[gnu::noinline, gnu::cold]] ErrorText& AppendAddress(uintptr_t address) {
    char digits[2 * sizeof address];
    return Append("0x").Append(
        std::string_view(digits, std::to_chars(digits, digits + sizeof digits, address, 16).ptr - digits));
  }

  std::string text_;
  const char* kind_;
  const char* file_;
  const char* function_;
  int line_;
};

// `Throw() & text << a << b` throws once the text is complete: & binds weaker than <<. So an exception from within the
// text goes its own way.
struct Throw {};
[[noreturn]] inline void operator&(Throw, const ErrorText& text) { text.Throw(); }
}  // namespace detail

#define PORTCALL_THROW(Kind) \
  ::portcall::detail::Throw() & ::portcall::detail::ErrorText(#Kind, __FILE__, __LINE__, __func__).self()
#define PORTCALL_CHECK(condition, Kind) \
  if (condition) {                      \
  } else PORTCALL_THROW(Kind)

}  // namespace portcall
#endif  // PORTCALL_ERROR_H_
