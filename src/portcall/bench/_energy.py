# SPDX-License-Identifier: Apache-2.0
"""Energy that this machine's sensors tell: counters of processors (RAPL), or of the board (hwmon)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MICRO = 1e-6


@dataclass
class _Sensor:
    """A file with a number.

    Attributes:
        name: what its system calls it.
        path: of microjoules so far, or where it ``is_power`` of microwatts now.
        wraps_at: microjoules after which the counter begins at 0 again; 0 where it does not.
        last: its number at the last reading.
    """

    name: str
    path: Path
    is_power: bool = False
    wraps_at: int = 0
    last: int | None = None


class Meter:
    """Adds up what the sensors of this machine tell from the first reading on.

    It takes the first kind that can be read, for the kinds count the same energy: the processors' packages by RAPL
    (since Linux 5.10 for root only), counters of energy of hwmon, and power of hwmon, which is taken to be even between
    two readings.

    Parameters:
        root: of /sys; tests have trees of their own.
        clock: seconds.
    """

    def __init__(self, root: str = "/", clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at, self._joules = clock, clock(), 0.0
        self._sensors: list[_Sensor] = []
        for kind in (_packages, _counters, _powers):
            self._sensors = [each for each in kind(Path(root, "sys/class")) if _number(each.path) is not None]
            if self._sensors:
                break
        self.read()
        self._joules = 0.0

    @property
    def names(self) -> list[str]:
        """What is read; empty where there is no sensor."""
        return [each.name for each in self._sensors]

    def read(self) -> float | None:
        """Return joules since the first reading; None where there is no sensor."""
        if not self._sensors:
            return None
        now = self._clock()
        elapsed, self._at = now - self._at, now
        for each in self._sensors:
            value = _number(each.path)
            if value is not None and each.last is not None:
                self._joules += MICRO * (
                    (value + each.last) / 2 * elapsed if each.is_power else _grown(each.last, value, each.wraps_at)
                )
            each.last = value
        return self._joules


def _grown(before: int, after: int, wraps_at: int) -> int:
    return after - before if after >= before else after + wraps_at - before if wraps_at > before else 0


def _packages(folder: Path) -> list[_Sensor]:
    zones = sorted(zone for zone in folder.glob("powercap/*-rapl:*") if zone.name.count(":") == 1)
    named = [(_text(zone / "name"), zone) for zone in zones]
    return [
        _Sensor(name, zone / "energy_uj", wraps_at=_number(zone / "max_energy_range_uj") or 0)
        for name, zone in named
        if name.startswith("package")
    ]


def _counters(folder: Path) -> list[_Sensor]:
    found = [_Sensor(_label(file), file) for file in sorted(folder.glob("hwmon/hwmon*/energy*_input"))]
    return [each for each in found if "Ecore" not in each.name]  # of cores, whose socket has one, too


def _powers(folder: Path) -> list[_Sensor]:
    return [_Sensor(_label(file), file, is_power=True) for file in sorted(folder.glob("hwmon/hwmon*/power*_input"))]


def _label(file: Path) -> str:
    label = _text(file.with_name(file.name.replace("_input", "_label")))
    return " ".join(filter(None, (_text(file.with_name("name")), label))) or file.parent.name


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    try:
        return int(_text(file))
    except ValueError:
        return None
