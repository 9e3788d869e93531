# SPDX-License-Identifier: Apache-2.0
"""portcall under the names of ``tvm_ffi``, for packages that import those::

    python -m portcall.tvm_ffi script.py        # the script, and all that it imports, get this module as tvm_ffi
    portcall.tvm_ffi.install()                  # the same from inside, before the first import of tvm_ffi

It renames and does nothing else; docs/coming-from-tvm-ffi.md says what behaves differently. Unless asked as above,
``import tvm_ffi`` gives what is installed under that name.
"""

from __future__ import annotations

import ctypes
import enum
import sys
from pathlib import Path
from typing import Any

from portcall._container import Array, Dict, List, Map, Shape
from portcall._core import Object
from portcall._core import PackedFunc as Function
from portcall._device import Device, device
from portcall._dtype import dtype
from portcall._function import (
    convert,
    get_global_func,
    list_global_func_names,
    register_error,
    remove_global_func,
)
from portcall._function import register_func as register_global_func
from portcall._module import IR_LIBRARY, Module, system_lib
from portcall._renamed import no_attribute
from portcall._tensor import Tensor, from_dlpack
from portcall.ir._classes import register_object
from portcall.ir._operations import first_mismatch as get_first_structural_mismatch
from portcall.ir._operations import structural_equal, structural_hash
from portcall.tvm_ffi import libinfo
from portcall.tvm_ffi._load import load_module

__all__ = [
    "Array",
    "DLDeviceType",
    "Device",
    "Dict",
    "Function",
    "List",
    "Map",
    "Module",
    "Object",
    "Shape",
    "Tensor",
    "__version__",
    "convert",
    "device",
    "dtype",
    "from_dlpack",
    "get_first_structural_mismatch",
    "get_global_func",
    "init_ffi_api",
    "install",
    "load_module",
    "register_error",
    "register_global_func",
    "register_object",
    "remove_global_func",
    "structural_equal",
    "structural_hash",
    "system_lib",
]


class DLDeviceType(enum.IntEnum):
    """Kinds of devices, as DLPack numbers them."""

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLOpenCL = 4
    kDLVulkan = 7
    kDLMetal = 8
    kDLVPI = 9
    kDLROCM = 10
    kDLROCMHost = 11
    kDLExtDev = 12
    kDLCUDAManaged = 13
    kDLOneAPI = 14
    kDLWebGPU = 15
    kDLHexagon = 16
    kDLMAIA = 17
    kDLTrn = 18


def _abi_version() -> str:
    numbers = (ctypes.c_uint32 * 3)()
    ctypes.CDLL(str(IR_LIBRARY.with_name("libportcall.so"))).TVMFFIGetVersion(numbers)
    return ".".join(map(str, numbers))


__version__ = _abi_version()  # of tvm-ffi's ABI that portcall follows


def init_ffi_api(namespace: str, target_module_name: str | None = None) -> None:
    """Make the global functions of a namespace attributes of a Python module, by default the one of that name."""
    target = sys.modules[target_module_name or namespace]
    prefix = namespace.removeprefix("tvm.") + "."
    for name in list_global_func_names():
        rest = name.removeprefix(prefix)
        if rest != name and "." not in rest:
            setattr(target, rest, get_global_func(name))


def install() -> None:
    """Let ``import tvm_ffi`` give this module, in this process.

    Raises:
        ImportError: another ``tvm_ffi`` is imported already.
    """
    own = sys.modules[__name__]
    known = sys.modules.get("tvm_ffi")
    if known not in (None, own):
        raise ImportError(
            f"tvm_ffi of '{Path(getattr(known, '__file__', None) or '?').parent}' is imported already; call "
            "portcall.tvm_ffi.install() before that, or run python -m portcall.tvm_ffi script.py"
        )
    sys.modules["tvm_ffi"] = own
    sys.modules["tvm_ffi.libinfo"] = libinfo


def __getattr__(name: str) -> Any:
    raise no_attribute("portcall.tvm_ffi", name, {})
