# SPDX-License-Identifier: Apache-2.0
"""Compiled models, kept by what they were made of: the model's bytes, the options, this machine, the versions.

They lie in ``$XDG_CACHE_HOME/portcall/models`` (``~/.cache/portcall/models``), each written whole or not at all.
Nothing is ever removed from there but by hand.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

import portcall
from portcall._folders import cache_folder, remove_abandoned
from portcall.compile._model import digest_of_files, external_files
from portcall.toolchain import WASM

if TYPE_CHECKING:
    from portcall.compile._compile import Progress
    from portcall.compile._vm import Runtime

_PACKAGES = ("apache-tvm", "onnx")


def cached(
    model: str | os.PathLike[str],
    target: str = "native",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    threads: int = 1,
    runtime: Runtime = "graph",
    progress: Progress | None = None,
) -> Path:
    """Return the bundle of an ONNX file, compiled unless it is in the cache.

    Parameters and errors: as for ``compile_onnx``, which makes a library for the Relax VM where ``runtime`` allows it;
    and PermissionError where others can write to the cache.
    """
    extents = {name: list(shape) for name, shape in sorted((shapes or {}).items())}
    values = {name: str(np.asarray(array).tolist()) for name, array in sorted((constants or {}).items())}
    options: dict[str, Any] = {
        "shapes": extents,
        "constants": values,
        "threads": threads,
        "runtime": runtime,
        "target": target,
    }
    suffix = "wasm" if target == WASM else "so"
    place = cache_folder("models") / f"{Path(model).stem}-{_key(model, options)[:24]}.{suffix}"
    if not place.is_file():
        compiler = importlib.import_module("portcall.compile._vm")  # loaded where it is needed: it is large
        given = {"shapes": shapes, "constants": constants, "threads": threads}
        made = compiler.compile_onnx(model, target, runtime=runtime, progress=progress, **given)
        remove_abandoned(".", place.parent)  # files of other models that a killed process was writing
        made.save(place)
    return place


def _key(model: str | os.PathLike[str], options: Mapping[str, Any]) -> str:
    what = json.dumps([options, _versions(), _machine()], sort_keys=True).encode()
    try:
        beside = external_files(onnx.load(model, load_external_data=False), Path(model))
    except DecodeError:  # compiling it says so
        beside = []
    return digest_of_files([Path(model), *beside], what)


def _versions() -> list[str]:
    return [portcall.__version__, *(importlib.metadata.version(name) for name in _PACKAGES)]


def _machine() -> list[str]:
    """Return what tells processors apart: what a cluster's shared home is used by may differ."""
    wanted = ("model name", "flags", "Features", "CPU part", "isa")
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return [platform.machine(), *sorted({line for line in lines if line.startswith(wanted)})]
