# SPDX-License-Identifier: Apache-2.0
"""Call a function written in one language from any other, on this machine or on a device across a wire.

    lib = portcall.load_module("kernels.so")      # compiled by any tvm-ffi or TVM compiler, by cc, by zig
    lib["add_one"](x, y)                          # x, y: anything that speaks DLPack

Subpackages (``portcall.rpc``, ``portcall.graph``, ``portcall.bench``, …) and what concerns objects load on first use,
and so does NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from portcall import errors as errors
from portcall._container import Array as Array
from portcall._container import Dict as Dict
from portcall._container import List as List
from portcall._container import Map as Map
from portcall._container import Shape as Shape
from portcall._core import In as In
from portcall._core import Object as Object
from portcall._core import PackedFunc as PackedFunc
from portcall._core import __version__ as __version__
from portcall._device import Device as Device
from portcall._device import cpu as cpu
from portcall._device import cuda as cuda
from portcall._device import device as device
from portcall._dtype import DataType as DataType
from portcall._dtype import dtype as dtype
from portcall._function import convert as convert
from portcall._function import get_global_func as get_global_func
from portcall._function import list_global_func_names as list_global_func_names
from portcall._function import register_error as register_error
from portcall._function import register_func as register_func
from portcall._function import remove_global_func as remove_global_func
from portcall._module import Module as Module
from portcall._module import load_module as load_module
from portcall._module import system_lib as system_lib
from portcall._tensor import Tensor as Tensor
from portcall._tensor import alignment_copies as alignment_copies
from portcall._tensor import empty as empty
from portcall._tensor import from_dlpack as from_dlpack
from portcall._tensor import set_alignment_policy as set_alignment_policy
from portcall._tensor import tensor as tensor

if TYPE_CHECKING:
    from portcall import bench as bench
    from portcall import graph as graph
    from portcall import preflight as preflight
    from portcall import rpc as rpc
    from portcall import testing as testing
    from portcall import toolchain as toolchain
    from portcall._enum import Enum as Enum
    from portcall._enum import IntEnum as IntEnum
    from portcall._enum import StrEnum as StrEnum
    from portcall._ir import Mismatch as Mismatch
    from portcall._ir import first_mismatch as first_mismatch
    from portcall._ir import from_bytes as from_bytes
    from portcall._ir import load_json as load_json
    from portcall._ir import map_children as map_children
    from portcall._ir import rewrite as rewrite
    from portcall._ir import save_json as save_json
    from portcall._ir import structural_equal as structural_equal
    from portcall._ir import structural_hash as structural_hash
    from portcall._ir import to_bytes as to_bytes
    from portcall._ir import visit as visit
    from portcall._ir import walk as walk
    from portcall._object import field as field
    from portcall._object import fields as fields
    from portcall._object import object_class as object_class
    from portcall._object import register_object as register_object
    from portcall._object import register_value_type as register_value_type
    from portcall._passes import Pass as Pass
    from portcall._passes import PassContext as PassContext
    from portcall._passes import PassTiming as PassTiming
    from portcall._passes import Sequential as Sequential
    from portcall._passes import register_pass as register_pass
    from portcall._printing import show as show

_SUBPACKAGES = ("bench", "graph", "preflight", "rpc", "testing", "toolchain")
_OBJECTS = {
    "_enum": ("Enum", "IntEnum", "StrEnum"),
    "_ir": (
        "Mismatch", "first_mismatch", "from_bytes", "load_json", "map_children", "rewrite", "save_json",
        "structural_equal", "structural_hash", "to_bytes", "visit", "walk",
    ),
    "_object": ("field", "fields", "object_class", "register_object", "register_value_type"),
    "_passes": ("Pass", "PassContext", "PassTiming", "Sequential", "register_pass"),
    "_printing": ("show",),
}  # fmt: skip


# Names of TVM's package that this one does not have, and what to write instead.
_COMPILER = "portcall compiles no models: compile with TVM, and load the library with portcall.load_module(path)"
_OF_TVM = {
    **dict.fromkeys(("graph_executor", "graph_runtime"), "portcall.graph.create(json, lib, device) makes an executor"),
    "debug_executor": "portcall.graph.create_debug(json, lib, device) makes one",
    **dict.fromkeys(("nd", "ndarray"), "portcall.tensor(array), portcall.empty(shape, dtype) and portcall.Tensor"),
    "NDArray": "its class is portcall.Tensor",
    **dict.fromkeys(("runtime", "ffi"), "what that has is in portcall itself: portcall.load_module, portcall.Module"),
    "contrib": "compilers are portcall.toolchain.create_shared, executors portcall.graph.create",
    "cc": "portcall.toolchain.create_shared(sources, output)",
    **dict.fromkeys(("context", "gpu"), "portcall.device('cuda:0') is a device"),
    "register_global_func": "portcall.register_func(name, func)",
    **dict.fromkeys(("save_param_dict", "load_param_dict"), "portcall.graph.save_params and load_params"),
    **dict.fromkeys(("transform", "ir"), "passes are portcall.register_pass and portcall.Sequential"),
    **dict.fromkeys(("build", "target", "relay", "relax", "te", "tir", "topi", "autotvm", "micro"), _COMPILER),
}


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"portcall.{name}")
    for module, names in _OBJECTS.items():
        if name in names:
            return getattr(importlib.import_module(f"portcall.{module}"), name)
    hint = f" as TVM has; {_OF_TVM[name]}" if name in _OF_TVM else ""
    raise AttributeError(f"module 'portcall' has no attribute {name!r}{hint}", name=name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBPACKAGES, *(name for names in _OBJECTS.values() for name in names)])
