# SPDX-License-Identifier: Apache-2.0
"""Traces of calls: OpenTelemetry's own spans, Chrome's events, and calls that are as ever."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace as telemetry
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from portcall import _core, errors, rpc
from portcall.rpc.client import _trace
from rpc.conftest import CLIENT_FUNCTIONS
from rpc.serving import Serving, serving

SERVED = (
    CLIENT_FUNCTIONS
    + """
@register("span")
def span():
    from opentelemetry import trace
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"
import opentelemetry.trace
"""
)
PYTHON: Any = {"program": "python", "functions": SERVED}  # portcall-server does not tell of its side


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(**PYTHON) as running:
        yield running


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """What OpenTelemetry's own SDK has exported; its provider is set once for a process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.set_tracer_provider(provider)
    return exporter


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    _trace._state.telemetry = None
    _trace._update()
    assert _core.set_tracer(None) is None


def tree(spans: tuple[ReadableSpan, ...]) -> dict[str, list[str]]:
    """The names of spans by the name of their parent's."""
    names = {span.context.span_id: span.name for span in spans if span.context}
    found: dict[str, list[str]] = {}
    for span in sorted(spans, key=lambda span: (span.start_time or 0, -(span.end_time or 0))):
        found.setdefault(names.get(span.parent.span_id, "?") if span.parent else "", []).append(span.name)
    return found


def test_call_has_spans_of_all_sides_in_the_callers_trace(server: Serving, exporter: InMemorySpanExporter) -> None:
    exporter.clear()
    with rpc.connect(server.address) as remote:
        scale = remote.get_function("demo.scale")
        scale(1, 2)  # without a trace
        assert exporter.get_finished_spans() == ()
        with telemetry.get_tracer("mine").start_as_current_span("outer"):
            assert scale(2, 3) == 6
    spans = exporter.get_finished_spans()
    assert tree(spans) == {
        "": ["outer"],
        "outer": ["demo.scale"],
        "demo.scale": ["wire request", "demo.scale", "kernel demo.scale", "wire answer"],
    }
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    kinds = {span.name: span.kind for span in spans if span.kind is not telemetry.SpanKind.INTERNAL}
    assert kinds["demo.scale"] in (telemetry.SpanKind.CLIENT, telemetry.SpanKind.SERVER)
    outer = max(spans, key=lambda span: (span.end_time or 0) - (span.start_time or 0))
    for span in spans:
        assert (outer.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0) <= (outer.end_time or 0)


def test_code_of_the_server_is_in_the_callers_trace(server: Serving, exporter: InMemorySpanExporter) -> None:
    with rpc.connect(server.address) as remote:
        span = remote.get_function("demo.span")
        assert int(span(), 16) == 0
        with telemetry.get_tracer("mine").start_as_current_span("outer") as outer:
            assert int(span(), 16) == outer.get_span_context().trace_id
        assert int(span(), 16) == 0


def test_error_is_in_the_span_and_as_ever(server: Serving, exporter: InMemorySpanExporter) -> None:
    exporter.clear()
    with rpc.connect(server.address) as remote:
        fail = remote.get_function("demo.fail")
        with telemetry.get_tracer("mine").start_as_current_span("outer"), pytest.raises(ValueError, match="no"):
            fail("no")
    (span,) = [span for span in exporter.get_finished_spans() if span.kind is telemetry.SpanKind.CLIENT]
    assert span.status.status_code is telemetry.StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize(
    "parent", ["", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\x1b[2J", "x" * 100_000, 7]
)
def test_malformed_context_ends_no_call(server: Serving, parent: Any) -> None:
    with rpc.connect(server.address) as remote:
        remote.get_function("portcall.rpc.trace_begin")(parent)
        assert int(remote.get_function("demo.span")(), 16) == 0
        came, begin, end = struct.unpack("<QQQ", remote.get_function("portcall.rpc.trace_end")())
        assert 0 < came <= begin <= end


def test_trace_end_without_begin_tells_nothing(server: Serving) -> None:
    with rpc.connect(server.address) as remote:
        assert remote.get_function("portcall.rpc.trace_end")() == bytes(24)
        remote.get_function("portcall.rpc.trace_begin")("")
        assert remote.get_function("portcall.rpc.trace_end")()[8:] == bytes(16)


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a file, by the rules of Chrome's format."""
    loaded = json.loads(path.read_text())
    assert loaded["displayTimeUnit"] in ("ms", "ns")
    for event in loaded["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] in ("X", "M", "C", "B", "E")
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "process_sort_index", "thread_sort_index")
            assert isinstance(event["args"]["name"], str)
    return [event for event in loaded["traceEvents"] if event["ph"] == "X"]


def test_recorder_has_the_calls_of_its_block(server: Serving, kernel_library: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with rpc.connect(server.address) as remote:
        remote.upload(kernel_library)
        module = remote.load_module(kernel_library.name)
        call = remote.get_function("demo.call")
        scale = remote.get_function("demo.scale")
        with rpc.trace() as calls:
            x, y = np.ones(3, "float32"), np.zeros(3, "float32")
            module.add_one(x, y)
            assert list(y) == [2, 2, 2]
            assert call(lambda v: scale(v, 3), 4) == 12  # a call in a callback of a call
            with remote.pipeline():
                result = scale(4, 5)
            assert result.result() == 20
            with pytest.raises(errors.ArgumentError) as raised:
                scale(object(), 1)
            assert raised.value.position == 0
        scale(1, 1)  # not in it
    calls.save(path)
    events = events_of(path)
    names = [event["name"] for event in events if event["cat"] == "client"]
    assert sorted(names) == ["add_one", "demo.call", "demo.scale", "demo.scale", "demo.scale"]
    kernel = [event["name"] for event in events if event["cat"] == "kernel"]
    assert sorted(kernel) == ["add_one", "demo.call", "demo.scale"]
    assert [event["args"].get("error") for event in events if event["cat"] == "client"].count("ArgumentError") == 1


def test_session_that_crashes_while_it_is_traced(server: Serving) -> None:
    with rpc.connect(server.address) as remote, rpc.trace() as calls, pytest.raises(errors.RemoteCrashError):
        remote.get_function("demo.crash")(11)
    (event,) = [event for event in calls.events() if event["ph"] == "X"]
    assert (event["name"], event["args"]["error"]) == ("demo.crash", "RemoteCrashError")


def test_traceparent_is_in_the_audit(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    path = tmp_path / "calls"
    with serving("--audit", path, **PYTHON) as server, rpc.connect(server.address) as remote:
        with telemetry.get_tracer("mine").start_as_current_span("outer") as outer:
            remote.get_function("demo.scale")(2, 3)
        (line,) = [line for line in map(json.loads, path.read_text().splitlines()) if "demo" in line["function"]]
    assert line["trace"].split("-")[1] == f"{outer.get_span_context().trace_id:032x}"


def test_nothing_is_imported_by_those_who_do_not_trace(server: Serving) -> None:
    script = (
        "import sys; from portcall import rpc\n"
        f"with rpc.connect({server.address!r}) as remote: remote.get_function('demo.scale')(1, 2)\n"
        "print([name for name in sys.modules if 'opentelemetry' in name or name.endswith('._trace')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_run_trace_writes_the_calls_of_a_session(server: Serving, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    command = [sys.executable, "-m", "portcall", "run", "demo.scale", "--arg", "2", "--arg", "3", "--trace", str(path)]
    subprocess.run([*command, "--rpc", server.address], check=True)
    events = events_of(path)
    scale = {event["cat"]: event for event in events if event["name"] == "demo.scale"}
    assert scale.keys() == {"client", "server", "kernel"}
    sides = [scale[side] for side in ("client", "server", "kernel")]
    assert [event["dur"] for event in sides] == sorted((event["dur"] for event in sides), reverse=True)
    assert subprocess.run(command, check=False).returncode != 0  # needs a session
    missing = [*command[:-1], str(tmp_path / "no" / "file"), "--rpc", server.address]
    assert subprocess.run(missing, check=False).returncode == 1


def test_run_trace_of_a_session_that_crashes_has_the_call(server: Serving, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    words = ["run", "demo.crash", "--arg", "11", "--rpc", server.address, "--trace", str(path)]
    assert subprocess.run([sys.executable, "-m", "portcall", *words], check=False).returncode == 5
    (event,) = [event for event in events_of(path) if event["name"] == "demo.crash"]
    assert (event["cat"], event["args"]["error"]) == ("client", "RemoteCrashError")


@pytest.mark.parametrize(
    "times",
    [
        None,
        "xyz",
        [1, 2, 3],
        b"",
        bytes(24),
        b"\xff" * 24,
        b"\xff" * 25,
        struct.pack("<3Q", 5, 1, 9),
        struct.pack("<3Q", 1, 2, 1 << 63),
    ],
)
def test_spans_lie_in_the_callers_whatever_a_server_tells(times: Any) -> None:
    call = _trace.Traced("f", "peer", (100, 200))
    _trace._place(call, times)
    for _, _, (begin, end) in call.parts():
        assert 100 <= begin <= end <= 200
