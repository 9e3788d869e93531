# SPDX-License-Identifier: Apache-2.0
"""Compiled models, kept by what they were made of: the model's bytes, the options, this machine, the versions.

They lie in ``$XDG_CACHE_HOME/portcall/models`` (``~/.cache/portcall/models``), each written whole or not at all.
Nothing is ever removed from there but by hand.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

import portcall
from portcall._compilers import WASM, processor
from portcall._folders import cache_folder, remove_abandoned
from portcall.compile._model import digest_of_files, external_files
from portcall.compile._options import Options

_PACKAGES = ("apache-tvm", "onnx")


def find_or_make(model: Any, target: str, runtime: str, options: Options, make: Callable[[], Any]) -> Path:
    """Return the file of an ONNX file in the cache, which ``make`` compiles unless it is there.

    Raises:
        TypeError: the model is not a path.
        PermissionError: others can write to the cache.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"cache=True takes the path of a model, not {type(model).__name__}")
    shapes = {name: list(shape) for name, shape in sorted(options.shapes.items())}
    constants = {name: str(np.asarray(array).tolist()) for name, array in sorted(options.constants.items())}
    matters = {**vars(options), "target": target, "runtime": runtime, "shapes": shapes, "constants": constants}
    del matters["progress"]
    suffix = "wasm" if target == WASM else "so"
    key = _key(model, matters)
    place = cache_folder("models") / f"{Path(model).stem}-{key[:24]}.{suffix}"
    if not place.is_file():
        made = make()
        remove_abandoned(".", place.parent)  # files of other models that a killed process was writing
        made.save(place)
    return place


def _key(model: str | os.PathLike[str], options: Mapping[str, Any]) -> str:
    what = json.dumps([options, _versions(), processor()], sort_keys=True).encode()
    try:
        beside = external_files(onnx.load(model, load_external_data=False), Path(model))
    except DecodeError:  # compiling it says so
        beside = []
    return digest_of_files([Path(model), *beside], what)


def _versions() -> list[str]:
    return [portcall.__version__, *(importlib.metadata.version(name) for name in _PACKAGES)]
