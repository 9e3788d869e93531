# SPDX-License-Identifier: Apache-2.0
"""Use a library on portcall's headers in one runtime: ``anywhere.py RUNTIME LIBRARY``; prints what it answers."""

from __future__ import annotations

import importlib
import sys

runtime = importlib.import_module(sys.argv[1])
ours = runtime.__name__ == "portcall"
lib = runtime.load_module(sys.argv[2])


def refused(name: str, *args: object) -> str:
    try:
        return repr(lib[name](*args))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0].split(": load")[0]


assert lib["add"](2, 3) == 5
assert lib["adder"](2)(3) == 5
assert tuple(lib["shape"](3)) == (3, 2)
assert lib["call"]("portcall_test.anywhere.plus_one", 4) == 5
assert lib["remove"]("portcall_test.anywhere.plus_one")
assert not lib["remove"]("portcall_test.anywhere.plus_one")
assert list(lib["array"]([1, 2, 3])) == [-1, 3, 7]
items = runtime.List([1, "a"])
assert list(lib["list"](items)) == list(items) == ["a", "seven"]
for n in (2, 3, 4, 5, 6, 50):
    want = {f"a key of text {i}": i for i in range(1, n)} | {"sum": n * (n - 1) // 2}
    assert dict(lib["map"](n).items()) == dict(lib["dict"](n).items()) == want, n
tensor = lib["ones"](3)
assert tuple(tensor.shape) == (3, 2)
pair = lib["pair"]()
assert (pair.left, pair.right) == (1, 2)
assert refused("fail", "no") == "ValueError: no"
assert refused("add", 1) == "TypeError: add(): expected 2 arguments, got 1" or ours
print(refused("device"))
