// SPDX-License-Identifier: Apache-2.0
// Strings, bytes, wide integers, data types as text, and the step from a borrowed value to an owned one.
#include "portcall/value.h"

#include <array>
#include <charconv>
#include <cstring>

#include "runtime/node.h"

namespace portcall {
namespace {

constexpr size_t kMostInline = 7;

struct BigIntObj final : Object {  // words follow, least significant first
  static constexpr int32_t kTypeIndex = kTVMFFIBigInt;
  uint64_t num_words;
};

template <typename Node> void MakeText(std::string_view content, int32_t small_index, TVMFFIAny* out) {
  TVMFFIAny cell;
  if (content.size() <= kMostInline) {
    detail::SetCell(&cell, small_index);
    cell.small_str_len = static_cast<uint32_t>(content.size());
    content.copy(cell.v_bytes, kMostInline);
  } else {
    Node* node = NewCountedNode<Node>(content.size() + 1);
    char* data = reinterpret_cast<char*>(node + 1);
    std::memcpy(data, content.data(), content.size());
    data[content.size()] = '\0';
    node->bytes = {data, content.size()};
    detail::SetCell(&cell, Node::kTypeIndex);
    cell.v_obj = node;
  }
  *out = cell;
}

struct NamedType {
  const char* name;
  uint8_t code;
  uint8_t bits;  // 0: the text gives them
};

// Longer names first where one starts with another.
constexpr std::array<NamedType, 23> kNamedTypes = {{
    {"float8_e4m3b11fnuz", kDLFloat8_e4m3b11fnuz, 8},
    {"float8_e4m3fnuz", kDLFloat8_e4m3fnuz, 8},
    {"float8_e5m2fnuz", kDLFloat8_e5m2fnuz, 8},
    {"float8_e8m0fnu", kDLFloat8_e8m0fnu, 8},
    {"float8_e4m3fn", kDLFloat8_e4m3fn, 8},
    {"float8_e3m4", kDLFloat8_e3m4, 8},
    {"float8_e4m3", kDLFloat8_e4m3, 8},
    {"float8_e5m2", kDLFloat8_e5m2, 8},
    {"float6_e2m3fn", kDLFloat6_e2m3fn, 6},
    {"float6_e3m2fn", kDLFloat6_e3m2fn, 6},
    {"float4_e2m1fn", kDLFloat4_e2m1fn, 4},
    {"bfloat", kDLBfloat, 0},
    {"complex", kDLComplex, 0},
    {"handle", kDLOpaqueHandle, 64},
    {"float", kDLFloat, 0},
    {"uint", kDLUInt, 0},
    {"bool", kDLBool, 8},
    {"int", kDLInt, 0},
    // Short names, which a number follows.
    {"bf", kDLBfloat, 0},
    {"f", kDLFloat, 0},
    {"i", kDLInt, 0},
    {"u", kDLUInt, 0},
    {"c", kDLComplex, 0},
}};

// Parses a decimal number at the front of `text` and removes it. False when there is none.
bool TakeNumber(std::string_view* text, unsigned* out) {
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *out);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

bool ParseDataType(std::string_view text, DLDataType* out) {
  if (text.empty() || text == "void") {
    *out = {kDLOpaqueHandle, 0, 0};
    return true;
  }
  // f8_e5m2 and fp8_e5m2 are float8_e5m2, and so with the others of few bits.
  std::string longer;
  const size_t at = text.find_first_of("0123456789");
  if (at < text.size() - 1 && text[at + 1] == '_' && (text.substr(0, at) == "f" || text.substr(0, at) == "fp")) {
    text = longer = "float" + std::string(text.substr(at));
  }
  for (const NamedType& type : kNamedTypes) {
    std::string_view name = type.name;
    if (text.substr(0, name.size()) != name) continue;
    std::string_view rest = text.substr(name.size());
    unsigned bits = type.bits, lanes = 1;
    if (bits == 0) {
      bits = type.code == kDLBfloat ? 16 : 32;
      const bool short_name = name.size() <= 2;
      if ((short_name || (!rest.empty() && rest[0] != 'x')) && !TakeNumber(&rest, &bits)) return false;
    }
    if (bits == 4 && rest.substr(0, 2) == "_x") rest.remove_prefix(1);  // torch: float4_e2m1fn_x2
    const bool scalable = rest.substr(0, 7) == "xvscale";
    if (scalable) rest.remove_prefix(7);
    if (!rest.empty() || scalable) {
      if (rest.substr(0, 1) != "x") return false;
      rest.remove_prefix(1);
      if (!TakeNumber(&rest, &lanes) || !rest.empty()) return false;
    }
    if (bits == 0 || bits > 255 || lanes == 0 || lanes > INT16_MAX) return false;
    if (scalable) lanes = 0 - lanes;
    *out = {type.code, static_cast<uint8_t>(bits), static_cast<uint16_t>(lanes)};
    return true;
  }
  return false;
}

std::string FormatDataType(DLDataType dtype) {
  if (dtype.code == kDLOpaqueHandle && dtype.bits == 0 && dtype.lanes == 0) return "";  // void
  std::string text = "dtype(" + std::to_string(dtype.code) + ")" + std::to_string(dtype.bits);
  for (const NamedType& type : kNamedTypes) {
    if (type.code != dtype.code) continue;
    text = type.name;
    if (type.bits == 0 || type.bits != dtype.bits) text += std::to_string(dtype.bits);
    break;
  }
  const auto lanes = static_cast<int16_t>(dtype.lanes);  // below zero: of a vector whose length the machine scales
  if (lanes != 1) text += (lanes < 0 ? "xvscalex" : "x") + std::to_string(std::abs(lanes));
  return text;
}

}  // namespace
}  // namespace portcall

using namespace portcall;

int TVMFFIStringFromByteArray(const TVMFFIByteArray* input, TVMFFIAny* out) {
  return Guard([&] { MakeText<StringObj>(ToView(*input), kTVMFFISmallStr, out); });
}

int TVMFFIBytesFromByteArray(const TVMFFIByteArray* input, TVMFFIAny* out) {
  return Guard([&] { MakeText<BytesObj>(ToView(*input), kTVMFFISmallBytes, out); });
}

int TVMFFIBigIntFromByteArray(const TVMFFIByteArray* words, TVMFFIAny* out) {
  return Guard([&] {
    PORTCALL_CHECK(words->size % 8 == 0, ValueError)
        << "a wide integer is given in words of 8 bytes, got " << words->size << " bytes";
    // Words that only repeat the sign are left out. If the rest fits into 64 bits, it is an ordinary integer.
    auto word = [&](size_t i) {
      int64_t value;
      std::memcpy(&value, words->data + 8 * i, 8);
      return value;
    };
    size_t n = words->size / 8;
    while (n > 1 && word(n - 1) == (word(n - 2) < 0 ? -1 : 0)) --n;
    if (n <= 1) {
      detail::SetCell(out, kTVMFFIInt);
      out->v_int64 = n == 0 ? 0 : word(0);
      return;
    }
    auto* node = NewCountedNode<BigIntObj>(8 * n);
    node->num_words = n;
    std::memcpy(static_cast<void*>(node + 1), words->data, 8 * n);
    detail::SetCell(out, kTVMFFIBigInt);
    out->v_obj = node;
  });
}

TVMFFIByteArray TVMFFIBigIntGetContentByteArray(const TVMFFIAny* value) {
  if (value->type_index == kTVMFFIInt) return {reinterpret_cast<const char*>(&value->v_int64), 8};
  if (value->type_index != kTVMFFIBigInt) return {nullptr, 0};
  auto* node = static_cast<BigIntObj*>(value->v_obj);
  return {reinterpret_cast<const char*>(node + 1), static_cast<size_t>(node->num_words * 8)};
}

int TVMFFIDataTypeFromString(const TVMFFIByteArray* text, DLDataType* out) {
  return Guard([&] {
    PORTCALL_CHECK(ParseDataType(ToView(*text), out), ValueError)
        << "unknown data type '" << ToView(*text)
        << "'; examples: float32, int8, bfloat16, float8_e4m3fn, bool, int8x4";
  });
}

int TVMFFIDataTypeToString(const DLDataType* dtype, TVMFFIAny* out) {
  return Guard([&] { *out = String(FormatDataType(*dtype)).release(); });
}

int TVMFFIAnyViewToOwnedAny(const TVMFFIAny* view, TVMFFIAny* out) {
  return Guard([&] {
    switch (view->type_index) {
      case kTVMFFIRawStr:
        PORTCALL_CHECK(view->v_c_str, ValueError) << "a string has no address";
        *out = String(view->v_c_str).release();
        return;
      case kTVMFFIByteArrayPtr:
        PORTCALL_CHECK(view->v_ptr, ValueError) << "bytes have no address";
        *out = Bytes(*TryBytes(*view)).release();
        return;
      case kTVMFFIObjectRValueRef: {
        TVMFFIObject* obj = std::exchange(*static_cast<TVMFFIObject**>(view->v_ptr), nullptr);
        detail::SetCell(out, obj ? obj->type_index : static_cast<int32_t>(kTVMFFINone));
        if (obj) out->v_obj = obj;
        return;
      }
      default:
        *out = *view;
        if (IsObject(*out)) Retain(out->v_obj);
    }
  });
}
