# SPDX-License-Identifier: Apache-2.0
"""Hand-written C libraries: the classic ABI, and the corners of the modern one that no code generator emits.

Rules: ``python c_kernels.py OUTDIR [NAME...]``; one C source may make several libraries, by macro.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import _build

SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """How one library is made from one C source."""

    source: str
    functions: dict[str, str]
    notes: str
    macro: str | None = None


CLASSIC = {
    "add_one": "(A: float32[n], B: float32[n]): B = A + 1",
    "invert": "(A: bool[n], B: bool[n]): B = not A",
    "add_int": "(x: int, y: int) -> int: x + y",
    "half": "(x: float) -> float: x / 2; an int is refused",
    "string_length": "(text: str) -> int: its length in bytes",
    "first_code": "(*args) -> int: the classic type code of the first argument, -1 without arguments",
    "log_value": "(x: int, y: float) -> any: portcall_test.log_value(x, y, 'a string literal')",
    "call_missing": "(): portcall_test.never_registered(), which nobody registers",
    "apply": "(f: function, *args) -> any: f(*args)",
    "double_parallel": "(A: float32[n], B: float32[n]): B = A * 2; 'ValueError: negative element'",
    "reverse_twice": "(A: float32[n], B: float32[n]): B = A, through workspace, parallel launch and barrier",
    "fail_with": "(text: str): fails with that text as the last error",
    "fail_silently": "(): fails without a last error",
}
MODERN = {
    "answer": "() -> int: 42",
    "greeting": "() -> str: 'hi', a small string",
    "first_index": "(*args) -> int: the type index of the first argument, -1 without arguments",
    "handle_is_null": "() -> int: 1 if called with a NULL handle",
    "context_is_set": "() -> int: 1 if the loader has filled the library context",
    "call_import": "(*args) -> any: portcall_test.from_import(*args) of an import, or else the global one",
    "fail_silently": "(): fails without an error",
}
RECIPES = {
    "classic": Recipe("classic_kernels.c", CLASSIC, "0.7 to 0.20; its __tvm_main__ names add_one"),
    "classic_blob": Recipe(
        "classic_kernels.c", CLASSIC, "its blob holds _lib and _import_tree only", "CLASSIC_BLOB_LIB"
    ),
    "classic_unknown_blob": Recipe(
        "classic_kernels.c",
        CLASSIC,
        "its blob holds a module of kind portcall_unknown_kind, which nobody can skip",
        "CLASSIC_BLOB_UNKNOWN",
    ),
    "classic06": Recipe(
        "classic06_kernels.c",
        {"add_one": CLASSIC["add_one"]},
        "0.6: functions of three arguments; its __tvm_main__ names add_one",
    ),
    "modern": Recipe("modern_kernels.c", MODERN, "no blob, no __tvm_ffi_main, no undefined TVM symbols"),
    "unknown_blob": Recipe(
        "modern_kernels.c",
        MODERN,
        "its blob imports a module of kind portcall_unknown_kind with payload b'payload'",
        "MODERN_BLOB_UNKNOWN",
    ),
    "corrupt_blob": Recipe(
        "modern_kernels.c", MODERN, "a payload length in its blob goes beyond the blob", "MODERN_BLOB_CORRUPT"
    ),
}


def build(name: str, outdir: Path) -> _build.Library:
    """Compile one recipe to ``OUTDIR/<name>.so``."""
    recipe = RECIPES[name]
    output = outdir / f"{name}.so"
    macros = [f"-D{recipe.macro}"] if recipe.macro else []
    flags = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", _build.LAZY)
    _build.run_compiler(_build.CC, *flags, *macros, SOURCES / recipe.source, "-o", output)
    return _build.Library(output.name, recipe.functions, recipe.notes)


if __name__ == "__main__":
    _build.main(dict.fromkeys(RECIPES, build), sys.argv[1:])
