# SPDX-License-Identifier: Apache-2.0
"""Kernels for boards, compiled by apache-tvm: ``python board_kernels.py TRIPLE OUTDIR``.

``OUTDIR/layers.o`` has the functions of ``graph_kernels.Layers`` and ``add_one``, a parallel loop; ``OUTDIR/linked.o``
has the same as a system library, whose names begin with ``PREFIX``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from graph_kernels import Layers
from tvm_kernels import SystemLib

from portcall.compile._target import find_target

PREFIX = "board_"


def functions(prefix: str) -> tvm.IRModule:
    named = {name.name_hint: function for name, function in Layers.functions.items()}
    named["add_one"] = SystemLib["portcall_sys_add_one"]
    return tvm.IRModule(
        {prefix + name: function.with_attr("global_symbol", prefix + name) for name, function in named.items()}
    )


def build(module: tvm.IRModule, triple: str, made: Path) -> None:
    def keep(_output: str, files: Sequence[str], **_options: Any) -> None:
        (compiled,) = files
        shutil.copyfile(compiled, made)

    tvm.compile(module, target=find_target(triple).tvm).export_library(str(made), fcompile=keep)


def main() -> None:
    triple, folder = sys.argv[1], Path(sys.argv[2])
    build(functions(""), triple, folder / "layers.o")
    build(functions(PREFIX).with_attr("system_lib_prefix", PREFIX), triple, folder / "linked.o")


if __name__ == "__main__":
    main()
