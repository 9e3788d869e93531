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
from portcall.cli._call import Call, call_options, find_function, guarded, open_device, open_library
from portcall.cli._command import Command
from portcall.cli._errors import UNTRUSTED
from portcall.cli._isolate import isolate
from portcall.cli._output import print_json, print_line, print_warning

EXAMPLES = """
portcall bench kernels.so add_one --arg random:float32[1024] --out float32[1024]
portcall bench kernels.so matmul --arg @a.npy --arg @b.npy --out float32[64,64] --number 100 --repeat 20
portcall bench kernels.so add_one --arg ones:float32[8] --out float32[8] --min-repeat-ms 10 --json times.json
portcall bench kernels.so add_one --arg ones:float32[8] --out float32[8] --strict || echo "do not trust this"
"""
SCHEMA = 1


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
    isolate(ctx, f"{given['function']} of {given['library']}", given["timeout"])
    device = open_device(given["device"])
    library = open_library(given["library"])
    find_function(library, given["library"], given["function"])
    arguments = make_arguments(given["args"], given["outs"], given["seed"], device)
    call = Call(given["library"], given["function"], tuple(arguments))
    settings = {name: given[name] for name in ("number", "repeat", "min_repeat_ms")}
    evaluator = library.time_evaluator(call.name, device, **settings)
    result: BenchmarkResult = guarded(call, lambda: evaluator(*call.values()))
    findings = check_conditions(result, repeat_seconds(result, given["number"], given["min_repeat_ms"]))
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
        }
        print_json(report, json_to)
    else:
        print_line(f"{call} on {given['device']}")
        print_line(str(result))
        for finding in findings:
            print_warning(finding.message, finding.advice)
    if strict and findings:
        ctx.exit(UNTRUSTED)


def repeat_seconds(result: BenchmarkResult, number: int, min_repeat_ms: int) -> float:
    """Return how long the shortest repeat lasted: the core raises ``number`` where ``min_repeat_ms`` asks for it."""
    return max(result.min * number, min_repeat_ms * 1e-3)


def environment() -> dict[str, object]:
    """Return what a reader of the numbers must know about this machine."""
    return {
        "portcall": portcall.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
