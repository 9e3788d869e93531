# SPDX-License-Identifier: Apache-2.0
"""Modules of kernels, written by hand as TVM's compilers write them; and what the kernels of ``two`` compute."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

BUFFER = (3, 64, 1)  # types of arguments, as DLPack has them
INT64 = (0, 64, 1)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def payload(
    source: bytes,
    kernel: bytes = b"k",
    parameters: Sequence[bytes] = (b"blockIdx.x",),
    form: bytes = b"cl",
    arguments: Sequence[tuple[int, int, int]] = (BUFFER,),
    tensor_maps: Sequence[int] | None = (),
) -> bytes:
    """A module with one kernel; ``tensor_maps`` says which arguments are such, None is for TVM before 0.21."""
    info = text(kernel) + struct.pack("<Q", len(arguments))
    info += b"".join(struct.pack("<BBH", *argument) for argument in arguments)
    info += struct.pack("<Q", len(parameters)) + b"".join(text(name) for name in parameters)
    if tensor_maps is not None:
        info += struct.pack("<Q", len(arguments))
        info += b"".join(struct.pack("<I", i in tensor_maps) for i in range(len(arguments)))
    return text(form) + struct.pack("<Q", 1) + text(kernel) + info + text(source)


def library_of(module: bytes, kind: bytes = b"cuda") -> bytes:
    """What a library holds that imports one module: ``__tvm_ffi__library_bin``."""
    body = struct.pack("<6Q", 3, 0, 1, 1, 1, 1) + text(b"_lib") + text(kind) + text(module)
    return text(body)


def two(x: Any, k: int, q: int) -> Any:
    """What the kernels of ``two`` compute, with f = 2.5."""
    return (x * np.float32(2.5)).reshape(4, 64)[:, ::-1].reshape(-1) + k + q
