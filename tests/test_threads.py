# SPDX-License-Identifier: Apache-2.0
"""Calls from many threads, calls back from threads that Python never saw, and the lock that Python holds meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portcall

echo = portcall.get_global_func("testing.echo")
apply = portcall.get_global_func("testing.apply")


def in_threads(n: int, work: Callable[[int], None]) -> None:
    """Run ``work(k)`` in n threads that start together, and raise the first of their errors."""
    failures: list[BaseException] = []
    start = threading.Barrier(n)

    def run(k: int) -> None:
        try:
            start.wait()
            work(k)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# ---- Many callers ----------------------------------------------------------------------------------------------------


def test_threads_call_with_callbacks(native: portcall.Module) -> None:
    """Values, tensors, containers, functions and errors, both ways, all at once."""
    add, run, call_in_thread, fill = native["add"], native["apply"], native["call_in_thread"], native["fill"]

    def work(k: int) -> None:
        array = np.zeros(16 + k, np.float32)
        for _ in range(100):
            assert add(k, 1) == k + 1
            assert apply(lambda a, b: a * b, k, 2) == 2 * k
            assert run(lambda items: len(items), ["a text on the heap", k, None]) == 3
            assert echo({"k": k, "list": [k, 2.5]}) == {"k": k, "list": [k, 2.5]}
            fill(array, float(k))
            assert (array == k).all()
            assert call_in_thread(lambda x: x + k, 1) == k + 1
            with pytest.raises(ZeroDivisionError):
                run(lambda x: x / 0, k)
            with pytest.raises(ValueError, match=f"refused {k}"):
                native["refuse"](k)

    in_threads(8, work)


def test_threads_have_their_own_errors(native: portcall.Module) -> None:
    def work(k: int) -> None:
        for n in range(300):
            with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
                native["refuse"](1000 * k + n)
            assert f"refused {1000 * k + n} " in str(caught.value)

    in_threads(6, work)


def test_threads_call_and_drop_one_function() -> None:
    class Callee:
        def __call__(self, x: int) -> int:
            return x + 1

    callee = Callee()
    gone = weakref.ref(callee)
    func = portcall.convert(callee)
    del callee
    holders = [func] * 8
    del func

    def work(k: int) -> None:
        for n in range(500):
            copies = echo([holders[k]] * 3)
            assert copies[2](n) == n + 1
        holders[k] = None

    in_threads(8, work)
    gc.collect()
    assert gone() is None


def test_threads_read_shared_containers_and_tensors() -> None:
    array, mapping, tensor = (
        echo(list(range(100))),
        echo({str(k): k for k in range(100)}),
        portcall.tensor(np.arange(100)),
    )

    def work(k: int) -> None:
        for n in range(100):
            assert array[n] == mapping[str(n)] == tensor.numpy()[n]

    in_threads(8, work)


# ---- The interpreter lock --------------------------------------------------------------------------------------------


def test_gil_is_released_in_a_library_function(native: portcall.Module) -> None:
    """One thread waits in C++ for what another does in Python: with the lock held, that would never come."""
    opened: list[bool] = []
    waiter = threading.Thread(target=lambda: opened.append(native["wait_at_gate"]()))
    waiter.start()
    total = sum(k for k in range(1000))  # Python code, while the other thread is in C++
    native["open_gate"]()
    waiter.join()
    assert total == 499500
    assert opened == [True]


def test_gil_is_held_in_a_callback_only(native: portcall.Module) -> None:
    """The first thread is inside two calls of C++ and a callback; a second one runs Python and lets it go on."""
    reached, results = threading.Event(), []

    def callback(_: Any) -> bool:
        reached.set()
        opened: bool = native["wait_at_gate"]()
        return opened

    waiter = threading.Thread(target=lambda: results.append(native["apply"](callback, None)))
    waiter.start()
    assert reached.wait(30)
    native["open_gate"]()
    waiter.join()
    assert results == [True]


def test_holds_gil_marks_short_functions() -> None:
    assert echo.holds_gil
    assert portcall.convert(len).holds_gil
    assert not portcall.get_global_func("testing.test_raise_error").holds_gil


# ---- Threads of C++ --------------------------------------------------------------------------------------------------


def test_aio_leaves_the_event_loop_to_others() -> None:
    """A kernel that waits for what the loop does, and a function of Python that does."""
    come, context = threading.Event(), contextvars.ContextVar("context", default="none")

    def wait(limit: float) -> tuple[bool, str]:
        return come.wait(limit), context.get()

    async def main() -> list[Any]:
        context.set("the caller's")
        calls = [
            asyncio.ensure_future(f.aio(*args)) for f, args in ((apply, (wait, 5.0)), (portcall.convert(wait), (5.0,)))
        ]
        await asyncio.sleep(0)
        come.set()
        return list(map(list, await asyncio.gather(*calls)))

    assert asyncio.run(main()) == [[True, "the caller's"]] * 2


def test_aio_copies_arrays_back_and_raises(native: portcall.Module) -> None:
    array, odd = np.zeros(8, np.float32), np.zeros(9, np.float32)[1:]

    async def main() -> None:
        await native["fill"].aio(array, 2.0)
        await native["fill"].aio(odd, 3.0)
        with pytest.raises(TypeError):
            await native["fill"].aio("text", 2.0)

    asyncio.run(main())
    assert (array == 2).all()
    assert (odd == 3).all()


def test_aio_has_the_current_streams_of_the_caller() -> None:
    streams, swap = (portcall.get_global_func(f"portcall.{name}Streams") for name in ("Current", "Swap"))
    mine = [32, 0, 4096, 32, 1, 8192]  # of a kind of device that has no API
    before = swap(mine)
    try:
        assert list(asyncio.run(streams.aio())) == mine
        assert list(streams()) == mine
    finally:
        swap(before)
    assert list(asyncio.run(streams.aio())) == list(before)


def test_thread_of_cpp_calls_python(native: portcall.Module) -> None:
    seen: list[Any] = []

    def callback(x: int) -> int:
        seen.append(threading.get_ident())
        return x * 2

    assert native["call_in_thread"](callback, 21) == 42
    assert seen != [threading.get_ident()]


def test_thread_of_cpp_passes_its_error_on(native: portcall.Module) -> None:
    def fail(_: Any) -> None:
        raise KeyError("from afar")

    with pytest.raises(KeyError, match="from afar"):
        native["call_in_thread"](fail, None)


def test_thread_locals_are_those_of_the_calling_thread(native: portcall.Module) -> None:
    local = threading.local()
    local.value = "main"
    assert native["apply"](lambda _: local.value, None) == "main"
    assert native["call_in_thread"](lambda _: getattr(local, "value", "none"), None) == "none"


@pytest.mark.parametrize("kind", ["function", "object in a list", "array", "exception"])
def test_thread_of_cpp_drops_a_python_object(native: portcall.Module, kind: str) -> None:
    class Thing:
        def __call__(self) -> None: ...

    class Problem(Exception):
        pass

    things: dict[str, Any] = {"array": portcall.empty(3).numpy(), "exception": Problem()}  # an aligned array: no copy
    thing = things.pop(kind, None)
    thing = Thing() if thing is None else thing
    things.clear()
    gone = weakref.ref(thing)
    native["keep"]([thing] if kind == "object in a list" else thing)
    del thing
    gc.collect()
    assert gone() is not None
    native["drop_in_thread"]()
    assert gone() is None


def test_finalizer_calls_cpp_from_any_thread(native: portcall.Module) -> None:
    heard: list[int] = []

    class Noisy:
        def __call__(self) -> None: ...

        def __del__(self) -> None:
            heard.append(echo(5))

    native["keep"](Noisy())
    native["drop_in_thread"]()
    assert heard == [5]


def test_threads_call_a_kept_function(native: portcall.Module) -> None:
    native["keep"](lambda x: x + 1)

    def work(k: int) -> None:
        for n in range(100):
            assert native["call_kept"](n) == n + 1

    try:
        in_threads(4, work)
    finally:
        native["drop"]()


def test_threads_of_a_kernel_call_python(libraries: Any, register: Any) -> None:
    seen: list[int] = []
    register("portcall_test.visit", seen.append)
    portcall.load_module(libraries["parallel_callback"])["for_each"](200)
    assert sorted(seen) == list(range(200))


AT_THE_END = """
import sys, threading, time, portcall
apply = portcall.get_global_func("testing.apply")
list_names = portcall.get_global_func("portcall.ListGlobalNames")
bodies = {
    "calls back": lambda: apply(lambda x: x, 1),
    "waits in Python": lambda: apply(lambda: time.sleep(0.0005)),
    "works in Python": lambda: apply(lambda: [i for i in range(10_000)]),
    "lets objects go": lambda: apply(lambda: portcall.convert(lambda: 1)),
    "calls C++": lambda: list_names(),
}
started = threading.Semaphore(0)
def run(body):
    body()
    started.release()
    while True:
        body()
for body in [bodies[sys.argv[1]]] * 4:
    threading.Thread(target=run, args=(body,), daemon=True).start()
for _ in range(4):
    started.acquire()
"""


@pytest.mark.parametrize("work", ["calls back", "waits in Python", "works in Python", "lets objects go", "calls C++"])
def test_threads_in_calls_do_not_disturb_exit(work: str) -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", AT_THE_END, work], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
