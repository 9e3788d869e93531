# SPDX-License-Identifier: Apache-2.0
"""What plug-ins for devices get from installed packages: libraries that register a kind, and the files of NVIDIA."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from portcall.errors import ModuleLoadError

GROUP = "portcall.devices"


def find_plugin(kind: str) -> str:
    """Return the path of the library for a kind of device or module, or "".

    A package names it by an entry point of the group ``portcall.devices``: the name is the kind, the object that it
    refers to is the path, or a function that returns it.

    Raises:
        ModuleLoadError: the entry point cannot be used.
    """
    for point in entry_points(group=GROUP, name=kind):
        try:
            found = point.load()
            return str(os.fspath(found() if callable(found) else found))
        except Exception as error:
            text = f"the plug-in for {kind!r} that the entry point {point.value!r} names cannot be found: {error}"
            raise ModuleLoadError(text) from error
    return ""


def find_nvidia_folders() -> list[str]:
    """Return the folders of NVIDIA's packages, each with ``lib`` or ``include``, the newest CUDA first."""
    spec = find_spec("nvidia")  # a namespace that the packages share
    places = list(spec.submodule_search_locations or ()) if spec else []
    folders = [folder for place in places for folder in Path(place).iterdir() if folder.is_dir()]
    return sorted(map(str, folders), reverse=True)
