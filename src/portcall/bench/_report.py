# SPDX-License-Identifier: Apache-2.0
"""A report on measurements: one page of HTML with its pictures and its data in it, without scripts and requests."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Protocol

from portcall.bench._chart import Chart, distribution, visible
from portcall.bench._comparison import Comparison
from portcall.bench._report_style import STYLE
from portcall.bench._result import FIGURES
from portcall.bench._statistics import find_shift, find_speeds
from portcall.bench._stored import (
    SCHEMA,
    Result,
    check_result,
    ends_of,
    headline_of,
    list_of,
    number_of,
    packed,
    part_of,
    title_of,
)
from portcall.bench._units import format_duration, format_size

MOST_DATA = 120_000  # characters; a page with more would be too large for a mail
TOP = 12  # kernels of a profile
READINGS = 200  # rows of conditions that the page shows
SLOWED = ("throttles", "cooling", "undervoltage")
MEANING = {
    "waited": "the figure has other people's work in it, each time another amount",
    "stolen": "the figure has the work of other virtual machines in it",
    "quota": "the process was stopped in the middle of it",
    "asleep": "the function did not work all of the time",
    "clock": "the beginning and the end are figures of two machines",
    "throttled": "the machine does not keep this speed up",
    "shift": "one number does not describe it",
    "modes": "the median is one speed or the other, by chance",
    "unstable": "a second run may say something else",
    "few": "there is no interval",
    "short": "a part of the figure is the clock's own time",
    "timer": "the clock is too coarse for it",
    "hot": "a cool machine may be faster",
    "ended": "the end is missing",
}


class Reportable(Protocol):
    """What has a form in JSON: Measurement, Comparison."""

    def to_dict(self) -> dict[str, Any]: ...


def report(results: Sequence[Reportable | Result], path: str | os.PathLike[str]) -> None:
    """Write a page about results, one after the other: a verdict, why, what to do, and the pictures.

    Parameters:
        results: measurements and comparisons, or what ``portcall bench --json`` wrote of them.
        path: of the page. ``portcall bench report`` reads it again.

    Raises:
        ValueError: there is none, or one of them is no result.
    """
    page = report_html([_stored(each) for each in results])
    Path(path).write_text(page, encoding="utf-8", errors="replace")  # names of files may be no Unicode


def _stored(given: Reportable | Result) -> Result:
    if isinstance(given, Comparison):
        return {"schema": SCHEMA, "comparison": given.to_dict(), "text": str(given)}
    if hasattr(given, "to_dict"):
        counts = getattr(given, "counts", None)
        return {"schema": SCHEMA, **({"number": counts.number} if counts else {}), **given.to_dict()}
    return given


def report_html(results: Sequence[Result]) -> str:
    """Return the page about results.

    Raises:
        ValueError: there is none, or one of them is no result.
    """
    if not results:
        raise ValueError("there is nothing to report")
    results = [json.loads(json.dumps(each, default=str)) for each in results]
    for each in results:
        check_result(each, "the result")
    data = packed(results)
    if len(data) <= MOST_DATA:
        kept = f'<pre id="portcall-data" hidden>{data}</pre>'
    else:
        kept = "<p>The data of this report are too large for a page: keep the JSON, too.</p>"
    title = escape(" · ".join(map(title_of, results)))
    body = "".join(f"<article>{''.join(_article(each))}</article>" for each in results)
    return _PAGE.format(title=title, style=STYLE, body=body, kept=kept)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>{style}</style></head>
<body>{body}<footer>portcall bench · what the findings mean: docs/numbers.md of portcall</footer>
{kept}</body></html>
"""


def _article(result: Result) -> Iterator[str]:
    yield f"<h1>{escape(title_of(result))}</h1>"
    yield _headline(result)
    if "comparison" in result:
        yield from _comparison(result)
    else:
        yield from _findings(result)
        yield from _figures(result)
        yield f'<div class="charts">{"".join(_charts(result))}</div>'
        yield from _profile(result)
        yield from _conditions(result)
    yield from _facts(result)


# ---- What it says --------------------------------------------------------------------------------------------------


def _headline(result: Result) -> str:
    if "comparison" in result:
        found = result["comparison"]
        told = str(found.get("gate") or found.get("verdict"))
        kind = {"slower": "bad", "not settled": "open", "not enough data": "open"}.get(told, "good")
    else:
        verdict = part_of(result, "verdict")
        kind = "open" if "ok" not in verdict else "good" if verdict["ok"] else "bad"
    text = headline_of(result)
    if isinstance(result.get("error"), dict):
        text += f". It ended early: {result['error'].get('message', '')}"
        kind = "bad" if kind == "bad" else "open"
    sign = {"good": "✓", "bad": "✗", "open": "?"}[kind]
    said = f'<p class="verdict {kind}"><span>{sign}</span> {escape(text)}</p>'
    usual = part_of(result, "baseline").get("text")
    return said + (f"<p>Beside earlier runs: {escape(str(usual))}</p>" if usual else "")


def _findings(result: Result) -> Iterator[str]:
    rows = []
    for each in list_of(result, "warnings"):
        code = str(each.get("code", ""))
        kind = "a note" if each.get("note") else "spoils the figure"
        means = MEANING.get(code, "")
        rows.append(
            f"<li><b>{escape(code)}</b> <small>{kind}</small><br>{escape(str(each.get('message', '')))}"
            f"{f'; {escape(means)}' if means else ''}.<br><em>{escape(str(each.get('advice', '')))}</em></li>"
        )
    if rows:
        yield f'<h2>Findings, and what to do</h2><ul class="findings">{"".join(rows)}</ul>'


def _figures(result: Result) -> Iterator[str]:
    cells = [(name, number_of(result, f"{name}_s")) for name in FIGURES]
    shown = [
        (f"{name} of windows" if name == "p95" else name, format_duration(s)) for name, s in cells if s is not None
    ]
    ends = ends_of(part_of(result, "verdict").get("interval_s"))
    if ends:
        shown.insert(2, ("95 % interval", f"{format_duration(ends[0])} to {format_duration(ends[1])}"))
    if (peak := number_of(result, "memory_peak_bytes")) is not None:
        shown.append(("most memory", format_size(int(peak))))
    joules = number_of(part_of(result, "energy"), "joules_per_call")
    shown.append(("energy of a call", "no sensor" if joules is None else f"{joules:.3g} J"))
    if isinstance(found := result.get("sustained"), dict):
        shown += [(name, format_duration(s)) for name in ("burst", "sustained")
                  if (s := number_of(found, f"{name}_s")) is not None]  # fmt: skip
        if (kept := number_of(found, "kept")) is not None:
            shown.append(("speed that is kept", f"{kept:.0%}"))
        full = number_of(found, "full_s")
        shown.append(("time to less than 95 %", "not reached" if full is None else format_duration(full)))
    for each in list_of(part_of(result, "latency"), "percentiles"):
        value, needs = number_of(each, "value_s"), number_of(each, "needs") or 0
        text = f"needs {needs:,.0f} calls" if value is None else format_duration(value)
        if value is not None and (ends := ends_of(each.get("interval_s"))):
            text += f" ({format_duration(ends[0])} to {format_duration(ends[1])})"
        shown.append((f"p{number_of(each, 'p') or 0:g} of calls", text))
    yield _cells(shown)


def _cells(shown: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in shown)
    return f'<dl class="figures">{cells}</dl>'


# ---- Pictures ------------------------------------------------------------------------------------------------------


def _charts(result: Result) -> Iterator[str]:
    values = [float(each) for each in result["results_s"]]
    readings = list_of(result, "conditions")
    at, times = _times(result, values, readings)
    ends = (0.0, max([*at, *times]))
    throttled = [
        times[place]
        for place in range(1, len(readings))
        if any((number_of(readings[place], name) or 0) > (number_of(readings[place - 1], name) or 0) for name in SLOWED)
    ]
    yield _figure("Over time: a dot a window", _series(result, values, at, ends, throttled))
    speeds = find_speeds(values)
    split = (speeds.fast + speeds.slow) / 2 if speeds else None
    words = "How often: two speeds, in two colours" if speeds else "How often"
    yield _figure(words, distribution(values, format_duration, split, f"distribution of {len(values)} windows"))
    for name, points, show in _curves(readings, times):
        chart = Chart(ends, _range(points), format_duration, show, 110, f"{name} over the time of the run")
        for each in throttled:
            chart.mark(each)
        chart.line(points)
        yield _figure(name, str(chart))


def _series(
    result: Result, values: Sequence[float], at: Sequence[float], ends: tuple[float, float], throttled: Sequence[float]
) -> str:
    low, high = visible(values)
    chart = Chart(ends, (low, high), format_duration, format_duration, what=f"{len(values)} windows over time")
    if interval := ends_of(part_of(result, "verdict").get("interval_s")):
        chart.band(*interval)
    for place, each in enumerate(throttled):
        chart.mark(each, "" if place else "throttled")
    shift = find_shift(values)
    if shift is not None:
        chart.mark(at[shift.place], f"shift: {shift.change:+.0%}", line=1)
    chart.dots([(x, value) for x, value in zip(at, values, strict=True) if value <= high])
    above = [(x, high) for x, value in zip(at, values, strict=True) if value > high]
    if above:
        chart.dots(above, "d2")
        chart.mark(above[0][0], f"{len(above)} slower: up to {format_duration(max(values))}", "", line=2)
    if isinstance(found := result.get("sustained"), dict):
        for name in ("burst", "sustained"):
            if (level := number_of(found, f"{name}_s")) is not None:
                chart.level(level, name, left=name == "burst")
    return str(chart)


def _times(result: Result, values: Sequence[float], readings: Sequence[Result]) -> tuple[list[float], list[float]]:
    """Return when each window ended, and each reading was taken, in seconds from the first reading."""
    clock = [number_of(each, "time_ns") for each in readings]
    counts = [number_of(each, "windows") for each in readings]
    if len(readings) > 1 and None not in clock and None not in counts:
        first = clock[0] or 0
        times = [((each or 0) - first) * 1e-9 for each in clock]
        ends = [int(each or 0) for each in counts]
        if sorted(times) == times and sorted(ends) == ends and ends[-1] == len(values) and ends[0] == 0:
            at: list[float] = []
            for (a, b), (m, n) in zip(itertools.pairwise(times), itertools.pairwise(ends), strict=True):
                at += [a + (b - a) * (k + 1) / (n - m) for k in range(n - m)]
            return at, times
    number = number_of(result, "number") or 1
    pace = number_of(part_of(result, "latency"), "every_s")
    return list(itertools.accumulate(pace or value * number for value in values)), [0.0] * len(readings)


def _curves(
    readings: Sequence[Result], times: Sequence[float]
) -> Iterator[tuple[str, list[tuple[float, float]], Callable[[float], str]]]:
    """Yield what readings tell over time: a name, points, and how a value is shown."""
    if len(set(times)) < 2:
        return
    probes = [(t, probe) for t, each in zip(times, readings, strict=True) if (probe := number_of(each, "probe_ns"))]
    if len(probes) > 1:
        best = min(probe for _, probe in probes)
        yield "Clock, of the fastest reading", [(t, best / probe) for t, probe in probes], "{:.1%}".format
    heat = [(t, degrees) for t, each in zip(times, readings, strict=True)
            if (degrees := number_of(each, "temperature_c")) is not None]  # fmt: skip
    if len(heat) > 1:
        yield "Temperature", heat, "{:.0f} °C".format
    power = _rates(readings, times, "energy_j")
    if len(power) > 1:
        yield "Power", power, "{:.3g} W".format
    waited = [(t, rate * 1e-9) for t, rate in _rates(readings, times, "waited_ns")]
    if len(waited) > 1:
        yield "Share of the time that the thread waited for a core", waited, "{:.0%}".format


def _rates(readings: Sequence[Result], times: Sequence[float], name: str) -> list[tuple[float, float]]:
    """Return by how much a counter grew in a second, from each reading to the next."""
    return [
        (t, (after - before) / (t - s))
        for (s, a), (t, b) in itertools.pairwise(zip(times, readings, strict=True))
        if t > s and (before := number_of(a, name)) is not None and (after := number_of(b, name)) is not None
    ]


def _range(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a range for a curve; at least 5 % of its greatest value, so that what stands still looks so."""
    values = [value for _, value in points]
    low, high = min(values), max(values)
    least = 0.05 * abs(high) or 0.05
    if high - low >= least:
        return low, high
    return (high - least, high) if high > 0 else (0.0, least)


def _comparison(result: Result) -> Iterator[str]:
    found = result["comparison"]
    ratios, margin = [float(each) for each in found["ratios"]], number_of(found, "margin") or 0.0
    interval, limit = ends_of(found.get("interval")), number_of(found, "limit")
    shown = [("ratio", f"{number_of(found, 'ratio') or math.nan:.4f}")]
    if interval:
        shown.append(("99 % interval", f"{interval[0]:.4f} to {interval[1]:.4f}"))
    shown += [(name, format_duration(seconds)) for name, field in (("new", "new_s"), ("old", "old_s"))
              if (seconds := number_of(found, field))]  # fmt: skip
    shown.append(("runs", str(len(ratios))))
    if needed := number_of(found, "runs_needed"):
        shown.append(("runs that would do", f"{needed:,.0f}"))
    yield _cells(shown)
    every = [*ratios, *(interval or ()), 1 - margin, 1 + margin, *([limit] if limit else [])]
    ends = (min(every), max(every))
    chart = Chart(ends, (-1, len(ratios)), "{:.3g}".format, None, min(90 + 6 * len(ratios), 300), "ratios of the runs")
    chart.band(1 / (1 + margin), 1 + margin, upright=True)
    chart.mark(1.0, "", "m1")
    if limit:
        chart.mark(limit, f"limit {limit:.3f}")
    chart.dots([(ratio, len(ratios) - 1 - place) for place, ratio in enumerate(ratios)])
    if interval:
        chart.line([(interval[0], -0.6), (interval[1], -0.6)], "ci")
    words = "Time of the new one over that of the old one: a dot a run; the bar is the interval, the band the margin"
    yield f'<div class="charts">{_figure(words, str(chart))}</div>'


def _figure(words: str, picture: str) -> str:
    return f"<figure><figcaption>{escape(words)}</figcaption>{picture}</figure>"


# ---- Tables --------------------------------------------------------------------------------------------------------


def _profile(result: Result) -> Iterator[str]:
    profile = part_of(result, "profile")
    kernels: dict[str, tuple[float, float]] = {}
    for each in list_of(profile, "nodes") or list_of(profile, "rows"):
        name = str(each.get("function") or each.get("name") or "")
        time, share = kernels.get(name, (0.0, 0.0))
        kernels[name] = time + (number_of(each, "time") or 0), share + (number_of(each, "share") or 0)
    shown = sorted(((time, share, name) for name, (time, share) in kernels.items() if time > 0), reverse=True)
    bars = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{format_duration(time)}</td><td class="n">{share:.1%}</td>'
        f'<td class="bars"><i style="width:{min(max(share, 0), 1):.1%}"></i></td></tr>'
        for time, share, name in shown[:TOP]
    )  # fmt: skip
    if bars:
        yield f"<h2>Where the time of one run goes</h2><table>{bars}</table>"


def _conditions(result: Result) -> Iterator[str]:
    readings = list_of(result, "conditions")
    names = list(dict.fromkeys(name for each in readings for name in each))
    fixed = [name for name in names if len({json.dumps(each.get(name)) for each in readings}) == 1]
    if not readings:
        return
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(_plain(readings[0][name]))}</td></tr>" for name in fixed)
    moving = [name for name in names if name not in fixed]
    step = max(math.ceil(len(readings) / READINGS), 1)
    head = "".join(f"<th>{escape(name)}</th>" for name in moving)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(_plain(each.get(name)))}</td>" for name in moving) + "</tr>"
        for each in readings[::step]
    )
    every = "" if step == 1 else f", each {step}th of them here"
    yield (
        f"<details><summary>Conditions: {len(readings)} readings{every}</summary><table>{rows}</table>"
        f'<div class="wide"><table class="small"><tr>{head}</tr>{lines}</table></div></details>'
    )


def _facts(result: Result) -> Iterator[str]:
    parts = (
        "conditions",
        "energy",
        "warnings",
        "verdict",
        "comparison",
        "baseline",
        "profile",
        "sustained",
        "latency",
        "error",
    )
    left_out = {*parts, "results_s", "schema", "title", "text", "summary", *(f"{name}_s" for name in FIGURES)}
    facts: list[tuple[str, object]] = []
    for name, value in result.items():
        if name in left_out or value in (None, "", [], {}):
            continue
        facts += value.items() if name == "environment" else [(name, value)]
    rows = "".join(f"<tr><th>{escape(str(name))}</th><td>{escape(_plain(value))}</td></tr>" for name, value in facts)
    if rows:
        yield f"<h2>What ran, where, when</h2><table>{rows}</table>"


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(each)}" for name, each in value.items())
    return str(value)
