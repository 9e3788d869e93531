# SPDX-License-Identifier: Apache-2.0
"""Uses a library with its own class of modules: ``python foreign_modules.py LIBRARY FLAG``, one it was made with."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import portcall


def raised(body: Callable[[], Any]) -> type[BaseException] | None:
    try:
        body()
    except Exception as error:
        return type(error)
    return None


path, flag = sys.argv[1:]
early = portcall.Module.from_functions({"twice": lambda x: 2 * x, "fail": lambda x: 1 / x})
lib = portcall.load_module(path, foreign="adopt" if flag == "-ltvm_ffi" else None)

counter = lib["make"](5)
assert (type(counter), counter.kind, counter.is_runnable()) == (portcall.Module, "counter", True)
assert (counter["add"](3), counter.add(4), "add" in counter, "other" in counter) == (8, 12, True, False)
assert raised(lambda: counter["other"]) is portcall.errors.FunctionNotFoundError
assert raised(lambda: counter["fail"]) is ValueError
assert counter.get_source("text") == lib["source_of"](counter) == "a counter as text"
assert list(lib["facts_of"](counter)) == [2, True, None, None, 0]
assert raised(lambda: lib["to_bytes"](counter)) is RuntimeError
assert counter.time_evaluator("add", "cpu", number=2, repeat=1)(1).mean >= 0

counter.import_module(early)
assert raised(lambda: counter.import_module(None)) is TypeError
assert counter.imported_modules == list(lib["imports_of"](counter)) == [early]
assert counter.get_function("twice", query_imports=True)(21) == 42
assert (lib["call"](counter, "twice", 4), lib["call_deep"](counter, "twice", 4)) == (None, 8)
for into in counter.import_module, lambda other: lib["import_into"](counter, other):
    assert raised(lambda into=into: into(counter)) is ValueError

later = portcall.Module.from_functions({"twice": lambda x: 2 * x})
for module in early, later:
    assert (lib["kind_of"](module), lib["call"](module, "twice", 5)) == ("functions", 10)
    assert list(lib["facts_of"](module)) == [2, False, None, None, 0]
assert lib["kind_of"](lib) == "library"
assert raised(lambda: lib["call"](early, "fail", 0)) is ZeroDivisionError
assert raised(lambda: lib["source_of"](early)) is ValueError
assert raised(lambda: lib["import_into"](early, counter)) is ValueError
lib["import_into"](later, counter)
assert later.imported_modules == list(lib["imports_of"](later)) == [counter]
assert later.get_function("add", query_imports=True)(1) > 0
lib["clear_imports_of"](later)
counter.clear_imports()
assert later.imported_modules == counter.imported_modules == list(lib["imports_of"](counter)) == []
lib["import_into"](counter, later)
lib["clear_imports_of"](counter)
assert counter.imported_modules == []

assert lib["load"](path) == lib
brought = lib.imported_modules
assert [module.kind for module in brought] == (["counter"] if flag == "-DEMBEDDED" else [])
if brought:
    assert (lib["count"](2), lib["count"](2)) == (5, 7)
assert lib["alive"]() == 1 + len(brought)
counter = module = into = None
gc.collect()
assert lib["alive"]() == len(brought)
print("done")
