# SPDX-License-Identifier: Apache-2.0
"""Plug-ins that installed packages bring: libraries that register a kind of device or module with the core."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

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
