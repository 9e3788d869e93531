# SPDX-License-Identifier: Apache-2.0
"""Parameters: named tensors in one blob, the format of TVM's ``save_param_dict``, from bytes and from files.

The blob has no alignment and cannot be used in place, so each tensor is made on its own, straight into 64-byte aligned
memory that executors adopt: code that goes through a file tensor by tensor never holds the weights twice.

    u64 mark, u64 0, u64 n, n names (u64 length, bytes), u64 n, n tensors:
        u64 mark, u64 0, i32 device type 1, i32 device 0, i32 axes, u8 code, u8 bits, u16 lanes, i64 extents,
        i64 size, data

An element takes whole bytes in it; types below a byte are packed nevertheless, at the front of their data, as TVM does
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import reprlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import portcall
from portcall import _core, errors
from portcall._folders import folder_beside
from portcall.errors import GraphError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LIST_MARK = 0xF7E58D4F05049CB7
_TENSOR_MARK = 0xDD5E40F096B4A13F
_HEADER = struct.Struct("<QQiiiBBH")  # of a tensor, before its extents
_CPU = _core.DEVICE_TYPE["CPU"]
_UINT, _HANDLE, _BOOL, _LAST_CODE = (
    _core.TYPE_CODE[name] for name in ("UInt", "OpaqueHandle", "Bool", "Float4_e2m1fn")
)
_NUMPY_CODES = tuple(_core.TYPE_CODE[name] for name in ("Int", "UInt", "Float", "Complex", "Bool"))
_MAX_AXES = 64

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class ParamInfo:
    """One tensor of a blob.

    Attributes:
        dtype: the element type; the one-bit integers of older files are ``bool``.
        shape: its extents.
        offset: where its data begin, in bytes from the beginning of the blob.
        nbytes: how many bytes it takes in memory.
    """

    dtype: portcall.DataType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Source(Protocol):
    """Bytes that are read piecemeal."""

    size: int

    def read(self, offset: int, count: int) -> bytes: ...
    def read_into(self, offset: int, target: memoryview) -> None: ...


class MemorySource:
    """Bytes that are there already."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._view = memoryview(data).cast("B")
        except TypeError:
            raise errors.ArgumentError(
                f"the bytes of parameters, or a file, are expected, got {reprlib.repr(data)}",
                expected="bytes", got=type(data).__name__,
            ) from None  # fmt: skip
        self.size = len(self._view)

    def read(self, offset: int, count: int) -> bytes:
        return bytes(self._view[offset : offset + count])

    def read_into(self, offset: int, target: memoryview) -> None:
        target[:] = self._view[offset : offset + len(target)]


class _File:
    """An open file. Not a mapping of it: touched pages would count as memory, and a file cut short would be a crash."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def read(self, offset: int, count: int) -> bytes:
        data = os.pread(self._file.fileno(), count, offset)
        if len(data) != count:
            raise GraphError(f"the file of parameters ends at byte {offset + len(data)}: it was cut while it was read")
        return data

    def read_into(self, offset: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            got = os.preadv(self._file.fileno(), [target[done:]], offset + done)
            if got == 0:
                raise GraphError(f"the file of parameters ends at byte {offset + done}: it was cut while it was read")
            done += got


class Cursor:
    """A place in a source; reading beyond its end is a GraphError that says where."""

    def __init__(self, source: Source, what: str) -> None:
        self.source = source
        self.place = 0
        self._what = what

    def fail(self, why: str) -> GraphError:
        return GraphError(f"{self._what} is damaged at byte {self.place}: {why}")

    @property
    def left(self) -> int:
        return self.source.size - self.place

    def skip(self, count: int, name: str) -> int:
        """Pass ``count`` bytes and return where they begin."""
        if count > self.left:
            raise self.fail(f"{name} takes {count} bytes, and {self.left} are left")
        self.place += count
        return self.place - count

    def take(self, count: int, name: str) -> bytes:
        return self.source.read(self.skip(count, name), count)

    def number(self, name: str) -> int:
        return int.from_bytes(self.take(8, name), "little")

    def text(self, name: str) -> str:
        data = self.take(self.number(f"the length of {name}"), name)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{name} is not UTF-8: {data[:40]!r}") from None

    def names(self) -> list[str]:
        count = self.number("the number of names")
        if count > self.left // 8:
            raise self.fail(f"{count} names are announced, more than the bytes that follow can hold")
        names = [self.text("a name") for _ in range(count)]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise self.fail(f"two tensors have the name {twice!r}")
        return names

    def expect_end(self) -> None:
        if self.left:
            raise self.fail(f"{self.left} bytes follow the end")


def read_tensor(cursor: Cursor, name: str) -> ParamInfo:
    """Read what a blob says of one tensor, and pass its data.

    Raises:
        GraphError: there is no such tensor there.
    """
    mark, _, device, _, ndim, code, bits, lanes = _HEADER.unpack(cursor.take(_HEADER.size, "the header of a tensor"))
    what = f"the tensor {name!r}"
    if mark != _TENSOR_MARK:
        raise cursor.fail(f"{what} does not begin before this byte")
    if device != _CPU:
        raise cursor.fail(f"{what} lies on a device of type {device}, not on the host")
    if not 0 <= ndim <= _MAX_AXES:
        raise cursor.fail(f"{what} has {ndim} axes")
    if code == _HANDLE or code > _LAST_CODE or not 0 < bits <= 128:
        raise cursor.fail(f"{what} has elements of no known type (code {code}, {bits} bits)")
    if lanes != 1:
        raise cursor.fail(f"{what} has vectors of {lanes} elements, which the format cuts")
    if (code, bits) == (_UINT, 1):
        code, bits = _BOOL, 8
    shape = struct.unpack(f"<{ndim}q", cursor.take(8 * ndim, "a shape"))
    if min(shape, default=0) < 0:
        raise cursor.fail(f"{what} has the shape {shape}")
    size, expected = cursor.number("a size"), prod(shape) * ((bits + 7) // 8)
    if size != expected:
        raise cursor.fail(f"{what} is said to have {size} bytes; its shape and type have {expected}")
    offset = cursor.skip(size, f"the data of {what}")
    dtype = portcall.DataType(code=code, bits=bits)
    return ParamInfo(dtype, shape, offset, (prod(shape) * bits + 7) // 8)


def read_index(source: Source) -> dict[str, ParamInfo]:
    """Read what a blob says of its tensors, by name; their data are not touched.

    Raises:
        GraphError: the bytes are not such a blob. The message says where they go wrong.
    """
    cursor = Cursor(source, "the parameter blob")
    if cursor.number("the mark of a blob") != _LIST_MARK:
        raise GraphError("these bytes are not parameters: the mark of a blob, which save_params writes, is missing")
    cursor.number("a reserved word")
    names = cursor.names()
    count = cursor.number("the number of tensors")
    if count != len(names):
        raise cursor.fail(f"{len(names)} names and {count} tensors")
    infos = {name: read_tensor(cursor, name) for name in names}
    cursor.expect_end()
    return infos


def make_tensor(source: Source, info: ParamInfo) -> portcall.Tensor:
    """Read a tensor's data into its own memory, aligned to 64 bytes."""
    tensor = portcall.empty(info.shape, info.dtype)
    source.read_into(info.offset, bytes_of(tensor))
    return tensor


def load_params(data: bytes | bytearray | memoryview | StrPath) -> dict[str, Any]:
    """Read a blob, or the file of that name: NumPy arrays by name, aligned to 64 bytes; tensors where NumPy has no such
    elements (bfloat16, …).

    Raises:
        GraphError: the bytes are not such a blob. The message says where they go wrong.
        OSError: the file cannot be read.
    """
    if isinstance(data, (str, os.PathLike)):
        return dict(ParamFile(data))
    source = MemorySource(data)
    return {name: _as_array(make_tensor(source, info)) for name, info in read_index(source).items()}


def param_infos(data: bytes | bytearray | memoryview) -> dict[str, ParamInfo]:
    """Return what a blob says of its tensors, by name, and leave their data alone.

    Raises:
        GraphError: as for ``load_params``.
    """
    return read_index(MemorySource(data))


class ParamFile(Mapping[str, Any]):
    """The parameters of a file. Each look-up reads one tensor from it; nothing is kept, and no file stays open.

    Attributes:
        path: the file.
        infos: type, shape and size of each tensor, by name.

    Raises:
        GraphError: the file has changed since it was opened.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            self._identity = _identity(file)
            try:
                self.infos: Mapping[str, ParamInfo] = read_index(_File(file))
            except GraphError as error:
                raise GraphError(f"'{self.path}': {error}") from None

    def tensor(self, name: str) -> portcall.Tensor:
        """Read one tensor into its own memory, aligned to 64 bytes.

        Raises:
            KeyError: there is none of that name.
            GraphError: the file has changed since it was opened.
        """
        info = self.infos[name]
        with self.path.open("rb") as file:
            if _identity(file) != self._identity:
                raise GraphError(f"'{self.path}' has changed since its parameters were listed; open it again")
            return make_tensor(_File(file), info)

    def __getitem__(self, name: str) -> NDArray[Any] | portcall.Tensor:
        return _as_array(self.tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    def __repr__(self) -> str:
        return f"<portcall.graph.ParamFile '{self.path}' of {len(self)} tensors>"


def load_params_from_file(path: StrPath) -> ParamFile:
    """Open a file of parameters: a mapping from names to arrays that are read when they are asked for.

    All of the file's structure is checked here, and none of the data read. Arrays are what ``load_params`` returns.

    Raises:
        GraphError: the file is not such a blob. The message says where it goes wrong.
        OSError: it cannot be read.
    """
    return ParamFile(path)


def save_params(params: Mapping[str, Any]) -> bytes:
    """Return a blob of named arrays or tensors, byte for byte what TVM 0.27 writes for them in that order.

    Raises:
        GraphError: elements that are vectors, which the format cannot hold.
        ArgumentError: a value is not an array.
        TypeError: a name is not text.
    """
    out = io.BytesIO()
    write_params(params, out)
    return out.getvalue()


def save_params_to_file(params: Mapping[str, Any], path: StrPath) -> None:
    """Write the blob of ``save_params`` to a file, one tensor after the other. The file appears whole or not at all."""
    with replacing(Path(path)) as file:
        write_params(params, file)


def write_params(params: Mapping[str, Any], out: BinaryIO) -> None:
    """Write the blob of ``save_params``; one value of ``params`` at a time is held."""
    names = [_encoded(name) for name in params]
    out.write(struct.pack("<QQQ", _LIST_MARK, 0, len(names)))
    for encoded in names:
        out.write(struct.pack("<Q", len(encoded)) + encoded)
    out.write(struct.pack("<Q", len(names)))
    for name in params:
        tensor = host_tensor(params[name])
        size = tensor.size * ((tensor.dtype.bits + 7) // 8)
        out.write(struct.pack("<QQii", _TENSOR_MARK, 0, _CPU, 0) + describe(name, tensor) + struct.pack("<q", size))
        out.write(bytes_of(tensor))
        out.write(bytes(size - tensor.nbytes))


def describe(name: str, tensor: portcall.Tensor) -> bytes:
    """Return the number of axes, the element type and the extents as the formats have them.

    Raises:
        GraphError: elements that are vectors, which the formats cannot hold.
    """
    dtype, shape = tensor.dtype, tensor.shape
    if dtype.lanes != 1:
        raise GraphError(
            f"{name!r} has elements of type {dtype}: the format of parameters has no vectors; give them an axis of "
            "their own"
        )
    return struct.pack(f"<iBBH{len(shape)}q", len(shape), dtype.code, dtype.bits, 1, *shape)


def host_tensor(value: Any) -> portcall.Tensor:
    """Return an array or tensor as a compact tensor in the host's memory, over the same memory where that will do.

    Raises:
        ArgumentError: ``value`` is not an array.
    """
    tensor: portcall.Tensor = value if isinstance(value, portcall.Tensor) else _core.tensor_over(value)
    if tensor.device.device_type == _CPU and tensor.is_contiguous:
        return tensor
    return portcall.tensor(tensor, device=portcall.cpu())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file that takes its place when it is complete.

    Where the file system can do that it has no name before, so that a killed process leaves no file.
    Errors of the system name it.
    """
    try:
        with _unnamed(path) as file:
            yield file
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def _unnamed(path: Path) -> Iterator[BinaryIO]:
    try:
        handle = os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError:
        with folder_beside(path) as folder:
            made = folder / path.name
            with made.open("w+b") as file:
                yield file
            os.replace(made, path)
        return
    with open(handle, "w+b") as file:
        yield file
        file.flush()
        with folder_beside(path) as folder:
            made = folder / path.name
            # src_dir_fd means nothing to an absolute path, but with it Python calls linkat(2), which follows this link.
            os.link(f"/proc/self/fd/{handle}", made, src_dir_fd=handle, follow_symlinks=True)
            os.replace(made, path)


def _encoded(name: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"the name of a parameter is text, not {name!r}")
    return name.encode()


def _identity(file: BinaryIO) -> tuple[int, ...]:
    info = os.fstat(file.fileno())
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def bytes_of(tensor: portcall.Tensor) -> memoryview:
    """Return the memory of a compact tensor of the host. It does not keep the tensor alive."""
    if tensor.nbytes == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr)).cast("B")


def _as_array(tensor: portcall.Tensor) -> NDArray[Any] | portcall.Tensor:
    own = tensor.dtype.code in _NUMPY_CODES and tensor.dtype.bits >= 8
    return tensor.numpy() if own else tensor
