# SPDX-License-Identifier: Apache-2.0
"""The types of kernels/tvm_ffi_described.cc: arguments go where they belong, copies keep what fields do not show.

Usage: described_types.py LIBRARY. A process of its own for each release of the headers: the keys are the same.
"""

import copy
import pickle
import sys

import portcall

lib = portcall.load_module(sys.argv[1])
assert lib.list_function_names() == []
assert "described.make_opaque" in lib.registered, lib.registered
assert "described.Range" in lib.registered, lib.registered
assert "described.make_opaque" in repr(lib)

classes = {name: portcall.ir.get_object_class(f"described.{name}") for name in ("Mixed", "Derived", "Range", "Handle")}
for cls in classes["Mixed"], classes["Derived"]:
    made = cls(1, 2)
    assert (made.value, made.scale) == (1, 2), made
    made = cls(5)
    assert (made.value, made.scale) == (5, 7), made
    made.hide(9)
    for copied in copy.copy(made), copy.deepcopy(made), made.replace(value=6):
        assert copied.hidden() == 9
    assert (made.replace(value=6).value, made.value) == (6, 5)

wide = classes["Range"](5, 2)
assert (wide.low, wide.high, wide.width) == (2, 5, 3), wide
for copied in copy.copy(wide), copy.deepcopy(wide), wide.replace(width=0):
    assert (copied.low, copied.high) == (2, 5)

opaque = portcall.get_global_func("described.make_opaque")(42)
number_of = portcall.get_global_func("described.number_of")
for same in opaque, copy.copy(opaque), copy.deepcopy(opaque):
    assert number_of(same) == 42

handle = portcall.get_global_func("described.make_handle")()
for copier in copy.copy, copy.deepcopy, lambda obj: obj.replace(number=1):
    try:
        copier(handle)
    except TypeError:
        continue
    raise AssertionError(copier)
# Without a default constructor: made of the first fields where the constructor takes those, refused where it does not.
for load, save in (pickle.loads, pickle.dumps), (portcall.ir.load_json, portcall.ir.save_json):
    again = load(save([wide, wide.replace(width=9)]))
    assert [(each.low, each.high, each.width) for each in again] == [(2, 5, 3), (2, 5, 9)]
    try:
        save(portcall.ir.get_object_class("described.Swapped")(2, 5))
    except TypeError:
        continue
    raise AssertionError(save)

scaler = portcall.get_global_func("described.make_scaler")()
assert (scaler.twice(2), scaler.twice("ab"), scaler.same(1), scaler.same("a")) == (4, "abab", 1, "a")
if sys.argv[2:] == ["overloads"]:  # as releases since 0.1.15 describe them
    for name, own in ("twice", 1), ("same", 0):
        method = getattr(type(scaler), name)
        assert [str(each.return_annotation) for each in method.__signatures__] == ["int", "String"]
        assert [len(each.parameters) for each in method.__signatures__] == [1 + own] * 2
        assert all(f"{name}{each}" in method.__doc__ for each in method.__signatures__)
print("done")
