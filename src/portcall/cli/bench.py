# SPDX-License-Identifier: Apache-2.0
"""``portcall bench``: time one function, and say what makes the numbers doubtful."""

from __future__ import annotations

import os
import platform
from typing import Any

import click

import portcall
from portcall.bench import BenchmarkResult, check_conditions
from portcall.cli._arguments import make_arguments
from portcall.cli._call import Call, call_options, find_function, guarded, open_place
from portcall.cli._command import Command
from portcall.cli._errors import UNTRUSTED
from portcall.cli._output import print_json, print_line, print_warning

EXAMPLES = """
portcall bench kernels.so add_one --arg random:float32[1024] --out float32[1024]
portcall bench kernels.so matmul --arg @a.npy --arg @b.npy --out float32[64,64] --number 100 --repeat 20
portcall bench kernels.so add_one --arg ones:float32[8] --out float32[8] --min-repeat-ms 10 --json times.json
portcall bench kernels.so add_one --arg ones:float32[8] --out float32[8] --strict || echo "do not trust this"
portcall bench kernels.so matmul --rpc board.local:9090 --key rasp --arg @a.npy --arg @b.npy --out float32[64,64]
"""
SCHEMA = 1
OF_THE_NUMBERS = ("short", "unstable")  # codes of findings


@click.command("bench", cls=Command, examples=EXAMPLES)
@call_options
@click.option("--number", default=10, show_default=True, type=click.IntRange(min=1), help="Calls in a repeat.")
@click.option("--repeat", default=20, show_default=True, type=click.IntRange(min=1), help="Repeats: one result each.")
@click.option(
    "--min-repeat-ms",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Raise --number until a repeat lasts so long (ms).",
)
@click.option("--strict", is_flag=True, help="Exit with 6 when anything makes the numbers doubtful.")
@click.pass_context
def command(ctx: click.Context, /, json_to: str | None, strict: bool, **given: Any) -> None:
    """The function is called once to warm up; then each repeat is the mean of so many calls (--number), measured in
    the core, without Python. Arguments (SPEC) as in: portcall run --help.
    """
    settings = {name: given[name] for name in ("number", "repeat", "min_repeat_ms")}
    with open_place(ctx, given) as place:
        find_function(place.library, given["library"], given["function"])
        arguments = make_arguments(given["args"], given["outs"], given["seed"], place.make_tensor)
        call = Call(given["library"], given["function"], tuple(arguments))
        evaluator = place.library.time_evaluator(call.name, place.device, **settings)
        result: BenchmarkResult = guarded(call, lambda: evaluator(*call.values()))
    findings = check_conditions(result, repeat_seconds(result, given["number"], given["min_repeat_ms"]))
    if place.session is not None:  # the state of this machine does not matter to a run on another
        findings = [finding for finding in findings if finding.code in OF_THE_NUMBERS]
    if json_to is not None:
        report = {
            "schema": SCHEMA,
            **call.to_dict(),
            "device": given["device"],
            "seed": given["seed"],
            **settings,
            **result.to_dict(),
            "warnings": [finding.to_dict() for finding in findings],
            "environment": environment(),
            **place.facts(),
        }
        print_json(report, json_to)
    else:
        print_line(f"{call} on {place.name}")
        print_line(str(result))
        place.show()
        for finding in findings:
            print_warning(finding.message, finding.advice)
    if strict and findings:
        ctx.exit(UNTRUSTED)


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
