# SPDX-License-Identifier: Apache-2.0
"""Joules of a call, of trees of files as sensors have them; tests/machines.py has what the core reads there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portcall import bench, rpc
from portcall.bench import BenchmarkResult, Reading
from portcall.bench._conditions import Meter

COUNTED = Reading(time_ns=0, energy_from=["a", "b"], energy_uj=[9_000_000, 9_000_000], energy_range_uj=[10_000_000] * 2)
POWER = Reading(time_ns=0, energy_from=["ina226"], power_uw=[2_000_000])


def joules(*readings: Reading) -> list[float | None]:
    meter = Meter()
    return [meter.add(each).energy_j for each in readings]


def test_meter_adds_counters_up_that_begin_again() -> None:
    assert joules(COUNTED, replace(COUNTED, energy_uj=[9_500_000, 2_000_000])) == [0, pytest.approx(3.5)]


def test_meter_adds_nothing_where_a_counter_began_nobody_knows_where() -> None:
    unknown = replace(COUNTED, energy_from=["a"], energy_range_uj=[0])
    assert joules(replace(unknown, energy_uj=[9]), replace(unknown, energy_uj=[3])) == [0, 0]


def test_meter_takes_power_for_even_between_readings() -> None:
    assert joules(POWER, replace(POWER, time_ns=2_000_000_000, power_uw=[4_000_000])) == [0, pytest.approx(6.0)]


def test_meter_looks_later_at_a_sensor_that_could_not_be_read() -> None:
    without = replace(COUNTED, energy_from=["a"], energy_uj=[9_100_000], energy_range_uj=[10_000_000])
    later = replace(COUNTED, energy_uj=[9_200_000, 9_300_000])
    assert joules(COUNTED, without, later) == [0, 0, pytest.approx(0.5)]


def test_meter_of_a_machine_without_sensors() -> None:
    assert joules(Reading(time_ns=0), Reading(time_ns=1)) == [None, None]


def test_meter_takes_what_a_strange_server_says() -> None:
    odd = Reading(energy_from=["a"], energy_uj=[1, 2, 3], power_uw=[5], energy_range_uj=[])
    assert joules(odd, replace(odd, energy_uj=[])) == [0, 0]


def package(root: Path, spent: float) -> None:
    folder = root / "sys/class/powercap/intel-rapl:0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text("package-0\n")
    (folder / "energy_uj").write_text(f"{round(spent * 1e6)}\n")


@pytest.fixture(params=["here", "server"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Nothing for this machine, or a session; with its sensors in ``tmp_path``."""
    monkeypatch.setenv("PORTCALL_MACHINE_ROOT", str(tmp_path))
    package(tmp_path, 0.0)
    server: AbstractContextManager[Any] = rpc.Server() if request.param == "server" else nullcontext()
    with server as started, closing(rpc.connect(started.address)) if started else nullcontext() as session:
        yield session


def test_measure_tells_joules_of_a_call(machine: Any, tmp_path: Path) -> None:
    spent = 0.0

    def run(number: int, repeat: int) -> BenchmarkResult:
        nonlocal spent
        spent += 0.001
        package(tmp_path, spent)
        return BenchmarkResult((0.05,) * repeat)

    measured = bench.measure(run, 1, 12, session=machine)
    readings = measured.conditions
    found = (readings[-1].energy_j or 0) - (readings[0].energy_j or 0)
    seconds = ((readings[-1].time_ns or 0) - (readings[0].time_ns or 0)) * 1e-9
    assert found == pytest.approx(0.001 * (len(readings) - 1))
    assert measured.joules == pytest.approx(found / seconds * 0.05)
    assert measured.to_dict()["energy"]["sensors"] == ["package-0"]


def test_measure_without_a_sensor_tells_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTCALL_MACHINE_ROOT", str(tmp_path))
    measured = bench.measure(lambda number, repeat: BenchmarkResult((0.05,) * repeat), 1, 12)
    assert measured.energy() == {"joules_per_call": None, "watts": None, "sensors": []}
