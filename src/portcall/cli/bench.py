# SPDX-License-Identifier: Apache-2.0
"""``portcall bench``: time a function or a model, and say whether the figure can be trusted."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import portcall
from portcall.bench import Latency, Measurement, Sustained, reader, title_of
from portcall.cli import _bench_cool, _bench_report
from portcall.cli._bench_against import against_options, compare_sides, is_comparison, report_error
from portcall.cli._bench_export import annotation, write_junit, write_pyperf
from portcall.cli._bench_keep import open_kept
from portcall.cli._bench_language import bench_language, language_options
from portcall.cli._bench_report import write_page
from portcall.cli._bench_stored import compare_stored, show_stored, stored_code, stored_side
from portcall.cli._bench_subject import Subject, open_subject, show_profile
from portcall.cli._bench_trace import recording, write_trace
from portcall.cli._bench_ways import Run, check_ways, measure_at, way_options
from portcall.cli._call import call_options, is_model
from portcall.cli._command import Command
from portcall.cli._errors import UNTRUSTED, CommandError, explain
from portcall.cli._model import model_options
from portcall.cli._onnx import compiled, fix_options, target_option
from portcall.cli._output import print_json, print_line, print_problem, print_warning
from portcall.errors import FarmError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from portcall.bench import Verdict
    from portcall.farm import Lease
    from portcall.graph import Profile
    from portcall.vm import Profile as CallProfile

EXAMPLES = """
portcall bench kernels.so add_one --arg 'random:float32[1024]' --out 'float32[1024]'
portcall bench kernels.so matmul --arg @a.npy --arg @b.npy --out 'float32[64,64]' --number 100 --repeat 50
portcall bench kernels.so add_one --arg 'ones:float32[8]' --out 'float32[8]' --json times.json
portcall bench kernels.so add_one --arg 'ones:float32[8]' --out 'float32[8]' --strict || echo "do not trust this"
portcall bench kernels.so matmul --rpc board.local:9090 --key rasp --arg @a.npy --arg @b.npy --out 'float32[64,64]'
portcall bench m.so --arg @x.npy --profile
portcall bench m.json kernels.so --params m.params --input data=random --profile --trace trace.json
portcall bench resnet50.onnx --fill random
portcall bench kernels.so add_one --arg 'ones:float32[8]' --out 'float32[8]' --sustained 5m --cool 2m
portcall bench resnet50.onnx --fill random --latency --every 33ms
portcall bench new.so matmul --against old.so --arg @a.npy --arg @b.npy --out 'float32[64,64]' --fail-above 5%
portcall bench llm.so --weights weights --tokens 64
portcall bench bundle.so --input data=@x.npy --end-to-end --rpc board.local:9090 --key rasp
"""
OTHERS = {  # commands, and what they do
    _bench_report.WORD: (_bench_report.command, "Show stored results again."),
    _bench_cool.WORD: (_bench_cool.command, "Wait until this machine is cool."),
}
SCHEMA = 1


class BenchCommand(Command):
    """The command; with `report` or `cool` as its first word, that one."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in OTHERS:
            other, summary = OTHERS[args[0]]
            other.summary = summary
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        words = list(args)
        ctx = super().make_context(info_name, args, parent, **extra)
        ctx.meta["words"] = words
        return ctx


@click.command("bench", cls=BenchCommand, examples=EXAMPLES)
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
@way_options
@against_options
@language_options
@click.option("--end-to-end", is_flag=True, help="Time the copies of a model's inputs and outputs, too.")
@click.option("--profile", is_flag=True, help="Show where the time of a model goes, kernel by kernel.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write a model's nodes as a trace for ui.perfetto.dev.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write a report, a page in one file.")
@click.option("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Write the answer as a test of JUnit.")
@click.option("--pyperf", type=click.Path(dir_okay=False), metavar="FILE", help="Write the windows as pyperf's JSON.")
@click.option("--energy", is_flag=True, help="Say how many joules a call takes, where a sensor tells.")
@click.option("--keep", is_flag=True, help="With --farm: keep the figure in the farm's history, for the place's page.")
@click.option("--strict", is_flag=True, help="Exit with 6 when anything makes the numbers doubtful.")
@click.pass_context
def command(ctx: click.Context, /, json_to: str | None, strict: bool, **given: Any) -> None:
    """After a warm-up each repeat is the mean of so many calls, measured in the core, without Python. Without --number
    and --repeat, counts are chosen that take about 2 s in all: 40 repeats, fewer of slow calls. The last line says
    whether the figure can be trusted. Arguments and inputs (SPEC) as in: portcall run --help.

    With --against or --against-rpc two sides are timed in turns, in processes that are started for each run, until it
    is known which is faster, or that they differ by no more than --margin.

    With --sustained, what is measured until Ctrl-C or an error of the server is kept. --latency tells a percentile only
    where the calls are enough for an interval.

    `portcall bench report FILE` shows what --json or --html wrote, and `portcall bench cool TIME` waits until this
    machine is cool; libraries of these names are ./report and ./cool.

    With --weights the library is a language model; tokens a second are told of a prompt and of what is generated.

    A profile and a trace are of one run of the model, after the others, with each node's device waited for.
    """
    if given["weights"]:
        bench_language(ctx, given, json_to)
        return
    check_ways(given)
    stored = stored_side(given)
    if stored is None and is_comparison(given):
        compare_two(ctx, given, json_to, strict)
        return
    prepare(given)
    with contextlib.ExitStack() as stack:
        lease = open_kept(given, stack) if given["keep"] else None
        timed = bench(ctx, given)
        unkept = keep_figure(lease, timed) if lease else None
    measurement, subject, place = timed.measurement, timed.subject, timed.subject.place
    counts, verdict = measurement.counts, measurement.verdict
    error = measurement.error or unkept
    problem = explain(error, "bench") if error else None
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "title": f"{subject.text} on {place.name}",
        **({"summary": measurement.words()} if isinstance(measurement, (Latency, Sustained)) else {}),
        **subject.facts,
        "device": given["device"],
        "seed": given["seed"],
        "number": counts.number,
        "repeat": counts.repeat,
        "min_repeat_ms": given["min_repeat_ms"],
        **measurement.to_dict(),
        "environment": environment(ctx),
        **({"profile": timed.profile.to_dict()} if timed.profile and given["profile"] else {}),
        **place.facts(),
    }
    usual = None
    if stored is not None:
        try:
            usual = compare_stored(report, stored, given)
            report["baseline"] = {**usual.to_dict(), "text": str(usual)}
        except CommandError as error:  # what was measured is kept
            problem = problem or explain(error, "bench")
    if problem:
        report["error"] = problem.to_dict()["error"]
    untrusted = UNTRUSTED if strict and not verdict.ok else 0
    code = problem.exit_code if problem else (usual and stored_code(usual)) or untrusted
    write_forms(given, report, measurement.result.median, str(usual or verdict), code)
    if json_to is not None:
        print_json(report, json_to)
    else:
        print_line(f"{subject.text} on {place.name}")
        print_line(str(counts))
        print_line(str(measurement.result))
        if isinstance(measurement, (Latency, Sustained)):
            print_line(measurement.words())
        if given["energy"]:
            print_line(energy_words(measurement))
        if timed.profile and given["profile"]:
            show_profile(timed.profile, subject.origins)
        if given["trace"] and timed.profile:
            print_line(f"trace of one run: {given['trace']}, for ui.perfetto.dev")
        if given["html"]:
            print_line(f"report: {given['html']}")
        place.show("all runs")
        show_verdict(verdict)
        if usual and stored:
            show_stored(usual, report, stored)
    annotate(usual.gate if usual else None, str(usual), json_to)
    if problem:
        print_problem(problem)
    ctx.exit(code)


def write_forms(given: dict[str, Any], report: dict[str, Any], seconds: float, text: str, code: int) -> None:
    """Write the files that were asked for: a report, and what other programs read."""
    if given["html"]:
        write_page([report], given["html"])
    if given["junit"]:
        error = report.get("error", {}).get("message", "")
        write_junit(given["junit"], title_of(report), seconds, text, bool(code), error)
    if given["pyperf"]:
        write_pyperf(given["pyperf"], report)


def annotate(gate: str | None, text: str, json_to: str | None) -> None:
    """Print what GitHub's actions show beside a change, where they run and a gate failed."""
    if os.environ.get("GITHUB_ACTIONS") and (line := annotation(gate, text)):
        click.echo(line, err=json_to == "-")


def energy_words(measurement: Measurement) -> str:
    """Return what a call costs in a line."""
    joules, watts = measurement.joules, measurement.watts
    if joules is None or watts is None:
        return "energy: no sensor"
    return f"energy: {joules:.3g} J a call, {watts:.3g} W ({', '.join(measurement.conditions[-1].energy_from)})"


def keep_figure(lease: Lease, timed: Timed) -> FarmError | None:
    """Keep a figure in the history of a farm; return why it was not."""
    verdict = timed.measurement.verdict
    try:
        lease.keep(timed.subject.text, verdict.median, verdict.interval, verdict.ok and not timed.measurement.error)
    except FarmError as error:
        return error
    return None


def prepare(given: dict[str, Any]) -> None:
    """Compile the file where it is an ONNX model; ``named`` is the file that the user wrote."""
    given["named"] = given["file"]
    given["file"] = compiled(given["file"], given["shapes"], given["constants"], given["target"], given["inputs"])


def compare_two(ctx: click.Context, given: dict[str, Any], json_to: str | None, strict: bool) -> None:
    """Compare with another file or board, and say which one is faster."""
    other = given["against"] or given["file"]
    given["kernels"] = bool(given["second"]) and is_model(given)  # of a graph whose library is the second word
    old = {**given, "rpc": given["against_rpc"] or given["rpc"], "second" if given["kernels"] else "file": other}
    for words in (given, old):
        prepare(words)
    taken: dict[str, Sequence[str]] = {}  # what the sides' models take

    @contextlib.contextmanager
    def open_run(words: dict[str, Any]) -> Iterator[Run]:
        with open_subject(ctx, words) as subject:
            taken[words["named"]] = subject.inputs
            check_alike(taken)
            yield subject.run

    compared = compare_sides(given, old, open_run)
    problem = report_error(compared)
    report = {
        "schema": SCHEMA, **compared.to_dict(), "text": str(compared), "environment": environment(ctx),
        **({"error": problem.to_dict()["error"]} if problem else {}),
    }  # fmt: skip
    code = problem.exit_code if problem else compared.exit_code(strict)
    write_forms({**given, "pyperf": None}, report, compared.comparison.seconds[0], str(compared), code)
    if json_to is not None:
        print_json(report, json_to)
    else:
        print_line(str(compared))
        if given["html"]:
            print_line(f"report: {given['html']}")
    annotate(compared.comparison.gate, str(compared), json_to)
    if problem:
        print_problem(problem)
    ctx.exit(code)


def check_alike(taken: Mapping[str, Sequence[str]]) -> None:
    """See to it that all models take inputs of the same types and shapes.

    Raises:
        click.UsageError: they do not; their times say nothing of each other.
    """
    (file, first), *others = taken.items()
    for other, inputs in others:
        if inputs != first:
            raise click.UsageError(
                f"{file} takes {' and '.join(first)}, and {other} {' and '.join(inputs)}: these are different models, "
                "or have different shapes (--shape)"
            )


@dataclass(frozen=True)
class Timed:
    """A subject and what was measured of it; its profile, where it was asked for."""

    subject: Subject
    measurement: Measurement
    profile: Profile | CallProfile | None


def bench(ctx: click.Context, given: dict[str, Any]) -> Timed:
    with open_subject(ctx, given) as subject:
        measurement = measure_at(subject.place, subject.run, given)
        wanted = (given["profile"] or given["trace"]) and not measurement.error
        read = reader(subject.place.session) if given["trace"] else None
        before = read() if read else None
        with recording(bool(read and subject.place.session)) as calls:
            profile = subject.profile() if subject.profile and wanted else None
        if read and profile is not None:
            write_trace(profile, before, read(), given["trace"], calls.events() if calls else [])
    return Timed(subject, measurement, profile)


def show_verdict(verdict: Verdict) -> None:
    """Print whether the figure can be trusted; where not, what to do about each reason, and what else was seen."""
    print_line(str(verdict))
    for finding in () if verdict.ok else verdict.findings:
        if finding.note:
            print_warning(finding.message, finding.advice)
        else:
            print_line(f"  {finding.code}: {finding.advice}")


def environment(ctx: click.Context) -> dict[str, object]:
    """Return what a reader of the numbers must know: the command, and the machine from which it was given."""
    return {
        "command": shlex.join(["portcall", "bench", *ctx.meta.get("words", ())]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "portcall": portcall.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def processor() -> str:
    """Return what the system calls this machine's processor; an empty text where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""
