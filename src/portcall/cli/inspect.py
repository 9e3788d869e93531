# SPDX-License-Identifier: Apache-2.0
"""``portcall inspect``: what a library is, offers and needs; the file is read, nothing of it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from portcall.bench import format_size
from portcall.cli._command import Command
from portcall.cli._errors import UNTRUSTED
from portcall.cli._output import console, print_facts, print_json, print_line
from portcall.preflight import LibraryReport, inspect_library

if TYPE_CHECKING:
    from rich.tree import Tree

EXAMPLES = """
portcall inspect kernels.so
portcall inspect kernels.so --json | jq .functions
portcall inspect kernels.so --strict && scp kernels.so board:
"""
# Plain libraries may export thousands of functions; with --all every one is listed.
LISTED = 40


@click.command("inspect", cls=Command, examples=EXAMPLES)
@click.argument("library", type=click.Path())
@click.option("--all", "everything", is_flag=True, help="List every function and symbol, however many there are.")
@click.option("--strict", is_flag=True, help="Exit with 6 when the library will not load or run here.")
@click.pass_context
def command(ctx: click.Context, library: str, everything: bool, strict: bool, json_to: str | None) -> None:
    """Reads ELF files of any machine. For this machine it also looks for what the library needs: other libraries,
    symbols and their versions.
    """
    report = inspect_library(library)
    if json_to is not None:
        print_json(asdict(report), json_to)
    else:
        show(report, everything)
    if strict and report.problems:
        ctx.exit(UNTRUSTED)


def show(report: LibraryReport, everything: bool) -> None:
    print_facts(facts(report, everything))
    if report.modules:
        print_line("modules inside")
        console().print(module_tree(report, 0, frozenset()))
    for problem in report.problems:
        print_line(problem, "problem", "yellow")
    if not report.problems:
        print_line("everything it needs is here", "no problem", "green")


def facts(report: LibraryReport, everything: bool) -> Iterator[tuple[str, str]]:
    yield "file", f"{report.path} ({format_size(report.nbytes)})"
    yield "machine", f"{report.machine}, {report.kind}"
    yield "calls", f"{report.abi} ABI ({report.origin})"
    yield "functions", listed(report.functions, everything) or "none"
    if report.entry:
        yield "entry", "it has one: calling the module calls it"
    if report.documented:
        yield "with types", listed(report.documented, everything)
    if report.contexts:
        yield "filled in", listed(report.contexts, everything)
    if report.runtime_imports:
        yield "calls back", listed(report.runtime_imports, everything)
    for number, dependency in enumerate(report.needed):
        yield "needs" if number == 0 else "", f"{dependency.name}{dependency.path and f' ({dependency.path})'}"
    if report.other_imports:
        yield "and", f"{report.other_imports} symbols of other libraries"


def listed(names: tuple[str, ...], everything: bool) -> str:
    if everything or len(names) <= LISTED:
        return "\n".join(names)
    return "\n".join((*names[:LISTED], f"… and {len(names) - LISTED} more (--all lists them)"))


def module_tree(report: LibraryReport, place: int, above: frozenset[int]) -> Tree:
    """Return a module and what it imports; a module that imports itself, however indirectly, is not followed."""
    from rich.text import Text
    from rich.tree import Tree

    module = report.modules[place]
    size = "" if module.nbytes is None else f" ({format_size(module.nbytes)})"
    tree = Tree(Text(f"{module.kind}{size}" if module.kind != "_lib" else "this library"))
    for child in module.imports:
        if child not in above and child != place:
            tree.add(module_tree(report, child, above | {place}))
    return tree
