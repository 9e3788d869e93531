# SPDX-License-Identifier: Apache-2.0
"""Joules of a call, of trees of files as sensors have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from portcall import bench
from portcall.bench import BenchmarkResult, _conditions
from portcall.bench._energy import Meter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def write(root: Path, **files: object) -> None:
    for name, value in files.items():
        path = root / "sys/class" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def package(root: Path, number: int, joules: float, name: str = "") -> None:
    folder = f"powercap__intel-rapl:{number}__"
    files = {"name": name or f"package-{number}", "energy_uj": round(joules * 1e6), "max_energy_range_uj": 10**7}
    write(root, **{folder + file: value for file, value in files.items()})


def test_meter_adds_packages_up_whose_counters_begin_again(tmp_path: Path) -> None:
    for number in (0, 1):
        package(tmp_path, number, 9.0)
    package(tmp_path, 2, 1.0, "psys")  # has the packages in it
    write(tmp_path, **{"powercap__intel-rapl:0:0__name": "core", "powercap__intel-rapl:0:0__energy_uj": 5})
    write(tmp_path, hwmon__hwmon0__power1_input=5_000_000)
    meter = Meter(str(tmp_path))
    assert meter.names == ["package-0", "package-1"]
    assert meter.read() == 0
    package(tmp_path, 0, 9.5)
    package(tmp_path, 1, 2.0)  # 1 J to the end, and 2 J
    assert meter.read() == pytest.approx(3.5)


def test_meter_reads_counters_of_hwmon_but_those_of_cores(tmp_path: Path) -> None:
    write(tmp_path, hwmon__hwmon3__name="amd_energy", hwmon__hwmon3__energy1_input=7, hwmon__hwmon3__energy2_input=9)
    write(tmp_path, hwmon__hwmon3__energy1_label="Ecore000", hwmon__hwmon3__energy2_label="Esocket0")
    meter = Meter(str(tmp_path))
    write(tmp_path, hwmon__hwmon3__energy2_input=4_000_009)
    assert (meter.names, meter.read()) == (["amd_energy Esocket0"], 4.0)
    write(tmp_path, hwmon__hwmon3__energy2_input=3)  # it began again, nobody knows where: nothing is added
    assert meter.read() == 4.0


def test_meter_takes_power_for_even_between_readings(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, hwmon__hwmon1__name="ina226", hwmon__hwmon1__power1_input=2_000_000)
    meter = Meter(str(tmp_path), clock)
    clock.now = 2.0
    write(tmp_path, hwmon__hwmon1__power1_input=4_000_000)
    assert (meter.names, meter.read()) == (["ina226"], 6.0)


@pytest.mark.parametrize("value", ["", "x", "\udcff"])
def test_meter_without_a_sensor_that_can_be_read(tmp_path: Path, value: str) -> None:
    path = tmp_path / "sys/class/hwmon/hwmon0/power1_input"
    path.parent.mkdir(parents=True)
    path.write_bytes(value.encode(errors="surrogateescape"))
    meter = Meter(str(tmp_path))
    assert (meter.names, meter.read()) == ([], None)


def test_measure_tells_joules_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, 0, 0.0)
    monkeypatch.setattr(_conditions, "ROOT", str(tmp_path))
    spent = 0.0

    def run(number: int, repeat: int) -> BenchmarkResult:
        nonlocal spent
        spent += 0.001
        package(tmp_path, 0, spent)
        return BenchmarkResult((0.05,) * repeat)

    measured = bench.measure(run, 1, 12)
    readings = measured.conditions
    joules = (readings[-1].energy_j or 0) - (readings[0].energy_j or 0)
    seconds = ((readings[-1].time_ns or 0) - (readings[0].time_ns or 0)) * 1e-9
    assert joules == pytest.approx(0.001 * (len(readings) - 1))
    assert measured.joules == pytest.approx(joules / seconds * 0.05)
    assert measured.to_dict()["energy"]["sensors"] == ["package-0"]


def test_measure_without_a_sensor_tells_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_conditions, "ROOT", str(tmp_path))
    measured = bench.measure(lambda number, repeat: BenchmarkResult((0.05,) * repeat), 1, 12)
    assert measured.energy() == {"joules_per_call": None, "watts": None, "sensors": []}
