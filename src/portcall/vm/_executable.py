# SPDX-License-Identifier: Apache-2.0
"""What is in an executable: functions with their signatures, constants, instructions. Nothing of it runs.

The core reads the bytes; here its description becomes objects. TVM keeps no types, but the code of a function begins
with checks of its arguments, and each check has a text that names the parameter and its type.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import portcall
from portcall import Module, PackedFunc, get_global_func, load_module
from portcall._module import VM_KINDS, VM_LIBRARY
from portcall.errors import ModuleLoadError
from portcall.inspect import embedded_payload
from portcall.vm._types import dtype_of, extents_of, items_of, kind_of

KIND = VM_KINDS[0]
ENTRY = "main"
_LOADER = f"ffi.Module.load_from_bytes.{KIND}"
# What TVM's pass that adds checks writes (src/relax/backend/vm/codegen_vm.cc and its callers).
_CONTEXT = re.compile(
    r"ErrorContext\(fn=(.+?), loc=(?:param\[(\d+)\], param=.+?|return), annotation=(.*)\) ?\Z", re.DOTALL
)
_BYTECODE = re.compile(r"^@(.+):$|^@(.+) num_inputs=\d+ vm_tir_func;$", re.MULTILINE)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function.

    Attributes:
        type: as TVM writes it, such as ``R.Tensor((n, 4), dtype="float32")``; empty where it is not known.
    """

    name: str
    type: str = ""

    @property
    def kind(self) -> str:
        """``tensor``, ``shape``, ``number``, ``tuple`` or ``function``; empty for others."""
        return kind_of(self.type)

    @property
    def dtype(self) -> str:
        """The element type of a tensor or number, such as ``float32``; empty where it is not known."""
        return dtype_of(self.type)

    @property
    def shape(self) -> tuple[int | str, ...] | None:
        """The extents of a tensor or shape: numbers, and variables and expressions as text; None if not known."""
        return extents_of(self.type)

    @property
    def items(self) -> tuple[Parameter, ...]:
        """The items of a tuple, named ``NAME.0``, ``NAME.1`` …"""
        return tuple(Parameter(f"{self.name}.{i}", text) for i, text in enumerate(items_of(self.type)))

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" if self.type else self.name


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, and the type of its result where that is known."""

    name: str
    parameters: tuple[Parameter, ...]
    result: str = ""

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))}){f' -> {self.result}' if self.result else ''}"


@dataclass(frozen=True)
class FunctionInfo:
    """A function in the table of an executable.

    Attributes:
        kind: ``bytecode``, ``compiled``, or ``packed``: called by name.
        params: the names of its parameters.
        registers, instructions: how many; 0 where it is not bytecode.
    """

    name: str
    kind: str
    params: tuple[str, ...]
    registers: int
    instructions: int


@dataclass(frozen=True)
class ConstantInfo:
    """A constant of an executable.

    Attributes:
        type: ``tensor``, ``str``, ``shape``, ``dtype``, ``int`` or ``float``.
        value: the value; of a tensor its type and shape, such as ``float32[3, 4]``.
        nbytes: the size of a tensor, 0 for others.
    """

    type: str
    value: Any
    nbytes: int = 0


@dataclass(frozen=True)
class ExecutableInfo:
    """What an executable holds.

    Attributes:
        functions: all entries of its table, in order.
        constants: all constants, in order.
        listing: the instructions as text.
    """

    functions: tuple[FunctionInfo, ...]
    constants: tuple[ConstantInfo, ...]
    listing: str

    @property
    def entry(self) -> str:
        """The function that a call without a name means: the only one, or ``main``."""
        return entry_of([*self.signatures])

    @cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """The functions that can be called, by name."""
        texts = (constant.value for constant in self.constants if constant.type == "str")
        types = {(found[1], found[2] or "return"): found[3] for found in map(_CONTEXT.match, texts) if found}
        return {
            f.name: Signature(
                f.name,
                tuple(Parameter(name, types.get((f.name, str(i)), "")) for i, name in enumerate(f.params)),
                types.get((f.name, "return"), ""),
            )
            for f in self.functions
            if f.kind != "packed"
        }

    @property
    def calls(self) -> tuple[str, ...]:
        """The names of the functions that it calls by name: kernels, built-in functions and the user's."""
        return tuple(f.name for f in self.functions if f.kind == "packed")


def entry_of(names: Sequence[str]) -> str:
    """Return the function among these that a call without a name means."""
    return names[0] if len(names) == 1 else ENTRY


def open_library() -> None:
    """Load the library that runs executables, unless it is there."""
    if get_global_func(_LOADER, allow_missing=True) is None:
        load_module(VM_LIBRARY)


def read_embedded(path: str | os.PathLike[str]) -> ExecutableInfo | None:
    """Return what the executable in a library holds, None if it has none. The library is read, not loaded.

    Raises:
        ModuleLoadError: the file does not exist, is not a library, or its executable is damaged.
    """
    payload = embedded_payload(path, VM_KINDS)
    if payload is None:
        return None
    open_library()
    try:
        executable: Module = get_global_func(_LOADER)(payload)
    except ModuleLoadError as error:
        raise ModuleLoadError(f"cannot load '{os.fspath(path)}': {error}", path=os.fspath(path)) from None
    return describe(executable)


def describe(executable: Module) -> ExecutableInfo:
    """Return what an executable holds, here or in a session."""
    listing = str(executable["as_text"]())
    tell = _optional(executable, "describe")
    if tell is None:  # a server of TVM
        names = [a or b for a, b in _BYTECODE.findall(listing)]
        return ExecutableInfo(tuple(FunctionInfo(name, "bytecode", (), 0, 0) for name in names), (), listing)
    facts = json.loads(tell())
    functions = tuple(
        FunctionInfo(f["name"], f["kind"], tuple(f["params"]), f["registers"], f["instructions"])
        for f in facts["functions"]
    )
    return ExecutableInfo(functions, tuple(map(_constant, facts["constants"])), listing)


def _constant(facts: Mapping[str, Any]) -> ConstantInfo:
    kind = facts["type"]
    if kind == "tensor":
        value = f"{facts['dtype']}[{', '.join(map(str, facts['shape']))}]"
        return ConstantInfo(kind, value, facts["nbytes"])
    return ConstantInfo(kind, float(facts["value"]) if kind == "float" else facts["value"])


def _optional(module: Module, name: str) -> PackedFunc | None:
    try:
        return module.get_function(name)
    except portcall.errors.FunctionNotFoundError:
        return None
