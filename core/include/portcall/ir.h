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
// modules and objects of types without a description by identity.
// Variables (compare_as(kTVMFFISEqHashKindFreeVar)) stand for one another when they are defined in the same place: once
// matched, two variables stand for each other alone, from there on, in the order of fields (of the entries of a map: in
// the order of the hashes of their keys). Their own fields must be equal too, so names are best ignored. A variable that
// is defined nowhere equals itself alone.
// Equal values have equal hashes. A hash depends on keys of types, fields' order and values only, never on addresses: it
// is the same in every process, on every machine, and stays the same within a major version.
#ifndef PORTCALL_IR_H_
#define PORTCALL_IR_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "reflection.h"

// Another name of libportcall_ir's version. The loader and the linker see from it that a library needs libportcall_ir.
extern "C" PORTCALL_API const char* PortcallIrVersion(void);

namespace portcall::ir {

// Limits for input that may be hostile; 0 means no limit. Memory is in any case bounded by the size of the input.
struct LoadLimits {
  uint64_t max_nodes = 0;
  uint64_t max_depth = 0;  // objects on the longest way from the root; what contains itself is deeper than any
};

enum class Order { kPre, kPost };

namespace operations {
// Every operation is a global function of libportcall_ir. The functions below give it a C++ type.
template <typename... A> Any Call(const char* name, A&&... args) {
  PackedFunc func = Registry::Get(name);
  PORTCALL_CHECK(func.defined(), RuntimeError) << "'" << name << "' is not in libportcall_ir " << PortcallIrVersion();
  return func(std::forward<A>(args)...);
}
template <typename Ref> String KeyOf() { return TypeKeyOf(TypeIndexOf<typename Ref::NodeClass>()); }
}  // namespace operations

// map_free_variables: variables that are defined nowhere are matched where they first occur.
inline bool StructuralEqual(const Any& left, const Any& right, bool map_free_variables = false) {
  return operations::Call("portcall.ir.StructuralEqual", left, right, map_free_variables).cast<bool>();
}

inline uint64_t StructuralHash(const Any& value, bool map_free_variables = false) {
  return static_cast<uint64_t>(
      operations::Call("portcall.ir.StructuralHash", value, map_free_variables).cast<int64_t>());
}

// Where they differ first, in order of fields; "" when they are equal.
inline std::string FirstMismatch(const Any& left, const Any& right, bool map_free_variables = false) {
  Any mismatch = operations::Call("portcall.ir.FirstMismatch", left, right, map_free_variables);
  return mismatch == nullptr ? std::string() : mismatch.cast<Array<Any>>()[0].cast<std::string>();
}

// indent: none for one line; else a line for each node, indented by that many blanks.
inline std::string SaveJson(const Any& value, std::optional<int> indent = std::nullopt) {
  return operations::Call("portcall.ir.SaveJson", value, indent).cast<std::string>();
}

inline Any LoadJson(std::string_view text, LoadLimits limits = {}) {
  return operations::Call("portcall.ir.LoadJson", String(text), limits.max_nodes, limits.max_depth);
}

inline Bytes ToBytes(const Any& value) { return operations::Call("portcall.ir.ToBytes", value).cast<Bytes>(); }

inline Any FromBytes(std::string_view bytes, LoadLimits limits = {}) {
  return operations::Call("portcall.ir.FromBytes", Bytes(bytes), limits.max_nodes, limits.max_depth);
}

// Calls visit once for each object of the type in the graph, containers, tensors and functions being objects too.
// visit: void(const Ref&), or bool(const Ref&), where false leaves out what the object holds (Order::kPre).
template <typename Ref = ObjectRef, typename F> void Walk(const Any& value, Order order, F visit) {
  PackedFunc body([&visit](Args args, RetValue* rv) {
    Ref node = args[0];
    if constexpr (std::is_same_v<decltype(visit(node)), bool>) *rv = visit(node);
    else visit(node);
  });
  operations::Call("portcall.ir.Walk", value, operations::KeyOf<Ref>(), order == Order::kPost, body);
}

// Replaces objects of the type from the leaves up: each by the result of change(object), None meaning the object itself,
// once. An object that holds a replaced one is copied; all else stays the very same object. change: Any(const Ref&).
template <typename Ref = ObjectRef, typename F> Any Rewrite(const Any& value, F change) {
  PackedFunc body([&change](Args args, RetValue* rv) { *rv = change(args[0].template cast<Ref>()); });
  return operations::Call("portcall.ir.Rewrite", value, operations::KeyOf<Ref>(), body);
}

// The value with each value that it holds (field, item, key or value of a map) replaced by change(it), None meaning
// itself; the same object when nothing was replaced. change: Any(const Any&).
template <typename F> Any MapChildren(const Any& value, F change) {
  PackedFunc body([&change](Args args, RetValue* rv) { *rv = change(args[0].template cast<Any>()); });
  return operations::Call("portcall.ir.MapChildren", value, body);
}

}  // namespace portcall::ir
#endif  // PORTCALL_IR_H_
