# SPDX-License-Identifier: Apache-2.0
"""The tables of functions and types."""

from __future__ import annotations

import sys

from portcall._core import type_keys as get_registered_type_keys
from portcall._function import (
    get_global_func,
    get_global_func_metadata,
    list_global_func_names,
    remove_global_func,
)
from portcall._function import register_func as register_global_func
from portcall.ir._classes import register_object

__all__ = [
    "get_global_func",
    "get_global_func_metadata",
    "get_registered_type_keys",
    "init_ffi_api",
    "list_global_func_names",
    "register_global_func",
    "register_object",
    "remove_global_func",
]


def init_ffi_api(namespace: str, target_module_name: str | None = None) -> None:
    """Make the global functions of a namespace attributes of a Python module, by default the one of that name."""
    target = sys.modules[target_module_name or namespace]
    prefix = namespace.removeprefix("tvm.") + "."
    for name in list_global_func_names():
        rest = name.removeprefix(prefix)
        if rest != name and "." not in rest:
            setattr(target, rest, get_global_func(name))
