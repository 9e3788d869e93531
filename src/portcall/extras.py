# SPDX-License-Identifier: Apache-2.0
"""The extras of this package, ``pip install 'portcall[farm]'``: what each is for, and which packages it brings."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import NamedTuple


class Extra(NamedTuple):
    """One extra.

    Attributes:
        name: its name in brackets.
        purpose: what it is for.
        packages: what it brings: the name to import, and the name to install.
    """

    name: str
    purpose: str
    packages: dict[str, str]

    @property
    def command(self) -> str:
        """What installs it."""
        return f"pip install 'portcall[{self.name}]'"

    def is_installed(self) -> bool:
        """Return whether all of its packages are there; none is imported."""
        return all(map(is_there, self.packages))


EXTRAS = {
    extra.name: extra
    for extra in (
        Extra("dtypes", "bfloat16 and the small floats as NumPy dtypes", {"ml_dtypes": "ml_dtypes"}),
        Extra(
            "farm",
            "running a farm, on Redis too; pairing codes to scan",
            {"aiohttp": "aiohttp", "redis": "redis", "segno": "segno"},
        ),
        Extra("mcp", "the commands as tools of the Model Context Protocol", {"mcp": "mcp"}),
        Extra("otel", "calls in traces of OpenTelemetry", {"opentelemetry": "opentelemetry-api"}),
        Extra("scan", "servers that are found in the network", {"zeroconf": "zeroconf"}),
        Extra("zig", "compiling for other machines, such as aarch64 and WebAssembly", {"ziglang": "ziglang"}),
        Extra(
            "zstd",
            "uploads that are compressed",
            {"zstandard": "zstandard"} if sys.version_info < (3, 14) else {},  # Python has its own since then
        ),
        Extra(
            "compile",
            "compiling ONNX models, and checking the result",
            {"tvm": "apache-tvm", "tvm_ffi": "apache-tvm-ffi", "onnx": "onnx", "onnxruntime": "onnxruntime"},
        ),
    )
}


@contextlib.contextmanager
def needed(name: str, purpose: str) -> Iterator[None]:
    """Say of a package that the block could not import, and that an extra brings, how to install it.

    Raises:
        ModuleNotFoundError: there is such a package; ``.name`` is what could not be imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS[name].packages:
            raise
        text = f"{purpose} needs the package {error.name!r}: {EXTRAS[name].command}"
        raise ModuleNotFoundError(text, name=error.name) from error


def is_there(module: str) -> bool:
    """Return whether a top-level module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def install_command(module: str) -> str:
    """Return what installs a module that is missing: an extra that brings it, or a package of its name."""
    top = module.partition(".")[0]
    return next((extra.command for extra in EXTRAS.values() if top in extra.packages), f"pip install {top}")
