# SPDX-License-Identifier: Apache-2.0
"""What ``portcall inspect`` says of files that are not libraries or graphs: parameters, arrays, other models."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from portcall.bench import format_size
from portcall.cli._errors import CommandError
from portcall.cli._graph_report import explained_graph_errors
from portcall.cli._output import LISTED, console, print_facts, print_line, table

PARAMS_MARK = (0xF7E58D4F05049CB7).to_bytes(8, "little")  # docs of the format: portcall.graph
KINDS = {"params": "parameters of a model", "npz": "arrays of NumPy"}


@dataclass
class TensorsFile:
    """A file of named tensors.

    Attributes:
        kind: one of KINDS.
        tensors: data type, shape and size in bytes, by name.
    """

    path: str
    kind: str
    tensors: Mapping[str, tuple[str, tuple[int, ...], int]]

    def to_dict(self) -> dict[str, object]:
        tensors = [
            {"name": name, "shape": list(shape), "dtype": dtype, "nbytes": nbytes}
            for name, (dtype, shape, nbytes) in self.tensors.items()
        ]
        return {"path": self.path, "kind": self.kind, "nbytes": os.path.getsize(self.path), "tensors": tensors}

    def show(self, everything: bool) -> None:
        total = sum(nbytes for _, _, nbytes in self.tensors.values())
        size = f"{self.path} ({format_size(os.path.getsize(self.path))}), {KINDS[self.kind]}"
        print_facts([("file", size), ("tensors", f"{len(self.tensors)}, {format_size(total)}")])
        rows = [(name, dtype, str(shape), format_size(n)) for name, (dtype, shape, n) in self.tensors.items()]
        print_line("")
        console().print(
            table(("name", "type", "shape", "size"), rows if everything else rows[:LISTED], right=("size",))
        )
        if not everything and len(rows) > LISTED:
            print_line(f"… and {len(rows) - LISTED} more (--all lists them)")


def open_tensors_file(path: str) -> TensorsFile | None:
    """Read what a file of parameters or arrays holds, without their data; None for other files.

    Raises:
        CommandError: the file is damaged.
        OSError: it cannot be read.
    """
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        head = file.read(len(PARAMS_MARK))
    if head == PARAMS_MARK:
        from portcall import graph

        with explained_graph_errors():
            infos = graph.load_params_from_file(path).infos
        return TensorsFile(path, "params", {n: (str(i.dtype), tuple(i.shape), i.nbytes) for n, i in infos.items()})
    if Path(path).suffix == ".npz":
        try:
            return TensorsFile(path, "npz", headers(path))
        except (ValueError, zipfile.BadZipFile, EOFError) as error:
            raise CommandError(
                f"{path}: {error}", "the file is damaged, or not NumPy's", "", kind="ValueError"
            ) from error
    return None


def headers(path: str) -> dict[str, tuple[str, tuple[int, ...], int]]:
    from numpy.lib import format as npy

    read: dict[tuple[int, int], Any] = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                version = npy.read_magic(file)
                if version not in read:
                    raise ValueError(f"'{name}' has the version {version} of NumPy's format")
                shape, _, dtype = read[version](file)
            found[name.removesuffix(".npy")] = (str(dtype), shape, prod(shape) * dtype.itemsize)
    return found
