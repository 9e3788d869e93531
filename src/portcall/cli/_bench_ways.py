# SPDX-License-Identifier: Apache-2.0
"""How ``portcall bench`` measures: by windows, for minutes (``--sustained``), or call by call (``--latency``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import BenchmarkResult, cool, format_duration, latency, measure, sustain
from portcall.cli._command import Decorated, read_limit, with_options

if TYPE_CHECKING:
    from portcall.bench import Measurement
    from portcall.cli._call import Place

# Called with number, repeat and, if there is to be one, the pause after each repeat, in milliseconds.
Run = Callable[..., BenchmarkResult]


def way_options(function: Decorated) -> Decorated:
    """Add the options that say how to measure."""
    options = [
        click.option(
            "--sustained", metavar="TIME", callback=read_limit,
            help="Measure so long, such as 5m, without a rest: what is kept up.",
        ),
        click.option(
            "--cool", metavar="TIME", callback=read_limit,
            help="Before, wait until the machine is as cool as at its best; at most so long.",
        ),
        click.option("--latency", is_flag=True, help="Time single calls: percentiles, with intervals."),
        click.option(
            "--every", metavar="TIME", callback=read_limit,
            help="With --latency: a call each so often, such as 33ms, as an application makes them.",
        ),
    ]  # fmt: skip
    return with_options(function, options)


def check_ways(given: dict[str, Any]) -> None:
    """Refuse options that do not fit together.

    Raises:
        click.UsageError: they do not.
    """
    if given["sustained"] and given["latency"]:
        raise click.UsageError("--sustained and --latency are two ways to measure; give one of them")
    if given["every"] and not given["latency"]:
        raise click.UsageError("--every is for --latency, which times single calls")
    if given["sustained"] and given["repeat"]:
        raise click.UsageError("--sustained says how long; leave out --repeat")
    if given["latency"] and (given["number"] or 1) > 1:
        raise click.UsageError("--latency times single calls: leave out --number; --repeat says how many")
    for way in ("sustained", "latency"):
        if given[way] and given["min_repeat_ms"]:
            raise click.UsageError(f"--{way} chooses its windows: leave out --min-repeat-ms")
    if not given["rpc"] and given["sustained"] and given["timeout"] and given["timeout"] <= given["sustained"]:
        long, short = format_duration(given["sustained"]), format_duration(given["timeout"])
        raise click.UsageError(f"--timeout ends the run after {short}, and --sustained takes {long}")


def measure_at(place: Place, run: Run, given: dict[str, Any]) -> Measurement:
    """Measure at a place, in the way and with the counts that are given."""
    common: Any = {
        "session": place.session,
        "on_host": all(device.kind == "cpu" for device in place.devices),
        "progress": place.status.expect,
    }
    hot = None
    if given["cool"]:
        name = place.session.name if place.session else ""
        hot = cool(given["cool"], session=place.session, place=name, progress=place.status.expect).finding
    measured: Measurement
    if given["sustained"]:
        measured = sustain(run, given["sustained"], given["number"], **common)
    elif given["latency"]:
        measured = latency(run, given["repeat"], given["every"], limit=given["timeout"], **common)
    else:
        measured = measure(
            run, given["number"], given["repeat"],
            min_repeat_ms=given["min_repeat_ms"], limit=given["timeout"], keep=True, **common,
        )  # fmt: skip
    if hot is not None:
        verdict = replace(measured.verdict, ok=False, findings=(hot, *measured.verdict.findings))
        measured = replace(measured, verdict=verdict)
    return measured
