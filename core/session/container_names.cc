// SPDX-License-Identifier: Apache-2.0
// Functions of lists, dicts and tensors that clients of TVM call by name.
#include <algorithm>

#include "portcall/function.h"
#include "portcall/tensor.h"
#include "session/files.h"

namespace portcall::session {
namespace {

using Items = List<Any>;
using Pairs = Dict<Any, Any>;

template <typename F> void Offer(const std::string& name, F body) {
  if (Registry::Get(name).defined()) return;
  if constexpr (std::is_invocable_v<F, Args, RetValue*>) Registry::Set(name, PackedFunc(std::move(body), name));
  else Registry::Set(name, PackedFunc(detail::Unpack(std::move(body)), name));
}

// A number that comes last, and may be left out.
int64_t LastOf(Args args, int place) {
  PORTCALL_CHECK(args.size() <= place + 1, TypeError)
      << args.function() << " takes at most " << place + 1 << " arguments, got " << args.size();
  return args.size() > place ? args[place].cast<int64_t>() : 0;
}

template <typename Container> void CheckGiven(const Container& container) {
  PORTCALL_CHECK(container.defined(), TypeError) << "a container is expected, got None";
}

// An index within a list, or at most `end` after its last item.
size_t IndexIn(const Items& items, int64_t index, size_t end = 0) {
  CheckGiven(items);
  PORTCALL_CHECK(index >= 0 && static_cast<size_t>(index) < items.size() + end, IndexError)
      << "index " << index << " is out of bounds (the list has " << items.size() << " items)";
  return static_cast<size_t>(index);
}

// Puts other items in the place of those from `start` to `stop`.
void Replace(Items items, int64_t start, int64_t stop, const std::vector<Any>& others) {
  CheckGiven(items);
  PORTCALL_CHECK(start >= 0 && start <= stop && static_cast<size_t>(stop) <= items.size(), IndexError)
      << "range " << start << " to " << stop << " is out of bounds (the list has " << items.size() << " items)";
  const auto first = static_cast<size_t>(start);
  if (stop > start) items.erase(first, static_cast<size_t>(stop - start));
  for (size_t i = 0; i < others.size(); ++i) items.insert(first + i, others[i]);
}

// As tvm-ffi has it: text and bytes by content, all else by identity; 1, 1.0 and true are not the same.
bool Same(const Any& a, const Any& b) {
  if (a.cell().type_index != b.cell().type_index) return false;
  if (auto text = TryString(a.cell())) return *text == *TryString(b.cell());
  if (auto bytes = TryBytes(a.cell())) return *bytes == *TryBytes(b.cell());
  return a.cell().v_uint64 == b.cell().v_uint64;
}

void OfferLists() {
  Offer("ffi.List", [](Args args, RetValue* rv) {
    Items items;
    for (int i = 0; i < args.size(); ++i) items.push_back(args[i].cast<Any>());
    *rv = items;
  });
  Offer("ffi.ListGetItem", [](Items items, int64_t i) { return items.at(IndexIn(items, i)); });
  Offer("ffi.ListSetItem", [](Items items, int64_t i, Any value) { items.Set(IndexIn(items, i), value); });
  Offer("ffi.ListSize", [](Items items) { return static_cast<int64_t>(items.size()); });
  Offer("ffi.ListContains", [](Items items, Any value) {
    return std::any_of(items.begin(), items.end(), [&](const Any& item) { return Same(item, value); });
  });
  Offer("ffi.ListAppend", [](Items items, Any value) {
    Replace(items, static_cast<int64_t>(items.size()), static_cast<int64_t>(items.size()), {value});
  });
  Offer("ffi.ListInsert", [](Items items, int64_t i, Any value) { items.insert(IndexIn(items, i, 1), value); });
  Offer("ffi.ListPop", [](Items items, int64_t i) {
    Any item = items.at(IndexIn(items, i));
    items.erase(static_cast<size_t>(i));
    return item;
  });
  Offer("ffi.ListErase", [](Items items, int64_t i) { items.erase(IndexIn(items, i)); });
  Offer("ffi.ListEraseRange", [](Items items, int64_t start, int64_t stop) { Replace(items, start, stop, {}); });
  Offer("ffi.ListReplaceSlice",
        [](Items items, int64_t start, int64_t stop, Items others) { Replace(items, start, stop, others.vector()); });
  Offer("ffi.ListReverse", [](Items items) {
    std::vector<Any> all = items.vector();
    std::reverse(all.begin(), all.end());
    Replace(items, 0, static_cast<int64_t>(all.size()), all);
  });
  Offer("ffi.ListClear", [](Items items) { Replace(items, 0, static_cast<int64_t>(items.size()), {}); });
  Offer("ffi.ListReserve", [](Items items, int64_t) { CheckGiven(items); });  // memory grows by itself
}

// A cursor over the items that a mapping has now: 0 gives the key, 1 the value, 2 moves on and says whether that worked.
PackedFunc Iterate(const std::vector<std::pair<Any, Any>>& items) {
  return PackedFunc([items, place = size_t{0}](Args args, RetValue* rv) mutable {
    const auto command = args[0].cast<int64_t>();
    PORTCALL_CHECK(command >= 0 && command <= 2, ValueError)
        << "invalid command " << command << " (0 is the key, 1 the value, 2 moves on)";
    if (command == 2) {
      place = std::min(place + 1, items.size());
      *rv = place < items.size();
      return;
    }
    PORTCALL_CHECK(place < items.size(), IndexError) << "there are no more items";
    *rv = command ? items[place].second : items[place].first;
  });
}

template <typename Mapping> std::vector<std::pair<Any, Any>> ItemsOf(const Mapping& mapping) {
  CheckGiven(mapping);
  std::vector<std::pair<Any, Any>> items;
  for (const auto& [key, value] : mapping) items.emplace_back(key, value);
  return items;
}

void OfferDicts() {
  Offer("ffi.Dict", [](Args args, RetValue* rv) {
    PORTCALL_CHECK(args.size() % 2 == 0, ValueError)
        << "ffi.Dict takes keys and values in turn, not " << args.size() << " arguments";
    Pairs pairs;
    for (int i = 0; i < args.size(); i += 2) pairs.Set(args[i].cast<Any>(), args[i + 1].cast<Any>());
    *rv = pairs;
  });
  Offer("ffi.DictGetItem", [](Pairs pairs, Any key) { return pairs.at(key); });
  Offer("ffi.DictSetItem", [](Pairs pairs, Any key, Any value) {
    CheckGiven(pairs);
    pairs.Set(key, value);
  });
  Offer("ffi.DictSize", [](Pairs pairs) { return static_cast<int64_t>(pairs.size()); });
  Offer("ffi.DictCount", [](Pairs pairs, Any key) { return static_cast<int64_t>(pairs.contains(key)); });
  Offer("ffi.DictErase", [](Pairs pairs, Any key) { pairs.erase(key); });
  Offer("ffi.DictClear", [](Pairs pairs) {
    for (const auto& item : ItemsOf(pairs)) pairs.erase(item.first);
  });
  Offer("ffi.DictForwardIterFunctor", [](Pairs pairs) { return Iterate(ItemsOf(pairs)); });
  Offer("ffi.MapForwardIterFunctor", [](Map<Any, Any> map) { return Iterate(ItemsOf(map)); });
}

Tensor ViewOf(Tensor tensor, Shape shape, DLDataType dtype, int64_t offset) {
  PORTCALL_CHECK(tensor.defined() && tensor.is_contiguous(), ValueError) << "a compact tensor is expected";
  PORTCALL_CHECK(offset >= 0, ValueError) << "the byte offset " << offset << " is negative";
  uint64_t room = tensor.nbytes() - std::min<uint64_t>(tensor.nbytes(), static_cast<uint64_t>(offset)), elements = 1;
  std::vector<int64_t> extents(shape.begin(), shape.end());
  for (int64_t extent : extents) {
    PORTCALL_CHECK(extent >= 0, ValueError) << "the extent " << extent << " is negative";
    const bool fits = extent == 0 || elements <= UINT64_MAX / 64 / static_cast<uint64_t>(extent);
    PORTCALL_CHECK(fits, ValueError) << "the view reaches past the end of the tensor";
    elements *= static_cast<uint64_t>(extent);
  }
  PORTCALL_CHECK(NumBytes(dtype, elements) <= room, ValueError) << "the view reaches past the end of the tensor";
  DLTensor view = *TryDLTensor(Any(tensor).cell());
  view.byte_offset += static_cast<uint64_t>(offset);
  view.ndim = static_cast<int32_t>(extents.size());
  view.shape = extents.data();
  view.strides = nullptr;
  view.dtype = dtype;
  TVMFFIObjectHandle made = nullptr;
  Check(TVMFFITensorCreateUnsafeView(tensor.get(), &view, &made));
  return ObjectRef::Steal<Tensor>(static_cast<TVMFFIObject*>(made));
}

void OfferTensors() {
  Offer("runtime.TVMTensorCreateView", [](Args args, RetValue* rv) {
    *rv = ViewOf(args[0].cast<Tensor>(), args[1].cast<Shape>(), args[2].cast<DLDataType>(), LastOf(args, 3));
  });
  Offer("runtime.Device_StreamSync", [](Args args, RetValue*) {
    const int64_t stream = LastOf(args, 1);
    PORTCALL_CHECK(stream == 0, ValueError)
        << "stream " << stream << " is not known here; use the request DevStreamSync";
    Check(PortcallDeviceSync(args[0].cast<DLDevice>(), nullptr));
  });
}

}  // namespace

void RegisterContainerNames() {
  OfferLists();
  OfferDicts();
  OfferTensors();
}

}  // namespace portcall::session
