# SPDX-License-Identifier: Apache-2.0
"""Compile a model: ONNX in, one file out, which portcall runs anywhere, without what compiled it::

    portcall.compile.onnx("resnet50.onnx").save("resnet50.so")

It needs the extra ``portcall[compile]``; what it makes needs portcall only. Names load on first use: the compiler is
large.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from portcall._renamed import no_attribute as _no_attribute
from portcall.extras import needed as _needed

if TYPE_CHECKING:
    from portcall.compile._api import Runtime as Runtime
    from portcall.compile._api import onnx as onnx
    from portcall.compile._api import relax as relax
    from portcall.compile._api import verify as verify
    from portcall.compile._compile import CompiledModel as CompiledModel
    from portcall.compile._options import Winograd as Winograd
    from portcall.compile._verify import Verification as Verification
    from portcall.compile._vm import CompiledExecutable as CompiledExecutable

_NAMES = {
    "CompiledExecutable": "portcall.compile._vm",
    "CompiledModel": "portcall.compile._compile",
    "Runtime": "portcall.compile._api",
    "Verification": "portcall.compile._verify",
    "Winograd": "portcall.compile._options",
    "onnx": "portcall.compile._api",
    "relax": "portcall.compile._api",
    "verify": "portcall.compile._api",
}
# Names that this package had, and what to write instead.
_INSTEAD = {
    **dict.fromkeys(("from_onnx", "compile_onnx"), "it is portcall.compile.onnx(model)"),
    "from_relax": "it is portcall.compile.relax(module)",
    "for_vm": "it is portcall.compile.onnx(model, runtime='vm') and portcall.compile.relax(module, runtime='vm')",
    "verify_executable": "it is portcall.compile.verify(machine, model)",
    "cached": "it is portcall.compile.onnx(path, cache=True)",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise _no_attribute(__name__, name, _INSTEAD)
    with _needed("compile", "compiling models"):
        return getattr(importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*_NAMES, *(name for name in globals() if name.startswith("__"))})
