# SPDX-License-Identifier: Apache-2.0
"""``portcall bench``: time a function or a model, and warn when the numbers are doubtful."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

import portcall
from portcall.bench import BenchmarkResult, check_conditions, format_duration
from portcall.cli._call import (
    Call,
    Place,
    arguments_of,
    call_options,
    calling,
    find_function,
    find_machine_function,
    is_model,
    isolate_here,
    open_machine,
    open_place,
)
from portcall.cli._command import Command
from portcall.cli._counts import TRIES, Counts, Measure, choose, too_short
from portcall.cli._errors import UNTRUSTED
from portcall.cli._graph_report import origins_of, words_of
from portcall.cli._model import model_options, open_model
from portcall.cli._onnx import compiled, fix_options, target_option
from portcall.cli._output import console, print_json, print_line, print_warning, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portcall.graph import KernelProfile, Profile
    from portcall.vm import Profile as CallProfile
    from portcall.vm import ProfileRow

EXAMPLES = """
portcall bench kernels.so add_one --arg 'random:float32[1024]' --out 'float32[1024]'
portcall bench kernels.so matmul --arg @a.npy --arg @b.npy --out 'float32[64,64]' --number 100 --repeat 50
portcall bench kernels.so add_one --arg 'ones:float32[8]' --out 'float32[8]' --json times.json
portcall bench kernels.so add_one --arg 'ones:float32[8]' --out 'float32[8]' --strict || echo "do not trust this"
portcall bench kernels.so matmul --rpc board.local:9090 --key rasp --arg @a.npy --arg @b.npy --out 'float32[64,64]'
portcall bench m.so --arg @x.npy --profile
portcall bench m.json kernels.so --params m.params --input data=random --profile --trace trace.json
portcall bench resnet50.onnx --fill random
portcall bench bundle.so --input data=@x.npy --end-to-end --rpc board.local:9090 --key rasp
"""
SCHEMA = 1
TOP, FEW_NODES = 20, 3  # kernels that a profile shows, and names of their nodes
PROFILE_COLUMNS = ("time", "share", "calls", "kernel")
OF_THE_NUMBERS = ("short", "unstable")  # codes of findings


@click.command("bench", cls=Command, examples=EXAMPLES)
@call_options
@model_options
@fix_options
@target_option
@click.option("--number", type=click.IntRange(min=1), help="Calls in a repeat; chosen where it is not given.")
@click.option("--repeat", type=click.IntRange(min=1), help="Repeats, one result each; chosen where it is not given.")
@click.option(
    "--min-repeat-ms",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Raise --number until a repeat lasts so long (ms).",
)
@click.option("--end-to-end", is_flag=True, help="Time the copies of a model's inputs and outputs, too.")
@click.option("--profile", is_flag=True, help="Show where the time of a model goes, kernel by kernel.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write a model's nodes as a trace for ui.perfetto.dev.")
@click.option("--strict", is_flag=True, help="Exit with 6 when anything makes the numbers doubtful.")
@click.pass_context
def command(ctx: click.Context, /, json_to: str | None, strict: bool, **given: Any) -> None:
    """After a warm-up each repeat is the mean of so many calls, measured in the core, without Python. Without --number
    and --repeat, counts are chosen that take about 2 s in all: 20 repeats, fewer of slow calls. Arguments and inputs
    (SPEC) as in: portcall run --help.

    A profile and a trace are of one run of the model, after the others, with each node's device waited for.
    """
    given["named"], given["file"] = (
        given["file"],
        compiled(given["file"], given["shapes"], given["constants"], given["target"]),
    )
    timed = (bench_model if is_model(given) else bench_function)(ctx, given)
    result, counts, place = timed.result, timed.counts, timed.place
    findings = check_conditions(result, max(result.min * counts.number, given["min_repeat_ms"] * 1e-3))
    if place.session is not None:  # the state of this machine does not matter to a run on another
        findings = [finding for finding in findings if finding.code in OF_THE_NUMBERS]
    if json_to is not None:
        report = {
            "schema": SCHEMA,
            **timed.facts,
            "device": given["device"],
            "seed": given["seed"],
            "number": counts.number,
            "repeat": counts.repeat,
            "min_repeat_ms": given["min_repeat_ms"],
            **result.to_dict(),
            "warnings": [finding.to_dict() for finding in findings],
            "environment": environment(),
            **({"profile": timed.profile.to_dict()} if timed.profile and given["profile"] else {}),
            **place.facts(),
        }
        print_json(report, json_to)
    else:
        print_line(f"{timed.text} on {place.name}")
        print_line(str(counts))
        print_line(str(result))
        if timed.profile and given["profile"]:
            show_profile(timed.profile, timed.origins)
        if given["trace"]:
            print_line(f"trace of one run: {given['trace']}, for ui.perfetto.dev")
        place.show("all runs")
        for finding in findings:
            print_warning(finding.message, finding.advice)
    if strict and findings:
        ctx.exit(UNTRUSTED)


@dataclass(frozen=True)
class Timed:
    """What was timed.

    Attributes:
        text: in words.
        facts: for JSON.
        profile: of a model, where it was asked for.
        origins: what nodes compute of the model that was compiled, by name.
    """

    text: str
    facts: dict[str, object]
    place: Place
    result: BenchmarkResult
    counts: Counts
    profile: Profile | CallProfile | None = None
    origins: Mapping[str, Sequence[str]] = field(default_factory=dict)


def bench_function(ctx: click.Context, given: dict[str, Any]) -> Timed:
    for option in ("end_to_end", "trace"):
        if given[option]:
            raise click.UsageError(f"--{option.replace('_', '-')} is for models")
    path, name = given["file"], given["second"]
    isolate_here(ctx, given, f"{name} of {path}")
    with open_place(given, path, [given["device"]]) as place:
        machine = open_machine(place, path)
        find_machine_function(machine, path, name) if machine else find_function(place.library, path, name)
        if given["profile"] and not machine:
            raise click.UsageError("--profile is for models")
        call = Call(path, name, arguments_of(machine, name, given, place))

        def measure(number: int, repeat: int) -> BenchmarkResult:
            if machine:
                options = {"number": number, "repeat": repeat, "min_repeat_ms": given["min_repeat_ms"]}
                of_machine: BenchmarkResult = calling(
                    call, lambda: machine.benchmark(*call.values(), function=name, **options)
                )
                return of_machine
            evaluator = place.library.time_evaluator(
                call.name, place.device, number=number, repeat=repeat, min_repeat_ms=given["min_repeat_ms"]
            )
            timed: BenchmarkResult = calling(call, lambda: evaluator(*call.values()))
            return timed

        result, counts = measure_well(measure, place, given)
        calls = machine.profile(*call.values(), function=name) if machine and given["profile"] else None
    return Timed(str(call), call.to_dict(), place, result, counts, calls)


def bench_model(ctx: click.Context, given: dict[str, Any]) -> Timed:
    with open_model(ctx, given) as model:
        from portcall.graph import GraphModuleDebug, file_kind, read_bundle

        end_to_end = given["end_to_end"]
        inputs: dict[str, Any] = {name: each.array for name, each in model.inputs.items()} if end_to_end else {}

        def measure(number: int, repeat: int) -> BenchmarkResult:
            return model.executor.benchmark(
                model.place.device, number=number, repeat=repeat, min_repeat_ms=given["min_repeat_ms"],
                end_to_end=end_to_end, **inputs,
            )  # fmt: skip

        result, counts = measure_well(measure, model.place, given)
        profile = None
        if given["profile"] or given["trace"]:
            profile = GraphModuleDebug(model.executor.module, model.executor.plan).profile()
        if profile and given["trace"]:
            profile.save_trace(given["trace"])
    facts = {**model.to_dict(), "end_to_end": end_to_end, "trace": given["trace"]}
    text = f"{model}{', end to end,' if end_to_end else ''}"
    is_bundle = file_kind(given["file"]) == "bundle"
    origins = origins_of(read_bundle(given["file"]).graph) if is_bundle else {}
    return Timed(text, facts, model.place, result, counts, profile, origins)


def measure_well(measure: Measure, place: Place, given: dict[str, Any]) -> tuple[BenchmarkResult, Counts]:
    """Measure, with the counts that are given or chosen; once more where chosen ones turn out to be too few."""
    for _ in range(TRIES):
        with place.status.expect("choosing how many calls to time", 0):
            counts = choose(measure, given["number"], given["repeat"], given["min_repeat_ms"], given["timeout"])
        with place.status.expect(f"timing {counts}", counts.seconds):
            result = measure(counts.number, counts.repeat)
        if given["number"] or not too_short(result, counts):
            break
    return result, counts


def show_profile(profile: Profile | CallProfile, origins: Mapping[str, Sequence[str]]) -> None:
    """Print where the time of a run went: the kernels that took most of it."""
    kernels: Sequence[KernelProfile | ProfileRow] = profile.rows if hasattr(profile, "rows") else profile.by_kernel()
    rows = [
        (format_duration(each.time), f"{each.share:.1%}", f"{calls_of(each):,}", name_of(each, origins))
        for each in kernels[:TOP]
    ]
    print_line(f"\none run, call by call: {format_duration(profile.total)}")
    console().print(table(PROFILE_COLUMNS, rows, right=PROFILE_COLUMNS[:3]))
    print_line("each call's time has the reading of the clock in it, tens of ns")
    if len(kernels) > TOP:
        rest = kernels[TOP:]
        share = sum(kernel.share for kernel in rest)
        print_line(f"… and {len(rest)} more kernels, {share:.1%}; --json and --trace have every node")


def calls_of(row: KernelProfile | ProfileRow) -> int:
    return row.calls if hasattr(row, "calls") else len(row.nodes)


def name_of(row: KernelProfile | ProfileRow, origins: Mapping[str, Sequence[str]]) -> str:
    """Return a kernel's name; of one that was compiled of a model its operators, and the nodes that call it."""
    if hasattr(row, "name"):
        return row.name
    names = [node.name for node in row.nodes]
    if names[0] not in origins:
        return row.function
    more = f" and {len(names) - FEW_NODES} more" if len(names) > FEW_NODES else ""
    return f"{words_of(row.function, origins[names[0]])}: {', '.join(names[:FEW_NODES])}{more}"


def environment() -> dict[str, object]:
    """Return what a reader of the numbers must know about this machine, from which the command was given."""
    return {
        "portcall": portcall.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
