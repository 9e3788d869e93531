# SPDX-License-Identifier: Apache-2.0
"""Durations and sizes as text: always with a unit, in both directions.

A duration is a number of seconds, a size a whole number of bytes. A number without a unit is refused, because
everybody guesses another one.
"""

from __future__ import annotations

import math
import re

SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
    "KB": 1000,
}
# Finer than a second, three digits are shown; from a minute on, whole units read better.
DURATION_STEPS = ((1e-6, 1e-9, "ns"), (1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min"))
NUMBER_WITH_UNIT = re.compile(r"\s*([0-9]+\.?[0-9]*(?:e-?[0-9]+)?|\.[0-9]+)\s*([^\W\d_]+)\s*", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Return seconds for a str such as ``500ms``, ``3s``, ``2m`` or ``1.5 h``.

    Raises:
        ValueError: no number, no unit or one that is not known, or a number that is not finite.
    """
    return split(text, SECONDS, "duration", "500ms, 3s or 2m")


def parse_size(text: str) -> int:
    """Return bytes for a str such as ``64MiB``, ``1.5 GB`` or ``512B``.

    Raises:
        ValueError: no number, no unit or one that is not known, or not a whole number of bytes.
    """
    size = split(text, BYTES, "size", "64MiB, 10MB or 512B")
    if size != int(size):
        raise ValueError(f"size '{text}' is not a whole number of bytes")
    return int(size)


def format_duration(seconds: float) -> str:
    """Return a duration with three significant digits and a unit: ``12.3 us``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    size = abs(seconds)
    if size == 0:
        return "0 s"
    for below, unit, name in DURATION_STEPS:
        # Rounded first: 999.9996 us reads 1.00 ms, not 1000 us.
        if float(f"{size:.3g}") < below:
            return f"{three_digits(seconds / unit)} {name}"
    return f"{three_digits(seconds / 3600)} h"


def format_size(nbytes: int) -> str:
    """Return a size with a binary unit: ``64.0 MiB``; below 1 KiB the exact number of bytes."""
    if abs(nbytes) < 1024:
        return f"{nbytes} B"
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1023.95:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def three_digits(value: float) -> str:
    """Return a number with three significant digits, and all digits of its whole part."""
    rounded = float(f"{value:.3g}")
    whole = len(str(int(abs(rounded)))) if abs(rounded) >= 1 else 0
    return f"{rounded:.0f}" if whole >= 3 else f"{rounded:.{3 - whole}f}" if whole else f"{rounded:.3g}"


def split(text: str, units: dict[str, float] | dict[str, int], what: str, examples: str) -> float:
    match = NUMBER_WITH_UNIT.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a {what}: write a number and a unit, such as {examples}")
    number, unit = float(match[1]), match[2]
    if unit not in units:
        raise ValueError(f"{what} '{text}' has the unknown unit '{unit}'; known are {', '.join(units)}")
    value = number * units[unit]
    if not math.isfinite(value):
        raise ValueError(f"{what} '{text}' is too large")
    return value
