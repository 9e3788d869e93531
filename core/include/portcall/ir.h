// SPDX-License-Identifier: Apache-2.0
// What can be done with any graph of described objects: compare it, hash it, save it, walk it. All of it reads the
// description (reflection.h), none of it uses the stack for depth. It is in libportcall_ir, which a
// loader brings along.
//
//   ir::StructuralEqual(a, b);  ir::StructuralHash(a);  ir::FirstMismatch(a, b);  // "<root>.rhs.value: 1 != 2"
//   std::string text = ir::SaveJson(a);  Any again = ir::LoadJson(text);
//   ir::Walk<Var>(a, ir::Order::kPost, [&](const Var& var) { names.push_back(var->name); });
//   Any b = ir::Rewrite<Add>(a, [](const Add& add) -> Any { return Simplify(add); });
//
// Structure. Objects are equal when their types are and their fields, one by one, but for fields that are ignored or
// compared by identity. None, bools, ints, floats, text, bytes, data types, devices and shapes are equal by value, each
// to its own kind only: 1, 1.0 and True are three values. A NaN equals a NaN; 0.0 and -0.0 differ, as programs do that
// contain them. Tensors are equal by data type, shape and bits, wherever they lie; maps whatever their order; functions,
// modules and objects of types that nobody described by identity.
// Variables (compare_as(kTVMFFISEqHashKindFreeVar)) stand for one another when they are defined in the same place: once
// matched, two variables stand for each other alone, from there on, in the order of fields (of the entries of a map: in
// the order of the hashes of their keys). Their own fields must be equal too, so names are best ignored. A variable that
// is defined nowhere equals itself alone.
// Equal values have equal hashes. A hash depends on keys of types, fields' order and values only, never on addresses: it
// is the same in every process, on every machine, and stays the same within a major version.
#ifndef PORTCALL_IR_H_
#define PORTCALL_IR_H_

#include <string>
#include <string_view>
#include <utility>

#include "reflection.h"

#ifdef __cplusplus
extern "C" {
#endif

// Flags of comparisons: variables that are defined nowhere are matched where they first occur.
enum { kPortcallMapFreeVariables = 1 };

// What is taken from bytes that nobody vouches for. 0: no limit. Memory is in any case bounded by the input's size.
typedef struct PortcallLoadLimits {
  uint64_t max_nodes;
  uint64_t max_depth;  // objects on the longest way from the root; what contains itself is deeper than any
} PortcallLoadLimits;

PORTCALL_API int PortcallStructuralEqual(const TVMFFIAny* left, const TVMFFIAny* right, int32_t flags, int32_t* equal);
PORTCALL_API int PortcallStructuralHash(const TVMFFIAny* value, int32_t flags, uint64_t* hash);
// None when they are equal, else Array(text, path, left, right, why): where they differ first, in order of fields.
PORTCALL_API int PortcallFirstMismatch(const TVMFFIAny* left, const TVMFFIAny* right, int32_t flags, TVMFFIAny* out);

// indent < 0: one line; else a line a node, indented by that many blanks. `limits` may be NULL.
PORTCALL_API int PortcallSaveJson(const TVMFFIAny* value, int32_t indent, TVMFFIAny* text);
PORTCALL_API int PortcallLoadJson(const TVMFFIByteArray* text, const PortcallLoadLimits* limits, TVMFFIAny* value);
PORTCALL_API int PortcallToBytes(const TVMFFIAny* value, TVMFFIAny* bytes);
PORTCALL_API int PortcallFromBytes(const TVMFFIByteArray* bytes, const PortcallLoadLimits* limits, TVMFFIAny* value);

// Calls visit(object) once for each object of a type (kTVMFFIObject: of any) in the graph, containers, tensors and
// functions being objects too. Before what it holds, where the result false leaves that out; or, post_order, after it.
PORTCALL_API int PortcallWalk(const TVMFFIAny* value, int32_t type_index, int32_t post_order, TVMFFIObjectHandle visit);
// Replaces objects of a type from the leaves up: each by the result of change(object), None meaning the object itself,
// once. What holds a replaced object is made anew; all else stays the very same object.
PORTCALL_API int PortcallRewrite(const TVMFFIAny* value, int32_t type_index, TVMFFIObjectHandle change, TVMFFIAny* out);
// `value` with each value that it holds (field, item, key or value of a map) replaced by change(it), None meaning
// itself; the same object when nothing was.
PORTCALL_API int PortcallMapChildren(const TVMFFIAny* value, TVMFFIObjectHandle change, TVMFFIAny* out);

#ifdef __cplusplus
}  // extern "C"
#endif

namespace portcall::ir {

enum class Order { kPre, kPost };

inline bool StructuralEqual(const Any& left, const Any& right, int32_t flags = 0) {
  int32_t equal = 0;
  Check(PortcallStructuralEqual(&left.cell(), &right.cell(), flags, &equal));
  return equal != 0;
}

inline uint64_t StructuralHash(const Any& value, int32_t flags = 0) {
  uint64_t hash = 0;
  Check(PortcallStructuralHash(&value.cell(), flags, &hash));
  return hash;
}

// "" when they are equal.
inline std::string FirstMismatch(const Any& left, const Any& right, int32_t flags = 0) {
  Any mismatch;
  Check(PortcallFirstMismatch(&left.cell(), &right.cell(), flags, mismatch.out()));
  return mismatch == nullptr ? std::string() : mismatch.cast<Array<Any>>()[0].cast<std::string>();
}

inline std::string SaveJson(const Any& value, int32_t indent = -1) {
  Any text;
  Check(PortcallSaveJson(&value.cell(), indent, text.out()));
  return text.cast<std::string>();
}

inline Any LoadJson(std::string_view text, PortcallLoadLimits limits = {}) {
  TVMFFIByteArray input = ToByteArray(text);
  Any value;
  Check(PortcallLoadJson(&input, &limits, value.out()));
  return value;
}

inline Bytes ToBytes(const Any& value) {
  Any bytes;
  Check(PortcallToBytes(&value.cell(), bytes.out()));
  return bytes.cast<Bytes>();
}

inline Any FromBytes(std::string_view bytes, PortcallLoadLimits limits = {}) {
  TVMFFIByteArray input = ToByteArray(bytes);
  Any value;
  Check(PortcallFromBytes(&input, &limits, value.out()));
  return value;
}

// visit: void(const Ref&), or bool(const Ref&) where false leaves out what the object holds (Order::kPre).
template <typename Ref = ObjectRef, typename F> void Walk(const Any& value, Order order, F visit) {
  PackedFunc body([&visit](Args args, RetValue* rv) {
    Ref node = args[0];
    if constexpr (std::is_same_v<decltype(visit(node)), bool>) *rv = visit(node);
    else visit(node);
  });
  Check(PortcallWalk(&value.cell(), TypeIndexOf<typename Ref::Node>(), order == Order::kPost, body.get()));
}

// change: Any(const Ref&).
template <typename Ref = ObjectRef, typename F> Any Rewrite(const Any& value, F change) {
  PackedFunc body([&change](Args args, RetValue* rv) { *rv = change(args[0].template cast<Ref>()); });
  Any out;
  Check(PortcallRewrite(&value.cell(), TypeIndexOf<typename Ref::Node>(), body.get(), out.out()));
  return out;
}

// change: Any(const Any&).
template <typename F> Any MapChildren(const Any& value, F change) {
  PackedFunc body([&change](Args args, RetValue* rv) { *rv = change(args[0].template cast<Any>()); });
  Any out;
  Check(PortcallMapChildren(&value.cell(), body.get(), out.out()));
  return out;
}

}  // namespace portcall::ir
#endif  // PORTCALL_IR_H_
