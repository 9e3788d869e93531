# SPDX-License-Identifier: Apache-2.0
"""``portcall bench``: time one function or a model, and say what makes the numbers doubtful."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

import portcall
from portcall.bench import BenchmarkResult, check_conditions
from portcall.cli._arguments import make_arguments
from portcall.cli._call import (
    Call,
    Place,
    call_options,
    find_function,
    guarded,
    isolate_here,
    names_model,
    open_place,
)
from portcall.cli._command import Command
from portcall.cli._errors import UNTRUSTED
from portcall.cli._model import model_options, open_model
from portcall.cli._output import console, print_json, print_line, print_warning

if TYPE_CHECKING:
    from portcall.graph import Profile

EXAMPLES = """
portcall bench kernels.so add_one --arg 'random:float32[1024]' --out 'float32[1024]'
portcall bench kernels.so matmul --arg @a.npy --arg @b.npy --out 'float32[64,64]' --number 100 --repeat 20
portcall bench kernels.so add_one --arg 'ones:float32[8]' --out 'float32[8]' --min-repeat-ms 10 --json times.json
portcall bench kernels.so add_one --arg 'ones:float32[8]' --out 'float32[8]' --strict || echo "do not trust this"
portcall bench kernels.so matmul --rpc board.local:9090 --key rasp --arg @a.npy --arg @b.npy --out 'float32[64,64]'
portcall bench m.json kernels.so --params m.params --input data=random --profile --trace trace.json
portcall bench bundle.so --input data=@x.npy --end-to-end --rpc board.local:9090 --key rasp
"""
SCHEMA = 1
OF_THE_NUMBERS = ("short", "unstable")  # codes of findings


@click.command("bench", cls=Command, examples=EXAMPLES)
@call_options
@model_options
@click.option("--number", default=10, show_default=True, type=click.IntRange(min=1), help="Calls in a repeat.")
@click.option("--repeat", default=20, show_default=True, type=click.IntRange(min=1), help="Repeats: one result each.")
@click.option(
    "--min-repeat-ms",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Raise --number until a repeat lasts so long (ms).",
)
@click.option("--end-to-end", is_flag=True, help="Time the copies of a model's inputs and outputs, too.")
@click.option("--profile", is_flag=True, help="Show where the time of a model goes, node by node.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write a model's nodes as a trace for ui.perfetto.dev.")
@click.option("--strict", is_flag=True, help="Exit with 6 when anything makes the numbers doubtful.")
@click.pass_context
def command(ctx: click.Context, /, json_to: str | None, strict: bool, **given: Any) -> None:
    """The function is called once to warm up; then each repeat is the mean of so many calls (--number), measured in
    the core, without Python. Arguments and inputs (SPEC) as in: portcall run --help.

    A profile and a trace are of one run of the model, after the others, with each node's device waited for.
    """
    settings = {name: given[name] for name in ("number", "repeat", "min_repeat_ms")}
    timed = (bench_model if names_model(given) else bench_function)(ctx, given, settings)
    result, place = timed.result, timed.place
    findings = check_conditions(result, repeat_seconds(result, given["number"], given["min_repeat_ms"]))
    if place.session is not None:  # the state of this machine does not matter to a run on another
        findings = [finding for finding in findings if finding.code in OF_THE_NUMBERS]
    if json_to is not None:
        report = {
            "schema": SCHEMA,
            **timed.facts,
            "device": given["device"],
            "seed": given["seed"],
            **settings,
            **result.to_dict(),
            "warnings": [finding.to_dict() for finding in findings],
            "environment": environment(),
            **({"profile": timed.profile.to_dict()} if timed.profile and given["profile"] else {}),
            **place.facts(),
        }
        print_json(report, json_to)
    else:
        print_line(f"{timed.text} on {place.name}")
        print_line(str(result))
        if timed.profile and given["profile"]:
            print_line("")
            console().print(timed.profile)
        if given["trace"]:
            print_line(f"trace of one run: {given['trace']}, for ui.perfetto.dev")
        place.show()
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
    """

    text: str
    facts: dict[str, object]
    place: Place
    result: BenchmarkResult
    profile: Profile | None = None


def bench_function(ctx: click.Context, given: dict[str, Any], settings: dict[str, Any]) -> Timed:
    for option in ("end_to_end", "profile", "trace"):
        if given[option]:
            raise click.UsageError(f"--{option.replace('_', '-')} is for models")
    path, name = given["file"], given["second"]
    isolate_here(ctx, given, f"{name} of {path}")
    with open_place(given, path, [given["device"]]) as place:
        find_function(place.library, path, name)
        arguments = make_arguments(given["args"], given["outs"], given["seed"], place.make_tensor)
        call = Call(path, name, tuple(arguments))
        evaluator = place.library.time_evaluator(call.name, place.device, **settings)
        result = guarded(call, lambda: evaluator(*call.values()))
    return Timed(str(call), call.to_dict(), place, result)


def bench_model(ctx: click.Context, given: dict[str, Any], settings: dict[str, Any]) -> Timed:
    with open_model(ctx, given) as model:
        from portcall.graph import GraphModuleDebug

        end_to_end = given["end_to_end"]
        inputs: dict[str, Any] = {name: each.array for name, each in model.inputs.items()} if end_to_end else {}
        result = model.executor.benchmark(model.place.device, end_to_end=end_to_end, **settings, **inputs)
        profile = None
        if given["profile"] or given["trace"]:
            profile = GraphModuleDebug(model.executor.module, model.executor.plan).profile()
        if profile and given["trace"]:
            profile.save_trace(given["trace"])
    facts = {**model.to_dict(), "end_to_end": end_to_end, "trace": given["trace"]}
    return Timed(f"{model}{', end to end,' if end_to_end else ''}", facts, model.place, result, profile)


def repeat_seconds(result: BenchmarkResult, number: int, min_repeat_ms: int) -> float:
    """Return how long the shortest repeat lasted: the core raises ``number`` where ``min_repeat_ms`` asks for it."""
    return max(result.min * number, min_repeat_ms * 1e-3)


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
