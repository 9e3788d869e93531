# SPDX-License-Identifier: Apache-2.0
"""Timing in native code: how often what is called, what comes out, and which questions are refused."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, rpc
from portcall._timing import DEFAULTS
from portcall.bench import BenchmarkResult

Evaluate = Callable[..., BenchmarkResult]
Register = Callable[..., portcall.PackedFunc]


class Counter:
    """A function that kernels call back, and that says how often it was called with what."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails_at: int | None = None

    def __call__(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        if len(self.calls) == self.fails_at:
            raise ConnectionResetError(f"call {self.fails_at}")


@pytest.fixture
def counter(register: Register) -> Iterator[Counter]:
    made = Counter()
    register("portcall_test.from_import", made)
    yield made
    made.calls.clear()


@pytest.fixture
def path(c_libraries: dict[str, Path], tmp_path: Path) -> Path:
    """A library of its own for each test, whose ``call_import`` calls the counter."""
    copy = tmp_path / "timed.so"
    copy.write_bytes(c_libraries["modern"].read_bytes())
    return copy


def evaluator(path: Path, **options: Any) -> Evaluate:
    return portcall.load_module(path).time_evaluator("call_import", portcall.cpu(0), **options)


def test_timing_options_have_the_cores_order_and_defaults() -> None:
    header = Path(__file__).parents[1] / "core/runtime/time_evaluator.h"
    fields = re.findall(r"^  int (\w+) = (\d+);", header.read_text(), re.MULTILINE)
    assert [(name, int(value)) for name, value in fields[: len(DEFAULTS)]] == list(DEFAULTS._asdict().items())


# ---- How often -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "repeat"), [(1, 1), (3, 2), (10, 1), (1, 20), (7, 5)])
def test_time_evaluator_calls_once_and_then_number_times_a_repeat(
    path: Path, counter: Counter, number: int, repeat: int
) -> None:
    result = evaluator(path, number=number, repeat=repeat)(1, "two")
    assert len(counter.calls) == 1 + number * repeat
    assert set(counter.calls) == {(1, "two")}
    assert len(result.results) == repeat


def test_time_evaluator_defaults_to_ten_calls_once(path: Path, counter: Counter) -> None:
    result = evaluator(path)()
    assert len(counter.calls) == 11
    assert len(result.results) == 1


def test_time_evaluator_is_used_again_with_other_arguments(path: Path, counter: Counter) -> None:
    evaluate = evaluator(path, number=2, repeat=2)
    for argument in ("first", "second"):
        counter.calls.clear()
        evaluate(argument)
        assert counter.calls == [(argument,)] * 5


def test_min_repeat_ms_makes_number_grow(path: Path, counter: Counter) -> None:
    result = evaluator(path, number=1, repeat=1, min_repeat_ms=2)()
    assert len(counter.calls) > 10  # a call takes far less than a millisecond
    assert result.mean > 0


def test_min_repeat_ms_keeps_the_grown_number(path: Path, counter: Counter) -> None:
    evaluate = evaluator(path, number=1, repeat=1, min_repeat_ms=2)
    evaluate()
    first = len(counter.calls)
    counter.calls.clear()
    evaluate()
    # The first call ended with a loop of at least three eighths of all its calls: each loop is 1.618 times the last.
    assert len(counter.calls) > 1 + (first - 1) * 3 // 8


def test_limit_zero_time_iterations_ends_growing(path: Path, counter: Counter) -> None:
    evaluator(path, number=4, repeat=2, min_repeat_ms=3_600_000, limit_zero_time_iterations=0)()
    assert len(counter.calls) == 1 + 4 * 2


def test_cooldown_and_cache_flush_change_no_count(path: Path, counter: Counter) -> None:
    evaluator(path, number=2, repeat=3, cooldown_interval_ms=1, repeats_to_cooldown=2, cache_flush_bytes=4097)()
    assert len(counter.calls) == 1 + 2 * 3


def test_f_preproc_runs_before_each_repeat(path: Path, counter: Counter, register: Register) -> None:
    register("portcall_test.prepare", lambda *arguments: counter.calls.append(("prepare", *arguments)))
    evaluator(path, number=2, repeat=2, f_preproc="portcall_test.prepare")(1, "two")
    timed, prepared = (1, "two"), ("prepare", 1, "two")
    assert counter.calls == [timed, prepared, timed, timed, prepared, timed, timed]


def test_f_preproc_flushes_all_arguments_but_the_first(path: Path, counter: Counter) -> None:
    evaluate = evaluator(path, number=1, f_preproc="cache_flush_cpu_non_first_arg")
    evaluate(np.zeros(3), np.arange(100.0), portcall.empty((3, 4), "int8"), np.zeros(0), np.zeros((5, 5))[::-2, ::3], 1)
    assert len(counter.calls) == 2


# ---- What comes out --------------------------------------------------------------------------------------------------


def test_time_evaluator_result_has_statistics(path: Path, counter: Counter) -> None:
    result = evaluator(path, number=5, repeat=4)()
    assert isinstance(result, BenchmarkResult)
    assert all(math.isfinite(seconds) and seconds >= 0 for seconds in result.results)
    assert result.mean == pytest.approx(np.mean(result.results))
    assert result.median == pytest.approx(np.median(result.results))
    assert result.std == pytest.approx(np.std(result.results))
    assert (result.min, result.max) == (min(result.results), max(result.results))
    assert "median" in str(result)


def test_time_evaluator_runs_the_kernel(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["elementwise"])
    raw = np.zeros(129, "float32")
    x, y = np.arange(64, dtype="float32"), raw[1:65]  # one of them at least is not aligned
    lib.time_evaluator("add_one", portcall.cpu(0), number=3, repeat=2)(x, y)
    np.testing.assert_array_equal(y, x + 1)


def test_time_evaluator_takes_a_device_as_text(path: Path, counter: Counter) -> None:
    portcall.load_module(path).time_evaluator("call_import", "cpu:0", number=1)()
    assert len(counter.calls) == 2


# ---- What goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 2, 5])
def test_time_evaluator_function_error_ends_the_measurement(path: Path, counter: Counter, call: int) -> None:
    counter.fails_at = call
    with pytest.raises(ConnectionResetError, match=f"call {call}"):
        evaluator(path, number=2, repeat=2)()
    assert len(counter.calls) == call


def test_time_evaluator_kernel_check_error_arrives(libraries: dict[str, Path]) -> None:
    evaluate = portcall.load_module(libraries["elementwise"]).time_evaluator("add_one", portcall.cpu(0))
    with pytest.raises(TypeError, match="Expected 2 arguments"):
        evaluate()
    with pytest.raises(errors.ArgumentError, match=r"^add_one\(\): argument #0: expected .*, got Array$"):
        evaluate([1], [2])


def test_f_preproc_error_ends_the_measurement(path: Path, counter: Counter, register: Register) -> None:
    def fail() -> None:
        raise ValueError("unprepared")

    register("portcall_test.unprepared", fail)
    evaluate = evaluator(path, f_preproc="portcall_test.unprepared")
    with pytest.raises(ValueError, match="unprepared"):
        evaluate()
    assert len(counter.calls) == 1


def test_time_evaluator_keyboard_interrupt_ends_the_measurement(path: Path, register: Register) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    register("portcall_test.from_import", interrupt)
    with pytest.raises(KeyboardInterrupt):
        evaluator(path)()


@pytest.mark.parametrize(
    ("option", "value", "least"),
    [
        ("number", 0, 1),
        ("number", -1, 1),
        ("repeat", 0, 1),
        ("min_repeat_ms", -1, 0),
        ("limit_zero_time_iterations", -1, 0),
        ("cooldown_interval_ms", -1, 0),
        ("repeats_to_cooldown", 0, 1),
        ("cache_flush_bytes", -1, 0),
    ],
)
def test_time_evaluator_names_an_option_out_of_range(path: Path, option: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=rf"^{option} must be at least {least}, got {value}$"):
        evaluator(path, **{option: value})


@pytest.mark.parametrize("value", [1.5, "ten", None, 2**40])
def test_time_evaluator_refuses_options_that_are_not_integers(path: Path, value: Any) -> None:
    with pytest.raises((TypeError, OverflowError, ValueError)):
        evaluator(path, number=value)


def test_time_evaluator_missing_function_proposes_similar_names(path: Path) -> None:
    with pytest.raises(errors.FunctionNotFoundError, match="did you mean 'call_import'"):
        portcall.load_module(path).time_evaluator("call_imports", portcall.cpu(0))


def test_f_preproc_missing_is_named(path: Path) -> None:
    with pytest.raises(errors.FunctionNotFoundError, match=r"'portcall_test\.nobody'"):
        evaluator(path, f_preproc="portcall_test.nobody")


def test_time_evaluator_missing_device_is_named(path: Path) -> None:
    with pytest.raises(errors.DeviceError, match="metal"):
        portcall.load_module(path).time_evaluator("call_import", "metal:0")


@pytest.mark.parametrize("number", [1, 7, -1])
def test_time_evaluator_refuses_a_host_that_does_not_exist_as_tensors_do(path: Path, number: int) -> None:
    library, there = portcall.load_module(path), portcall.cpu(number)
    for ask in (lambda: portcall.empty((1,), device=there), lambda: library.time_evaluator("call_import", there)):
        with pytest.raises(errors.DeviceError, match=f"cpu:{number}"):
            ask()


# ---- As other machines ask -------------------------------------------------------------------------------------------


def rpc_time_evaluator(*arguments: Any) -> portcall.PackedFunc:
    made: portcall.PackedFunc = portcall.get_global_func("runtime.RPCTimeEvaluator")(*arguments)
    return made


def test_rpc_time_evaluator_returns_float64_bytes(path: Path, counter: Counter) -> None:
    evaluate = rpc_time_evaluator(portcall.load_module(path), "call_import", 1, 0, 2, 3, 0, 100, 0, 1, 0, "")
    data = evaluate("argument")
    assert isinstance(data, bytes)
    seconds = struct.unpack("=3d", data)
    assert all(math.isfinite(value) and value >= 0 for value in seconds)
    assert counter.calls == [("argument",)] * 7


def test_rpc_time_evaluator_times_a_global_function(counter: Counter) -> None:
    evaluate = rpc_time_evaluator(None, "portcall_test.from_import", 1, 0, 3, 1, 0, 100, 0, 1, 0, "")
    assert len(evaluate(1, 2)) == 8
    assert counter.calls == [(1, 2)] * 4


@pytest.mark.parametrize(
    ("name", "preparation", "message"),
    [
        ("portcall_test.nobody", "", "no global function 'portcall_test.nobody' to time"),
        (
            "testing.nop",
            "portcall_test.nobody",
            "no global function 'portcall_test.nobody' to run before each repeat (f_preproc)",
        ),
    ],
)
def test_rpc_time_evaluator_names_missing_functions(name: str, preparation: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is compared below)
        rpc_time_evaluator(None, name, 1, 0, 1, 1, 0, 100, 0, 1, 0, preparation)
    assert str(caught.value) == message


def test_rpc_time_evaluator_names_a_missing_function_of_a_module(path: Path) -> None:
    with pytest.raises(ValueError, match=r"^the module has no function 'nothing' to time$"):
        rpc_time_evaluator(portcall.load_module(path), "nothing", 1, 0, 1, 1, 0, 100, 0, 1, 0, "")


def test_time_evaluator_takes_any_function(counter: Counter) -> None:
    result = portcall.time_evaluator(counter, number=3, repeat=2)(1, "a")
    assert counter.calls == [(1, "a")] * 7  # one warms up
    assert len(result.results) == 2
    assert portcall.time_evaluator(portcall.get_global_func("testing.echo"), "cpu", number=2)(1).mean > 0
    with rpc.LocalSession() as session:
        assert portcall.time_evaluator(session["testing.echo"], number=2)(1).mean > 0
    with pytest.raises(errors.ArgumentError):
        portcall.time_evaluator(3)  # type: ignore[arg-type]
