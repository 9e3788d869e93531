# SPDX-License-Identifier: Apache-2.0
"""Libraries with a graph inside, laid out as TVM 0.7 to 0.19 wrote them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portcall import toolchain
from portcall.graph import save_params

CLASSIC, MODERN = "__tvm_dev_mblob", "__tvm_ffi__library_bin"
Tree = Sequence[Sequence[int]]  # for each module those that it imports


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(data: str | bytes) -> bytes:
    encoded = data.encode() if isinstance(data, str) else data
    return number(len(encoded)) + encoded


def numbers(values: Sequence[int]) -> bytes:
    return number(len(values)) + b"".join(map(number, values))


def factory_payload(json: str, params: Mapping[str, Any], name: str = "default") -> bytes:
    """What a compiler wrote of a graph: the tensors are those of a parameter blob, behind other words."""
    names = b"".join(map(text, params))
    blob = save_params(params)
    tensors = blob[8 + 8 + 8 + len(names) + 8 :]
    return text(json) + number(len(params)) + number(len(params)) + names + tensors + text(name)


def import_tree(tree: Tree) -> bytes:
    starts = [0]
    for children in tree:
        starts.append(starts[-1] + len(children))
    return numbers(starts) + numbers([child for children in tree for child in children])


def classic_blob(modules: Sequence[tuple[str, bytes]], tree: Tree | None) -> bytes:
    body = b"".join(text(kind) + payload for kind, payload in modules)
    if tree is not None:
        body += text("_import_tree") + import_tree(tree)
    return number(len(modules) + (tree is not None)) + body


def modern_blob(modules: Sequence[tuple[str, bytes]], tree: Tree) -> bytes:
    return import_tree(tree) + b"".join(text(kind) + (text(data) if kind != "_lib" else b"") for kind, data in modules)


def link(output: Path, code: Sequence[Path], symbol: str, blob: bytes) -> Path:
    """Link sources or objects with the embedded modules."""
    source = output.with_suffix(".blob.c")
    elements = ",".join(map(str, number(len(blob)) + blob))
    source.write_text(f"const unsigned char {symbol}[] = {{{elements}}};\n")
    return toolchain.create_shared([*code, source], output)
