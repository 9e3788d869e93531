# SPDX-License-Identifier: Apache-2.0
"""Benchmark results, their figures and units, and what makes them doubtful."""

from __future__ import annotations

import json
import math
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portcall.bench import (
    BenchmarkResult,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

seconds = st.floats(min_value=0, max_value=1e6)


@given(st.lists(seconds, min_size=1, max_size=50), st.floats(min_value=0, max_value=100))
def test_benchmark_result_statistics_equal_numpys(values: list[float], p: float) -> None:
    result = BenchmarkResult(tuple(values))
    array = np.array(values)
    assert result.min == array.min()
    assert result.max == array.max()
    for ours, theirs in [
        (result.mean, array.mean()),
        (result.median, np.median(array)),
        (result.std, array.std()),
        (result.percentile(p), np.percentile(array, p)),
    ]:
        assert math.isclose(ours, float(theirs), rel_tol=1e-6, abs_tol=1e-9)


@given(st.lists(seconds, min_size=1, max_size=20))
def test_benchmark_result_from_bytes_reads_float64_seconds(values: list[float]) -> None:
    assert BenchmarkResult.from_bytes(struct.pack(f"<{len(values)}d", *values)).results == tuple(values)


@pytest.mark.parametrize("data", [b"", b"1234567", b"123456789"])
def test_benchmark_result_from_bytes_refuses_other_bytes(data: bytes) -> None:
    with pytest.raises(ValueError, match="not one or more float64 numbers"):
        BenchmarkResult.from_bytes(data)


def test_benchmark_result_refuses_no_samples() -> None:
    with pytest.raises(ValueError, match="at least one measurement"):
        BenchmarkResult(())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 1e300])
def test_benchmark_result_refuses_what_is_no_time(wrong: float) -> None:
    with pytest.raises(ValueError, match="no time"):
        BenchmarkResult((1.0, wrong))


@pytest.mark.parametrize("p", [-1, 100.5, math.nan])
def test_percentile_refuses_values_outside_0_to_100(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        BenchmarkResult((1.0,)).percentile(p)


def test_benchmark_result_prints_names_above_values_with_units() -> None:
    text = str(BenchmarkResult((1.23e-5, 1.3e-5, 2e-5)))
    assert text.splitlines() == [
        "    min   median      p95     mean      std      max  repeats",
        "12.3 us  13.0 us  19.3 us  15.1 us  3.48 us  20.0 us        3",
    ]


def test_benchmark_result_is_immutable_and_compares_by_value() -> None:
    result = BenchmarkResult((1.0, 2.0))
    assert result == BenchmarkResult((1.0, 2.0)) == pickle.loads(pickle.dumps(result))
    assert json.loads(json.dumps(result.to_dict()))["results_s"] == [1.0, 2.0]
    with pytest.raises(AttributeError):
        result.results = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (3e-10, "0.3 ns"),
        (1e-9, "1.00 ns"),
        (12.34e-9, "12.3 ns"),
        (999.9996e-6, "1.00 ms"),
        (0.1234, "123 ms"),
        (1, "1.00 s"),
        (90, "90.0 s"),
        (150, "2.50 min"),
        (7300, "2.03 h"),
        (-1e-3, "-1.00 ms"),
        (math.inf, "inf s"),
    ],
)
def test_format_duration_writes_three_digits_and_a_unit(value: float, text: str) -> None:
    assert format_duration(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500ms", 0.5),
        ("3s", 3),
        ("2m", 120),
        ("1.5 h", 5400),
        ("12us", 12e-6),
        ("7µs", 7e-6),
        ("1e-3s", 1e-3),
        (".5s", 0.5),
    ],
)
def test_parse_duration_reads_units(text: str, value: float) -> None:
    assert math.isclose(parse_duration(text), value)


@given(st.floats(min_value=1e-9, max_value=1e5))
def test_parse_duration_reads_what_format_duration_writes(value: float) -> None:
    assert math.isclose(parse_duration(format_duration(value)), value, rel_tol=6e-3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5", "write a number and a unit, such as 500ms"),
        ("ms", "write a number"),
        ("-3s", "write a number"),
        ("", "write a number"),
        ("3 weeks", "unknown unit 'weeks'"),
        ("1e999s", "too large"),
    ],
)
def test_parse_duration_refuses_missing_numbers_and_unknown_units(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "value"), [("64MiB", 64 << 20), ("10MB", 10_000_000), ("512B", 512), ("1.5KiB", 1536), ("2 GiB", 2 << 30)]
)
def test_parse_size_reads_units(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(("text", "said"), [("64", "unit"), ("1.5B", "whole number"), ("3 miles", "unknown unit")])
def test_parse_size_refuses_missing_units_and_fractions_of_bytes(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_size(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (64 << 20, "64.0 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_format_size_writes_binary_units(value: int, text: str) -> None:
    assert format_size(value) == text


def test_bench_package_is_loaded_on_first_use() -> None:
    program = "import sys, portcall; print('portcall.bench' in sys.modules, portcall.bench.BenchmarkResult.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False BenchmarkResult\n"
