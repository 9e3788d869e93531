# SPDX-License-Identifier: Apache-2.0
"""Work for many boards: a standard executor whose tasks get a session with a place of a farm."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from portcall import errors
from portcall.bench import Measurement
from portcall.rpc.client._farm import Farm, Lease

_LOST = (errors.SessionBrokenError, errors.SessionTimeoutError, errors.ConnectError, errors.RemoteCrashError)


@dataclass
class _Task:
    future: concurrent.futures.Future[Any]
    work: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attempts: int = 0


class Executor(concurrent.futures.Executor):
    """Runs ``work(session, *args)`` on places of a farm; a context manager::

        with portcall.farm.connect("lab:9190") as farm, portcall.farm.Executor(farm, "rasp4", boards=4) as executor:
            for seconds in executor.map(measure, candidates):
                print(seconds)

    A board is leased when there is work for it, and given back when there is none. A task whose session was lost, by a
    crash too, is tried again, on another board where there is one.

    Parameters:
        farm: from ``portcall.farm.connect``.
        want: what to lease.
        boards: places at once, at most.
        retries: how often a task is tried again.
        idle: seconds for which a board is kept without work.
        call_timeout: seconds that one request of a session may take; 0 for any time.
        on_progress: called after each task with how many are done, and how many were submitted so far.
        lease: further options of ``Farm.lease``.
    """

    def __init__(
        self, farm: Farm, want: str, *, boards: int = 1, retries: int = 2, idle: float = 5, call_timeout: float = 0,
        on_progress: Callable[[int, int], object] | None = None, **lease: Any,
    ) -> None:  # fmt: skip
        if boards < 1:
            raise ValueError(f"invalid boards {boards} (must be 1 or more)")
        self._farm, self._want, self._boards = farm, want, boards
        self._retries, self._idle, self._call_timeout, self._lease = retries, idle, call_timeout, lease
        self._tasks: collections.deque[_Task] = collections.deque()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.RLock()  # a cancelled future calls back while it is held
        self._news = threading.Condition(self._lock)  # a task, or the end
        self._on_progress = on_progress
        self._pending = self._submitted = self._done = 0
        self._down = False

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Have ``work(session, *args, **kwargs)`` called; return what will have the result."""
        task = _Task(concurrent.futures.Future(), work, args, kwargs)
        with self._lock:
            if self._down:
                raise RuntimeError("the executor was shut down")
            self._pending += 1
            self._submitted += 1
            if self._on_progress is not None:
                task.future.add_done_callback(self._report)
            self._put(task)
            if len(self._threads) < min(self._boards, self._pending):
                thread = threading.Thread(target=self._work, name="portcall-executor", daemon=True)
                self._threads.add(thread)
                thread.start()
        return task.future

    def _report(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._done += 1
            done, submitted = self._done, self._submitted
        assert self._on_progress is not None
        self._on_progress(done, submitted)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; finish, or with ``cancel_futures`` drop, those that wait; give all boards back."""
        with self._lock:
            self._down = True
            if cancel_futures:
                for task in iter(self._take, None):
                    task.future.cancel()
            threads = list(self._threads)
            self._news.notify_all()
        if wait:
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        """Serve tasks on one board after the other, until there are none."""
        failure: BaseException | None = None
        try:
            while (task := self._take(self._idle)) is not None:
                try:
                    with self._farm.lease(self._want, **self._lease) as lease:
                        self._on_board(lease, task)
                except errors.RPCError as error:  # no board: nothing could match, or the farm is away
                    failure = error
                    self._finish(task, error=error)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                left = self._pending if not self._threads else 0
            if left and failure is not None:
                for waiting in iter(self._take, None):
                    self._finish(waiting, error=failure)

    def _put(self, task: _Task) -> None:
        with self._lock:
            self._tasks.append(task)
            self._news.notify()

    def _take(self, patience: float = 0) -> _Task | None:
        """Return the next task; None if there is none within ``patience`` seconds, or before the end."""
        with self._lock:
            self._news.wait_for(lambda: self._tasks or self._down, patience)
            return self._tasks.popleft() if self._tasks else None

    def _on_board(self, lease: Lease, task: _Task | None) -> None:
        """Run tasks on one board, until one loses its session or no more come in time."""
        while task is not None:
            if not self._run(lease, task):
                return
            task = self._take(self._idle)

    def _run(self, lease: Lease, task: _Task) -> bool:
        """Run a task; return whether the board can go on."""
        if task.attempts == 0 and not task.future.set_running_or_notify_cancel():
            self._count_down()
            return True
        task.attempts += 1
        try:
            with lease.session(call_timeout=self._call_timeout) as session:
                result = task.work(session, *task.args, **task.kwargs)
        except (*_LOST, errors.FarmError) as error:
            if task.attempts > self._retries:
                self._finish(task, error=error)
            else:
                self._put(task)
            return False
        except BaseException as error:
            self._finish(task, error=error)
            return True
        self._finish(task, result=result)
        return True

    def _finish(self, task: _Task, result: Any = None, error: BaseException | None = None) -> None:
        self._count_down()
        if task.attempts == 0 and not task.future.set_running_or_notify_cancel():
            return
        if error is not None:
            task.future.set_exception(error)
        else:
            task.future.set_result(result)

    def _count_down(self) -> None:
        with self._lock:
            self._pending -= 1


def measure(
    candidates: Iterable[Any], work: Callable[..., Any], *, executor: concurrent.futures.Executor,
    build: Callable[..., Any] | None = None, builders: concurrent.futures.Executor | None = None, again: int = 2,
) -> list[Any]:  # fmt: skip
    """Build candidates on one executor while another measures those that are built; return the results in order.

    Parameters:
        candidates: what ``build``, or without one ``work``, is called with.
        work: called with a session, where ``executor`` is of a farm, and what was built.
        executor: measures: an ``Executor`` of a farm, or any other of the standard kind.
        build: makes what is measured of a candidate.
        builders: where ``build`` runs, such as ``distributed.Client.get_executor()``; by default in threads.
        again: where ``work`` returns what ``portcall.bench.measure`` does, how often a candidate is measured again
            whose figure cannot be trusted, on whichever board is free. Of several the first that can be is returned,
            else the one whose interval is the narrowest.
    """
    if build is None:
        ready = list(candidates)
        results = [future.result() for future in [executor.submit(work, candidate) for candidate in ready]]
        return _settled(results, ready, work, executor, again)
    with contextlib.ExitStack() as stack:
        pool = builders or stack.enter_context(concurrent.futures.ThreadPoolExecutor())
        built = [pool.submit(build, candidate) for candidate in candidates]
        numbers = {id(future): number for number, future in enumerate(built)}
        measured = {
            numbers[id(future)]: executor.submit(work, future.result())
            for future in concurrent.futures.as_completed(built)
        }
        results = [measured[number].result() for number in range(len(built))]
    return _settled(results, [future.result() for future in built], work, executor, again)


def _settled(
    results: list[Any], ready: list[Any], work: Callable[..., Any], executor: concurrent.futures.Executor, again: int
) -> list[Any]:
    """Measure again what cannot be trusted, a few times; return the better figures."""
    for _ in range(again):
        doubtful = [number for number, result in enumerate(results) if _is_doubtful(result)]
        for number, future in [(number, executor.submit(work, ready[number])) for number in doubtful]:
            if future.exception() is None:  # else the figure that is there is the best that there is
                results[number] = _better(results[number], future.result())
    return results


def _is_doubtful(result: Any) -> bool:
    return isinstance(result, Measurement) and not result.verdict.ok


def _better(old: Measurement, new: Any) -> Any:
    if not isinstance(new, Measurement) or new.verdict.ok:
        return new
    return min(old, new, key=_width)


def _width(measured: Measurement) -> float:
    """Return how wide the interval of a figure is, in parts of the figure."""
    low, high = measured.verdict.interval
    return (high - low) / measured.verdict.median if measured.verdict.median else math.inf
