# SPDX-License-Identifier: Apache-2.0
"""What a client that traces its calls asks for, ``portcall.rpc.``:

    trace_begin(traceparent)     before a call: notes when, and has that call timed
    trace_end() -> when, the call's begin, its end     after it: 24 bytes, three uint64 in nanoseconds of one clock, the
                                                       lowest byte first; 0 for what was not timed

A traceparent is that of W3C's Trace Context. Where the user's code uses OpenTelemetry, its spans are children of that
span. One that is malformed is left out, and the call is timed all the same.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import time
from typing import Any

from portcall._function import register_func
from portcall.rpc.wire._facts import PROGRESS, PROGRESS_BYTES

_TIMES = struct.Struct("<QQI")
_ANSWER = struct.Struct("<QQQ")  # a list would take as long as the call
_PLACE = PROGRESS.size + 8  # of the times, in the memory that tells how far the session is
_NEXT, _ENDED = 1, 3


class Timer:
    """Times calls of this session."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._memory: mmap.mmap | None = None  # that tells how far the session is
        self._came = 0
        self._attached: Any = None

    def enter(self, progress: int) -> None:
        """Use the memory of this session."""
        self._descriptor = os.dup(progress)

    def begin(self, parent: str) -> None:
        self._detach()
        if self._memory is None and self._descriptor >= 0:
            self._memory = mmap.mmap(self._descriptor, PROGRESS_BYTES)
        if self._memory is not None:
            _TIMES.pack_into(self._memory, _PLACE, 0, 0, _NEXT)
        self._came = time.monotonic_ns()
        if "opentelemetry.trace" in sys.modules:
            with contextlib.suppress(ImportError):
                from opentelemetry import context
                from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

                self._attached = context.attach(TraceContextTextMapPropagator().extract({"traceparent": str(parent)}))

    def end(self) -> bytes:
        self._detach()
        begin = end = state = 0
        if self._memory is not None:
            begin, end, state = _TIMES.unpack_from(self._memory, _PLACE)
        return _ANSWER.pack(self._came, *((begin, end) if state == _ENDED else (0, 0)))

    def _detach(self) -> None:
        if self._attached is not None:
            from opentelemetry import context

            token, self._attached = self._attached, None
            context.detach(token)


timer = Timer()


def register_trace_functions() -> None:
    """Register both, once for each process."""
    register_func("portcall.rpc.trace_begin", timer.begin, override=True)
    register_func("portcall.rpc.trace_end", timer.end, override=True)
