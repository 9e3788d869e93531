# SPDX-License-Identifier: Apache-2.0
"""Figures that ``portcall bench --keep`` put into the history: their line there, and the curves of a place's page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from portcall.bench import Chart, format_duration

KEPT = "figure kept"  # what happened, in the history
CURVES = 6  # of a page, those with the newest figures
_NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
_LINE = re.compile(rf"{_NUMBER} s \({_NUMBER} to {_NUMBER}\), (not )?trustworthy: (.*)", re.DOTALL)


@dataclass(frozen=True)
class Figure:
    """What was measured, seconds of a call, the interval, and whether they can be trusted."""

    job: str
    seconds: float
    low: float
    high: float
    ok: bool

    def __str__(self) -> str:
        said = "trustworthy" if self.ok else "not trustworthy"
        return f"{self.seconds:.6g} s ({self.low:.6g} to {self.high:.6g}), {said}: {self.job}"

    @classmethod
    def read(cls, line: str) -> Figure | None:
        """Return the figure in a line of the history; None where it has none."""
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        try:
            return cls(match[5], float(match[1]), float(match[2]), float(match[3]), not match[4])
        except ValueError:
            return None


def curves(events: Iterable[Mapping[str, Any]]) -> str:
    """Return a picture for each thing that was measured more than once, of events in their order."""
    jobs: dict[str, list[tuple[float, Figure]]] = {}
    for event in events:
        figure = Figure.read(event["detail"]) if event["what"] == KEPT else None
        if figure is not None:
            jobs.setdefault(figure.job, []).append((event["time"], figure))
    newest = sorted(jobs.items(), key=lambda job: -job[1][-1][0])
    parts = [_curve(job, found) for job, found in newest if len(found) > 1][:CURVES]
    return f"<h2>Figures</h2>{''.join(parts)}" if parts else ""


def _curve(job: str, found: list[tuple[float, Figure]]) -> str:
    times, figures = [at for at, _ in found], [figure for _, figure in found]
    ends = min(figure.low for figure in figures), max(figure.high for figure in figures)
    chart = Chart((times[0], times[-1]), ends, _day, format_duration, 150, f"{job} over time")
    for at, figure in found:
        chart.line([(at, figure.low), (at, figure.high)], "ci")
    chart.line([(at, figure.seconds) for at, figure in found])
    chart.dots([(at, figure.seconds) for at, figure in found if figure.ok])
    chart.dots([(at, figure.seconds) for at, figure in found if not figure.ok], "d2")
    last = figures[-1]
    words = f"{job}: {format_duration(last.seconds)}{'' if last.ok else ', not trustworthy'}"
    return f'<div class="card curve"><p>{escape(words)}</p>{chart}</div>'


def _day(at: float) -> str:
    return time.strftime("%d %b %H:%M", time.gmtime(at))
