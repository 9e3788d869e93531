# SPDX-License-Identifier: Apache-2.0
"""Link what TVM made for its Relax VM: a library with kernels, and the executable as data, which has the weights.

TVM would copy the weights three times more on the way through LLVM. So large ones are taken out of the functions before
TVM writes an executable, and go from where they are into a file, between what it wrote.
"""

from __future__ import annotations

import json
import mmap
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from portcall import toolchain
from portcall._folders import working_folder
from portcall.compile._program import is_constant
from portcall.compile._target import Target

_KIND = "relax.VMExecutable"
_TABLE = "__tvm_ffi__library_bin"  # see portcall.inspect._embedded
_LARGE = 1 << 16  # bytes
_CODES: Mapping[str, int] = {"i": 0, "u": 1, "f": 2}  # of DLPack, by NumPy's kind
_MARK = 0x1D57_3E1C_60B2_48F7  # begins what stands for a weight
_LATER = 0x3A94_C05B_71EE_2D86  # and what stands for one that is not made yet


class Linked:
    """A library in a folder of its own, which goes with this object.

    Attributes:
        path: of the library.
        nbytes: its size.
    """

    def __init__(self) -> None:
        stack = ExitStack()
        self.path = stack.enter_context(working_folder()) / "model.so"
        weakref.finalize(self, stack.close)

    @property
    def nbytes(self) -> int:
        return self.path.stat().st_size


class Weights:
    """The large weights of a module, which are not in it while TVM makes an executable of it."""

    def __init__(self) -> None:
        # For each, an array of the same type and shape, and what gives the weight.
        self._found: list[tuple[Any, Callable[[], Any]]] = []
        self._later: dict[int, Callable[[], Any]] = {}  # by the address of what stands for the weight
        self._numbers: dict[Any, int] = {}  # places in what was found

    @property
    def count(self) -> int:
        return len(self._found)

    def later(self, shape: Sequence[int], dtype: str, make: Callable[[], Any]) -> Any:
        """Return a constant that stands for a weight, which is made when it is written.

        It takes no memory, as nothing is written to it but its number. Nothing may read it but ``take_out``.
        """
        pages = mmap.mmap(-1, prod(shape) * np.dtype(dtype).itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        number = np.array([_LATER, len(self._later)])  # no two are equal
        pages[: number.nbytes] = number.tobytes()
        array = np.frombuffer(pages, dtype).reshape(shape)
        self._later[array.ctypes.data] = make
        return relax.const(tvm.runtime.from_dlpack(array))

    def take_out(self, module: Any, _context: Any) -> Any:
        """Put a small constant in the place of each large one: a pass of TVM's, after those that look at types."""
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                body = self._without(function.body)
                module.update_func(
                    name, relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
                )
        return module

    def _without(self, e: Any) -> Any:
        if isinstance(e, relax.SeqExpr):
            blocks = [type(block)([self._bound(each) for each in block.bindings]) for block in e.blocks]
            return relax.SeqExpr(blocks, self._without(e.body))
        if isinstance(e, relax.If):
            return relax.If(e.cond, self._without(e.true_branch), self._without(e.false_branch))
        if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.GlobalVar):
            return relax.Call(e.op, [self._small(each) for each in e.args], e.attrs, e.ty_args)
        return e

    def _bound(self, binding: Any) -> Any:
        if isinstance(binding, relax.VarBinding):
            return relax.VarBinding(binding.var, self._without(binding.value))
        return binding

    def _small(self, e: Any) -> Any:
        if not (is_constant(e) and isinstance(e.value, tvm.runtime.Tensor)):
            return e
        array = array_of(e)
        if not is_large(array.shape, array.dtype):
            return e
        place = array.ctypes.data
        key = (place, array.shape, array.dtype)  # layers may share a weight
        if key not in self._numbers:
            self._numbers[key] = self.count
            self._found.append((array, self._later.get(place, lambda: array)))
        return relax.const(_stand_in(self._numbers[key]), "int64")

    def put_back(self, executable: bytes) -> Iterator[Any]:
        """Give the parts of an executable with the weights in it, which are left out here then.

        Raises:
            ValueError: one has no place in it.
        """
        assert _LATER.to_bytes(8, "little") not in executable, "a weight that is to be made later was not found"
        stand_ins = [_head(small) + small.tobytes() for small in map(_stand_in, range(self.count))]
        places = sorted((executable.index(each), number) for number, each in enumerate(stand_ins))
        begin = 0
        for place, number in places:
            like, make = self._found[number]
            yield executable[begin:place]
            yield _head(like)
            yield np.ascontiguousarray(make()).reshape(-1).view("uint8").data
            begin = place + len(stand_ins[number])
        yield executable[begin:]


def array_of(constant: Any) -> Any:
    """Return the elements of a constant where they are, or a copy if NumPy does not have their type itself."""
    try:
        return np.from_dlpack(constant.value)
    except (BufferError, RuntimeError, TypeError):
        return constant.value.numpy()


def is_large(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    """Tell whether a weight is taken out of a module."""
    return prod(shape) * dtype.itemsize >= _LARGE and dtype.kind in _CODES


def _stand_in(number: int) -> Any:
    return np.array([_MARK, number])


def _head(array: Any) -> bytes:
    """Return what stands before the data of a tensor among the constants of an executable, as TVM writes it."""
    dtype = struct.pack("<BBH", _CODES[array.dtype.kind], 8 * array.itemsize, 1)
    begin = struct.pack("<QQiii", 0xDD5E40F096B4A13F, 0, 1, 0, array.ndim)
    return begin + dtype + struct.pack(f"<{array.ndim + 1}q", *array.shape, array.nbytes)


def has_assembly(machine: Target) -> bool:
    """Tell whether a library for a machine can have data that its assembler reads from a file."""
    return machine.machine != "wasm32"


def link(module: Any, machine: Target, weights: Weights) -> Linked:
    """Link a module of TVM's and what it imports.

    Raises:
        CompileError: the linker failed, or there is none for the machine.
    """
    made = Linked()

    def create(output: str, files: Sequence[str], **_options: Any) -> None:
        toolchain.create_shared(files, output, machine.triple or None, language="c")

    def pack(module: Any, _system: bool, _prefix: str, folder: str) -> str:
        return str(_write_table(module, weights, Path(folder)))

    usual = has_assembly(machine) and _imports_a_library_alone(module)
    assert usual or not weights.count, "weights that nobody puts back"
    with working_folder() as folder:  # which goes, too, if this process is killed
        module.export_library(
            str(made.path), fcompile=create, fpack_imports=pack if usual else None, workspace_dir=str(folder)
        )
    return made


def _imports_a_library_alone(module: Any) -> bool:
    """Tell whether a module imports kernels alone, and not as a system library, whose code registers its data."""
    kinds = [each.kind for each in module.imports]
    return kinds == ["llvm"] and not module.imports[0].imports and not module.imports[0]["__tvm_is_system_module"]()


def _write_table(module: Any, weights: Weights, folder: Path) -> Path:
    """Write the table of an executable and the library that it imports; return the C source that has it as data."""
    written, table, source = folder / "executable.bin", folder / "table.bin", folder / "table.c"
    module.write_to_file(str(written), _KIND)
    # Where the imports of each of two modules begin and end; the only import, which is module 1.
    imports = struct.pack("<6Q", 3, 0, 1, 1, 1, 1)
    with table.open("wb") as file:
        file.write(bytes(8) + imports + _text(_KIND))
        begin = file.tell()
        file.write(bytes(8))
        for part in weights.put_back(written.read_bytes()):
            file.write(part)
        end = file.tell()
        file.write(_text("_lib"))
        nbytes = file.tell()
        for place, number in ((0, nbytes - 8), (begin, end - begin - 8)):
            file.seek(place)
            file.write(struct.pack("<Q", number))
    quoted = str(table).replace("\\", "\\\\").replace('"', '\\"')
    lines = (
        ".section .rodata", f".globl {_TABLE}", f".type {_TABLE}, %object", ".balign 64", f"{_TABLE}:",
        f'.incbin "{quoted}"', f".size {_TABLE}, {nbytes}", ".text",
    )  # fmt: skip
    source.write_text("".join(f"__asm__({json.dumps(line, ensure_ascii=False)});\n" for line in lines), "utf-8")
    return source


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
