// SPDX-License-Identifier: Apache-2.0
// What several tests of the core need: the text of an error, and the number of live nodes.
#pragma once

#include <string>

#include "portcall/portcall.h"

// "Kind: message" of the portcall::Error that `body` throws; "" when it throws nothing.
template <typename Body> std::string Thrown(Body&& body) {
  try {
    body();
    return "";
  } catch (const portcall::Error& error) {
    return error.what();
  }
}

// The kind of an error that is text as Thrown returns it.
inline std::string KindOf(const std::string& error) { return error.substr(0, error.find(':')); }

// "Kind: message" of the error in this thread's slot, which is empty afterwards; "" when it was already.
inline std::string Raised() {
  TVMFFIObjectHandle handle = nullptr;
  TVMFFIErrorMoveFromRaised(&handle);
  return handle ? portcall::Error(portcall::ObjectRef::Steal(handle)).what() : "";
}

inline bool Contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// How many nodes of a type of the ABI are alive.
inline int64_t LiveNodes(const char* type_key) {
  auto counts = portcall::Registry::Get("portcall.LiveNodes")().cast<portcall::Map<portcall::String, int64_t>>();
  return counts.find(type_key).value_or(0);
}

// The cell of a value, for calls of the C ABI. Borrowed: lives as long as the value.
inline const TVMFFIAny* Cell(const portcall::Any& value) { return &value.cell(); }
