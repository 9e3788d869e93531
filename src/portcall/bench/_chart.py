# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG, for a report: points over time, levels, counts. Colours are classes of the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby

Range = tuple[float, float]

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 520.0, 74.0, 12.0, 12.0, 24.0
_EDGE = 40  # from the right, in which words end there
_MOST_DOTS = 2500  # more points than that are drawn as a line from the least to the greatest of each column
_SOME = 300  # dots are smaller from there on
_TICKS = 4
_BINS, _MOST_STACKED = 48, 22  # of a distribution; taller stacks are bars


class Chart:
    """A frame in which marks are drawn.

    Parameters:
        x, y: what its sides stand for, both ends.
        show_x, show_y: a number in words, for the axes.
        height: of all of it; its width is 520.
        what: a sentence for who cannot see it.
    """

    def __init__(
        self, x: Range, y: Range, show_x: Callable[[float], str], show_y: Callable[[float], str] | None,
        height: float = 190.0, what: str = "",
    ) -> None:  # fmt: skip
        self.x, self.y, self.height, self.what = _wide(x), _wide(y), height, what
        self.parts: list[str] = []
        bottom = height - _BOTTOM
        if show_y is not None:
            for at in ticks(self.y, 2 if height < 120 else _TICKS):
                place = self.down(at)
                self.parts.append(f'<path class="g" d="M{_LEFT:g} {place:g}H{_WIDTH - _RIGHT:g}"/>')
                self.text(_LEFT - 6, place + 4, show_y(at), "e")
        for at in ticks(self.x, _TICKS):
            place = self.across(at)
            at_edge = place > _WIDTH - _EDGE  # on a small screen, whose letters are larger, it would be cut
            self.text(_WIDTH if at_edge else place, bottom + 17, show_x(at), "e" if at_edge else "m")
        self.parts.append(f'<path class="g" d="M{_LEFT:g} {bottom:g}H{_WIDTH - _RIGHT:g}"/>')

    def across(self, x: float) -> float:
        """Return where a value of x is."""
        share = (x - self.x[0]) / (self.x[1] - self.x[0])
        return round(_LEFT + min(max(share, 0), 1) * (_WIDTH - _LEFT - _RIGHT), 1)

    def down(self, y: float) -> float:
        """Return where a value of y is; one outside of the range is at its edge."""
        share = (y - self.y[0]) / (self.y[1] - self.y[0])
        bottom = self.height - _BOTTOM
        return round(bottom - min(max(share, 0), 1) * (bottom - _TOP), 1)

    def text(self, x: float, y: float, words: str, kind: str = "s") -> None:
        """Write words; ``kind`` says what of them is at x: their start, middle or end (s, m, e)."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def dots(self, points: Sequence[tuple[float, float]], kind: str = "d") -> None:
        """Draw a dot for each point; a line in each column where they are very many."""
        places = [(self.across(x), self.down(y)) for x, y in points]
        if len(places) > _MOST_DOTS:
            columns = groupby(sorted((round(x), y) for x, y in places), key=lambda place: place[0])
            ends = [(x, [y for _, y in column]) for x, column in columns]
            path = "".join(f"M{x} {min(ys):g}V{max(ys) + 0.5:g}" for x, ys in ends)
            kind += " many"
        else:
            path = "".join(f"M{x:g} {y:g}h0" for x, y in places)
            kind += " some" if len(places) > _SOME else ""
        self.parts.append(f'<path class="{kind}" d="{path}"/>')

    def line(self, points: Sequence[tuple[float, float]], kind: str = "l") -> None:
        """Draw a line through points."""
        path = "L".join(f"{self.across(x):g} {self.down(y):g}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="M{path}"/>')

    def band(self, low: float, high: float, kind: str = "b", *, upright: bool = False) -> None:
        """Draw what lies between two values of y, or of x where it is upright."""
        if upright:
            left, right, top, bottom = self.across(low), self.across(high), _TOP, self.height - _BOTTOM
        else:
            left, right, top, bottom = _LEFT, _WIDTH - _RIGHT, self.down(high), self.down(low)
        size = f'width="{max(right - left, 1):g}" height="{max(bottom - top, 1):g}"'
        self.parts.append(f'<rect class="{kind}" x="{left:g}" y="{top:g}" {size}/>')

    def level(self, y: float, words: str, kind: str = "m1", *, left: bool = False) -> None:
        """Draw a value of y from side to side, with words on it, at its right end or its left one."""
        self.parts.append(f'<path class="{kind}" d="M{_LEFT:g} {self.down(y):g}H{_WIDTH - _RIGHT:g}"/>')
        place = (_LEFT + 6, "s") if left else (_WIDTH - _RIGHT, "e")
        self.text(place[0], self.down(y) - 4, words, place[1])

    def mark(self, x: float, words: str = "", kind: str = "w", line: int = 0) -> None:
        """Draw a value of x from top to bottom, with words beside it in that line; without a kind, words alone."""
        place = self.across(x)
        if kind:
            self.parts.append(f'<path class="{kind}" d="M{place:g} {_TOP:g}V{self.height - _BOTTOM:g}"/>')
        left = place < (_WIDTH + _LEFT) / 2
        if words:
            self.text(place + (6 if left else -6), _TOP + 10 + 17 * line, words, "s" if left else "e")

    def __str__(self) -> str:
        size = f'viewBox="0 0 {_WIDTH:g} {self.height:g}"'
        return f'<svg {size} role="img" aria-label="{escape(self.what)}">{"".join(self.parts)}</svg>'


def distribution(values: Sequence[float], show: Callable[[float], str], split: float | None, what: str) -> str:
    """Return how often values are: a dot each, or bars where they are many; above ``split`` in a second colour."""
    low, high = visible(values)
    width = (high - low) / _BINS or 1.0
    counts: dict[int, int] = {}
    for value in values:
        place = min(max(int((value - low) / width), 0), _BINS - 1)
        counts[place] = counts.get(place, 0) + 1
    most = max(counts.values())
    chart = Chart((low, high), (0, most), show, None, what=what)
    for place, count in sorted(counts.items()):
        middle = low + (place + 0.5) * width
        kind = "d2" if split is not None and middle > split else "d"
        if most <= _MOST_STACKED:
            chart.dots([(middle, at + 0.5) for at in range(count)], kind)
        else:
            chart.line([(middle, 0), (middle, count)], f"{kind} bar")
    return str(chart)


def visible(values: Sequence[float]) -> Range:
    """Return the range that shows a series well: a few values far above the others are drawn at its upper edge."""
    ordered = sorted(values)
    most, low = ordered[-1], ordered[0]
    near, middle = ordered[int((len(ordered) - 1) * 0.95)], ordered[len(ordered) // 2]
    far = max(near + 3 * (near - middle), middle * 1.05)
    return low, most if most <= far else far


def ticks(ends: Range, most: int) -> list[float]:
    """Return round numbers between two values, about so many: 1, 2 or 5 times a power of ten apart."""
    low, high = ends
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first = math.ceil(low / step - 1e-9)
    return [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]


def _wide(ends: Range) -> Range:
    """Return a range that is not empty."""
    low, high = ends
    return (low, high) if high > low else (low - (abs(low) * 0.01 or 1.0), high + (abs(high) * 0.01 or 1.0))
