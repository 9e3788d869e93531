# SPDX-License-Identifier: Apache-2.0
"""Read the modules of device kernels that compilers embed: kernels, what they take, their source. Nothing of them runs.

Numbers are little-endian; a text is a u64 length and its bytes, a map or list a u64 count and its items. Source of the
layouts: apache/tvm, 0.6 to 0.27. That of opencl, cuda and hip is read by portcall/payload.h, too. The parts of a module
of each kind are those of ``LAYOUTS``:

    format    text: what the code is
    infos     map of text to INFO
    code      text, of all kernels
    codes     map of text to text, one for each kernel
    shaders   map of text to u32, list of u32: words of SPIR-V

An INFO is a name, a list of argument types (u8 code, u8 bits, u16 lanes), a list of launch parameters (text), and since
TVM 0.21 a list of u32, one for each argument: 1 is a tensor map.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from portcall.inspect._cursor import BlobError, Cursor

_C_STYLE = ("format", "infos", "code")
LAYOUTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "opencl": (_C_STYLE,),
    "cuda": (_C_STYLE,),
    "hip": (_C_STYLE,),
    "hsaco": (_C_STYLE,),
    "metal": (("format", "infos", "codes"), ("version", "codes", "infos", "format"), _C_STYLE),
    "webgpu": (("infos", "codes"),),
    "vulkan": (("format", "infos", "shaders"), ("format", "infos", "codes")),
}
_TAGS = {"webgpu": (1, 0, None)}  # how many each argument has, None for no list; of most modules 1 or None
SOURCE_FORMATS = frozenset(("cl", "cuda", "ptx", "metal", "hip", "wgsl"))
_TYPES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}  # codes of DLPack
_LONGEST_KIND = 64


@dataclass(frozen=True)
class Kernel:
    """A function of a device.

    Attributes:
        name: its name.
        arguments: their types, such as ``handle``, ``float32``, ``tensormap``.
        launch: what a launch is given after the arguments, such as ``blockIdx.x``, and what else holds for it.
    """

    name: str
    arguments: tuple[str, ...]
    launch: tuple[str, ...]


@dataclass(frozen=True)
class KernelModule:
    """A module of kernels.

    Attributes:
        format: what its code is: ``cl``, ``ptx``, ``cubin``, …; empty where the module does not say it.
        kernels: by name.
        source: the code, where it is text.
    """

    format: str
    kernels: tuple[Kernel, ...]
    source: str


def read_kernels(kind: str, data: bytes, start: int = 0, more_follows: bool = False) -> tuple[KernelModule, int] | None:
    """Read a module of ``kind`` at ``start``; return it with the place where it ends.

    None: no module of a known layout is there. ``more_follows``: another module of the table may come after it.
    """
    for parts in LAYOUTS.get(kind, ()):
        for tags in _TAGS.get(kind, (1, None)):  # the bytes do not say it: one reading ends where the module does
            cursor = Cursor(data, start)
            try:
                found = {part: _READERS[part](cursor, tags) for part in parts}
            except BlobError:
                continue
            if cursor.place == len(data) or (more_follows and _begins_module(data, cursor.place)):
                return _module(kind, found), cursor.place
    return None


def _begins_module(data: bytes, place: int) -> bool:
    cursor = Cursor(data, place)
    try:
        size = cursor.number()
        return 0 < size <= _LONGEST_KIND and b"A" <= cursor.take(size)[:1] <= b"z"
    except BlobError:
        return False


def _module(kind: str, found: dict[str, Any]) -> KernelModule:
    form = found.get("format", "wgsl" if kind == "webgpu" else "")
    texts: list[bytes] = [found["code"]] if "code" in found else list(found.get("codes", {}).values())
    source = b"\n".join(texts).decode("utf-8", "replace") if form in SOURCE_FORMATS else ""
    return KernelModule(form, tuple(sorted(found["infos"].values(), key=lambda kernel: kernel.name)), source)


def _infos(cursor: Cursor, tags: int | None) -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for _ in range(cursor.count()):
        name, _again = cursor.text(), cursor.text()
        found.setdefault(name, _info(name, cursor, tags))
    return found


def _info(name: str, cursor: Cursor, tags: int | None) -> Kernel:
    arguments = [_type_name(*struct.unpack("<BBH", cursor.take(4))) for _ in range(cursor.count(4))]
    launch = tuple(cursor.text() for _ in range(cursor.count()))
    if tags is not None:
        count = cursor.count(4)
        if count != tags * len(arguments):
            raise BlobError(f"{count} tags for {len(arguments)} arguments")
        given = struct.unpack(f"<{count}I", cursor.take(4 * count)) or (0,) * len(arguments)
        arguments = ["tensormap" if tag else name for tag, name in zip(given, arguments, strict=True)]
    return Kernel(name, tuple(arguments), launch)


def _type_name(code: int, bits: int, lanes: int) -> str:
    name = "handle" if code == 3 else f"{_TYPES.get(code, f'type{code}_')}{bits}"
    return name + (f"x{lanes}" if lanes != 1 else "")


def _codes(cursor: Cursor, _: int | None) -> dict[str, bytes]:
    return {cursor.text(): cursor.take(cursor.number()) for _ in range(cursor.count())}


def _shaders(cursor: Cursor, _: int | None) -> dict[str, bytes]:
    found = {}
    for _ in range(cursor.count()):
        name, _flags = cursor.text(), cursor.take(4)
        found[name] = cursor.take(4 * cursor.count(4))
    return found


_READERS = {
    "format": lambda cursor, _: cursor.text(),
    "version": lambda cursor, _: cursor.text(),
    "code": lambda cursor, _: cursor.take(cursor.number()),
    "infos": _infos,
    "codes": _codes,
    "shaders": _shaders,
}
