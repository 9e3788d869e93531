// SPDX-License-Identifier: Apache-2.0
// Enums, in the layouts of tvm-ffi's headers: a type whose objects are made once, and a state, which is an attribute of
// the type, that has them all.
#ifndef PORTCALL_IR_ENUM_H_
#define PORTCALL_IR_ENUM_H_

#include "portcall/reflection.h"

namespace portcall::ir {

struct EnumObj : Object {
  int64_t number;
  String name;
  PORTCALL_OBJECT(EnumObj, Object, "ffi.Enum")
  EnumObj(int64_t number, String name) : number(number), name(std::move(name)) {}
  static void Describe(Description<EnumObj>* type) {
    type->doc("An entry of an enum.");
    type->compare_as(kTVMFFISEqHashKindUniqueInstance);
    type->field("_int_index", &EnumObj::number, "its number");
    type->field("_str_index", &EnumObj::name, "its name");
  }
};

struct EnumStateObj : Object {
  ObjectRef entries, indexes, attrs;
  PORTCALL_OBJECT(EnumStateObj, Object, "ffi.EnumState")
  EnumStateObj(ObjectRef entries, ObjectRef indexes, ObjectRef attrs)
      : entries(std::move(entries)), indexes(std::move(indexes)), attrs(std::move(attrs)) {}
  static void Describe(Description<EnumStateObj>* type) {
    type->doc("What is known of an enum.");
    type->compare_as(kTVMFFISEqHashKindUniqueInstance);
    type->field("entries", &EnumStateObj::entries, "a List of them, in the order of their definition");
    type->field("indexes", &EnumStateObj::indexes, "a Dict of them by number and by name");
    type->field("attrs", &EnumStateObj::attrs, "a Dict of Dicts by name: what else is said of each entry");
  }
};

}  // namespace portcall::ir
#endif  // PORTCALL_IR_ENUM_H_
