# SPDX-License-Identifier: Apache-2.0
"""What ``portcall bench`` times, opened with its arguments: a function, or a model and where its time goes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import BenchmarkResult, format_duration
from portcall.cli._bench_ways import Run
from portcall.cli._call import (
    Call,
    Place,
    arguments_of,
    calling,
    find_function,
    find_machine_function,
    is_model,
    isolate_here,
    open_machine,
    open_place,
)
from portcall.cli._graph_report import origins_of, words_of
from portcall.cli._model import open_model
from portcall.cli._output import console, print_line, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from portcall.graph import KernelProfile, Profile
    from portcall.vm import Profile as CallProfile
    from portcall.vm import ProfileRow

TOP, FEW_NODES = 20, 3  # kernels that a profile shows, and names of their nodes
PROFILE_COLUMNS = ("time", "share", "calls", "kernel")


@dataclass(frozen=True)
class Subject:
    """What is timed: a function or a model, opened with its arguments.

    Attributes:
        text: in words.
        facts: for JSON.
        run: times so many calls, so many times, with a pause after each time.
        profile: runs it once, and says where the time goes; None where there is no such thing.
        origins: what nodes compute of the model that was compiled, by name.
        inputs: types and shapes of what a model takes.
    """

    text: str
    facts: dict[str, object]
    place: Place
    run: Run
    profile: Callable[[], Profile | CallProfile] | None = None
    origins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    inputs: Sequence[str] = ()


def open_subject(ctx: click.Context, given: dict[str, Any]) -> AbstractContextManager[Subject]:
    """Open what the words of a command mean."""
    return (open_benched_model if is_model(given) else open_benched_function)(ctx, given)


@contextlib.contextmanager
def open_benched_function(ctx: click.Context, given: dict[str, Any]) -> Iterator[Subject]:
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

        def run(number: int, repeat: int, pause_ms: int = 0) -> BenchmarkResult:
            options = {"number": number, "repeat": repeat, "min_repeat_ms": given["min_repeat_ms"],
                       "cooldown_interval_ms": pause_ms}  # fmt: skip
            if machine:
                of_machine: BenchmarkResult = calling(
                    call, lambda: machine.benchmark(*call.values(), function=name, **options)
                )
                return of_machine
            evaluator = place.library.time_evaluator(call.name, place.device, **options)
            timed: BenchmarkResult = calling(call, lambda: evaluator(*call.values()))
            return timed

        profile = (lambda: machine.profile(*call.values(), function=name)) if machine else None
        yield Subject(str(call), call.to_dict(), place, run, profile)


@contextlib.contextmanager
def open_benched_model(ctx: click.Context, given: dict[str, Any]) -> Iterator[Subject]:
    with open_model(ctx, given) as model:
        from portcall.graph import GraphModuleDebug, file_kind, read_bundle

        end_to_end = given["end_to_end"]
        inputs: dict[str, Any] = {name: each.array for name, each in model.inputs.items()} if end_to_end else {}

        def run(number: int, repeat: int, pause_ms: int = 0) -> BenchmarkResult:
            return model.executor.benchmark(
                model.place.device, number=number, repeat=repeat, min_repeat_ms=given["min_repeat_ms"],
                end_to_end=end_to_end, cooldown_interval_ms=pause_ms, **inputs,
            )  # fmt: skip

        yield Subject(
            f"{model}{', end to end,' if end_to_end else ''}",
            {**model.to_dict(), "end_to_end": end_to_end, "trace": given["trace"]},
            model.place,
            run,
            lambda: GraphModuleDebug(model.executor.module, model.executor.plan).profile(),
            origins_of(read_bundle(given["file"]).graph) if file_kind(given["file"]) == "bundle" else {},
            sorted(f"{each.array.dtype}{list(each.array.shape)}" for each in model.inputs.values()),
        )


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
