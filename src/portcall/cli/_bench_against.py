# SPDX-License-Identifier: Apache-2.0
"""``portcall bench --against``: two libraries, models or boards, each in processes that are started for the run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import Comparison, compare
from portcall.cli._command import Decorated, with_options
from portcall.cli._errors import SLOWER, UNTRUSTED, CommandError, Explanation, explain
from portcall.cli._progress import StatusLine
from portcall.cli._remote import lease_place, open_session, session_of, uses_farm
from portcall.errors import PortcallError

if TYPE_CHECKING:
    from portcall.cli._bench_ways import Run
    from portcall.rpc import Session

Timer = Callable[[int], float]  # makes so many calls, and returns the seconds of all of them
Opening = Callable[[], AbstractContextManager[tuple["Session", StatusLine]]]
OpenRun = Callable[[dict[str, Any]], AbstractContextManager["Run"]]  # opens what words mean, to be timed
WITH_THE_REST = ("sustained", "latency", "every", "cool", "repeat", "min_repeat_ms", "profile", "trace", "pyperf")


def read_percent(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return a share: ``5%``, or 5, is 0.05."""
    if text is None:
        return None
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1
    if not 0 <= share < 100:
        raise click.BadParameter(f"{text!r} is no percentage; write it as 5%")
    return share


def against_options(function: Decorated) -> Decorated:
    """Add the options of comparisons."""
    options = [
        click.option("--against", multiple=True, metavar="FILE",
                     help="Compare with this library or model, the old one; or with stored results: *.json, a folder."),
        click.option("--against-rpc", metavar="HOST:PORT", help="Compare with this server, another board."),
        click.option("--margin", metavar="P", callback=read_percent, help="A difference that does not matter  [1%]"),
        click.option("--runs", type=click.IntRange(min=6), help="Pairs of processes at most  [48]"),
        click.option("--fail-above", metavar="P", callback=read_percent,
                     help="Exit with 7 where the new one is slower by more, with 6 where that is not settled."),
    ]  # fmt: skip
    return with_options(function, options)


def is_comparison(given: dict[str, Any]) -> bool:
    """Say whether a command compares.

    Raises:
        click.UsageError: its options do not fit together.
    """
    if not (given["against"] or given["against_rpc"]):
        for option in ("margin", "runs", "fail_above"):
            if given[option] is not None:
                raise click.UsageError(f"--{option.replace('_', '-')} is for comparisons: give --against, too")
        return False
    for option in WITH_THE_REST:
        if given[option]:
            raise click.UsageError(f"--{option.replace('_', '-')} is not for comparisons: leave it out")
    return True


@dataclass(frozen=True)
class Compared:
    """A comparison, what its sides are called, and the error that ended it, if one did."""

    comparison: Comparison
    new: str
    old: str
    error: BaseException | None

    def to_dict(self) -> dict[str, object]:
        """Return it ready for JSON."""
        return {"new": self.new, "old": self.old, "comparison": self.comparison.to_dict()}

    def __str__(self) -> str:
        return self.comparison.words(self.new, self.old)

    def exit_code(self, strict: bool) -> int:
        """Return what the command ends with: 7 above the limit, 6 where an answer was asked for and there is none."""
        if self.comparison.gate == "slower":
            return SLOWER
        open_ = self.comparison.gate == "not settled" or (strict and not self.comparison.settled)
        return UNTRUSTED if open_ else 0


def compare_sides(given: dict[str, Any], old: dict[str, Any], open_run: OpenRun) -> Compared:
    """Compare what two sets of words mean.

    Parameters:
        given, old: of the new and of the old side.
        open_run: opens a side: what times so many calls.
    """
    known: list[Comparison] = []
    error: BaseException | None = None
    limit = None if given["fail_above"] is None else 1 + given["fail_above"]
    options = {name: given[name] for name in ("margin", "runs", "number") if given[name] is not None}
    with StatusLine() as status, contextlib.ExitStack() as stack:
        sides = [_side(words, _opening(words, status, stack), open_run) for words in (given, old)]
        with status.count("comparing, in processes of their own", "runs") as advance:

            def keep(now: Comparison) -> None:
                known.append(now)
                advance(len(now.ratios), now.next_look)

            try:
                compare(sides[0], sides[1], limit=limit, on_run=keep, **options)
            except (PortcallError, CommandError, KeyboardInterrupt) as why:
                if not known:
                    raise
                error = why  # what was measured is kept
    return Compared(known[-1], *_names(given, old), error)


def _side(words: dict[str, Any], opening: Opening, open_run: OpenRun) -> Callable[[], AbstractContextManager[Timer]]:
    @contextlib.contextmanager
    def opened() -> Iterator[Timer]:
        with open_run({**words, "open": opening}) as run:
            yield lambda number: float(run(number, 1).results[0]) * number

    return opened


def _opening(words: dict[str, Any], status: StatusLine, stack: contextlib.ExitStack) -> Opening:
    """Return what opens a session for a side: there, or with a process of its own here."""
    timeout = words["timeout"]
    if words["rpc"]:
        return lambda: open_session(words["rpc"], words, timeout, status)
    if uses_farm(None, words):
        lease = stack.enter_context(lease_place(words, status))
        return lambda: _with(session_of(lease, words, timeout, status), status)
    from portcall.rpc import PopenSession

    return lambda: _with(PopenSession(call_timeout=timeout or 0), status)


@contextlib.contextmanager
def _with(session: AbstractContextManager[Session], status: StatusLine) -> Iterator[tuple[Session, StatusLine]]:
    with session as opened:
        yield opened, status


def _names(new: dict[str, Any], old: dict[str, Any]) -> tuple[str, str]:
    """Return what the sides are called: by their files, else by their boards; by more of a path where that is equal."""
    if new["rpc"] != old["rpc"]:
        return str(new["rpc"]), str(old["rpc"])
    paths = [words["second"] if words["kernels"] else words["named"] for words in (new, old)]
    names = [os.path.basename(path) for path in paths]
    return (names[0], names[1]) if names[0] != names[1] else (paths[0], paths[1])


def report_error(compared: Compared) -> Explanation | None:
    """Return the error that ended a comparison in words; None where none did."""
    return explain(compared.error, "bench") if compared.error else None
