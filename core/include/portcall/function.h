// SPDX-License-Identifier: Apache-2.0
// PackedFunc: the one type-erased function; TypedPackedFunc: the same with a signature; Registry: the one table of names.
//
//   PORTCALL_REGISTER_GLOBAL("myadd").set_body([](Args args, RetValue* rv) { int a = args[0], b = args[1]; *rv = a + b; });
//   PORTCALL_REGISTER_GLOBAL("mul").set_body_typed([](int a, int b) { return a * b; });
//   PORTCALL_EXPORT_TYPED(add_one, AddOne)          // a function of a library, found by load_module("…")["add_one"]
//   auto mul = Registry::GetRequired("mul").Typed<int(int, int)>();  // int n = mul(6, 7);
#ifndef PORTCALL_FUNCTION_H_
#define PORTCALL_FUNCTION_H_

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "container.h"
#include "signature.h"
#include "value.h"

namespace portcall {

struct FunctionObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Function";
  static constexpr int32_t kTypeIndex = kTVMFFIFunction;
  TVMFFIFunctionCell cell;
};

// Marks the extra context of argument errors: Array(kArgumentErrorTag, function, position, expected, got).
constexpr const char* kArgumentErrorTag = "portcall.ArgumentError";

namespace detail {
// "f(): argument #0: ", as far as it is known.
inline std::string ArgumentPlace(const char* function, int position) {
  std::string place = function && *function ? std::string(function) + "(): " : std::string();
  return position >= 0 ? place + "argument #" + std::to_string(position) + ": " : place;
}

[[noreturn]] inline void ThrowArgumentError(const char* function, int position, const std::string& expected,
                                            const std::string& got) {
  throw Error(
      "TypeError", ArgumentPlace(function, position) + "expected " + expected + ", got " + got, {}, nullptr,
      Array<Any>{Any(kArgumentErrorTag), Any(function ? function : ""), Any(position), Any(expected), Any(got)});
}

// As RaiseCurrentException, in a call: of a tensor that is not what the function takes it says which argument it is.
[[gnu::noinline, gnu::cold]] inline int RaiseCurrentException(const char* function, const TVMFFIAny* args,
                                                              int32_t num_args) noexcept {
  try {
    throw;
  } catch (const TensorError& error) {
    return Guard([&] {
      int position = 0;
      while (position < num_args && TryDLTensor(args[position]) != error.tensor()) ++position;
      if (position == num_args) position = -1;  // another tensor
      if (position >= 0 && error.kind() == "TypeError") {
        ThrowArgumentError(function, position, error.expected(), error.got());
      }
      throw Error(error.kind(), ArgumentPlace(function, position).append(error.message()));
    });
  } catch (...) {
    return RaiseCurrentException();
  }
}

// As Guard, for the body of a function.
template <typename Body>
int GuardCall(const char* function, const TVMFFIAny* args, int32_t num_args, Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (...) {
    return RaiseCurrentException(function, args, num_args);
  }
}

[[noreturn]] inline void ThrowCountError(const char* function, int expected, int got) {
  ThrowArgumentError(function, -1, std::to_string(expected) + (expected == 1 ? " argument" : " arguments"),
                     std::to_string(got));
}
}  // namespace detail

namespace detail {
[[noreturn]] inline void ThrowResultError(TVMFFIObject* function, const std::string& expected, const std::string& got) {
  const char* name = runtime::FunctionName(function);
  std::string where = *name ? std::string(name) + "(): " : std::string();
  throw Error("TypeError", where + "result: expected " + expected + ", got " + got);
}

template <typename T>
inline constexpr bool kByValue = !std::is_lvalue_reference_v<T> || std::is_const_v<std::remove_reference_t<T>>;
}  // namespace detail

// The arguments of one call.
class Args {
 public:
  Args(const TVMFFIAny* cells, int32_t size, const char* function) noexcept
      : cells_(cells), size_(size), function_(function) {}

  int size() const noexcept { return size_; }
  const char* function() const noexcept { return function_; }
  const TVMFFIAny* cells() const noexcept { return cells_; }
  ArgValue operator[](int i) const {
    if (i < 0 || i >= size_) {
      detail::ThrowArgumentError(function_, -1, "at least " + std::to_string(i + 1) + " arguments",
                                 std::to_string(size_));
    }
    return ArgValue(cells_ + i, i, function_);
  }

 private:
  const TVMFFIAny* cells_;
  int32_t size_;
  const char* function_;
};

namespace detail {
template <typename F> struct Signature : Signature<decltype(&F::operator())> {};
template <typename R, typename... A> struct Signature<R (*)(A...)> {
  using Return = R;
  using Arguments = std::tuple<A...>;
  using Type = std::decay_t<R>(std::decay_t<A>...);
};
template <typename R, typename... A> struct Signature<R (*)(A...) noexcept> : Signature<R (*)(A...)> {};
template <typename R, typename... A> struct Signature<R(A...)> : Signature<R (*)(A...)> {};
template <typename C, typename R, typename... A> struct Signature<R (C::*)(A...)> : Signature<R (*)(A...)> {};
template <typename C, typename R, typename... A> struct Signature<R (C::*)(A...) const> : Signature<R (*)(A...)> {};
template <typename C, typename R, typename... A> struct Signature<R (C::*)(A...) noexcept> : Signature<R (*)(A...)> {};
template <typename C, typename R, typename... A>
struct Signature<R (C::*)(A...) const noexcept> : Signature<R (*)(A...)> {};

template <typename F, typename... A, size_t... I>
void CallTyped(F& f, Args args, RetValue* rv, std::tuple<A...>*, std::index_sequence<I...>) {
  static_assert((kByValue<A> && ...),
                "take parameters by value or by const reference: what is changed through a "
                "reference to an argument is not seen by the caller");
  if (args.size() != static_cast<int>(sizeof...(A))) ThrowCountError(args.function(), sizeof...(A), args.size());
  // Braces convert from left to right, so that an error names the first wrong argument.
  std::tuple<std::decay_t<A>...> values{args[I].template cast<std::decay_t<A>>()...};
  using Result = decltype(f(std::get<I>(std::move(values))...));  // NOLINT(bugprone-use-after-move): one element each
  if constexpr (std::is_void_v<Result>) {
    f(std::get<I>(std::move(values))...);  // NOLINT(bugprone-use-after-move)
  } else {
    static_assert(std::is_constructible_v<Any, Result>,
                  "no value holds what this function returns: return a type of portcall, or "
                  "specialise portcall::TypeTraits for it");
    *rv = Any(f(std::get<I>(std::move(values))...));  // NOLINT(bugprone-use-after-move)
  }
}

// Unpacks the arguments by the signature of `f`.
template <typename F> auto Unpack(F f) {
  using Arguments = typename Signature<std::decay_t<F>>::Arguments;
  return [f = std::move(f)](Args args, RetValue* rv) mutable {
    CallTyped(f, args, rv, static_cast<Arguments*>(nullptr), std::make_index_sequence<std::tuple_size_v<Arguments>>());
  };
}

// What a function over a callable has beside it: its name, for messages.
struct ClosureHead {
  std::string name;
  void (*run)(ClosureHead* self, const Args& args, RetValue* result);  // null where Call knows the callable

  // One for all callables, which takes less room than one for each, and an indirect call.
  static int CallAny(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
    auto* closure = static_cast<ClosureHead*>(self);
    return GuardCall(closure->name.c_str(), args, num_args, [&] {
      RetValue rv;
      closure->run(closure, Args(args, num_args, closure->name.c_str()), &rv);
      *result = rv.release();
    });
  }
  // Of a callable without a destructor.
  static void Delete(void* self) {
    static_cast<ClosureHead*>(self)->~ClosureHead();
    ::operator delete(self);
  }
};

template <typename F> struct Closure : ClosureHead {
  F body;

  Closure(F callable, std::string its_name, bool small = false)
      : ClosureHead{std::move(its_name), small ? Run : nullptr}, body(std::move(callable)) {}
  static void Run(ClosureHead* self, const Args& args, RetValue* result) {
    static_cast<Closure*>(self)->body(args, result);
  }
  static int Call(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
    auto* closure = static_cast<Closure*>(self);
    return GuardCall(closure->name.c_str(), args, num_args, [&] {
      RetValue rv;
      closure->body(Args(args, num_args, closure->name.c_str()), &rv);
      *result = rv.release();
    });
  }
  static void DeleteWhole(void* self) { delete static_cast<Closure*>(self); }
  static constexpr auto Deleter() {
    if constexpr (std::is_trivially_destructible_v<F> && alignof(F) <= alignof(std::max_align_t)) {
      return &ClosureHead::Delete;
    } else {
      return &DeleteWhole;
    }
  }
};
}  // namespace detail

template <typename F> class TypedPackedFunc;

class PackedFunc : public ObjectRef {
  PORTCALL_OBJECT_REF(PackedFunc, FunctionObj)

  // From any callable void(Args, RetValue*). `name` is for messages.
  template <typename F, typename = std::enable_if_t<std::is_invocable_v<F, Args, RetValue*>>>
  PackedFunc(F body, std::string name = {}, int32_t flags = 0) {  // NOLINT(google-explicit-constructor)
    using Closure = detail::Closure<F>;
    auto closure = std::make_unique<Closure>(std::move(body), std::move(name));
    TVMFFIObjectHandle handle = nullptr;
    Check(runtime::FunctionCreate(closure.get(), Closure::Call, Closure::Deleter(), flags, closure->name.c_str(),
                                  &handle));
    closure.release();
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }

  template <typename... A> RetValue operator()(A&&... args) const {
    static_assert(
        (std::is_constructible_v<Any, A> && ...),
        "no value holds this argument: pass a type of portcall (TypedPackedFunc<R(A...)>(f) for a callable f), "
        "or specialise portcall::TypeTraits for it");
    std::array<Any, sizeof...(A)> cells{Any(std::forward<A>(args))...};
    return CallPacked(reinterpret_cast<const TVMFFIAny*>(cells.data()), sizeof...(A));
  }

  RetValue CallPacked(const TVMFFIAny* args, int32_t num_args) const {
    PORTCALL_CHECK(defined(), TypeError) << "called a null PackedFunc";
    TVMFFIAny result;
    detail::SetCell(&result, kTVMFFINone);
    if (node()->cell.safe_call(ptr_, args, num_args, &result) != 0) ThrowRaised();
    return Any::Steal(result);
  }

  // This function with a signature: `auto mul = func.Typed<int(int, int)>();`. Throws TypeError when it is null.
  template <typename F> TypedPackedFunc<F> Typed() const;
};

// A PackedFunc with a signature. The compiler checks the arguments, the function what it can take of them; a result
// that is not an R is a TypeError that names the function.
template <typename R, typename... A> class TypedPackedFunc<R(A...)> : public PackedFunc {
 public:
  using NodeClass = FunctionObj;
  using OwnTraits = void;
  TypedPackedFunc() noexcept = default;
  TypedPackedFunc(std::nullptr_t) noexcept {}                        // NOLINT(google-explicit-constructor)
  TypedPackedFunc(PackedFunc func) : PackedFunc(std::move(func)) {}  // NOLINT(google-explicit-constructor)
  template <typename F, typename = std::enable_if_t<std::is_invocable_v<F, A...> && !std::is_base_of_v<ObjectRef, F>>>
  TypedPackedFunc(F body, std::string name = {})  // NOLINT(google-explicit-constructor)
      : PackedFunc(
            detail::Unpack([f = std::move(body)](A... args) mutable -> R { return f(std::forward<A>(args)...); }),
            std::move(name)) {}

  R operator()(A... args) const {
    if constexpr (std::is_void_v<R>) {
      PackedFunc::operator()(std::forward<A>(args)...);
    } else {
      static_assert(!detail::Borrows<R>::value,
                    "a view of the result would show what is gone: say std::string or Tensor");
      RetValue result = PackedFunc::operator()(std::forward<A>(args)...);
      std::optional<R> value = result.template try_cast<R>();
      if (!value) detail::ThrowResultError(ptr_, TypeTraits<R>::Name(), detail::kDescribe<R>(result.cell()));
      return *std::move(value);
    }
  }
};

template <typename F> TypedPackedFunc<F> PackedFunc::Typed() const {
  PORTCALL_CHECK(defined(), TypeError) << "a null PackedFunc has no signature";
  return TypedPackedFunc<F>(*this);
}

template <typename R, typename... A> struct TypeTraits<TypedPackedFunc<R(A...)>> {
  static std::string Name() { return "Function"; }
  static std::optional<TypedPackedFunc<R(A...)>> TryFrom(const TVMFFIAny& value) {
    std::optional<PackedFunc> func = TypeTraits<PackedFunc>::TryFrom(value);
    if (!func) return std::nullopt;
    return TypedPackedFunc<R(A...)>(*std::move(func));
  }
  static void To(PackedFunc value, TVMFFIAny* out) { TypeTraits<PackedFunc>::To(std::move(value), out); }
};

// The process-wide table of functions. Thread-safe; one for C, C++ and Python.
class Registry {
 public:
  // The function of that name, null when there is none.
  static PackedFunc Get(std::string_view name) {
    TVMFFIByteArray key = ToByteArray(name);
    TVMFFIObjectHandle handle = nullptr;
    Check(TVMFFIFunctionGetGlobal(&key, &handle));
    return ObjectRef::Steal<PackedFunc>(handle);
  }
  // The same, but FunctionNotFoundError when there is none.
  static PackedFunc GetRequired(std::string_view name) {
    PackedFunc func = Get(name);
    PORTCALL_CHECK(func.defined(), FunctionNotFoundError)
        << "no global function is named '" << name << "': what registers it is not loaded";
    return func;
  }
  static void Set(std::string_view name, const PackedFunc& func, bool can_override = false) {
    TVMFFIByteArray key = ToByteArray(name);
    Check(TVMFFIFunctionSetGlobal(&key, func.get(), can_override ? 1 : 0));
  }
  static bool Remove(std::string_view name) {
    TVMFFIByteArray key = ToByteArray(name);
    int removed = 0;
    Check(runtime::FunctionRemoveGlobal(&key, &removed));
    return removed != 0;
  }
  static std::vector<std::string> ListNames() {
    return GetRequired("portcall.ListGlobalNames")().cast<std::vector<std::string>>();
  }

  // What PORTCALL_REGISTER_GLOBAL declares: a name that waits for its body.
  static Registry Register(std::string name, bool can_override = false) { return {std::move(name), can_override}; }
  [[gnu::noinline]] static Registry RegisterOwn(const char* name) { return {name, false}; }  // of the runtime

  template <typename F> Registry& set_body(F body) {
    static_assert(std::is_invocable_v<F, Args, RetValue*>,
                  "set_body takes a callable of (Args, RetValue*); one with a signature goes to set_body_typed");
    using Closure = detail::Closure<F>;
#ifdef PORTCALL_SMALL_CLOSURES
    auto* closure = new Closure(std::move(body), {}, true);
    return SetClosure(closure, Closure::CallAny, Closure::Deleter(), &closure->name);
#else
    auto* closure = new Closure(std::move(body), {});
    return SetClosure(closure, Closure::Call, Closure::Deleter(), &closure->name);
#endif
  }
  template <typename F> Registry& set_body_typed(F body) { return set_body(detail::Unpack(std::move(body))); }
  // A method of a value type or of a reference class: the object is the first argument. A method of a node is called
  // through its reference class: set_body_method<Counter>(&CounterObj::Add).
  template <typename Self = void, typename T, typename R, typename... A>
  Registry& set_body_method(R (T::*method)(A...)) {
    return SetMethod<std::conditional_t<std::is_void_v<Self>, T, Self>, T, R, A...>(method);
  }
  template <typename Self = void, typename T, typename R, typename... A>
  Registry& set_body_method(R (T::*method)(A...) const) {
    return SetMethod<std::conditional_t<std::is_void_v<Self>, T, Self>, T, R, A...>(method);
  }
  // The function returns in well under a microsecond: interpreters may keep their lock. Say so before the body.
  Registry& set_short() {
    flags_ |= kPortcallFunctionShort;
    return *this;
  }

 protected:
  Registry(std::string name, bool can_override) : name_(std::move(name)), can_override_(can_override) {}
  void set_signature(std::string signature) { signature_ = std::move(signature); }

 private:
  // Out of line: there are hundreds of bodies. The closure is owned from now on.
  [[gnu::noinline]] Registry& SetClosure(void* closure, TVMFFISafeCallType call, void (*del)(void*),
                                         std::string* name) {
    std::unique_ptr<void, void (*)(void*)> owner(closure, del);
    *name = name_ + signature_;
    int32_t flags = flags_ | (signature_.empty() ? 0 : kPortcallFunctionSigned);
    TVMFFIObjectHandle handle = nullptr;
    Check(runtime::FunctionCreate(closure, call, del, flags, name->c_str(), &handle));
    (void)owner.release();
    auto func = ObjectRef::Steal<PackedFunc>(handle);
    TVMFFIByteArray key = ToByteArray(name_);
    CheckAtLoad(TVMFFIFunctionSetGlobal(&key, func.get(), can_override_ ? 1 : 0));
    return *this;
  }

  template <typename Self, typename T, typename R, typename... A, typename Method> Registry& SetMethod(Method method) {
    return set_body_typed([method](Self self, A... args) -> R {
      if constexpr (std::is_base_of_v<ObjectRef, Self>) {
        PORTCALL_CHECK(self.defined(), TypeError) << "the object of a method call is None";
      }
      if constexpr (std::is_base_of_v<T, Self>) return (self.*method)(std::forward<A>(args)...);
      else return (self.node()->*method)(std::forward<A>(args)...);
    });
  }

  std::string name_;
  std::string signature_;  // from a NUL on; "" when nothing is known
  bool can_override_;
  int32_t flags_ = 0;
};

// What PORTCALL_REGISTER_GLOBAL declares: the name, and the signature if it is known, are in the library as text.
template <typename Name> class Registration : public Registry {
 public:
  Registration() : Registry(std::string(Name::text), false) {}

  template <typename F> Registry& set_body(F body) {
    detail::KeepText(detail::kGlobalText<Name, void>.characters);
    return Registry::set_body(std::move(body));
  }
  template <typename F> Registry& set_body_typed(F body) {
    using Type = typename detail::Signature<std::decay_t<F>>::Type;
    const auto& text = detail::kGlobalText<Name, Type>.characters;
    detail::KeepText(text);
    set_signature(std::string(text + detail::kGlobalMark.size() + Name::text.size(), std::end(text)));
    return Registry::set_body_typed(std::move(body));
  }
  Registration& set_short() {
    Registry::set_short();
    return *this;
  }
};

#define PORTCALL_CONCAT_(a, b) a##b
#define PORTCALL_CONCAT(a, b) PORTCALL_CONCAT_(a, b)
// At namespace scope; the name is a literal.
#define PORTCALL_REGISTER_GLOBAL(name) PORTCALL_REGISTER_GLOBAL_(name, __COUNTER__)
#ifdef PORTCALL_BUILDING  // the runtime's own need no text
#define PORTCALL_REGISTER_GLOBAL_(name, number)                                                  \
  [[maybe_unused]] static ::portcall::Registry PORTCALL_CONCAT(portcall_registration_, number) = \
      ::portcall::Registry::RegisterOwn(name)
#else
#define PORTCALL_REGISTER_GLOBAL_(name, number)                                                  \
  namespace {                                                                                    \
  struct PORTCALL_CONCAT(PortcallName, number) {                                                 \
    static constexpr std::string_view text = name;                                               \
  };                                                                                             \
  }                                                                                              \
  [[maybe_unused]] static ::portcall::Registry PORTCALL_CONCAT(portcall_registration_, number) = \
      ::portcall::Registration<PORTCALL_CONCAT(PortcallName, number)>()
#endif

// Exports what follows the name (a function or captureless lambda) as function `name` of the library that this is
// compiled into.
#define PORTCALL_EXPORT_TYPED(name, ...)                                                                              \
  namespace {                                                                                                         \
  struct PortcallExport_##name {                                                                                      \
    static constexpr std::string_view text = #name;                                                                   \
  };                                                                                                                  \
  auto portcall_body_##name() { return __VA_ARGS__; }                                                                 \
  using PortcallType_##name = ::portcall::detail::Signature<decltype(portcall_body_##name())>::Type;                  \
  constexpr auto portcall_text_##name = ::portcall::detail::ExportText<PortcallExport_##name, PortcallType_##name>(); \
  }                                                                                                                   \
  extern "C" {                                                                                                        \
  extern __attribute__((visibility("default"))) const decltype(portcall_text_##name) __tvm_ffi__signature_##name;     \
  const decltype(portcall_text_##name) __tvm_ffi__signature_##name = portcall_text_##name;                            \
  __attribute__((visibility("default"))) int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t num_args,         \
                                                              TVMFFIAny* result) {                                    \
    return ::portcall::detail::GuardCall(#name, args, num_args, [&] {                                                 \
      static auto body = ::portcall::detail::Unpack(portcall_body_##name());                                          \
      ::portcall::RetValue rv;                                                                                        \
      body(::portcall::Args(args, num_args, #name), &rv);                                                             \
      *result = rv.release();                                                                                         \
    });                                                                                                               \
  }                                                                                                                   \
  }

}  // namespace portcall

// Tells a loader that the library was compiled with these headers: it checks its own arguments.
extern "C" __attribute__((visibility("default"), used)) inline int32_t portcall_abi_version() {
  return PORTCALL_ABI_VERSION;
}

#endif  // PORTCALL_FUNCTION_H_
