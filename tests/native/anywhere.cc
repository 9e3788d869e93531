// SPDX-License-Identifier: Apache-2.0
// What a library on portcall's headers does in whichever runtime loads it.
#include <portcall/portcall.h>

#include <string>
#include <vector>

using namespace portcall;

namespace {
PORTCALL_REGISTER_GLOBAL("portcall_test.anywhere.plus_one").set_body_typed([](int x) { return x + 1; });

struct PairObj : Object {
  int64_t left = 1, right = 2;
  PORTCALL_OBJECT(PairObj, Object, "portcall_test.anywhere.Pair")
  static void Describe(Description<PairObj>* type) {
    type->field("left", &PairObj::left);
    type->field("right", &PairObj::right).set_default(5);
  }
};
PORTCALL_REGISTER_OBJECT(PairObj);
}  // namespace

PORTCALL_EXPORT_TYPED(add, [](int a, int b) { return a + b; })
PORTCALL_EXPORT_TYPED(adder, [](int a) { return TypedPackedFunc<int(int)>([a](int b) { return a + b; }); })
PORTCALL_EXPORT_TYPED(shape, [](int n) { return Shape{n, 2}; })
PORTCALL_EXPORT_TYPED(call, [](const std::string& name, Any x) { return Registry::GetRequired(name)(x); })
PORTCALL_EXPORT_TYPED(remove, [](const std::string& name) { return Registry::Remove(name); })

PORTCALL_EXPORT_TYPED(array, [](Array<int> items) {
  items.push_back(7);
  items.Set(0, -1);
  items.erase(1);
  return items;
})
PORTCALL_EXPORT_TYPED(list, [](List<Any> items) {
  items.push_back("seven");
  items.erase(0);
  return items;
})
template <typename M> Any Change(M map, int n) {
  for (int i = 0; i < n; ++i) map.Set("a key of text " + std::to_string(i), i);
  if (!map.erase("a key of text 0") || map.erase("none") || map.contains("none")) return "wrong";
  if (map.at("a key of text 1").template cast<int>() != 1 || map.find("none")) return "wrong";
  int64_t sum = 0;
  for (const auto& [key, value] : map) sum += value.template cast<int64_t>();
  map.Set("sum", sum);
  return map;
}
PORTCALL_EXPORT_TYPED(map, [](int n) { return Change(Map<String, Any>(), n); })
PORTCALL_EXPORT_TYPED(dict, [](int n) { return Change(Dict<String, Any>(), n); })
PORTCALL_EXPORT_TYPED(ones, [](int n) {
  Tensor made = Tensor::Empty({n, 2}, DataTypeOf<float>());
  std::vector<float> ones(static_cast<size_t>(2 * n), 1.0f);
  made.CopyFromBytes(ones.data(), ones.size() * sizeof(float));
  return made;
})
PORTCALL_EXPORT_TYPED(pair, [] { return ObjectRef::Steal(NewNode<PairObj>()); })
PORTCALL_EXPORT_TYPED(fail, [](const std::string& why) { PORTCALL_THROW(ValueError) << why; })
PORTCALL_EXPORT_TYPED(device, [] { return DeviceApiOf(Cpu()).alloc != nullptr; })
