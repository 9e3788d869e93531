# SPDX-License-Identifier: Apache-2.0
"""What a time evaluator measured: a list of seconds and the figures that describe it.

One entry is one *repeat*: the time of ``number`` calls in a row, divided by ``number``. So ``min`` and ``max`` are
extremes of such averages, not of single calls. Figures are computed with ``math.fsum``; NumPy is not needed.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from portcall._html import facts_as_html
from portcall.bench._stored import MOST_S
from portcall.bench._units import format_duration

FIGURES = ("min", "median", "p95", "mean", "std", "max")


@dataclass(frozen=True)
class BenchmarkResult:
    """Seconds per call, one entry for each repeat, in the order in which they were measured.

    Attributes:
        results: seconds per call; at least one entry.

    Raises:
        ValueError: there is none, or one that is no time.
    """

    results: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", tuple(map(float, self.results)))
        if not self.results:
            raise ValueError("a BenchmarkResult needs at least one measurement")
        for each in self.results:
            if not 0 <= each <= MOST_S:
                raise ValueError(f"a call took {each} s, says its timer: that is no time")

    @classmethod
    def from_bytes(cls, data: bytes) -> BenchmarkResult:
        """Return the result that a time evaluator encoded as little-endian float64 numbers.

        Raises:
            ValueError: the bytes are empty or not a whole number of float64 numbers.
        """
        count, rest = divmod(len(data), 8)
        if rest or not count:
            raise ValueError(f"time evaluator returned {len(data)} bytes, which are not one or more float64 numbers")
        return cls(struct.unpack(f"<{count}d", data))

    @property
    def mean(self) -> float:
        """Arithmetic mean, in seconds."""
        return math.fsum(self.results) / len(self.results)

    @property
    def median(self) -> float:
        """Middle value, in seconds; the mean of the two middle ones when their number is even."""
        return self.percentile(50)

    @property
    def min(self) -> float:
        """Smallest value, in seconds."""
        return min(self.results)

    @property
    def max(self) -> float:
        """Largest value, in seconds."""
        return max(self.results)

    @property
    def std(self) -> float:
        """Standard deviation of the values themselves (divided by their number, as ``numpy.std``), in seconds."""
        mean = self.mean
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.results) / len(self.results))

    @property
    def p95(self) -> float:
        """95th percentile, in seconds."""
        return self.percentile(95)

    def percentile(self, p: float) -> float:
        """Return the value below which ``p`` percent of the results lie, interpolated as ``numpy.percentile`` does.

        Raises:
            ValueError: ``p`` is not between 0 and 100.
        """
        if not 0 <= p <= 100:
            raise ValueError(f"percentile {p} is not between 0 and 100")
        ordered = sorted(self.results)
        place = (len(ordered) - 1) * p / 100
        below = min(int(place), len(ordered) - 1)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

    def to_dict(self) -> dict[str, object]:
        """Return the figures and the single results, all in seconds, ready for JSON."""
        figures = {f"{name}_s": value for name, value in self.figures().items()}
        return {**figures, "results_s": list(self.results)}

    def figures(self) -> dict[str, float]:
        """Return the figures of the report by name, in seconds, in the order in which they are printed."""
        return {name: float(getattr(self, name)) for name in FIGURES}

    def _repr_html_(self) -> str:
        facts = [(name, format_duration(value)) for name, value in self.figures().items()]
        return facts_as_html("portcall.bench.BenchmarkResult", [*facts, ("repeats", len(self.results))])

    def __str__(self) -> str:
        """Return the figures in two lines, names above values, each value with its unit."""
        cells = [(name, format_duration(value)) for name, value in self.figures().items()]
        cells.append(("repeats", str(len(self.results))))
        widths = [max(map(len, cell)) for cell in cells]
        return "\n".join(
            "  ".join(cell[row].rjust(width) for cell, width in zip(cells, widths, strict=True)) for row in (0, 1)
        )
