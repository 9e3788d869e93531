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
from portcall._dtype import DataType as dtype
from portcall._function import convert
from portcall._module import IR_LIBRARY, Module, system_lib
from portcall._renamed import no_attribute
from portcall._tensor import Tensor, from_dlpack
from portcall.tvm_ffi import (
    container,
    core,
    cpp,
    dataclasses,
    error,
    libinfo,
    module,
    registry,
    serialization,
    stream,
    structural,
    utils,
)
from portcall.tvm_ffi._load import load_module
from portcall.tvm_ffi.dataclasses import method
from portcall.tvm_ffi.error import register_error
from portcall.tvm_ffi.registry import (
    get_global_func,
    get_global_func_metadata,
    init_ffi_api,
    register_global_func,
    register_object,
    remove_global_func,
)
from portcall.tvm_ffi.stream import StreamContext, get_raw_stream, use_raw_stream, use_torch_stream
from portcall.tvm_ffi.structural import (
    DefRegionKind,
    StructuralKey,
    VisitInterrupt,
    WalkOrder,
    WalkResult,
    get_first_structural_mismatch,
    structural_equal,
    structural_hash,
    structural_walk,
)
from portcall.tvm_ffi.utils import kwargs_wrapper

__all__ = [
    "Array",
    "DLDeviceType",
    "DefRegionKind",
    "Device",
    "Dict",
    "Function",
    "List",
    "Map",
    "Module",
    "Object",
    "Shape",
    "StreamContext",
    "StructuralKey",
    "Tensor",
    "VisitInterrupt",
    "WalkOrder",
    "WalkResult",
    "__version__",
    "convert",
    "dataclasses",
    "device",
    "dtype",
    "from_dlpack",
    "get_first_structural_mismatch",
    "get_global_func",
    "get_global_func_metadata",
    "get_raw_stream",
    "init_ffi_api",
    "install",
    "load_module",
    "method",
    "register_error",
    "register_global_func",
    "register_object",
    "remove_global_func",
    "serialization",
    "structural",
    "structural_equal",
    "structural_hash",
    "structural_walk",
    "system_lib",
    "use_raw_stream",
    "use_torch_stream",
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


_PARTS = (
    container, core, cpp, dataclasses, error, kwargs_wrapper, libinfo, module, registry, serialization, stream,
    structural, utils,
)  # fmt: skip


def _abi_version() -> str:
    numbers = (ctypes.c_uint32 * 3)()
    ctypes.CDLL(str(IR_LIBRARY.with_name("libportcall.so"))).TVMFFIGetVersion(numbers)
    return ".".join(map(str, numbers))


__version__ = _abi_version()  # of tvm-ffi's ABI that portcall follows


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
    for part in _PARTS:
        sys.modules[part.__name__.removeprefix("portcall.")] = part


_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float4_e2m1fnx2",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _DTYPES:
        return dtype(name)
    raise no_attribute("portcall.tvm_ffi", name, {})
