# SPDX-License-Identifier: Apache-2.0
"""Readings of machines, of trees as boards have them; and what is found between two readings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import portcall
from machines import TREES, check_tree, plant
from portcall.bench import Interval, Reading, check_machine
from portcall.bench._conditions import account, changes, reader
from portcall.errors import FunctionNotFoundError


@pytest.mark.parametrize("name", TREES)
def test_conditions_read_the_tree_of_a_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_core: None
) -> None:
    files, expected = TREES[name]
    monkeypatch.setenv("PORTCALL_MACHINE_ROOT", str(plant(tmp_path, files)))
    check_tree(portcall.get_global_func("portcall.rpc.conditions")(True), expected)


def test_conditions_of_this_machine_grow() -> None:
    read = reader()
    first, last = read(), read()
    assert first is not None
    assert last is not None
    assert first.time_ns is not None
    assert first.time_ns < (last.time_ns or 0)
    assert (first.on_cpu_ns or 0) < (last.on_cpu_ns or 0)
    assert (first.waited_ns or 0) <= (last.waited_ns or 0)


def test_reading_leaves_out_what_it_does_not_know() -> None:
    text = '{"time_ns": 5, "load1": "1", "governor": [1], "clock_hz": 7, "probe_ns": true, "more": 2}'
    assert Reading.from_json(text) == Reading(time_ns=5)
    assert Reading.from_json(text).to_dict() == {"time_ns": 5}


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "[" * 100_000], ids=lambda text: text[:3])
def test_reading_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting"):
        Reading.from_json(text)


SECOND = 1_000_000_000
START = Reading(time_ns=0, on_cpu_ns=0, waited_ns=0, process_ns=0, stolen_ns=0, quota_ns=0, major_faults=0)
QUIET = replace(START, time_ns=SECOND, on_cpu_ns=SECOND, process_ns=SECOND)


@pytest.mark.parametrize(
    ("last", "codes"),
    [
        (QUIET, []),
        (replace(QUIET, on_cpu_ns=SECOND * 97 // 100, waited_ns=SECOND * 3 // 100), ["waited"]),
        (replace(QUIET, on_cpu_ns=SECOND * 99 // 100, waited_ns=SECOND // 100), []),
        (replace(QUIET, stolen_ns=SECOND // 50), ["stolen"]),
        (replace(QUIET, quota_ns=1), ["quota"]),
        (replace(QUIET, on_cpu_ns=SECOND // 2, process_ns=SECOND // 2), ["asleep"]),
        (replace(QUIET, on_cpu_ns=SECOND // 2), []),  # it waits for other threads of its own
        (Reading(time_ns=SECOND), []),
        (replace(QUIET, time_ns=None), []),
    ],
)
def test_account_tells_who_had_the_core(last: Reading, codes: list[str]) -> None:
    found = list(account([Interval(START, last, 1.0)], on_host=True))
    assert [finding.code for finding in found] == codes
    assert all(finding.advice and not finding.note for finding in found)


def test_account_leaves_pauses_out() -> None:
    last = replace(QUIET, on_cpu_ns=SECOND // 100, waited_ns=SECOND // 100)
    (found,) = account([Interval(START, last, 0.02, paced=True)], on_host=True)
    assert found.code == "waited"
    assert "50%" in found.message


def test_account_leaves_waiting_after_pauses_out() -> None:
    last = replace(QUIET, on_cpu_ns=SECOND // 50, waited_ns=SECOND // 10, stolen_ns=SECOND // 10)
    assert list(account([Interval(START, last, 0.015, paced=True)], on_host=True)) == []


def test_account_lets_functions_of_devices_sleep() -> None:
    slept = replace(QUIET, on_cpu_ns=1000, process_ns=1000)
    assert list(account([Interval(START, slept, 1.0)], on_host=False)) == []


@pytest.mark.parametrize(
    ("name", "series", "codes"),
    [
        ("probe_ns", [100] * 9, []),
        ("probe_ns", [100, 100, 100, 102, 102, 102, 102, 102, 102], []),
        ("probe_ns", [100, 100, 100, 100, 100, 120, 120, 120, 120], ["clock"]),
        ("probe_ns", [100, 100, 140, 100, 100, 100, 100, 100, 100], []),  # one reading was disturbed
        ("probe_ns", [120, 120, 120, 100, 100, 100], ["clock"]),
        ("clock_hz", [[2_000, 3_000]] * 3 + [[1_500, 3_000]] * 3, ["clock"]),
        ("throttles", [3, 3, 4], ["throttled"]),
        ("cooling", [2, 1], []),
        ("undervoltage", [0, 1], ["throttled"]),
        ("hidden", [0, 1, 0], ["hidden"]),
        ("hidden", [0, 0], []),
        ("probe_ns", [100], []),
        ("probe_ns", [100, 200], []),
    ],
)
def test_changes_of_a_machine_are_told(name: str, series: list[Any], codes: list[str]) -> None:
    assert [finding.code for finding in changes([Reading(**{name: value}) for value in series])] == codes


@pytest.mark.parametrize(
    ("reading", "codes"),
    [
        (Reading(governor=["performance"], load1=0.1, cpus=4), []),
        (Reading(governor=["performance", "schedutil"], load1=9, cpus=4), ["governor", "load"]),
        (Reading(load1=2, cpus=4), []),
        (Reading(), []),
    ],
)
def test_settings_and_load_are_notes(reading: Reading, codes: list[str]) -> None:
    found = check_machine(reading)
    assert [finding.code for finding in found] == codes
    assert all(finding.note for finding in found)


def test_reader_says_nothing_of_servers_that_do_not_tell() -> None:
    class Older:
        name = "older"

        def __getitem__(self, name: str) -> None:
            raise FunctionNotFoundError(name)

    assert reader(Older())() is None
