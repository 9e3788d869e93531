// SPDX-License-Identifier: Apache-2.0
// Maps, dicts and lists as code on the apache-tvm-ffi headers sees them: read, made, changed in place, in fields, in
// methods, in functions that it registers and in results of call-backs.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/dict.h>
#include <tvm/ffi/container/list.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <cstdint>

namespace portcall_test {

namespace ffi = tvm::ffi;
using ffi::Any;
using AnyArray = ffi::Array<Any>;
using AnyDict = ffi::Dict<Any, Any>;
using AnyList = ffi::List<Any>;
using AnyMap = ffi::Map<Any, Any>;

// Keys and values in turn, by iteration; each value is looked up by its key too.
template <typename M> AnyArray Pairs(const M& map) {
  AnyArray pairs;
  for (const auto& [key, value] : map) {
    if (!map.count(key) || !ffi::AnyEqual()(map.at(key), value)) {
      TVM_FFI_THROW(KeyError) << "a key that is there is not found";
    }
    pairs.push_back(key);
    pairs.push_back(value);
  }
  if (pairs.size() != 2 * map.size()) TVM_FFI_THROW(ValueError) << "the size is wrong";
  return pairs;
}

template <typename M> M Make(const AnyArray& pairs) {
  M map;
  for (size_t i = 0; i < pairs.size(); i += 2) map.Set(pairs[i], pairs[i + 1]);
  return map;
}

// A Map is a value: what comes back is another one when somebody else holds it too.
AnyMap MapSet(AnyMap map, Any key, Any value) {
  map.Set(key, value);
  return map;
}
AnyMap MapErase(AnyMap map, Any key) {
  map.erase(key);
  return map;
}
AnyMap MapClear(AnyMap map) {
  map.clear();
  return map;
}

AnyArray NestedPairs(AnyArray maps) {
  AnyArray all;
  for (const Any& map : maps) all.push_back(Pairs(map.cast<AnyMap>()));
  return all;
}

class HolderObj : public ffi::Object {
 public:
  AnyMap map;
  AnyDict dict;
  AnyList list;
  Any extra;

  AnyArray All() const { return AnyArray{Pairs(map), Pairs(dict), AnyArray(list.begin(), list.end())}; }
  void Put(Any key, Any value) {
    map.Set(key, value);
    dict.Set(key, value);
    list.push_back(value);
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("portcall_test.Holder", HolderObj, ffi::Object);
};

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::ObjectDef<HolderObj>()
      .def_rw("map", &HolderObj::map, refl::default_value(AnyMap()))
      .def_rw("dict", &HolderObj::dict, refl::default_value(AnyDict()))
      .def_rw("list", &HolderObj::list, refl::default_value(AnyList()))
      .def_rw("extra", &HolderObj::extra, refl::default_value(Any()))
      .def("all", &HolderObj::All)
      .def("put", &HolderObj::Put);
  refl::GlobalDef()
      .def("portcall_test.map_pairs", [](AnyMap map) { return Pairs(map); })
      .def("portcall_test.make_map", [](AnyArray pairs) { return Make<AnyMap>(pairs); });
}

Any MapGet(AnyMap map, Any key) { return map.Get(key).value_or(Any()); }
void DictSet(AnyDict dict, Any key, Any value) { dict.Set(key, value); }
void DictErase(AnyDict dict, Any key) { dict.erase(key); }
void DictClear(AnyDict dict) { dict.clear(); }
int64_t TypedSum(ffi::Map<ffi::String, int64_t> map) {
  int64_t sum = 0;
  for (const auto& [key, value] : map) sum += value;
  return sum;
}

AnyArray ListItems(AnyList list) { return AnyArray(list.begin(), list.end()); }
AnyList MakeList(AnyArray items) { return AnyList(items.begin(), items.end()); }
void ListPush(AnyList list, Any value) { list.push_back(value); }
void ListInsert(AnyList list, int64_t i, Any value) { list.insert(list.begin() + i, value); }
void ListErase(AnyList list, int64_t i) { list.erase(list.begin() + i); }
void ListSet(AnyList list, int64_t i, Any value) { list.Set(i, value); }
void ListClear(AnyList list) { list.clear(); }
void ListResize(AnyList list, int64_t n) { list.resize(n); }

// What a call-back gives back is read here; a map that is made here is given to it.
AnyArray PairsOfResult(ffi::Function make) { return Pairs(make().cast<AnyMap>()); }
Any GiveMap(ffi::Function take, AnyArray pairs) { return take(Make<AnyMap>(pairs)); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(map_pairs, Pairs<AnyMap>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(dict_pairs, Pairs<AnyDict>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(nested_pairs, NestedPairs);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_map, Make<AnyMap>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_dict, Make<AnyDict>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(map_set, MapSet);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(map_erase, MapErase);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(map_clear, MapClear);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(map_get, MapGet);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(dict_set, DictSet);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(dict_erase, DictErase);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(dict_clear, DictClear);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(typed_sum, TypedSum);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(list_items, ListItems);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_list, MakeList);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(list_push, ListPush);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(list_insert, ListInsert);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(list_erase, ListErase);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(list_set, ListSet);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(list_clear, ListClear);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(list_resize, ListResize);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(pairs_of_result, PairsOfResult);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(give_map, GiveMap);

}  // namespace portcall_test
