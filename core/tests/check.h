// SPDX-License-Identifier: Apache-2.0
// The core's own test library, a page long:
//
//   TEST("a removed function is not found") {
//     CHECK(found);                                   // continues after a failure, so it may be used in any thread
//     CHECK_EQ(names.size(), 2);                      // prints both sides; C strings are compared as text
//     CHECK_THROWS(Registry::Get("gone"), Error);
//   }
//
// core_tests runs every test; `core_tests WORD` those with WORD in their sentence.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace check {

struct Registrar {
  Registrar(const char* file, int line, const char* sentence, void (*body)());
};

void Report(const char* file, int line, const std::string& what);
// Of the macros, in functions of their own: code at thousands of places takes minutes to compile.
void ReportText(const char* file, int line, const char* what);
void ReportUnequal(const char* file, int line, const char* text, const std::string& left, const std::string& right);

template <typename T> decltype(auto) AsComparable(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view> && !std::is_same_v<T, std::nullptr_t>) {
    if constexpr (std::is_pointer_v<T>) return std::string_view(value ? value : "(null)");
    else return std::string_view(value);
  } else {
    return (value);
  }
}

template <typename T, typename = void> struct IsPrintable : std::false_type {};
template <typename T>
struct IsPrintable<T, std::void_t<decltype(std::declval<std::ostream&>() << std::declval<const T&>())>>
    : std::true_type {};

template <typename T> std::string Show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_same_v<T, bool>) out << (value ? "true" : "false");
  else if constexpr (std::is_same_v<T, std::nullptr_t>) out << "nullptr";
  else if constexpr (std::is_same_v<T, std::string_view>) out << '"' << value << '"';
  else if constexpr (std::is_enum_v<T>) out << +static_cast<std::underlying_type_t<T>>(value);
  else if constexpr (std::is_integral_v<T>) out << +value;  // int8_t as a number
  else if constexpr (IsPrintable<T>::value) out << value;
  else out << "(an object of " << sizeof(T) << " bytes)";
  return out.str();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"  // CHECK_EQ(v.size(), 3)
template <typename A, typename B>
void EqualValues(const A& a, const B& b, const char* text, const char* file, int line) {
  if (!(a == b)) ReportUnequal(file, line, text, Show(a), Show(b));
}
#pragma GCC diagnostic pop

// Texts of each length are types of their own, which end here.
template <typename A, typename B>
void Equal(const A& left, const B& right, const char* text, const char* file, int line) {
  EqualValues(AsComparable(left), AsComparable(right), text, file, line);
}

}  // namespace check

#define CHECK_JOIN_(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN_(a, b)
// Counted, not by its line: several sources may be compiled as one.
#define TEST(sentence) CHECK_TEST_(sentence, __COUNTER__)
#define CHECK_TEST_(sentence, number)                                                                              \
  static void CHECK_JOIN(test_, number)();                                                                         \
  static check::Registrar CHECK_JOIN(registrar_, number)(__FILE__, __LINE__, sentence, CHECK_JOIN(test_, number)); \
  static void CHECK_JOIN(test_, number)()

#define CHECK(...)                                                                       \
  do {                                                                                   \
    if (!(__VA_ARGS__)) check::ReportText(__FILE__, __LINE__, #__VA_ARGS__ " is false"); \
  } while (0)
#define CHECK_EQ(a, b) check::Equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(expression, Type)                                     \
  do {                                                                     \
    try {                                                                  \
      (void)(expression);                                                  \
      check::ReportText(__FILE__, __LINE__, #expression " threw nothing"); \
    } catch (const Type&) {                                                \
    }                                                                      \
  } while (0)
