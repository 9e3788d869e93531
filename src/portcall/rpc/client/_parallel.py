# SPDX-License-Identifier: Apache-2.0
"""Several sessions with one server behind one object: calls of several threads, or on their way, run at the same time.

Rules:

* Each is a separate session, which carries out one request after the other. What one of them made stays in it.
* The first one does all that is not a call: a program that waits for each call sees one session.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from portcall._core import PackedFunc, as_subclass, set_row
from portcall._function import get_global_func
from portcall._future import Future, arguments_of, map_remote
from portcall._module import Module
from portcall.rpc.client._activity import Progress
from portcall.rpc.client._remote import RemoteDevice, RemoteObject, RemoteTensor
from portcall.rpc.client._session import Session, session_of

_is_closed = get_global_func("portcall.rpc.IsClosed")
_on_their_way = get_global_func("portcall.rpc.OnTheirWay")
_session_of_function = get_global_func("portcall.rpc.FunctionSession")
_session_of_future = get_global_func("portcall.FutureSession")
_T = TypeVar("_T")


MOST_PARALLEL = 64


class ParallelSession(Session):
    """Several sessions with one server, used as one: what ``connect(parallel=)`` returns.

    A call goes to the session that its tensors, devices, objects and functions are of; one that has none of these goes
    to a session that has nothing to do, or has the least. ``upload``, ``load_module`` and ``remove`` are done in each.
    All else, such as tensors, downloads and pipelines, is done in the first. A session that is over is left out.
    """

    _others: Sequence[Session] = ()

    def _join(self, others: Sequence[Session]) -> None:
        """Use these sessions, too."""
        self._others = others
        self._group = _Group((self, *others))

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions: this one, which is the first, and the others, for tensors that belong in them."""
        return (self, *self._others)

    def _in_each(self, work: Callable[[Session], _T]) -> dict[int, _T]:
        """Return what ``work`` returns for each of the other sessions that is open, by its number."""
        return {i: work(other) for i, other in enumerate(self._others, 1) if not other.closed}

    def get_function(self, name: str) -> PackedFunc:
        """Return a function that the server offers, whose calls go to any of the sessions.

        Raises:
            FunctionNotFoundError: it offers none of that name.
        """
        return self._group.function(
            lambda i: self.sessions[i]._function(name), lambda i: not self.sessions[i]._is_over()
        )

    def load_module(self, path: str) -> Module:
        """Load a library in each session, as ``Session.load_module``; calls of its functions go to any of them."""
        return self._group.module({0: super().load_module(path), **self._in_each(lambda o: o.load_module(path))})

    def system_lib(self, prefix: str = "") -> Module:
        """Return the functions of code that is linked into the server; calls of them go to any of the sessions."""
        return self._group.module({0: super().system_lib(prefix), **self._in_each(lambda o: o.system_lib(prefix))})

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[None]:
        """A pipeline of the first session, as ``Session.pipeline``: all calls of the block go to it."""
        with self._group.only_first(), super().pipeline():
            yield

    def upload(
        self, source: str | os.PathLike[str] | bytes | bytearray | memoryview, target: str | None = None,
        progress: Progress | None = None, check: bool = True, compress: Literal["zstd"] | None = None,
    ) -> str:  # fmt: skip
        """Send a file to the directory of each session, as ``Session.upload``. Large ones are sent once."""
        name = super().upload(source, target, progress, check, compress)
        self._in_each(lambda other: other.upload(source, name, None, False, compress))
        return name

    def remove(self, path: str) -> None:
        """Delete a file in the directory of each session."""
        super().remove(path)
        self._in_each(lambda other: other.remove(path))

    @property
    def closed(self) -> bool:
        """Whether all of the sessions are over."""
        return super().closed and all(other.closed for other in self._others)

    def close(self) -> None:
        """End all of the sessions."""
        for other in self._others:
            other.close()
        super().close()

    def set_call_timeout(self, seconds: float) -> None:
        """Let each request from now on take so long at most; 0 for no limit."""
        super().set_call_timeout(seconds)
        for other in self._others:
            other.set_call_timeout(seconds)

    def stats(self) -> dict[str, Any]:
        """Return the sums of what ``Session.stats`` returns for each."""
        total = super().stats()
        for other in self._others:
            each = other.stats()
            seconds = {clock: count + each["seconds"][clock] for clock, count in total["seconds"].items()}
            counts = {name: count + each[name] for name, count in total.items() if name != "seconds"}
            total = {**counts, "seconds": seconds}
        return total

    def __repr__(self) -> str:
        return f"<portcall.rpc.ParallelSession of {len(self.sessions)} with {self.name}{', closed' * self.closed}>"


class _Group:
    """The sessions: what each has to do, and which one a call goes to."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._running = [0] * len(sessions)
        self._thread = threading.local()

    def function(self, find: Callable[[int], PackedFunc], usable: Callable[[int], bool]) -> PackedFunc:
        """Return a function of the group.

        Args:
            find: looks it up in the session of a number.
            usable: whether that can be called.
        """
        number = self._idle(usable)[0]
        found = find(number)
        made = as_subclass(_ParallelFunction, found)
        made._group, made._find, made._usable = self, find, usable
        made._found = {number: (found, _session_of_function(found))}
        return made

    def module(self, modules: dict[int, Module]) -> Module:
        """Return a module of the group, made of those of its sessions."""
        made = as_subclass(_ParallelModule, modules[0])
        vars(made).update(_group=self, _modules=modules)
        return made

    @contextlib.contextmanager
    def only_first(self) -> Iterator[None]:
        """Have all calls that this thread makes in the block go to the first session."""
        before = getattr(self._thread, "only_first", False)
        self._thread.only_first = True
        try:
            yield
        finally:
            self._thread.only_first = before

    @contextlib.contextmanager
    def call(self, function: _ParallelFunction, args: Iterable[Any]) -> Iterator[int]:
        """Choose the session that a call goes to, which has more to do during the block."""
        with self.calls(function, [self.home_of_all(function, args)]) as (number,):
            yield number

    @contextlib.contextmanager
    def calls(self, function: _ParallelFunction, homes: Sequence[int | None]) -> Iterator[list[int]]:
        """Choose the sessions of calls: their homes; else those with the least to do take turns."""
        with self._lock:
            turns = itertools.cycle(self._idle(function._usable))
            numbers = [next(turns) if home is None else home for home in homes]
            for number in numbers:
                self._running[number] += 1
        try:
            yield numbers
        finally:
            with self._lock:
                for number in numbers:
                    self._running[number] -= 1

    def of_member(self, number: int, value: Any) -> Any:
        """Return what an argument is in a session: functions and modules of the group are those of the session."""
        if isinstance(value, _ParallelFunction) and value._group is self:
            return value._member(number)
        if isinstance(value, _ParallelModule) and vars(value)["_group"] is self:
            return vars(value)["_modules"].get(number, value)
        return value

    def _idle(self, usable: Callable[[int], bool]) -> list[int]:
        """Return the sessions that have the least to do."""
        if getattr(self._thread, "only_first", False):
            return [0]
        numbers = [i for i in range(len(self._sessions)) if usable(i)] or [0]
        loads = {i: max(self._running[i], _on_their_way(self._sessions[i]._module)) for i in numbers}
        return [i for i, load in loads.items() if load == min(loads.values())]

    def home_of_all(self, function: _ParallelFunction, args: Iterable[Any]) -> int | None:
        """Return the number of the session that the arguments of a call are of; None for none, or all."""
        homes = {home: place for place, arg in enumerate(args) if (home := self._home(arg)) is not None}
        if len(homes) > 1:
            one, other = sorted(homes.values())[:2]
            raise ValueError(
                f"arguments #{one} and #{other} of {function.name}() are of two of the parallel sessions with "
                f"{self._sessions[0].name}; make them in one of .sessions, or fetch one with .numpy()"
            )
        return next(iter(homes), None)

    def _home(self, value: Any) -> int | None:
        """Return the number of the session that an argument is of; None for what is of none, or of all."""
        session: Session | None = None
        if isinstance(value, (_ParallelFunction, _ParallelModule)):
            return None
        if isinstance(value, (RemoteTensor, RemoteObject, RemoteDevice)):
            session = value.session  # type: ignore[assignment]  # its protocol
        elif isinstance(value, PackedFunc) and (root := _session_of_function(value)) is not None:
            session = session_of(root)
        elif isinstance(value, Module) and value.kind == "rpc":
            session = session_of(value)
        elif isinstance(value, Future):
            if not (id := _session_of_future(value)):
                return None if value.exception() else self._home(value.result())
            session = next((each for each in self._sessions if each._id == id), None)
        return next((i for i, each in enumerate(self._sessions) if each is session), None)


class _ParallelFunction(PackedFunc):
    """A function that the sessions of a group have: one's, but for calls. The others look it up at need."""

    __slots__ = ("_find", "_found", "_group", "_usable")
    _group: _Group
    _find: Callable[[int], PackedFunc]
    _found: dict[int, tuple[PackedFunc, Module]]  # and the session that each is of, which may have been lost
    _usable: Callable[[int], bool]

    def __call__(self, *args: Any, **named: Any) -> Any:
        group = self._group
        with group.call(self, (*args, *named.values())) as number:
            own = {name: group.of_member(number, value) for name, value in named.items()}
            return self._member(number)(*(group.of_member(number, arg) for arg in args), **own)

    def future(self, *args: Any) -> Future:
        group = self._group
        with group.call(self, args) as number:
            return self._member(number).future(*(group.of_member(number, arg) for arg in args))

    def map(self, rows: Iterable[Any]) -> list[Any]:
        """Call once for each row, as ``PackedFunc.map``; idle sessions share the rows that are of none."""
        group, given = self._group, arguments_of(rows)
        homes = []
        for index, row in enumerate(given):
            try:
                homes.append(group.home_of_all(self, row))
            except ValueError as error:
                set_row(error, index)
                raise
        with group.calls(self, homes) as numbers:
            funcs = [self._member(number) for number in numbers]
            own = [tuple(group.of_member(n, arg) for arg in row) for n, row in zip(numbers, given, strict=True)]
            return map_remote(funcs, own)

    async def aio(self, *args: Any) -> Any:
        group = self._group
        with group.call(self, args) as number:
            if number not in self._found:
                await asyncio.to_thread(self._member, number)
            return await self._member(number).aio(*(group.of_member(number, arg) for arg in args))

    def with_timeout(self, seconds: float) -> PackedFunc:
        return self._group.function(lambda i: self._member(i).with_timeout(seconds), self._usable)

    def _member(self, number: int) -> PackedFunc:
        if number not in self._found or _is_closed(self._found[number][1]):
            found = self._find(number)
            self._found[number] = (found, _session_of_function(found))
        return self._found[number][0]


class _ParallelModule(Module):
    """A module that was loaded in the sessions of a group: the first one's, but for its functions."""

    __slots__ = ()

    def get_function(self, name: str, query_imports: bool = False) -> PackedFunc:
        group, modules = vars(self)["_group"], vars(self)["_modules"]
        made: PackedFunc = group.function(
            lambda i: modules[i].get_function(name, query_imports),
            lambda i: i in modules and not _is_closed(modules[i]),
        )
        return made

    def import_module(self, other: Module) -> None:
        group, modules = vars(self)["_group"], vars(self)["_modules"]
        for i, module in modules.items():
            module.import_module(group.of_member(i, other))
