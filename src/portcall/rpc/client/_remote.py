# SPDX-License-Identifier: Apache-2.0
"""What a session owns, as it looks from here: devices, tensors, objects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from portcall import _core
from portcall._arraylike import ArrayLike
from portcall._core import PackedFunc
from portcall._device import Device
from portcall._dtype import DataType
from portcall._dtype import dtype as as_dtype
from portcall._function import get_global_func
from portcall._html import facts_as_html
from portcall._module import Module
from portcall._tensor import Tensor, array_like, empty, tensor_over_array
from portcall.errors import RPCError, SessionLostError
from portcall.rpc.client._pipeline import answered

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Session(Protocol):
    """What devices, tensors and objects use of the session that owns them (``portcall.rpc.Session``)."""

    name: str

    @property
    def module(self) -> Module: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def get_function(self, name: str) -> PackedFunc: ...
    def empty(self, shape: Any, dtype: Any = ..., device: Any = ..., *, scope: str | None = ...) -> RemoteTensor: ...
    def _find_own(self, name: str) -> PackedFunc | None: ...


_ITERATOR = -2  # the length that a server gives for what is iterated over
_MOST_ITEMS = 256  # of an iterator that are fetched at once
_finders: list[Callable[[Any], Session]] = []


def find_sessions_by(finder: Callable[[Any], Session]) -> None:
    """Have ``finder`` return the Session of a module of type ``rpc``: sessions are made one layer up."""
    _finders[:] = [finder]


class RemoteDevice(Device):
    """A device of a session: ``session``, a kind and an index. What is made on it is of that session."""

    __slots__ = ("root", "session")
    session: Session
    root: Module  # the session that it is of, which may have been lost, and ``session`` have opened another

    def __init__(self, stand_in: _DeviceStandIn) -> None:
        root, plain = get_global_func("portcall.rpc.DeviceParts")(stand_in)
        super().__init__(plain.device_type, plain.device_id, stand_in)
        self.session = _finders[0](root)
        self.root = root

    def check_open(self) -> None:
        """Raise what became of its session, if that is over."""
        if get_global_func("portcall.rpc.IsClosed")(self.root):
            try:
                get_global_func("portcall.rpc.Sync")(self.root)
            except SessionLostError as error:
                error.lost = f"the device {self}"
                raise

    def _empty(self, shape: tuple[int, ...], dtype: _core.DataType, scope: str | None) -> RemoteTensor:
        return self.session.empty(shape, dtype, self, scope=scope)

    def _check_serves(self, module: Module) -> None:
        theirs = _finders[0](module) if module.type_key == "rpc" else None
        if theirs is not self.session:
            where = f"the session with {theirs.name}" if theirs else "this process"
            raise ValueError(f"{self!r} cannot be used with a module of {where}; give one of its devices")

    def _stream(self, command: int, stream: int = 0, other: int = 0) -> int:
        plain = Device(self.device_type, self.device_id)
        number: int = get_global_func("portcall.rpc.DeviceStream")(self.root, command, plain, stream, other)
        return number

    def _event_function(self, name: str) -> PackedFunc | None:
        return self.session._find_own(f"portcall.Event{name}")

    def _attribute_number(self, number: int) -> Any:
        return get_global_func("portcall.rpc.DeviceAttr")(self.root, self.device_type, self.device_id, number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteDevice) and super().__eq__(other) and self.session is other.session

    def __hash__(self) -> int:
        return hash((super().__hash__(), id(self.session)))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a device of a session cannot be pickled")

    def __repr__(self) -> str:
        return f"<device {self} of {self.session.name}>"


class RemoteTensor(ArrayLike, _core.Object):
    """A tensor in the memory of a session. It is freed with its last reference, and gone when the session is closed."""

    __slots__ = ()

    @property
    def session(self) -> Session:
        """The session that owns the memory."""
        return _finders[0](get_global_func("portcall.rpc.TensorSession")(self))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(get_global_func("portcall.rpc.TensorShape")(self))

    @property
    def dtype(self) -> DataType:
        return as_dtype(get_global_func("portcall.rpc.TensorDtype")(self))

    @property
    def device(self) -> RemoteDevice:
        device: RemoteDevice = get_global_func("portcall.rpc.TensorDevice")(self)
        return device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        dtype = self.dtype
        return (self.size * dtype.bits * dtype.lanes + 7) // 8

    def numpy(self, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Fetch the elements, into ``out`` if one is given, and return them."""
        if out is not None:
            get_global_func("portcall.rpc.CopyFrom")(self, tensor_over_array(out))
            return out
        local = empty(self.shape, self.dtype)
        get_global_func("portcall.rpc.CopyFrom")(self, local)
        return local.numpy()

    def copyfrom(self, source: Any) -> RemoteTensor:
        """Send the elements of an array, or copy those of another tensor of the session, into this one.

        Raises:
            ValueError: the shapes differ, or the source belongs to another session.
            TypeError: the element types differ.
        """
        if isinstance(source, RemoteTensor):
            get_global_func("portcall.rpc.CopyAmong")(source, self)
            return self
        get_global_func("portcall.rpc.CopyTo")(self, tensor_over_array(array_like(source, self.dtype)))
        return self

    def copyto(self, target: Any) -> Any:
        """Copy the elements into an array, a tensor of this process or of the session, or to a device; return that."""
        if isinstance(target, Device):
            target = empty(self.shape, self.dtype, target)
        if isinstance(target, RemoteTensor):
            return target.copyfrom(self)
        get_global_func("portcall.rpc.CopyFrom")(
            self, target if isinstance(target, Tensor) else tensor_over_array(target)
        )
        return target

    def _part(
        self, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: DataType, byte_offset: int
    ) -> RemoteTensor:
        if strides is not None:
            raise ValueError("a part of a remote tensor must be compact, as its first rows are; fetch it with .numpy()")
        made: RemoteTensor = get_global_func("portcall.rpc.View")(self, list(shape), dtype, byte_offset)
        return made

    def _operand(self) -> NDArray[Any]:
        raise TypeError("a remote tensor has no arithmetic; .numpy() fetches it")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return (
            f"<remote tensor {self.dtype}[{', '.join(map(str, self.shape))}] on {self.device} of {self.session.name}>"
        )

    def _repr_html_(self) -> str:
        facts = [
            ("type", self.dtype), ("shape", list(self.shape)), ("device", f"{self.device} of {self.session.name}"),
            ("memory", f"{self.nbytes:,} bytes"),
        ]  # fmt: skip
        return facts_as_html("remote tensor", facts, "numpy() fetches the elements")


class RemoteObject(_core.Object):
    """An object of a session, which can be handed back to functions of the session.

    With a server of portcall it shows what its type describes: fields and methods as attributes, items and a length. An
    iterator of the server, such as a generator, is iterated over: ``for row in remote["sweep"](10)``. Items come in
    groups of at most 256, 1 MiB, or what was ready after 20 ms; the loop's end ends the generator there. A context
    manager of the server is one here: ``with remote["open"]("log") as log``.
    """

    __slots__ = ()

    @property
    def session(self) -> Session:
        """The session that owns the object."""
        return _finders[0](get_global_func("portcall.rpc.ObjectSession")(self))

    @answered
    def _ask(self, what: str, *args: Any) -> Any:
        try:
            function = self.session._find_own(f"portcall.rpc.object_{what}")
            if function is None:
                raise TypeError(f"{self.session.name} does not show its objects; it is not a server of this portcall")
            return function(self, *args)
        except SessionLostError as error:
            error.lost = "an object"
            raise

    @property
    def type_name(self) -> str:
        """The type of the object on the server, such as ``demo.Counter``."""
        return str(self._describe()["type"])

    def __enter__(self) -> Any:
        return self._ask("enter")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is not None and self.session.closed:  # which that error tells of
            return False
        return bool(self._ask("exit", kind.__name__ if kind else "", str(error) if kind else ""))

    def _describe(self) -> Any:
        return self._ask("describe")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a remote object has no attribute {name!r}", name=name, obj=self)
        try:
            facts = self._describe()
        except TypeError as error:
            raise AttributeError(str(error), name=name, obj=self) from None
        if name in facts["methods"]:
            return lambda *args: self._ask("call", name, *args)
        if name not in facts["fields"]:
            known = ", ".join((*facts["fields"], *(f"{method}()" for method in facts["methods"]))) or "none"
            raise AttributeError(f"{facts['type']} has no attribute {name!r}; it has {known}", name=name, obj=self)
        return self._ask("field", name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"fields of remote objects cannot be set from here: call a function of the session that sets {name!r}",
            name=name, obj=self,
        )  # fmt: skip

    def __repr__(self) -> str:
        try:
            facts = self._describe()
        except (RPCError, TypeError):  # a session that is over, a server that does not say
            return super().__repr__()
        fields = f" with {', '.join(facts['fields'])}" if facts["fields"] else ""
        return f"RemoteObject({facts['type']}{fields}, of {self.session.name})"

    def __dir__(self) -> list[str]:
        facts = self._describe()
        return sorted({*object.__dir__(self), *facts["fields"], *facts["methods"]})

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        facts = self._describe()
        if facts["length"] < 0:
            raise TypeError(f"{facts['type']} has no length")
        return int(facts["length"])

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __iter__(self) -> Iterator[Any]:
        facts = self._describe()
        if facts["length"] == _ITERATOR:
            return self._stream()
        return (self[i] for i in range(len(self)))

    def _stream(self) -> Iterator[Any]:
        most, done = 1, False
        try:
            while not done:
                done, items = self._ask("next", most)
                yield from items
                most = min(2 * most, _MOST_ITEMS)
        finally:
            if not done and not self.session.closed:
                with contextlib.suppress(RPCError):
                    self._ask("close")


class _DeviceStandIn(_core.Object):
    """What a RemoteDevice is in the core: it knows its session there, too."""

    __slots__ = ()


_core.register_object_class("portcall.rpc.Device", _DeviceStandIn, RemoteDevice)
_core.register_object_class("portcall.rpc.Tensor", RemoteTensor)
_core.register_object_class("portcall.rpc.Object", RemoteObject)
