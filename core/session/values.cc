// SPDX-License-Identifier: Apache-2.0
// Objects by value, as portcall/rpc/wire/_values.py has them: a byte that says whether there are objects of types in it
// that a reader may not know, then the binary form.
#include "facts/wire.h"
#include "portcall/container.h"
#include "portcall/function.h"
#include "session/files.h"

namespace portcall::session {
namespace {

enum Save { kWithoutTensors, kWherePossible, kAlways };  // of rpc/local_session.h

PackedFunc OfObjects(const std::string& name) { return Registry::GetRequired("portcall.ir." + name); }

// Null where the object has no binary form; an error with kAlways.
Any ToValue(Any value, int save, int position) {
  try {
    if (save == kWithoutTensors && OfObjects("Collect")(value, "ffi.Tensor", false).cast<Array<Any>>().size()) {
      return nullptr;
    }
    const auto data = OfObjects("ToBytes")(value).cast<Bytes>();
    PORTCALL_CHECK(data.size() < facts::kMostValueBytes, ValueError) << "it has " << data.size() << " bytes";
    bool typed = false;
    for (const auto& key : OfObjects("TypeKeys")(value).cast<std::vector<std::string>>()) {
      typed |= key.compare(0, 4, "ffi.") != 0;
    }
    return Bytes(std::string(1, static_cast<char>(typed)).append(data.data(), data.size()));
  } catch (const Error& error) {
    if (error.kind() != "TypeError" && error.kind() != "ValueError") throw;
    if (save != kAlways) return nullptr;
    PORTCALL_THROW(ArgumentError) << "argument #" << position << ": " << DescribeValue(value.cell())
                                  << " cannot be sent by value: " << error.message();
  }
}

Any FromValue(Bytes data) {
  try {
    const std::string_view bytes(data.data(), data.size());
    return OfObjects("FromBytes")(Bytes(bytes.substr(std::min<size_t>(1, bytes.size()))), facts::kMostNodes,
                                  facts::kMostDepth);
  } catch (const Error& error) {
    PORTCALL_THROW(RemoteProtocolError) << "an object that came by value cannot be read: " << error.message();
  }
}

}  // namespace

void RegisterValues() {
  Registry::Set("portcall.rpc.ValueToBytes", PackedFunc(detail::Unpack(ToValue), "ValueToBytes"), true);
  Registry::Set("portcall.rpc.ValueFromBytes", PackedFunc(detail::Unpack(FromValue), "ValueFromBytes"), true);
}

}  // namespace portcall::session
