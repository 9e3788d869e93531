# SPDX-License-Identifier: Apache-2.0
"""Bundles: one file with the kernels, the parameters and the graph, which every portcall opens, without Python too.

The file is the library of kernels as its linker wrote it, so that what loads it maps and needs just that. After it
lie the parameters, each at a multiple of 64 bytes so that it is used where it is, and an index; docs/graph.md has the
layout. The same input gives the same bytes.
"""

from __future__ import annotations

import difflib
import os
import shutil
import struct
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from portcall import DataType, Module, errors, get_global_func, toolchain
from portcall._compilers import check_output
from portcall._folders import working_folder
from portcall._input import open_input
from portcall.graph._module import Blob, GraphSource, UnexpectedParamsWarning, read_graph
from portcall.graph._params import (
    Cursor,
    MemorySource,
    ParamInfo,
    StrPath,
    bytes_of,
    describe,
    host_tensor,
    load_params,
    replacing,
)
from portcall.graph._plan import Plan, Storage, decode, encode, plan
from portcall.graph._spec import COPY, NOP, Graph, Value
from portcall.inspect import LibraryReport, inspect_library
from portcall.inspect._seal import SEAL, add_seal, is_seal

_ALIGNMENT = 64
_VERSION = 1
_MARK = b"PCBUNDLE"
_FOOTER = struct.Struct("<QQQ8s")
_LIBRARY_MARKS = (b"\x7fELF", b"\0asm")
_FEW = 5
_HEAD = 4096  # bytes in which a text begins
_TENSOR = struct.Struct("<iBBH")  # axes, type


@dataclass(frozen=True)
class Bundle:
    """What a bundle says of itself.

    Attributes:
        name: the function that makes executors.
        graph: the graph.
        plan: where its values lie in memory.
        params: what the parameters are, by name; their data begin at ``offset`` in the file.
        library_nbytes: the size of the library of kernels, which is the first part of the file.
    """

    name: str
    graph: Graph
    plan: Plan
    params: Mapping[str, ParamInfo]
    library_nbytes: int


def export_bundle(
    path: StrPath,
    graph_json: GraphSource,
    lib: Module | StrPath | Iterable[StrPath],
    params: Mapping[str, Any] | Blob | None = None,
    *,
    name: str = "default",
    target: str | None = None,
    options: Sequence[str] = (),
    storage: Storage = "given",
) -> Path:
    """Write one file with a graph, its kernels and its parameters, and return its absolute path.

    ``load_module(path)[name](device)`` makes an executor of it, here, in a session, and in C++. Parameters are used
    where they lie in the file, and read from it when they are first needed.

    Parameters:
        path: the file to make, which should end in ``.so``, or ``.wasm`` for ``wasm32``; its folder must exist.
        graph_json, storage: as for ``create``.
        lib: the kernels: a shared library, by its file or as a module that was loaded from one; or what is linked to
            one: objects, archives, sources, or a ``.tar`` of those.
        params: arrays or tensors by name, or a blob of them. Those of ``load_params_from_file`` are never all in
            memory. Inputs that get none here are set as usual.
        name: the function that makes executors.
        target, options: for what is linked, as for ``toolchain.create_shared``.

    Raises:
        GraphError: it is not a graph, or one that cannot be run; a parameter is not of its shape and type; or the
            library lacks a kernel, as far as its file says (``missing_kernels``).
        ValueError: ``lib`` is not one of those, or a module that came from no file.
        CompileError: the linker said no.

    Warns:
        UnexpectedParamsWarning: the graph has no inputs of some names; these parameters are left out.
    """
    graph = read_graph(graph_json)
    planned = encode(plan(graph, storage))
    given = params if isinstance(params, Mapping) else {} if params is None else load_params(params)
    expected = _expected(graph, given)
    output = check_output(path)
    with working_folder() as folder, replacing(output) as file:
        library = _library(lib, folder, target, options)
        _copy_library(library, file)
        _check_kernels(graph, library)
        library_bytes = file.tell()
        file.write(bytes(SEAL.size))
        described = [_write_param(file, key, given[key], value) for key, value in expected.items()]
        index_offset = file.tell()
        file.write(struct.pack("<I", _VERSION))
        for part in (name.encode(), graph.to_json().encode(), planned):
            file.write(_text(part))
        file.write(struct.pack("<Q", len(described)) + b"".join(described))
        file.write(_FOOTER.pack(library_bytes, index_offset, file.tell() - index_offset, _MARK))
        add_seal(file, library_bytes)
    return output


def missing_kernels(graph: Graph, library: LibraryReport) -> dict[str, str] | None:
    """Return the kernels that a library lacks, each with the first node that calls it.

    None where the library's file does not tell: it contains modules of devices, or needs other libraries, which may
    have kernels.
    """
    calls: dict[str, str] = {}
    for node in graph.nodes:
        if node.function and node.function not in (NOP, COPY) and node.function not in library.functions:
            calls.setdefault(node.function, node.name)
    elsewhere = any(module.kind != "_lib" for module in library.modules)
    elsewhere = elsewhere or any(not dependency.of_system for dependency in library.needed)
    hidden = library.abi != "modern" and any(name.startswith("_") for name in calls)  # such names are not listed
    return None if calls and (elsewhere or hidden) else calls


def seal_library(library: Path, output: Path) -> None:
    """Copy a library that holds a model's parameters to ``output``, and add a seal, unless its format has no room."""
    with replacing(output) as file:
        _copy_library(library, file)
        end = file.tell()
        file.seek(0)
        if file.read(4) != _LIBRARY_MARKS[1]:  # WebAssembly ends where its file does
            file.seek(end)
            file.write(bytes(SEAL.size))
            add_seal(file, end)


def file_kind(path: StrPath) -> Literal["graph", "bundle", "library"]:
    """Return what a file is by what is in it: the JSON of a graph, a bundle, or else a library.

    Raises:
        OSError: it cannot be read.
    """
    with open_input(path) as file:
        head = file.read(_HEAD)
        if head.lstrip().startswith(b"{"):
            return "graph"
        return "library" if _footer_of(file) is None else "bundle"


def read_bundle(path: StrPath) -> Bundle:
    """Read what a bundle says of itself. Nothing of it is loaded, and no parameter is read.

    Raises:
        GraphError: the file is not a bundle, or is damaged.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        footer = _footer_of(file)
        if footer is None:
            raise errors.GraphError(f"'{path}' is not a bundle")
        library_nbytes, offset, size = footer
        end = file.seek(0, 2) - _FOOTER.size
        if not library_nbytes <= offset <= end or size != end - offset:
            raise errors.GraphError(f"'{path}' is damaged: its index is not where its end says")
        file.seek(offset)
        cursor = Cursor(MemorySource(file.read(size)), "the index of the bundle")
    version = int.from_bytes(cursor.take(4, "the version"), "little")
    if version != _VERSION:
        raise errors.GraphError(f"'{path}' is a bundle of version {version}; this portcall reads version {_VERSION}")
    name, json = cursor.text("the name"), cursor.text("the graph")
    planned = decode(cursor.take(cursor.number("the length of the plan"), "the plan"))
    params = dict(_read_param(cursor) for _ in range(cursor.number("the number of parameters")))
    cursor.expect_end()
    return Bundle(name, read_graph(json), planned, params, library_nbytes)


def _read_param(cursor: Cursor) -> tuple[str, ParamInfo]:
    name = cursor.text("the name of a parameter")
    axes, code, bits, lanes = _TENSOR.unpack(cursor.take(_TENSOR.size, name))
    shape = tuple([cursor.number(name) for _ in range(axes)])
    try:
        value = Value(shape, DataType(code=code, bits=bits, lanes=lanes))
    except ValueError as error:
        raise cursor.fail(f"{name!r}: {error}") from None
    return name, ParamInfo(value.dtype, shape, cursor.number(name), value.nbytes)


def _footer_of(file: BinaryIO) -> tuple[int, int, int] | None:
    """Return the numbers at the end of a bundle: where its library ends, where its index begins, and its size."""
    size = file.seek(0, 2)
    file.seek(0)
    if size < _FOOTER.size or file.read(4) not in _LIBRARY_MARKS:
        return None
    file.seek(-_FOOTER.size, 2)
    *numbers, mark = _FOOTER.unpack(file.read())
    return (numbers[0], numbers[1], numbers[2]) if mark == _MARK else None


def _check_kernels(graph: Graph, library: Path) -> None:
    report = inspect_library(library)
    missing = missing_kernels(graph, report)
    if missing:
        name, node = next(iter(missing.items()))
        near = difflib.get_close_matches(name, report.functions, n=3)
        there = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there is {_some(report.functions)}"
        raise errors.GraphError(f"the library has no kernel {name!r}, which node {node!r} calls; {there}", node=node)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_FEW])) + (", …" if len(names) > _FEW else "") or "none"


def _expected(graph: Graph, given: Mapping[str, Any]) -> dict[str, Value]:
    """Return what the graph says of each parameter that it has."""
    inputs = {graph.nodes[n].name: graph.values[graph.nodes[n].outputs[0]] for n in graph.inputs}
    unknown = [name for name in given if name not in inputs]
    if unknown:
        warnings.warn(
            f"the graph has no inputs for {len(unknown)} parameters, which are left out: {_some(unknown)}",
            UnexpectedParamsWarning,
            stacklevel=3,
        )
    return {name: inputs[name] for name in given if name in inputs}


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _write_param(file: BinaryIO, name: str, value: Any, expected: Value) -> bytes:
    """Write the data at the next aligned place, and return what the index says of them."""
    tensor = host_tensor(value)
    if (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
        raise errors.GraphError(
            f"the parameter {name!r} is {expected.dtype} {expected.shape} in the graph, got {tensor.dtype} "
            f"{tensor.shape}",
            node=name,
        )
    description = describe(name, tensor)
    file.write(bytes(-file.tell() % _ALIGNMENT))
    offset = file.tell()
    file.write(bytes_of(tensor))
    return _text(name.encode()) + description + struct.pack("<Q", offset)


def _copy_library(library: Path, file: BinaryIO) -> None:
    """Copy a shared library, of a bundle its library; without its seal."""
    with library.open("rb") as source:
        if source.read(4) not in _LIBRARY_MARKS:
            raise ValueError(f"'{library}' is not a shared library (ELF or WebAssembly), with which a bundle begins")
        source.seek(0)
        shutil.copyfileobj(source, file)
        size = file.tell()
        source.seek(-min(size, _FOOTER.size), 2)
        footer = source.read()
    if footer.endswith(_MARK):
        file.truncate(min(_FOOTER.unpack(footer)[0], size))
    elif is_seal(footer[-SEAL.size :]):
        file.truncate(size - SEAL.size)
    file.seek(0, 2)


def _library(
    lib: Module | StrPath | Iterable[StrPath], folder: Path, target: str | None, options: Sequence[str]
) -> Path:
    """Return the file of a shared library, linked in ``folder`` unless it exists."""
    if isinstance(lib, (str, os.PathLike)):
        paths = [Path(lib)]
    elif isinstance(lib, Module):
        return _file_of(lib)
    else:
        paths = [Path(each) for each in cast("Iterable[StrPath]", lib)]
    if len(paths) == 1 and paths[0].suffix in (".so", ".wasm"):
        return paths[0]
    return toolchain.create_shared(paths, folder / "kernels.so", target, options)


def _file_of(module: Module) -> Path:
    """Return the file that a module was loaded from, or else the first one that it imports."""
    path = str(get_global_func("portcall.LibraryPath")(module))
    if path:
        return Path(path)
    imported = module.imported_modules
    if imported:
        return _file_of(imported[0])
    raise ValueError(
        f"a module of type {module.type_key!r} comes from no file; give the path of a shared library, or of what is to "
        "be linked to one"
    )
