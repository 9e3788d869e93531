// SPDX-License-Identifier: Apache-2.0
// The names by which code on foreign headers reaches containers. They are slow on their way already: small is better here.
#include "portcall/container.h"
#include "portcall/function.h"

namespace portcall {
namespace {

int64_t CheckedIndex(int64_t i, size_t size) {
  PORTCALL_CHECK(i >= 0 && static_cast<size_t>(i) < size, IndexError)
      << "index " << i << " is out of range for " << size;
  return i;
}

PORTCALL_REGISTER_GLOBAL("ffi.Array").set_body([](Args args, RetValue* rv) {
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallArrayCreate(args.cells(), args.size(), &handle));
  *rv = ObjectRef::Steal(handle);
});
PORTCALL_REGISTER_GLOBAL("ffi.Shape").set_body([](Args args, RetValue* rv) {
  std::vector<int64_t> extents(args.size());
  for (int i = 0; i < args.size(); ++i) extents[i] = args[i].cast<int64_t>();
  *rv = Shape(extents);
});
PORTCALL_REGISTER_GLOBAL("ffi.ArraySize").set_body_typed([](Array<Any> array) {
  return static_cast<int64_t>(array.size());
});
PORTCALL_REGISTER_GLOBAL("ffi.ArrayGetItem").set_body_typed([](Array<Any> array, int64_t i) {
  return array.items()[CheckedIndex(i, array.size())];
});
PORTCALL_REGISTER_GLOBAL("ffi.Map").set_body([](Args args, RetValue* rv) {
  PORTCALL_CHECK(args.size() % 2 == 0, TypeError)
      << "ffi.Map takes keys and values in turn, got " << args.size() << " arguments";
  TVMFFIObjectHandle handle = nullptr;
  Check(PortcallMapCreate(args.cells(), args.size() / 2, &handle));
  *rv = ObjectRef::Steal(handle);
});
// Of the key args[1] in the map args[0]; in one place, because conversions are long. NULL: there is no such key.
[[gnu::noinline]] const TVMFFIAny* ValueOf(Args args) {
  const Map<> map = args[0].cast<Map<>>();
  const Any key = args[1].cast<Any>();
  const TVMFFIAny* value = nullptr;
  if (map.defined()) Check(PortcallMapFind(map.get(), &key.cell(), &value));
  return value;
}
PORTCALL_REGISTER_GLOBAL("ffi.MapSize").set_body([](Args args, RetValue* rv) {
  *rv = static_cast<int64_t>(args[0].cast<Map<>>().size());
});
PORTCALL_REGISTER_GLOBAL("ffi.MapGetItem").set_body([](Args args, RetValue* rv) {
  const TVMFFIAny* value = ValueOf(args);
  PORTCALL_CHECK(value, KeyError) << detail::DescribeKey(args[1].cell()) << " is not in the Map";
  *rv = Any::Copy(*value);
});
PORTCALL_REGISTER_GLOBAL("ffi.MapCount").set_body([](Args args, RetValue* rv) {
  *rv = static_cast<int64_t>(ValueOf(args) != nullptr);
});

}  // namespace
}  // namespace portcall
