# SPDX-License-Identifier: Apache-2.0
"""C++ libraries on apache-tvm-ffi's headers, each linked with that package's library and without.

Rules: run in a process of its own (``python tvm_ffi_kernels.py OUTDIR [NAME...]``), because finding the
headers imports the package; a source is compiled once and linked twice; no run path is set, as that package
sets none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import _build
from tvm_ffi import libinfo

SOURCES = Path(__file__).parent
UNLINKED = "undefined TVMFFI symbols and no DT_NEEDED on libtvm_ffi.so: the loader provides them"
LINKED = "DT_NEEDED on libtvm_ffi.so, without a run path"

KERNELS = {
    "add_int": "(x: int, y: int) -> int: x + y",
    "add_float": "(x: float, y: float) -> float: x + y; ints are converted",
    "logical_not": "(flag: bool) -> bool: not flag",
    "echo": "(value: any) -> any: value",
    "concat": "(left: str, right: str) -> str: left + right",
    "reversed": "(data: bytes) -> bytes: data reversed",
    "positive_or_none": "(x: int) -> int | None: x if x > 0 else None",
    "sum_array": "(values: Array[int]) -> int: their sum",
    "array_of_kinds": "() -> Array: [1, 2.5, 'a string object', None, True]",
    "doubled": "(map: Map[str, int]) -> Map[str, int]: every value times 2",
    "shape_product": "(shape: Shape) -> int: the product of its dimensions",
    "dtype_of": "(tensor) -> dtype",
    "device_of": "(tensor) -> device",
    "apply": "(function, value: any) -> any: function(value)",
    "make_adder": "(amount: int) -> function: x -> x + amount",
    "add_one": "(x: float32[n], y: float32[n]): y = x + 1; ValueError or TypeError for other tensors",
    "same_tensor": "(tensor) -> tensor: the same object",
    "stream_of": "(tensor) -> int: the current stream of its device, 0 if none was set",
    "raise": "(kind: str, message: str): raises an error of that kind",
    "raise_value_error": "(x: int): ValueError 'x is <x>, which is wrong'",
    "raise_standard_exception": "(message: str): throws std::runtime_error, which arrives as InternalError",
    "catch_kind": "(function) -> str: the kind of the error that function() raises, or 'none'",
    "interrupted": "(): gets SIGINT, then asks for signals",
    "call_global": "(name: str, value: any) -> any: the global function's result",
}
ALLOC = {
    "ramp": "(size: int) -> float32[size]: 0, 1, 2, ...; RuntimeError if no tensor allocator is set",
    "ones_like": "(tensor) -> float32 tensor of that shape: ones, allocated by the caller's framework",
}
OBJECTS = {
    "make_point": "(x: int, y: int) -> portcall_test.Point",
    "point_sum": "(point: portcall_test.Point) -> int: x + y",
    "live_points": "() -> int: how many points are alive",
}
CONTAINERS = {
    "map_pairs, dict_pairs": "(map) -> Array: keys and values in turn, each value looked up by its key too",
    "nested_pairs": "(Array of maps) -> Array: the same of each",
    "make_map, make_dict, make_list": "(Array) -> Map, Dict, List: of keys and values in turn, of items",
    "map_set, map_erase, map_clear": "(map, …) -> the changed map",
    "map_get": "(map, key) -> value or None",
    "typed_sum": "(map: Map[str, int]) -> int",
    "dict_…, list_…": "change it in place, as the methods of that name do",
    "pairs_of_result": "(function) -> Array: of the map that function() gives",
    "give_map": "(function, pairs: Array) -> any: function(map)",
}
HOOKS = {
    "sum_integers": "(root: any) -> int: the sum of the integers in a graph; 'stopped' at the first negative one",
    "increment": "(root: any) -> any: the graph with every integer one larger",
    "make_secret": "() -> hooks.Secret: a type without a constructor",
    "make_handle": "() -> hooks.Handle: a type whose objects cannot be copied",
    "color_of": "(name: str) -> hooks.Color: an entry of an enum",
    "level_of": "(number: int) -> hooks.Level: an entry of an enum of integers",
    "read_enum": "(entry) -> Array: its number and its name",
}
LIBRARIES = {
    "tvm_ffi_kernels": ("tvm_ffi_kernels.cc", KERNELS),
    "tvm_ffi_alloc": ("tvm_ffi_alloc.cc", ALLOC),
    "tvm_ffi_objects": ("tvm_ffi_objects.cc", OBJECTS),
    "tvm_ffi_containers": ("tvm_ffi_containers.cc", CONTAINERS),
    "tvm_ffi_hooks": ("tvm_ffi_hooks.cc", HOOKS),
}
FLAVOURS = {"linked": LINKED, "unlinked": UNLINKED}


def compile_object(source: str, outdir: Path) -> Path:
    """Compile ``source`` to an object file in ``outdir``, or return the one that is there."""
    target = outdir / Path(source).with_suffix(".o")
    if not target.exists():
        includes = [f"-I{path}" for path in libinfo.include_paths()]
        flags = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", *includes)
        _build.run_compiler(_build.CXX, *flags, "-c", SOURCES / source, "-o", target)
    return target


def build(name: str, outdir: Path) -> _build.Library:
    """Link one flavour of one library, ``<library>_linked`` or ``<library>_unlinked``."""
    library, flavour = name.rsplit("_", 1)
    source, functions = LIBRARIES[library]
    objects = [compile_object(source, outdir)]
    with_package = [f"-L{Path(libinfo.find_libtvm_ffi()).parent}", "-ltvm_ffi"] if flavour == "linked" else []
    output = outdir / f"{name}.so"
    _build.run_compiler(_build.CXX, "-shared", _build.LAZY, *objects, *with_package, "-o", output)
    return _build.Library(output.name, functions, FLAVOURS[flavour])


BUILDERS = {f"{library}_{flavour}": build for library in LIBRARIES for flavour in FLAVOURS}

if __name__ == "__main__":
    _build.main(BUILDERS, sys.argv[1:])
