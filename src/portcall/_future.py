# SPDX-License-Identifier: Apache-2.0
"""Results that come later: of calls to other processes, many of which are on their way at once."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import threading
from collections.abc import Generator, Iterable
from typing import Any, ClassVar

from portcall import _core
from portcall._container import List
from portcall._core import PackedFunc
from portcall._function import get_global_func

start_call = get_global_func("portcall.StartCall")
_send_call = get_global_func("portcall.SendCall")
_function_session = get_global_func("portcall.rpc.FunctionSession")
_current_streams = get_global_func("portcall.CurrentStreams")
_swap_streams = get_global_func("portcall.SwapStreams")
_result = get_global_func("portcall.FutureResult")
_session = get_global_func("portcall.FutureSession")
_map = get_global_func("portcall.MapCalls")


class Future(_core.Object):
    """The result of ``f.future(...)``. Thread-safe, and awaitable."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it, or raise what the call raised.

        Parameters:
            timeout: seconds to wait; None for no limit. The call goes on, and may be waited for again.

        Raises:
            TimeoutError: the result has not come in time.
        """
        return _result(self, -1.0 if timeout is None else max(timeout, 0.0))

    def done(self) -> bool:
        """Return whether the result, or an error, has come. What has arrived is seen while somebody waits."""
        return not _session(self)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the result and return what the call raised; None for a call that succeeded.

        Raises:
            TimeoutError: the result has not come in time.
        """
        try:
            self.result(timeout)
        except BaseException as error:
            if not self.done():
                raise
            return error
        return None

    def as_concurrent(self) -> concurrent.futures.Future[Any]:
        """Return the result as a ``concurrent.futures.Future``: a thread waits for it."""
        made: concurrent.futures.Future[Any] = concurrent.futures.Future()
        made.set_running_or_notify_cancel()
        session = _session(self)
        if session:
            _Watcher.watch(session, self, made)
        else:
            _settle(self, made)
        return made

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self.as_concurrent()).__await__()

    def __repr__(self) -> str:
        return f"<portcall.Future, {'done' if self.done() else 'pending'}>"


async def await_call(func: _core.PackedFunc, args: tuple[Any, ...]) -> Any:
    """Return the result of a call, during which the event loop goes on."""
    sent = _send_call(func, *args) if _function_session(func) is not None else None
    if sent is not None:
        return await sent
    streams = _current_streams()

    def call() -> Any:
        before = _swap_streams(streams)
        try:
            return func(*args)
        finally:
            _swap_streams(before)

    return await asyncio.to_thread(call)


def _settle(future: Future, target: concurrent.futures.Future[Any]) -> None:
    try:
        value = future.result()
    except BaseException as error:
        target.set_exception(error)
    else:
        target.set_result(value)


class _Watcher:
    """A thread that waits for the results of one session, in the order of the calls. It ends once there are none."""

    _lock = threading.Lock()
    _all: ClassVar[dict[int, _Watcher]] = {}

    def __init__(self) -> None:
        self._waiting: collections.deque[tuple[Future, concurrent.futures.Future[Any]]] = collections.deque()

    @classmethod
    def watch(cls, session: int, future: Future, target: concurrent.futures.Future[Any]) -> None:
        with cls._lock:
            watcher = cls._all.get(session)
            if watcher is None:
                watcher = cls._all[session] = cls()
                threading.Thread(target=watcher._run, args=(session,), name="portcall-results", daemon=True).start()
            watcher._waiting.append((future, target))

    def _run(self, session: int) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    del self._all[session]
                    return
                future, target = self._waiting.popleft()
            _settle(future, target)
            del future, target


def arguments_of(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return the arguments of each call of ``map``."""
    return [row if isinstance(row, tuple) else (row,) for row in rows]


def map_remote(funcs: list[PackedFunc], rows: list[tuple[Any, ...]]) -> list[Any]:
    """Call a function of a session for each row of arguments, many of them at once; return the results in order."""
    return _core.map_remote(_map, funcs, rows, List()) if rows else []


def map_calls(func: PackedFunc, rows: Iterable[Any]) -> list[Any]:
    """Call a function once for each row; see ``PackedFunc.map``."""
    given = arguments_of(rows)
    if _function_session(func) is not None:
        return map_remote([func] * len(given), given)
    results: list[Any] = []
    for row in given:
        try:
            results.append(func(*row))
        except Exception as error:
            _core.set_row(error, len(results))
            raise
    return results


_core.register_object_class("portcall.Future", Future)
_core.provide(await_call=await_call, start_call=start_call, map_calls=map_calls)  # instead of what loads this module
