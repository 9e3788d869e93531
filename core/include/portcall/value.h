// SPDX-License-Identifier: Apache-2.0
// Any: an owned value of any type. ArgValue: a borrowed one, an argument of a call. TypeTraits<T>: how a C++ type is
// written into a cell and read back, with a name for messages; specialise it to make a type of yours travel.
#ifndef PORTCALL_VALUE_H_
#define PORTCALL_VALUE_H_

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "error.h"
#include "object.h"

namespace portcall {

struct BytesObj final : Object {  // ffi.Bytes
  static constexpr const char* kTypeKey = "ffi.Bytes";
  static constexpr int32_t kTypeIndex = kTVMFFIBytes;
  TVMFFIByteArray bytes;
};

struct StringObj final : Object {  // ffi.String: data is followed by a NUL that size does not count
  static constexpr const char* kTypeKey = "ffi.String";
  static constexpr int32_t kTypeIndex = kTVMFFIStr;
  TVMFFIByteArray bytes;
};

// Reads a string cell of any of its three forms. The view lives as long as the cell, and a NUL follows it.
inline std::optional<std::string_view> TryString(const TVMFFIAny& value) noexcept {
  switch (value.type_index) {
    case kTVMFFIRawStr:
      if (!value.v_c_str) return std::nullopt;
      return std::string_view(value.v_c_str);
    case kTVMFFISmallStr:
      return std::string_view(value.v_bytes, value.small_str_len);
    case kTVMFFIStr:
      return ToView(static_cast<StringObj*>(value.v_obj)->bytes);
    default:
      return std::nullopt;
  }
}

inline std::optional<std::string_view> TryBytes(const TVMFFIAny& value) noexcept {
  switch (value.type_index) {
    case kTVMFFIByteArrayPtr:
      if (!value.v_ptr) return std::nullopt;
      return ToView(*static_cast<const TVMFFIByteArray*>(value.v_ptr));
    case kTVMFFISmallBytes:
      return std::string_view(value.v_bytes, value.small_str_len);
    case kTVMFFIBytes:
      return ToView(static_cast<BytesObj*>(value.v_obj)->bytes);
    default:
      return std::nullopt;
  }
}

// The DLTensor behind a tensor argument (an object, or a borrowed pointer), else null.
inline DLTensor* TryDLTensor(const TVMFFIAny& value) noexcept {
  if (value.type_index == kTVMFFITensor) return reinterpret_cast<DLTensor*>(value.v_obj + 1);
  if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<DLTensor*>(value.v_ptr);
  return nullptr;
}

// What a user calls the type of a value: "int", "str", "Tensor", "demo.Expr".
inline std::string DescribeType(int32_t type_index) {
  switch (type_index) {
    case kTVMFFINone:
      return "None";
    case kTVMFFIRawStr:
    case kTVMFFISmallStr:
    case kTVMFFIStr:
      return "str";
    case kTVMFFIByteArrayPtr:
    case kTVMFFISmallBytes:
    case kTVMFFIBytes:
      return "bytes";
    case kTVMFFITensor:
      return "Tensor";
    case kTVMFFIOpaquePtr:
      return "pointer";
    default: {
      std::string key = TypeKeyOf(type_index);
      return key.compare(0, 4, "ffi.") == 0 ? key.substr(4) : key;
    }
  }
}

// The same for a value: an int with its number, because it may be one that does not fit.
inline std::string DescribeValue(const TVMFFIAny& value) {
  if (value.type_index == kTVMFFIBigInt) return "int that does not fit in 64 bits";
  std::string text = DescribeType(value.type_index);
  return value.type_index == kTVMFFIInt ? text + " " + std::to_string(value.v_int64) : text;
}

class Any;

// Primary: types that cannot travel. A specialisation has
//   static std::string Name();                                  // for messages
//   static std::optional<T> TryFrom(const TVMFFIAny& value);    // nullopt: not a T
//   static void To(T value, TVMFFIAny* out);                    // writes an owned cell
template <typename T, typename = void> struct TypeTraits {
  static constexpr bool kUndefined = true;
};
template <> struct TypeTraits<Any>;  // said before anything asks for it

namespace detail {
template <typename T, typename = void> struct CanTravel : std::true_type {};
template <typename T> struct CanTravel<T, std::enable_if_t<TypeTraits<T>::kUndefined>> : std::false_type {};
template <typename T> inline constexpr bool kCanTravel = CanTravel<std::remove_cv_t<std::remove_reference_t<T>>>::value;

template <typename T, typename = void> struct HasOwnTraits : std::false_type {};
template <typename T> struct HasOwnTraits<T, std::void_t<typename T::OwnTraits>> : std::true_type {};
// Types that show what a value holds, for as long as it does.
template <typename T>
struct Borrows
    : std::bool_constant<std::is_same_v<T, std::string_view> || (std::is_pointer_v<T> && !std::is_same_v<T, void*>)> {};
template <typename T>
inline constexpr bool kPlainReference = std::is_base_of_v<ObjectRef, T> && !HasOwnTraits<T>::value;

inline void SetCell(TVMFFIAny* out, int32_t type_index) noexcept {
  out->type_index = type_index;
  out->zero_padding = 0;
  out->v_int64 = 0;
}

template <typename T> struct IsOptional : std::false_type {};
template <typename T> struct IsOptional<std::optional<T>> : std::true_type {};
// What a value converts to without a cast. Were None among it, == would compare any two values by that.
template <typename T>
inline constexpr bool kConverts =
    kCanTravel<T> && !std::is_same_v<T, Any> && !std::is_same_v<T, std::nullptr_t> && !IsOptional<T>::value;
template <typename T> using EnableOptional = std::enable_if_t<kCanTravel<T> && !std::is_same_v<T, Any>>;

template <typename T, typename = void> struct IsReadable : std::false_type {};
template <typename T>
struct IsReadable<T, std::void_t<decltype(TypeTraits<T>::TryFrom(std::declval<const TVMFFIAny&>()))>> : std::true_type {
};
template <typename T, typename = void> struct IsWritable : std::false_type {};
template <typename T>
struct IsWritable<T, std::void_t<decltype(TypeTraits<T>::To(std::declval<T>(), std::declval<TVMFFIAny*>()))>>
    : std::true_type {};

// Reads an argument. One that the caller gives away is moved from where that is possible, and read like any other
// where it is not.
template <typename T> std::optional<T> Read(const TVMFFIAny& value) {
  static_assert(IsReadable<T>::value,
                "no function takes an argument of this type: portcall::TypeTraits has no TryFrom");
  if constexpr (!kPlainReference<T> && !std::is_same_v<T, Any>) {
    if (value.type_index == kTVMFFIObjectRValueRef) {
      auto* object = *static_cast<TVMFFIObject**>(value.v_ptr);
      TVMFFIAny view;
      SetCell(&view, object ? object->type_index : static_cast<int32_t>(kTVMFFINone));
      if (object) view.v_obj = object;
      return TypeTraits<T>::TryFrom(view);
    }
  }
  return TypeTraits<T>::TryFrom(value);
}

// Describes a value that is not a T, for messages: traits of containers name the item that is wrong.
using Describe = std::string (*)(const TVMFFIAny& value);
template <typename T, typename = void> inline constexpr Describe kDescribe = DescribeValue;
template <typename T>
inline constexpr Describe kDescribe<T, std::void_t<decltype(TypeTraits<T>::DescribeMismatch)>> =
    TypeTraits<T>::DescribeMismatch;

[[noreturn, gnu::noinline, gnu::cold]] inline void ThrowMismatch(const std::string& expected, Describe describe,
                                                                 const TVMFFIAny& got) {
  throw Error("TypeError", "expected " + expected + ", got " + describe(got));
}
}  // namespace detail

template <typename T> struct TypeTraits<std::optional<T>> {
  static std::string Name() { return "Optional[" + TypeTraits<T>::Name() + "]"; }
  static std::optional<std::optional<T>> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return std::optional<std::optional<T>>(std::in_place, std::nullopt);
    std::optional<T> inner = TypeTraits<T>::TryFrom(value);
    if (!inner) return std::nullopt;
    return std::optional<std::optional<T>>(std::in_place, std::move(inner));
  }
  static std::string DescribeMismatch(const TVMFFIAny& value) { return detail::kDescribe<T>(value); }
  static void To(std::optional<T> value, TVMFFIAny* out) {
    if (!value) return detail::SetCell(out, kTVMFFINone);
    TypeTraits<T>::To(*std::move(value), out);
  }
};

// An owned value. Layout: exactly one TVMFFIAny.
//
// `T x = value;` converts, and throws TypeError if it is not a T; so does value.cast<T>(), and value.try_cast<T>() gives
// nullopt. An optional wants the cast in words, value.cast<std::optional<T>>(): std::optional would take any value for
// one that holds, None too. Two values do not compare: say as what, a.cast<int>() == b.cast<int>().
class Any {
 public:
  Any() noexcept { detail::SetCell(&cell_, kTVMFFINone); }
  Any(const Any& other) noexcept : cell_(other.cell_) {
    if (IsObject(cell_)) Retain(cell_.v_obj);
  }
  Any(Any&& other) noexcept : cell_(other.cell_) { detail::SetCell(&other.cell_, kTVMFFINone); }
  Any& operator=(Any other) & noexcept {  // of no temporary: `array[0] = x` would change nothing
    std::swap(cell_, other.cell_);
    return *this;
  }
  ~Any() { reset(); }

  template <typename T,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<T>, Any> && detail::kCanTravel<std::decay_t<T>>>>
  Any(T&& value) {  // NOLINT(google-explicit-constructor)
    static_assert(detail::IsWritable<std::decay_t<T>>::value,
                  "no value holds this type: portcall::TypeTraits has no To (what is borrowed cannot be kept)");
    TypeTraits<std::decay_t<T>>::To(std::forward<T>(value), &cell_);
  }

  static Any Steal(const TVMFFIAny& owned) noexcept {
    Any any;
    any.cell_ = owned;
    return any;
  }
  // An owned copy of an argument: strings are copied, objects retained.
  static Any Copy(const TVMFFIAny& view) {
    Any any;
    Check(TVMFFIAnyViewToOwnedAny(&view, &any.cell_));
    return any;
  }

  void reset() noexcept {
    if (IsObject(cell_)) Release(cell_.v_obj);
    detail::SetCell(&cell_, kTVMFFINone);
  }
  int32_t type_index() const noexcept { return cell_.type_index; }
  bool operator==(std::nullptr_t) const noexcept { return cell_.type_index == kTVMFFINone; }
  bool operator!=(std::nullptr_t) const noexcept { return cell_.type_index != kTVMFFINone; }

  const TVMFFIAny& cell() const noexcept { return cell_; }
  TVMFFIAny* out() noexcept {  // for calls that write an owned result
    reset();
    return &cell_;
  }
  TVMFFIAny release() noexcept {
    TVMFFIAny cell = cell_;
    detail::SetCell(&cell_, kTVMFFINone);
    return cell;
  }

  template <typename T> std::optional<T> try_cast() const { return detail::Read<T>(cell_); }
  template <typename T> T cast() const {
    std::optional<T> value = detail::Read<T>(cell_);
    if (!value) detail::ThrowMismatch(TypeTraits<T>::Name(), detail::kDescribe<T>, cell_);
    return *std::move(value);
  }
  template <typename T, typename = std::enable_if_t<detail::kConverts<T>>>
  operator T() const& {  // NOLINT(google-explicit-constructor)
    return cast<T>();
  }
  // A view of a temporary would show what is gone: keep the value, or convert to std::string or Tensor.
  template <typename T, typename = std::enable_if_t<detail::Borrows<T>::value>> operator T() && = delete;
  template <typename T, typename = detail::EnableOptional<T>>
  operator std::optional<T>() & = delete;  // write cast<…>()
  template <typename T, typename = detail::EnableOptional<T>> operator std::optional<T>() && = delete;
  template <typename T, typename = detail::EnableOptional<T>> operator std::optional<T>() const& = delete;

 private:
  TVMFFIAny cell_;
};
static_assert(sizeof(Any) == sizeof(TVMFFIAny), "an array of Any is an array of cells");

using RetValue = Any;

namespace detail {
// A TypeError that names the argument. Front ends read the facts from the extra context, not from the text.
[[noreturn]] void ThrowArgumentError(const char* function, int position, const std::string& expected,
                                     const std::string& got);
}  // namespace detail

// One argument of a call: borrowed, with its place for messages. Converts as Any does.
class ArgValue {
 public:
  ArgValue(const TVMFFIAny* cell, int position, const char* function) noexcept
      : cell_(cell), position_(position), function_(function) {}

  int32_t type_index() const noexcept { return cell_->type_index; }
  const TVMFFIAny& cell() const noexcept { return *cell_; }
  bool operator==(std::nullptr_t) const noexcept { return cell_->type_index == kTVMFFINone; }
  bool operator!=(std::nullptr_t) const noexcept { return cell_->type_index != kTVMFFINone; }

  template <typename T> std::optional<T> try_cast() const { return detail::Read<T>(*cell_); }
  template <typename T> T cast() const {
    std::optional<T> value = detail::Read<T>(*cell_);
    if (!value) Mismatch(TypeTraits<T>::Name(), detail::kDescribe<T>);
    return *std::move(value);
  }
  template <typename T, typename = std::enable_if_t<std::is_same_v<T, Any> || detail::kConverts<T>>>
  operator T() const& {  // NOLINT(google-explicit-constructor)
    return cast<T>();
  }
  template <typename T, typename = detail::EnableOptional<T>>
  operator std::optional<T>() & = delete;  // write cast<…>()
  template <typename T, typename = detail::EnableOptional<T>> operator std::optional<T>() && = delete;
  template <typename T, typename = detail::EnableOptional<T>> operator std::optional<T>() const& = delete;

 private:
  [[noreturn]] void Mismatch(const std::string& expected, detail::Describe describe) const {
    detail::ThrowArgumentError(function_, position_, expected, describe(*cell_));
  }

  const TVMFFIAny* cell_;
  int position_;
  const char* function_;
};

// ---- Strings ------------------------------------------------------------------------------------------------------

namespace detail {
template <int kSmall, typename Derived> class StringBase {
 public:
  StringBase() noexcept { SetCell(&cell_, kSmall); }
  StringBase(const StringBase& other) noexcept : cell_(other.cell_) {
    if (IsObject(cell_)) Retain(cell_.v_obj);
  }
  StringBase(StringBase&& other) noexcept : cell_(other.cell_) { SetCell(&other.cell_, kSmall); }
  StringBase& operator=(StringBase other) noexcept {
    std::swap(cell_, other.cell_);
    return *this;
  }
  ~StringBase() {
    if (IsObject(cell_)) Release(cell_.v_obj);
  }

  // Takes over a cell of this kind that the caller owns.
  static Derived Steal(const TVMFFIAny& owned) noexcept {
    Derived text;
    text.cell_ = owned;
    return text;
  }

  const char* data() const noexcept { return view().data(); }
  size_t size() const noexcept { return view().size(); }
  bool empty() const noexcept { return size() == 0; }
  std::string_view view() const noexcept {
    return IsObject(cell_) ? ToView(static_cast<StringObj*>(cell_.v_obj)->bytes)
                           : std::string_view(cell_.v_bytes, cell_.small_str_len);
  }
  operator std::string_view() const noexcept { return view(); }  // NOLINT(google-explicit-constructor)
  std::string str() const { return std::string(view()); }
  friend bool operator==(const Derived& a, std::string_view b) noexcept { return a.view() == b; }
  friend bool operator!=(const Derived& a, std::string_view b) noexcept { return a.view() != b; }
  friend bool operator<(const Derived& a, const Derived& b) noexcept { return a.view() < b.view(); }
  template <typename Traits>
  friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const Derived& text) {
    return out << text.view();
  }

  const TVMFFIAny& cell() const noexcept { return cell_; }
  TVMFFIAny release() noexcept {
    TVMFFIAny cell = cell_;
    SetCell(&cell_, kSmall);
    return cell;
  }

 protected:
  TVMFFIAny cell_;
};
}  // namespace detail

// Immutable text; up to 7 bytes live in the value itself. data() ends with a NUL.
class String : public detail::StringBase<kTVMFFISmallStr, String> {
 public:
  String() noexcept = default;
  String(std::string_view text) {  // NOLINT(google-explicit-constructor)
    TVMFFIByteArray bytes = ToByteArray(text);
    Check(TVMFFIStringFromByteArray(&bytes, &cell_));
  }
  String(const std::string& text) : String(std::string_view(text)) {}  // NOLINT(google-explicit-constructor)
  String(const char* text) : String(std::string_view(text)) {}         // NOLINT(google-explicit-constructor)
  const char* c_str() const noexcept { return data(); }
};

// Immutable bytes, with the same small form.
class Bytes : public detail::StringBase<kTVMFFISmallBytes, Bytes> {
 public:
  Bytes() noexcept = default;
  explicit Bytes(std::string_view content) {
    TVMFFIByteArray bytes = ToByteArray(content);
    Check(TVMFFIBytesFromByteArray(&bytes, &cell_));
  }
};

// ---- Traits -------------------------------------------------------------------------------------------------------

template <> struct TypeTraits<Any> {
  static std::string Name() { return "any value"; }
  static std::optional<Any> TryFrom(const TVMFFIAny& value) {
    return std::optional<Any>(std::in_place, Any::Copy(value));
  }
  static void To(Any value, TVMFFIAny* out) { *out = value.release(); }
};

template <> struct TypeTraits<ArgValue> {
  static std::string Name() { return "any value"; }
  static void To(const ArgValue& value, TVMFFIAny* out) { *out = Any::Copy(value.cell()).release(); }
};

template <> struct TypeTraits<std::nullptr_t> {
  static std::string Name() { return "None"; }
  static std::optional<std::nullptr_t> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return nullptr;
    return std::nullopt;
  }
  static void To(std::nullptr_t, TVMFFIAny* out) { detail::SetCell(out, kTVMFFINone); }
};

template <> struct TypeTraits<bool> {
  static std::string Name() { return "bool"; }
  static std::optional<bool> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFIBool || value.type_index == kTVMFFIInt) return value.v_int64 != 0;
    return std::nullopt;
  }
  static void To(bool value, TVMFFIAny* out) {
    detail::SetCell(out, kTVMFFIBool);
    out->v_int64 = value ? 1 : 0;
  }
};

// Integers: values that do not fit are refused, never cut.
template <typename T> struct TypeTraits<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static std::string Name() {
    return (std::is_signed_v<T> ? "int" : "uint") + (sizeof(T) == 8 ? std::string() : std::to_string(sizeof(T) * 8));
  }
  static std::optional<T> TryFrom(const TVMFFIAny& value) {
    if (value.type_index != kTVMFFIInt && value.type_index != kTVMFFIBool) return std::nullopt;
    if constexpr (sizeof(T) < 8) {
      if (value.v_int64 < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
          value.v_int64 > static_cast<int64_t>(std::numeric_limits<T>::max())) {
        return std::nullopt;
      }
    } else if constexpr (std::is_unsigned_v<T>) {
      if (value.v_int64 < 0) return std::nullopt;
    }
    return static_cast<T>(value.v_int64);
  }
  static void To(T value, TVMFFIAny* out) {
    if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
      if (value > static_cast<T>(std::numeric_limits<int64_t>::max())) {
        throw Error("OverflowError", "unsigned integer " + std::to_string(value) + " does not fit in 64 signed bits");
      }
    }
    detail::SetCell(out, kTVMFFIInt);
    out->v_int64 = static_cast<int64_t>(value);
  }
};

template <typename T> struct TypeTraits<T, std::enable_if_t<std::is_enum_v<T>>> {
  using Int = std::underlying_type_t<T>;
  static std::string Name() { return TypeTraits<Int>::Name(); }
  static std::optional<T> TryFrom(const TVMFFIAny& value) {
    std::optional<Int> number = TypeTraits<Int>::TryFrom(value);
    if (!number) return std::nullopt;
    return static_cast<T>(*number);
  }
  static void To(T value, TVMFFIAny* out) { TypeTraits<Int>::To(static_cast<Int>(value), out); }
};

template <typename T> struct TypeTraits<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static std::string Name() { return "float"; }
  static std::optional<T> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFIFloat) return static_cast<T>(value.v_float64);
    if (value.type_index == kTVMFFIInt || value.type_index == kTVMFFIBool) return static_cast<T>(value.v_int64);
    return std::nullopt;
  }
  static void To(T value, TVMFFIAny* out) {
    detail::SetCell(out, kTVMFFIFloat);
    out->v_float64 = static_cast<double>(value);
  }
};

template <> struct TypeTraits<void*> {
  static std::string Name() { return "pointer"; }
  static std::optional<void*> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFIOpaquePtr) return value.v_ptr;
    if (value.type_index == kTVMFFINone) return nullptr;
    return std::nullopt;
  }
  static void To(void* value, TVMFFIAny* out) {
    detail::SetCell(out, kTVMFFIOpaquePtr);
    out->v_ptr = value;
  }
};

template <> struct TypeTraits<DLDataType> {
  static std::string Name() { return "dtype"; }
  static std::optional<DLDataType> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFIDataType) return value.v_dtype;
    if (std::optional<std::string_view> text = TryString(value)) {
      DLDataType dtype;
      TVMFFIByteArray bytes = ToByteArray(*text);
      Check(TVMFFIDataTypeFromString(&bytes, &dtype));
      return dtype;
    }
    return std::nullopt;
  }
  static void To(DLDataType value, TVMFFIAny* out) {
    detail::SetCell(out, kTVMFFIDataType);
    out->v_dtype = value;
  }
};

template <> struct TypeTraits<DLDevice> {
  static std::string Name() { return "Device"; }
  static std::optional<DLDevice> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFIDevice) return value.v_device;
    return std::nullopt;
  }
  static void To(DLDevice value, TVMFFIAny* out) {
    detail::SetCell(out, kTVMFFIDevice);
    out->v_device = value;
  }
};

// Borrowed: valid during the call.
template <> struct TypeTraits<DLTensor*> {
  static std::string Name() { return "Tensor"; }
  static std::optional<DLTensor*> TryFrom(const TVMFFIAny& value) {
    if (DLTensor* tensor = TryDLTensor(value)) return tensor;
    return std::nullopt;
  }
  static void To(DLTensor* value, TVMFFIAny* out) {
    detail::SetCell(out, kTVMFFIDLTensorPtr);
    out->v_ptr = value;
  }
};

// Borrowed: valid during the call.
template <> struct TypeTraits<std::string_view> {
  static std::string Name() { return "str"; }
  static std::optional<std::string_view> TryFrom(const TVMFFIAny& value) { return TryString(value); }
  static void To(std::string_view value, TVMFFIAny* out) { *out = String(value).release(); }
};

template <> struct TypeTraits<std::string> {
  static std::string Name() { return "str"; }
  static std::optional<std::string> TryFrom(const TVMFFIAny& value) {
    if (std::optional<std::string_view> text = TryString(value)) return std::string(*text);
    return std::nullopt;
  }
  static void To(const std::string& value, TVMFFIAny* out) { *out = String(value).release(); }
};

// Borrowed: valid during the call.
template <> struct TypeTraits<const char*> {
  static std::string Name() { return "str"; }
  static std::optional<const char*> TryFrom(const TVMFFIAny& value) {
    if (std::optional<std::string_view> text = TryString(value)) return text->data();  // a NUL follows it
    return std::nullopt;
  }
  static void To(const char* value, TVMFFIAny* out) { *out = String(value).release(); }
};
template <> struct TypeTraits<char*> : TypeTraits<const char*> {};

template <> struct TypeTraits<String> {
  static std::string Name() { return "str"; }
  static std::optional<String> TryFrom(const TVMFFIAny& value) {
    if (!TryString(value)) return std::nullopt;
    return String::Steal(Any::Copy(value).release());
  }
  static void To(String value, TVMFFIAny* out) { *out = value.release(); }
};

template <> struct TypeTraits<Bytes> {
  static std::string Name() { return "bytes"; }
  static std::optional<Bytes> TryFrom(const TVMFFIAny& value) {
    if (!TryBytes(value)) return std::nullopt;
    return Bytes::Steal(Any::Copy(value).release());
  }
  static void To(Bytes value, TVMFFIAny* out) { *out = value.release(); }
};

// References: None is the null reference. A reference class with `using OwnTraits = void` has a specialisation.
template <typename T> struct TypeTraits<T, std::enable_if_t<detail::kPlainReference<T>>> {
  static std::string Name() {
    if constexpr (std::is_same_v<T, ObjectRef>) {
      return "object";
    } else {
      return DescribeType(TypeIndexOf<typename T::NodeClass>());
    }
  }
  static std::optional<T> TryFrom(const TVMFFIAny& value) {
    if (value.type_index == kTVMFFINone) return T();
    if (value.type_index == kTVMFFIObjectRValueRef) return Take(static_cast<TVMFFIObject**>(value.v_ptr));
    if (!IsObject(value) || !IsInstance(value.type_index, TypeIndexOf<typename T::NodeClass>())) return std::nullopt;
    return ObjectRef::Borrow<T>(value.v_obj);
  }
  static void To(T value, TVMFFIAny* out) {
    if (!value.defined()) return detail::SetCell(out, kTVMFFINone);
    detail::SetCell(out, value.type_index());
    out->v_obj = value.release();
  }

 private:
  // The caller allows us to move from its variable.
  static std::optional<T> Take(TVMFFIObject** variable) {
    if (!*variable) return T();
    if (!IsInstance((*variable)->type_index, TypeIndexOf<typename T::NodeClass>())) return std::nullopt;
    return ObjectRef::Steal<T>(std::exchange(*variable, nullptr));
  }
};

}  // namespace portcall
#endif  // PORTCALL_VALUE_H_
