# SPDX-License-Identifier: Apache-2.0
"""Loads libraries that are linked with ``libtvm_ffi.so`` on portcall's runtime."""

from __future__ import annotations

import os

from portcall import _module
from portcall._module import Module

_kept: list[Module] = []


def load_module(path: str | os.PathLike[str], keep_module_alive: bool = True) -> Module:
    """Load a shared library, one that is linked with ``libtvm_ffi.so`` on portcall's runtime.

    Parameters:
        keep_module_alive: keep it for the life of the process.
    """
    return keep(_module.load_module(path, foreign="adopt"), keep_module_alive)


def keep(module: Module, wanted: bool) -> Module:
    """Keep a module for the life of the process, if that is wanted."""
    if wanted and module not in _kept:
        _kept.append(module)
    return module
