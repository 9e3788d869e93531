// SPDX-License-Identifier: Apache-2.0
// Errors: the slot of a thread, what an error holds, and the way from C++ exceptions to it and back.
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;

namespace {

TVMFFIObjectHandle MakeError(const char* kind, const char* message) {
  TVMFFIByteArray k = ToByteArray(kind), m = ToByteArray(message), b = ToByteArray("");
  TVMFFIObjectHandle handle = nullptr;
  CHECK_EQ(TVMFFIErrorCreate(&k, &m, &b, &handle), 0);
  return handle;
}

const TVMFFIErrorCell& CellOf(const ObjectRef& error) { return error.as<ErrorObj>()->cell; }

struct Place {
  int x, y;
};
std::ostream& operator<<(std::ostream& out, const Place& point) { return out << point.x << '|' << point.y; }

}  // namespace

TEST("the text of an error takes text, numbers, addresses, values of the core, and what std::ostream writes") {
  const char* nothing = nullptr;
  auto text = Thrown([&] {
    PORTCALL_THROW(ValueError) << DLDevice{kDLCPU, 0} << ' ' << String("abc") << std::string("def") << nothing << ' '
                               << -1 << ' ' << uint64_t{1} << 63 << ' ' << int8_t{-3} << ' ' << true << ' ' << 0.1
                               << ' ' << 1e300 << ' ' << DataTypeOf<float>() << ' ' << Shape{2, 3} << ' '
                               << std::vector<int64_t>{4} << ' ' << reinterpret_cast<void*>(0x1f) << ' ' << kDLCUDA
                               << ' ' << Place{1, 2};
  });
  CHECK_EQ(text, "ValueError: cpu:0 abcdef(null) -1 163 -3 1 0.1 1e+300 float32 (2, 3) (4,) 0x1f 2 1|2");
}

TEST("a raised error is taken once, and the slot is empty afterwards") {
  CHECK_EQ(Raised(), "");
  TVMFFIErrorSetRaisedFromCStr("ValueError", "no");
  TVMFFIObjectHandle first = nullptr, second = &first;
  TVMFFIErrorMoveFromRaised(&first);
  TVMFFIErrorMoveFromRaised(&second);
  CHECK_EQ(std::string(Error(ObjectRef::Steal(first)).what()), "ValueError: no");
  CHECK(second == nullptr);
}

TEST("raising retains the error, and the next one releases it") {
  ObjectRef error = ObjectRef::Steal(MakeError("KeyError", "k"));
  TVMFFIErrorSetRaised(error.get());
  CHECK_EQ(error.use_count(), 2);
  TVMFFIErrorSetRaisedFromCStr("ValueError", "another");
  CHECK_EQ(error.use_count(), 1);
  TVMFFIErrorSetRaised(error.get());
  TVMFFIErrorSetRaised(error.get());  // the same again
  CHECK_EQ(error.use_count(), 2);
  CHECK_EQ(Raised(), "KeyError: k");
  CHECK_EQ(error.use_count(), 1);
}

TEST("raising null empties the slot") {
  TVMFFIErrorSetRaisedFromCStr("ValueError", "no");
  TVMFFIErrorSetRaised(nullptr);
  CHECK_EQ(Raised(), "");
}

TEST("each thread has a slot of its own, released when the thread ends") {
  int64_t before = LiveNodes("ffi.Error");
  TVMFFIErrorSetRaisedFromCStr("ValueError", "of the main thread");
  std::thread([] {
    CHECK_EQ(Raised(), "");
    TVMFFIErrorSetRaisedFromCStr("TypeError", "left behind");
  }).join();
  CHECK_EQ(Raised(), "ValueError: of the main thread");
  CHECK_EQ(LiveNodes("ffi.Error"), before);
}

TEST("a message is put together from its parts, the missing ones left out") {
  const char* parts[] = {"Mismatched ", nullptr, "A.ndim", " on argument #0"};
  TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 4);
  CHECK_EQ(Raised(), "ValueError: Mismatched A.ndim on argument #0");
  TVMFFIErrorSetRaisedFromCStrParts("ValueError", nullptr, 0);
  CHECK_EQ(Raised(), "ValueError: ");
  TVMFFIErrorSetRaisedFromCStrParts(nullptr, parts, 1);
  CHECK_EQ(Raised(), "RuntimeError: Mismatched ");
  TVMFFIErrorSetRaisedFromCStr(nullptr, nullptr);
  CHECK_EQ(Raised(), "RuntimeError: ");
}

TEST("making an error does not touch the slot") {
  TVMFFIErrorSetRaisedFromCStr("ValueError", "kept");
  ObjectRef error = ObjectRef::Steal(MakeError("KeyError", "k"));
  CHECK_EQ(Raised(), "ValueError: kept");
}

TEST("an error holds its cause and its context, and lets them go") {
  ObjectRef context = Array<String>{"facts"};
  ObjectRef cause = Error("KeyError", "the reason").ref();
  {
    Error error("ValueError", "the failure", "", cause, context);
    CHECK(CellOf(error.ref()).cause_chain == cause.get());
    CHECK(CellOf(error.ref()).extra_context == context.get());
    CHECK_EQ(cause.use_count(), 2);
    CHECK_EQ(context.use_count(), 2);
  }
  CHECK_EQ(cause.use_count(), 1);
  CHECK_EQ(context.use_count(), 1);
}

TEST("a backtrace is replaced or appended to, frame by frame") {
  Error error("ValueError", "no", "  File \"a\", line 1, in f\n");
  const TVMFFIErrorCell& cell = CellOf(error.ref());
  TVMFFIByteArray more = ToByteArray("  File \"b\", line 2, in g\n"), none{nullptr, 0};
  cell.update_backtrace(error.ref().get(), &more, 1);
  CHECK_EQ(error.backtrace(), "  File \"a\", line 1, in f\n  File \"b\", line 2, in g\n");
  cell.update_backtrace(error.ref().get(), &none, 1);
  CHECK_EQ(error.backtrace(), "  File \"a\", line 1, in f\n  File \"b\", line 2, in g\n");
  cell.update_backtrace(error.ref().get(), &more, 0);
  CHECK_EQ(error.backtrace(), "  File \"b\", line 2, in g\n");
  TVMFFIByteArray own = cell.backtrace;
  cell.update_backtrace(error.ref().get(), &own, 1);  // text of its own
  CHECK_EQ(error.backtrace(), "  File \"b\", line 2, in g\n  File \"b\", line 2, in g\n");
  own = cell.backtrace;
  cell.update_backtrace(error.ref().get(), &own, 0);
  CHECK_EQ(error.backtrace(), "  File \"b\", line 2, in g\n  File \"b\", line 2, in g\n");
}

TEST("a frame is one line, however long its names are") {
  CHECK_EQ(ToView(*TVMFFIBacktrace("f.cc", 12, "Run", 0)), "  File \"f.cc\", line 12, in Run\n");
  CHECK_EQ(ToView(*TVMFFIBacktrace(nullptr, 0, nullptr, 1)), "  File \"<unknown>\", line 0, in <unknown>\n");
  std::string name(5000, 'x');
  std::string_view text = ToView(*TVMFFIBacktrace("f.cc", 12, name.c_str(), 0));
  CHECK(text.size() > 900 && text.size() < 5000);
  CHECK_EQ(text.back(), '\n');
}

TEST("kind and message may hold any bytes") {
  std::string_view message("a\0b", 3);
  Error error("Odd.Kind", message);
  CHECK_EQ(error.kind(), "Odd.Kind");
  CHECK_EQ(error.message(), message);
  Error empty("", "");
  CHECK_EQ(std::string(empty.what()), ": ");
}

TEST("an error is copied with the exception, and stays the same object") {
  Error error("ValueError", "no");
  Error copy = error;
  CHECK(copy.ref().same_as(error.ref()));
  try {
    throw copy;
  } catch (const std::exception& caught) {
    CHECK_EQ(std::string(caught.what()), "ValueError: no");
  }
}

// ---- C++ exceptions -----------------------------------------------------------------------------------------------

namespace {

template <typename Exception> std::string Guarded(Exception exception) {
  CHECK_EQ(Guard([&] { throw exception; }), -1);
  return Raised();
}

}  // namespace

TEST("every C++ exception becomes an error of the kind that Python has for it") {
  CHECK_EQ(Guard([] {}), 0);
  CHECK_EQ(Raised(), "");
  CHECK_EQ(Guarded(Error("MyError", "mine")), "MyError: mine");
  CHECK_EQ(Guarded(std::bad_alloc()), "MemoryError: out of memory");
  CHECK_EQ(Guarded(std::out_of_range("past the end")), "IndexError: past the end");
  CHECK_EQ(Guarded(std::invalid_argument("bad")), "ValueError: bad");
  CHECK_EQ(Guarded(std::runtime_error("failed")), "RuntimeError: failed");
  CHECK_EQ(Guarded(std::logic_error("wrong")), "RuntimeError: wrong");
  CHECK_EQ(Guarded(7), "RuntimeError: a C++ exception that is not a std::exception");
}

TEST("an error goes from C++ through a call to C++ as the same object") {
  Error error("ValueError", "round trip");
  PackedFunc fail([&](Args, RetValue*) { throw error; });
  try {
    Registry::Get("testing.apply")(fail);
    CHECK(false);
  } catch (const Error& caught) {
    CHECK(caught.ref().same_as(error.ref()));
  }
  CHECK_EQ(Raised(), "");
}

TEST("a function that fails without an error is an error all the same") {
  TVMFFIObjectHandle handle = nullptr;
  auto silent = [](void*, const TVMFFIAny*, int32_t, TVMFFIAny*) { return 7; };
  CHECK_EQ(TVMFFIFunctionCreate(nullptr, silent, nullptr, &handle), 0);
  PackedFunc func = ObjectRef::Steal<PackedFunc>(handle);
  CHECK_EQ(Thrown([&] { func(); }), "RuntimeError: the function failed (nonzero return) without setting an error");
}

TEST("a thrown message is built by streaming, and tells where it came from") {
  try {
    PORTCALL_THROW(IndexError) << "index " << 7 << " of " << 3u;
  } catch (const Error& error) {
    CHECK_EQ(error.kind(), "IndexError");
    CHECK_EQ(error.message(), "index 7 of 3");
    CHECK(Contains(error.backtrace(), "test_error.cc"));
  }
  CHECK_EQ(Thrown([] { PORTCALL_THROW(KeyError); }), "KeyError: ");
}

TEST("a check that holds evaluates nothing of its message") {
  int evaluated = 0;
  auto text = [&] { return ++evaluated; };
  PORTCALL_CHECK(evaluated == 0, ValueError) << text();
  CHECK_EQ(evaluated, 0);
  CHECK_EQ(Thrown([&] { PORTCALL_CHECK(evaluated == 1, ValueError) << "got " << text(); }), "ValueError: got 1");
}

TEST("a check may stand without braces in front of an else") {
  bool other = false;
  if (other) PORTCALL_CHECK(false, ValueError) << "not reached";
  else other = true;
  CHECK(other);
}

TEST("an exception thrown while a message is built is the one that arrives") {
  auto fails = []() -> int { throw std::out_of_range("in the message"); };
  CHECK_THROWS([&] { PORTCALL_THROW(ValueError) << "got " << fails(); }(), std::out_of_range);
}

TEST("a function that ends in a throw needs no return value") {
  auto f = [](int x) -> int {
    if (x > 0) return x;
    PORTCALL_THROW(ValueError) << "not positive";
  };
  CHECK_EQ(f(3), 3);
  CHECK_THROWS(f(0), Error);
}

TEST("errors leave no live nodes") {
  int64_t before = LiveNodes("ffi.Error");
  for (int i = 0; i < 10; ++i) {
    CHECK_EQ(Thrown([] { Registry::Get("testing.test_raise_error")("ValueError", "no"); }), "ValueError: no");
  }
  CHECK_EQ(LiveNodes("ffi.Error"), before);
}
