# SPDX-License-Identifier: Apache-2.0
"""Reports: what the page has in it, that it asks for nothing, that it is read again; what stored files may be."""

from __future__ import annotations

import math
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from portcall import bench
from portcall.bench import BenchmarkResult, Comparison, Counts, Interval, Measurement, Reading, judge

NUMBER = 100
ASKS = {"script", "link", "img", "iframe", "object", "embed", "form", "base", "audio", "video", "image", "use"}


def measured(windows: int, slower: float = 0.0, readings: int = 10) -> Measurement:
    """A measurement of seeded windows of 50 ms, the second half slower, by a machine that is throttled then."""
    noise = random.Random(windows)
    values = [5e-4 * noise.gauss(1, 0.004) * (1 + slower * (at > windows / 2)) for at in range(windows)]
    step = max(windows // readings, 1)
    before = Reading(time_ns=0, probe_ns=77_000, on_cpu_ns=0, waited_ns=0, process_ns=0, temperature_c=50, throttles=0)
    intervals = []
    for at in range(0, windows, step):
        group = values[at : at + step]
        elapsed = (before.time_ns or 0) + round(sum(group) * NUMBER * 1e9)
        hot = slower and at > windows / 2
        after = Reading(
            time_ns=elapsed, probe_ns=77_000 + 9000 * bool(hot), on_cpu_ns=elapsed, waited_ns=0, process_ns=elapsed,
            temperature_c=84 if hot else 50, throttles=int(bool(hot)), load1=0.1 + at, running=at,
        )  # fmt: skip
        intervals.append(Interval(before, after, sum(group) * NUMBER, len(group)))
        before = after
    result = BenchmarkResult(tuple(values))
    verdict = judge(result, NUMBER, intervals)
    return Measurement(result, Counts(NUMBER, windows, 2.0), tuple(intervals), verdict)


COMPARED = Comparison(tuple(0.95 + 0.001 * k for k in range(6)), seconds=(1e-3, 1.05e-3))


class Page(HTMLParser):
    """What a browser would ask for, and the words that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.asked: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.asked += [str(value) for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]
        self.asked += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_report_has_the_verdict_the_findings_and_pictures_and_asks_for_nothing(tmp_path: Path) -> None:
    slowed = measured(40, 0.2)
    bench.report([slowed, COMPARED], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    page = Page(text)
    assert not ASKS & set(page.tags)
    assert not page.asked
    assert "url(" not in text
    assert "@import" not in text
    assert str(slowed.verdict) in page.words
    assert str(COMPARED) in page.words
    for finding in slowed.verdict.findings:
        assert finding.advice in page.words
    assert page.tags.count("svg") == 6  # series, distribution, clock, heat, waited; the comparison
    assert {"throttled", "shift"} <= {each.code for each in slowed.verdict.findings}


def test_report_of_2000_windows_and_300_readings_stays_below_200_kb(tmp_path: Path) -> None:
    bench.report([measured(2000, 0.2, 300)], tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 200_000


def test_report_without_room_for_its_data_says_so(tmp_path: Path) -> None:
    bench.report([measured(40_000)], tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 200_000
    with pytest.raises(ValueError, match="without its data"):
        bench.read_results(tmp_path / "r.html")


def test_read_results_has_what_a_report_was_made_of(tmp_path: Path) -> None:
    one = measured(40)
    bench.report([one, COMPARED], tmp_path / "r.html")
    read = bench.read_results(tmp_path / "r.html")
    assert tuple(read[0]["results_s"]) == one.result.results
    assert tuple(read[1]["comparison"]["ratios"]) == COMPARED.ratios
    bench.report(read, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == (tmp_path / "r.html").read_text()


def test_report_escapes_what_a_result_says(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    stored: dict[str, Any] = {
        "schema": 1, **measured(40).to_dict(), "title": evil, "error": {"message": evil},
        "environment": {evil: evil}, "profile": {"nodes": [{"function": evil, "time": 1.0, "share": 1.0}]},
        "warnings": [{"code": evil, "message": evil, "advice": evil}],
    }  # fmt: skip
    stored["conditions"] = [{**each, evil: evil} for each in stored["conditions"]]
    bench.report([stored], tmp_path / "r.html")
    assert "script" not in Page((tmp_path / "r.html").read_text()).tags


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "[]", "{}", '{"nodes": []}', "<html>", '<pre id="portcall-data" hidden>eJwr</pre>',
     '{"schema": 2, "results_s": [1.0]}', '{"schema": 1}', '{"schema": 1, "results_s": []}',
     '{"schema": 1, "results_s": ["1"]}', '{"schema": 1, "results_s": [true]}', '{"schema": 1, "results_s": [-1]}',
     '{"schema": 1, "results_s": [NaN]}', '{"schema": 1, "comparison": {}}', '{"schema": 1, "comparison": []}',
     '{"schema": 1, "results_s": [1.0], "verdict": []}', '{"schema": 1, "results_s": [1.0], "warnings": {}}',
     '{"schema": 1, "results": [1]}', '{"schema": 1, "results_s": [1e308]}',
     f'{{"schema": 1, "results_s": [{10**400}]}}', '{"schema": 1, "comparison": {"ratios": [1.0, 0.0]}}'],
)  # fmt: skip
def test_read_results_refuses_what_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"r\.json"):
        bench.read_results(tmp_path / "r.json")


def test_report_takes_damaged_details_as_they_are(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"schema": 1, "results_s": [1.0, 2.0]}
    for name in ("sustained", "latency", "energy", "profile", "memory_peak_bytes", "median_s", "number", "title"):
        for value in (
            None,
            1,
            "x",
            [],
            [1],
            {},
            {"percentiles": 3},
            {"nodes": 3},
            {"nodes": [3]},
            {"percentiles": [3]},
        ):
            bench.report([{**odd, name: value}], tmp_path / "r.html")
    readings: list[Any] = [[1], [{}], [{"time_ns": "x"}, {"time_ns": 3}], [{"time_ns": 0, "windows": -1}] * 2]
    for reading in readings:
        bench.report([{**odd, "conditions": reading}], tmp_path / "r.html")
    for number in (math.nan, math.inf, 10**400, 1e308):
        bench.report([{**odd, "conditions": [{"time_ns": number, "probe_ns": number}] * 2}], tmp_path / "r.html")
        bench.report(
            [{**odd, "latency": {"percentiles": [{"p": number}]}, "sustained": {"kept": number}}], tmp_path / "r.html"
        )
    bench.report([{**odd, "title": "f of \udcff.so"}], tmp_path / "r.html")  # a name of a file that is no Unicode
    assert bench.read_results(tmp_path / "r.html")[0]["title"] == "f of \udcff.so"
    for ends in (3, [1], ["x", "y"], [None, None], [math.nan, 1]):
        bench.report([{**odd, "verdict": {"interval_s": ends}, "warnings": [3]}], tmp_path / "r.html")
        bench.report([{"schema": 1, "comparison": {"ratios": [1.0], "interval": ends}}], tmp_path / "r.html")


def test_report_refuses_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing"):
        bench.report([], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
