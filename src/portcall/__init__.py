# SPDX-License-Identifier: Apache-2.0
"""Call a function written in one language from any other, on this machine or on a device across a wire::

    lib = portcall.load_module("kernels.so")      # compiled by any tvm-ffi or TVM compiler, by cc, by zig
    lib.add_one(x, y)                             # x, y: anything that speaks DLPack

Subpackages (``portcall.rpc``, ``portcall.graph``, ``portcall.ir``, …) and NumPy load on first use.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from portcall import _installation as _installation  # it says what is wrong where the rest cannot be loaded

# isort: split
from portcall import _core, errors
from portcall._container import Array, Dict, List, Map, Shape
from portcall._core import Object, PackedFunc, ReadOnly, __version__
from portcall._device import Device, cpu, cuda, device, opencl
from portcall._dtype import DataType, dtype
from portcall._function import (
    convert,
    get_global_func,
    get_global_func_metadata,
    list_global_func_names,
    register_error,
    register_func,
    remove_global_func,
)
from portcall._module import GRAPH_KINDS, Module, load_module, load_plugin, system_lib, time_evaluator
from portcall._renamed import no_attribute as _no_attribute
from portcall._stream import Event, Stream
from portcall._tensor import Tensor, alignment_copy_stats, empty, from_dlpack, set_alignment_policy, tensor

if TYPE_CHECKING:
    from portcall import bench as bench
    from portcall import board as board
    from portcall import compile as compile
    from portcall import deploy as deploy
    from portcall import farm as farm
    from portcall import graph as graph
    from portcall import inspect as inspect
    from portcall import ir as ir
    from portcall import rpc as rpc
    from portcall import testing as testing
    from portcall import toolchain as toolchain
    from portcall import tvm_ffi as tvm_ffi
    from portcall import vm as vm
    from portcall._future import Future
    from portcall.ir._annotations import field
    from portcall.ir._classes import register_object

__all__ = [
    "Array",
    "DataType",
    "Device",
    "Dict",
    "Event",
    "Future",
    "List",
    "Map",
    "Module",
    "Object",
    "PackedFunc",
    "ReadOnly",
    "Shape",
    "Stream",
    "Tensor",
    "__version__",
    "alignment_copy_stats",
    "convert",
    "cpu",
    "cuda",
    "device",
    "dtype",
    "empty",
    "errors",
    "field",
    "from_dlpack",
    "get_global_func",
    "get_global_func_metadata",
    "list_global_func_names",
    "load_module",
    "load_plugin",
    "opencl",
    "register_error",
    "register_func",
    "register_object",
    "remove_global_func",
    "set_alignment_policy",
    "system_lib",
    "tensor",
    "time_evaluator",
]

# These load on first use: subpackages, and names that few programs need.
_SUBPACKAGES = {
    "bench": "portcall.bench",
    "board": "portcall.board",
    "compile": "portcall.compile",
    "deploy": "portcall.deploy",
    "farm": "portcall.farm",
    "graph": "portcall.graph",
    "inspect": "portcall.inspect",
    "ir": "portcall.ir",
    "rpc": "portcall.rpc",
    "testing": "portcall.testing",
    "toolchain": "portcall.toolchain",
    "tvm_ffi": "portcall.tvm_ffi",
    "vm": "portcall.vm",
}
_NAMES = {
    "Future": "portcall._future",
    "field": "portcall.ir._annotations",
    "register_object": "portcall.ir._classes",
}


def _later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that loads ``module`` when it is called, and calls ``name`` there."""

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args)

    return call


# What lower layers call of upper ones.
_core.provide(
    await_call=_later("portcall._future", "await_call"),
    class_of_type=_later("portcall.ir._classes", "class_of_type"),
    deep_copy=_later("portcall.ir._operations", "deep_copy"),
    reduce=_later("portcall.ir._operations", "reduce"),
    name_lost=_later("portcall.rpc.client._session", "name_lost"),
    remote_caller=_later("portcall.rpc.client._session", "remote_caller"),
    remote_signature=_later("portcall.rpc.client._session", "remote_signature"),
    map_calls=_later("portcall._future", "map_calls"),
    start_call=_later("portcall._future", "start_call"),
)
register_func("portcall.FindPlugin", _later("portcall._plugins", "find_plugin"), override=True)
register_func("portcall.FindNvidiaFolders", _later("portcall._plugins", "find_nvidia_folders"), override=True)
for _kind in GRAPH_KINDS:  # modules with a graph, which compilers embed in libraries with the kernels
    register_func(f"ffi.Module.load_from_bytes.{_kind}", _later("portcall.graph._factory", "from_bytes"), override=True)
del _kind

# Names that this package had, or that users of TVM and tvm-ffi try; and what to write instead.
_COMPILER = (
    "models are compiled by portcall.compile.onnx(path), or with TVM, whose libraries portcall.load_module loads"
)
_INSTEAD = {
    "In": "it is portcall.ReadOnly(array)",
    "show": "portcall.ir.show(obj) prints an object, print(module) the functions of a module",
    **{name: f"portcall.ir.{name}(…)" for name in ("structural_equal", "structural_hash")},
    "get_first_structural_mismatch": "portcall.ir.first_mismatch(left, right)",
    "connect_tracker": "portcall.farm.connect(address)",
    **dict.fromkeys(("metal", "vulkan", "rocm", "hexagon"), "portcall.device('vulkan:0') is a device of another kind"),
    "cpp": "portcall.toolchain.create_shared(sources, output) compiles C++",
    **dict.fromkeys(("init_ffi_api", "init_object"), "portcall.get_global_func(name) is one function of the registry"),
    "Function": "its class is portcall.PackedFunc",
    **dict.fromkeys(("graph_executor", "graph_runtime"), "portcall.graph.create(json, lib, device) makes an executor"),
    "debug_executor": "portcall.graph.create_debug(json, lib, device) makes one",
    **dict.fromkeys(("nd", "ndarray"), "portcall.tensor(array), portcall.empty(shape, dtype) and portcall.Tensor"),
    "NDArray": "its class is portcall.Tensor",
    **dict.fromkeys(("runtime", "ffi"), "use portcall.load_module and portcall.Module"),
    "contrib": "compilers are portcall.toolchain.create_shared, executors portcall.graph.create",
    "cc": "portcall.toolchain.create_shared(sources, output)",
    **dict.fromkeys(("context", "gpu"), "portcall.device('cuda:0') is a device"),
    "register_global_func": "portcall.register_func(name, func)",
    **dict.fromkeys(("save_param_dict", "load_param_dict"), "portcall.graph.save_params and load_params"),
    **dict.fromkeys(("transform", "ir"), "passes are portcall.ir.register_pass and portcall.ir.Sequential"),
    "relax": "portcall.vm.create(lib, device) runs what it compiled; " + _COMPILER,
    **dict.fromkeys(("build", "target", "relay", "te", "tir", "topi", "autotvm", "micro"), _COMPILER),
}


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(_SUBPACKAGES[name])
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise _no_attribute("portcall", name, _INSTEAD)


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBPACKAGES, *(name for name in globals() if name.startswith("__"))})
