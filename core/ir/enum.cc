// SPDX-License-Identifier: Apache-2.0
#include "ir/enum.h"

#include <vector>

#include "ir/containers.h"

namespace portcall::ir {
namespace {

PORTCALL_REGISTER_OBJECT(EnumObj);
PORTCALL_REGISTER_OBJECT(EnumStateObj);

int32_t IndexOf(std::string_view key, int32_t parent) {
  TVMFFIByteArray text = ToByteArray(key);
  int32_t index = TVMFFITypeGetOrAllocIndex(&text, -1, 0, 0, 1, parent);
  if (index < 0) ThrowRaised();
  return index;
}

// Defines the entries of an enum; parent: ffi.Enum, ffi.IntEnum or ffi.StrEnum. The type is made where a library has not
// described it; it must have no entries.
PORTCALL_REGISTER_GLOBAL("portcall.ir.DefineEnum")
    .set_body_typed([](String key, String parent, Array<String> names, Array<int64_t> numbers) {
      int32_t up = TypeIndexOf<EnumObj>();
      if (parent != EnumObj::kTypeKey) up = IndexOf(parent, up);
      const int32_t index = IndexOf(key, up);
      if (TVMFFIGetTypeInfo(index)->metadata == nullptr) {
        TVMFFITypeMetadata metadata{{nullptr, 0}, nullptr, sizeof(EnumObj), kTVMFFISEqHashKindUniqueInstance};
        Check(TVMFFITypeRegisterMetadata(index, &metadata));
      }
      std::vector<Any> entries, indexes;
      for (size_t i = 0; i < names.size(); ++i) {
        auto* entry = NewNode<EnumObj>(numbers[i], names[i]);
        entry->type_index = index;
        entries.emplace_back(ObjectRef::Steal(entry));
        for (const Any& at : {Any(numbers[i]), Any(names[i])}) {
          indexes.push_back(at);
          indexes.push_back(entries.back());
        }
      }
      Any state = ObjectRef::Steal(NewNode<EnumStateObj>(MakeContainer(kTVMFFIList, entries.data(), entries.size()),
                                                         MakeContainer(kTVMFFIDict, indexes.data(), indexes.size()),
                                                         MakeContainer(kTVMFFIDict, nullptr, 0)));
      TVMFFIByteArray name = ToByteArray("__ffi_enum__");
      Check(TVMFFITypeRegisterAttr(index, &name, &state.cell()));
    });

}  // namespace
}  // namespace portcall::ir
