# SPDX-License-Identifier: Apache-2.0
"""Where the time of calls of sessions goes: spans of client, wire, server and kernel, for OpenTelemetry and for files.

    client  |----------------------- the call, as its caller sees it -----------------------|
    wire    |-- request --|                                            |-- answer ----------|
    server                |-- arguments are made, then the call -------|
    kernel                     |-- the function itself ----------------|

The server has a clock of its own: its two spans have its durations, and lie in the middle of what the client saw.

Rule: calls are as ever. What traces them asks the server before and after, and looks at no argument.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portcall import _core
from portcall._core import PackedFunc
from portcall._function import get_global_func
from portcall.rpc.client._pipeline import posting
from portcall.rpc.client._session import Session, session_of

_OWN = ("portcall.rpc.trace_begin", "portcall.rpc.trace_end")
_SIDES = ("client", "wire", "server", "kernel")
_TIMES = struct.Struct("<QQQ")
_FIRST_PROCESS = 100  # of a file: nodes of models have lower numbers

Window = tuple[int, int]  # nanoseconds since 1970


@dataclass
class Traced:
    """A call that is over.

    Attributes:
        name: of the function.
        peer: the session's.
        client: when it was.
        server, kernel: the same of its two parts over there; None where the server does not tell.
        error: the class of what it raised; empty for nothing.
    """

    name: str
    peer: str
    client: Window
    server: Window | None = None
    kernel: Window | None = None
    error: str = ""

    def parts(self) -> Iterator[tuple[str, str, Window]]:
        """Return what there is inside of the client's span: the side, a name and when."""
        if self.server is None or self.kernel is None:
            return
        yield "wire", "request", (self.client[0], self.server[0])
        yield "server", self.name, self.server
        yield "kernel", self.name, self.kernel
        yield "wire", "answer", (self.server[1], self.client[1])


class Recorder:
    """Keeps the calls of a block, for ``Recorder.save``."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, Traced]] = []
        self._begin = time.time_ns()

    def enter(self, name: str, peer: str) -> str:
        """A call begins; return what its server is told."""
        return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"

    def leave(self, call: Traced, raised: BaseException | None) -> None:
        """That call is over."""
        self._calls.append((threading.get_ident(), call))

    def events(self) -> list[dict[str, Any]]:
        """Return the calls as Chrome's trace events; their times are microseconds since the block began."""
        threads = {each: number for number, each in enumerate(dict.fromkeys(thread for thread, _ in self._calls), 1)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": _FIRST_PROCESS + i, "tid": 0, "args": {"name": side}}
            for i, side in enumerate(_SIDES)
        ]
        for thread, call in self._calls:
            about = {"with": call.peer} | ({"error": call.error} if call.error else {})
            for side, name, (begin, end) in (("client", call.name, call.client), *call.parts()):
                events.append({
                    "ph": "X", "name": name, "cat": side, "pid": _FIRST_PROCESS + _SIDES.index(side),
                    "tid": threads[thread], "ts": (begin - self._begin) / 1e3, "dur": max(0, end - begin) / 1e3,
                    "args": about,
                })  # fmt: skip
        return events

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calls into a file for ui.perfetto.dev and chrome://tracing."""
        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": self.events()})
        Path(path).write_text(text, encoding="utf-8")


class _OpenTelemetry:
    """Makes spans of OpenTelemetry, below the one that is current where the call is made."""

    def __init__(self) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._open = threading.local()

    def enter(self, name: str, peer: str) -> str:
        """A call begins; return what its server is told, nothing where the caller has no trace."""
        trace = self._trace
        if not trace.get_current_span().get_span_context().is_valid:
            return ""
        facts = {"rpc.system": "portcall", "rpc.method": name, "server.address": peer}
        span = trace.get_tracer("portcall").start_span(name, kind=trace.SpanKind.CLIENT, attributes=facts)
        current = trace.use_span(span, end_on_exit=False)
        current.__enter__()
        self._stack().append((span, current))
        context = span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def leave(self, call: Traced, raised: BaseException | None) -> None:
        """That call is over."""
        trace, (span, current) = self._trace, self._stack().pop()
        current.__exit__(None, None, None)
        if span.is_recording():
            tracer, outer = trace.get_tracer("portcall"), trace.set_span_in_context(span)
            context = outer
            for side, name, (begin, end) in call.parts():
                kind = trace.SpanKind.SERVER if side == "server" else trace.SpanKind.INTERNAL
                shown = name if side == "server" else f"{side} {name}"
                parent = context if side == "kernel" else outer
                part = tracer.start_span(shown, context=parent, kind=kind, start_time=begin,
                                         attributes={"portcall.side": side})  # fmt: skip
                if side == "server":
                    context = trace.set_span_in_context(part)
                part.end(end)
            if raised is not None:
                span.record_exception(raised)
                span.set_status(trace.Status(trace.StatusCode.ERROR, call.error))
        span.end(call.client[1])

    def _stack(self) -> list[Any]:
        if not hasattr(self._open, "spans"):
            self._open.spans = []
        spans: list[Any] = self._open.spans
        return spans


@dataclass
class _State:
    """Who traces in this process."""

    recorders: list[Recorder] = field(default_factory=list)
    telemetry: _OpenTelemetry | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_state = _State()
_thread = threading.local()  # busy: this thread does what belongs to tracing
_at_work: set[int] = set()  # sessions in which a call is timed: in one at a time


def _update() -> None:
    _core.set_tracer(_call if _state.recorders or _state.telemetry else None)


@contextlib.contextmanager
def trace() -> Iterator[Recorder]:
    """Record the calls of sessions that this process makes inside of the block.

        with portcall.rpc.trace() as calls:
            remote.get_function("stats")([1, 2])
        calls.save("trace.json")

    Calls by ``future``, ``map`` and ``aio`` are not in it, nor copies of tensors. A call takes a round trip more.
    """
    recorder = Recorder()
    with _state.lock:
        _state.recorders.append(recorder)
        _update()
    try:
        yield recorder
    finally:
        with _state.lock:
            _state.recorders.remove(recorder)
            _update()


def follow_opentelemetry() -> None:
    """Add spans to the trace that is current when a session's function is called, from now on in this process.

    ``connect`` does this where the program has imported ``opentelemetry.trace`` before.

    Raises:
        ModuleNotFoundError: there is no OpenTelemetry; ``pip install 'portcall[otel]'``.
    """
    from portcall.extras import needed

    with needed("otel", "a trace of OpenTelemetry"), _state.lock:
        _state.telemetry = _state.telemetry or _OpenTelemetry()
        _update()


def follow_if_used() -> None:
    """Do that where the program uses OpenTelemetry."""
    if _state.telemetry is None and "opentelemetry.trace" in sys.modules:
        follow_opentelemetry()


def _call(func: PackedFunc, args: list[Any]) -> Any:
    """What the binding has calls made by, as long as somebody traces."""
    if getattr(_thread, "busy", False):
        return _core.call_untraced(func, args)
    _thread.busy = True
    try:
        root = get_global_func("portcall.rpc.FunctionSession")(func)
        session = None if root is None else session_of(root)
    finally:
        _thread.busy = False
    if session is None:
        return _core.call_untraced(func, args)
    return _traced(session, func, args)


def _traced(session: Session, func: PackedFunc, args: list[Any]) -> Any:
    call = Traced(func.name or "a function without a name", session.name, (0, 0))
    sinks: list[Recorder | _OpenTelemetry] = [*_state.recorders, *filter(None, [_state.telemetry])]
    told = [(sink, parent) for sink in sinks if (parent := sink.enter(call.name, call.peer))]
    if not told:
        return _core.call_untraced(func, args)
    number, raised, begun = session._id, None, False
    alone = number not in _at_work
    if alone:
        _at_work.add(number)
        begun = _ask(session, _OWN[0], told[-1][1]) is not None
    begin = time.time_ns()
    try:
        return _core.call_untraced(func, args)
    except BaseException as error:
        raised = error
        call.error = type(error).__name__
        raise
    finally:
        call.client = (begin, max(begin, time.time_ns()))
        if alone:
            times = _ask(session, _OWN[1]) if begun and not (raised and session._is_over()) else None
            _at_work.discard(number)
            _place(call, times)
        for sink, _ in reversed(told):
            sink.leave(call, raised)


def _ask(session: Session, name: str, *args: Any) -> Any:
    """Call a function of the server's, between the calls that are traced; None where there is none, or it fails."""
    _thread.busy = True
    try:
        func = session._find_own(name)
        if func is None:
            return None
        with posting(session._id if args else 0):  # the first needs no answer
            given = func(*args)
        return () if args else given
    except Exception:
        return None
    finally:
        _thread.busy = False


def _place(call: Traced, times: Any) -> None:
    """Put what the server tells into the client's span."""
    if not isinstance(times, bytes) or len(times) != _TIMES.size:
        return
    came, begin, end = _TIMES.unpack(times)
    if not 0 < came <= begin <= end:
        return
    first, last = call.client
    shift = (first + last - came - end) // 2
    inside = [min(max(each + shift, first), last) for each in (came, begin, end)]
    call.server, call.kernel = (inside[0], inside[2]), (inside[1], inside[2])
