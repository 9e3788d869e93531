# SPDX-License-Identifier: Apache-2.0
"""Compile a model: ONNX in, one file out, which portcall runs anywhere, without what compiled it::

    portcall.compile.from_onnx("resnet50.onnx").save("resnet50.so")

It needs the extra ``portcall[compile]``; what it makes needs portcall only. Names load on first use: the compiler is
large.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from portcall.extras import needed

if TYPE_CHECKING:
    from portcall.compile._cache import cached as cached
    from portcall.compile._compile import CompiledModel as CompiledModel
    from portcall.compile._compile import Winograd as Winograd
    from portcall.compile._compile import from_onnx as from_onnx
    from portcall.compile._relax import from_relax as from_relax
    from portcall.compile._verify import Verification as Verification
    from portcall.compile._verify import verify as verify
    from portcall.compile._vm import CompiledExecutable as CompiledExecutable
    from portcall.compile._vm import Runtime as Runtime
    from portcall.compile._vm import compile_onnx as compile_onnx
    from portcall.compile._vm import for_vm as for_vm
    from portcall.compile._vm import verify_executable as verify_executable

_NAMES = {
    "CompiledModel": "portcall.compile._compile",
    "Winograd": "portcall.compile._compile",
    "cached": "portcall.compile._cache",
    "from_onnx": "portcall.compile._compile",
    "from_relax": "portcall.compile._relax",
    "Verification": "portcall.compile._verify",
    "verify": "portcall.compile._verify",
    "CompiledExecutable": "portcall.compile._vm",
    "Runtime": "portcall.compile._vm",
    "compile_onnx": "portcall.compile._vm",
    "for_vm": "portcall.compile._vm",
    "verify_executable": "portcall.compile._vm",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'portcall.compile' has no attribute {name!r}", name=name)
    with needed("compile", "compiling models"):
        return getattr(importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
