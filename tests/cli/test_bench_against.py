# SPDX-License-Identifier: Apache-2.0
"""``portcall bench --against``: which sides it opens, what it says and ends with; the judge has tests of its own."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from portcall import errors, rpc
from portcall.bench import Comparison, compare
from portcall.cli import _bench_against

Invoke = Callable[..., Result]
ADD = ("add", "--arg", "1", "--arg", "2")
FASTER, SLOWER, SAME = (0.80, 0.81), (1.20, 1.21), (1.0, 1.001)


@pytest.fixture
def old(kernels: str, tmp_path: Path) -> str:
    return shutil.copy(kernels, str(tmp_path / "old.so"))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let comparisons have these ratios, without measuring."""

    def answer(ratios: tuple[float, ...], error: BaseException | None = None) -> None:
        def answered(new: Any, old: Any, *, on_run: Callable[[Comparison], None], **options: Any) -> None:
            on_run(Comparison(ratios * 6, options.get("runs", 48), options.get("margin", 0.01), options["limit"]))
            if error:
                raise error

        monkeypatch.setattr(_bench_against, "compare", answered)

    return answer


def test_bench_against_times_both_in_processes_of_their_own(
    invoke: Invoke, kernels: str, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bench_against, "compare", functools.partial(compare, block_s=0.0005))
    shown = invoke("bench", kernels, *ADD, "--against", old, "--runs", "6", "--json")
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.stdout)
    assert (answer["new"], answer["old"]) == (Path(kernels).name, "old.so")
    assert len(answer["comparison"]["ratios"]) == 6
    assert answer["comparison"]["together"]
    assert min(answer["comparison"]["new_s"], answer["comparison"]["old_s"]) > 0


def test_bench_against_rpc_compares_two_boards(invoke: Invoke, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench_against, "compare", functools.partial(compare, block_s=0.0005))
    with rpc.Server() as one, rpc.Server() as other:
        words = ("--rpc", one.address, "--against-rpc", other.address, "--runs", "6", "--json")
        shown = invoke("bench", kernels, *ADD, *words)
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.stdout)
    assert (answer["new"], answer["old"]) == (one.address, other.address)


@pytest.mark.parametrize(
    ("ratios", "words", "code", "gate"),
    [
        (SLOWER, (), 0, None),
        (SLOWER, ("--fail-above", "5%"), 7, "slower"),
        (SAME, ("--fail-above", "5%"), 0, "passed"),
        (FASTER, ("--fail-above", "5%"), 0, "passed"),
        ((0.9, 1.3), ("--fail-above", "5"), 6, "not settled"),
        ((0.9, 1.3), (), 0, None),
        ((0.9, 1.3), ("--strict",), 6, None),
    ],
)
def test_bench_against_ends_with_what_the_gate_says(
    invoke: Invoke, kernels: str, old: str, answered: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    ratios: tuple[float, ...], words: tuple[str, ...], code: int, gate: str | None,
) -> None:  # fmt: skip
    answered(ratios)
    shown = invoke("bench", kernels, *ADD, "--against", old, *words, "--json")
    assert shown.exit_code == code, shown.output
    assert json.loads(shown.stdout)["comparison"]["gate"] == gate
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = invoke("bench", kernels, *ADD, "--against", old, *words).stdout.splitlines()
    kinds = {"slower": ["error"], "not settled": ["warning"]}
    assert [line.split()[0].strip(":") for line in lines if line.startswith("::")] == kinds.get(str(gate), [])


def test_bench_against_keeps_what_was_measured_before_an_error(
    invoke: Invoke, kernels: str, old: str, answered: Callable[..., None]
) -> None:
    answered(SLOWER, errors.SessionBrokenError("the board went away"))
    shown = invoke("bench", kernels, *ADD, "--against", old, "--json")
    assert shown.exit_code == 3
    answer = json.loads(shown.stdout)
    assert answer["error"]["kind"] == "SessionBrokenError"
    assert len(answer["comparison"]["ratios"]) == 12


@pytest.mark.parametrize(
    "words",
    [("--margin", "2%"), ("--runs", "12"), ("--fail-above", "5%"), ("--against", "old.so", "--fail-above", "five"),
     ("--against", "old.so", "--fail-above", "-1%"), ("--against", "old.so", "--latency"),
     ("--against", "old.so", "--sustained", "1m"), ("--against", "old.so", "--repeat", "3"),
     ("--against", "old.so", "--runs", "5")],
)  # fmt: skip
def test_bench_against_refuses_options_that_do_not_fit(invoke: Invoke, kernels: str, words: tuple[str, ...]) -> None:
    assert invoke("bench", kernels, *ADD, *words).exit_code == 2


def test_bench_against_a_file_that_is_not_there(invoke: Invoke, kernels: str) -> None:
    shown = invoke("bench", kernels, *ADD, "--against", "no/old.so")
    assert shown.exit_code == 1
    assert "no/old.so" in shown.stderr
